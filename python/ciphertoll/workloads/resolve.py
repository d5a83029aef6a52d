"""From what a Spec names to what a child can open: built-in files, paths, and names of well-known models."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ciphertoll.errors import MachineError, SpecError, unknown
from ciphertoll.model import Command, Detector

_DATA = Path(__file__).resolve().parents[1] / "data"
BUILT_IN_MODEL = _DATA / "ssdlite-pedestrian-300.onnx"
BUILT_IN_VIDEO = _DATA / "pedestrians.mp4"
# The built-in pair finds 3.8 people per frame; a tenth of that means that it is broken, not unlucky.
_LEAST_DETECTIONS_PER_FRAME = 0.5
_KNOWN = tuple(f"{family}{size}" for family in ("yolov8", "yolo11", "yolo26") for size in "nsmlx")
_MODEL_SUFFIXES = (".onnx", ".tflite")
_MODEL_AT = "workload.model"
_VIDEO_AT = "workload.video"


def resolve(workload: Detector | Command) -> dict[str, Any]:
    """What the child of `workload` is told: its settings, with files in the place of names.

    A well-known model (`yolo11n`) that is not in the working directory is exported by ultralytics if that is installed,
    which takes up to minutes: call this once before anything is measured, and later calls find the file.

    Raises SpecError for a file or program that does not exist or has the wrong kind, MachineError if an export fails.
    """
    if isinstance(workload, Command):
        return _command(workload)
    built_in = workload.model == "builtin" and workload.video == "builtin"
    return {
        **asdict(workload),
        "model": str(_model(workload.model)),
        "video": _video(workload.video),
        "least_detections_per_frame": _LEAST_DETECTIONS_PER_FRAME if built_in else None,
    }


def _command(workload: Command) -> dict[str, Any]:
    if not workload.argv:
        raise SpecError("a command workload needs a program", at="workload.argv")
    if shutil.which(workload.argv[0]) is None:
        raise SpecError(
            f"command `{workload.argv[0]}` is not found or not executable",
            at="workload.argv",
            hint="give a path, or a name that is in PATH",
        )
    return asdict(workload)


def _model(name: str) -> Path:
    if name == "builtin":
        return BUILT_IN_MODEL
    if name in _KNOWN:
        return _well_known(name)
    path = Path(name)
    if path.suffix == ".pt":
        raise SpecError(
            f"model `{name}` is a PyTorch checkpoint, which runs code when it is opened",
            at=_MODEL_AT,
            accepted=[f"*{suffix}" for suffix in _MODEL_SUFFIXES],
            hint=f"`yolo export model={name} format=onnx imgsz=640` converts it",
        )
    if not path.suffix and not path.exists() and path.name == name:
        raise unknown("model", name, ["builtin", *_KNOWN, *(f"*{suffix}" for suffix in _MODEL_SUFFIXES)], at=_MODEL_AT)
    if path.suffix not in _MODEL_SUFFIXES:
        raise SpecError(
            f"model `{name}` has a format that is not known",
            at=_MODEL_AT,
            accepted=[f"*{suffix}" for suffix in _MODEL_SUFFIXES],
        )
    if not path.is_file():
        raise SpecError(f"model `{name}` does not exist", at=_MODEL_AT)
    return path.absolute()


def _well_known(name: str) -> Path:
    path = Path(f"{name}.onnx")
    if path.is_file():
        return path.absolute()
    by_hand = f"`pip install ultralytics onnx && yolo export model={name}.pt format=onnx imgsz=640`"
    if importlib.util.find_spec("ultralytics") is None:
        raise SpecError(f"model `{name}` needs the file `{path}` in the working directory", at=_MODEL_AT, hint=by_hand)
    # In a process of its own: it loads torch, prints, and downloads weights that are under AGPL-3.0.
    export = f"from ultralytics import YOLO; YOLO({name + '.pt'!r}).export(format='onnx', imgsz=640)"
    done = subprocess.run([sys.executable, "-P", "-c", export], capture_output=True, text=True, check=False)
    if not path.is_file():
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise MachineError(f"model `{name}` was not exported: {last}", at=_MODEL_AT, hint=by_hand)
    return path.absolute()


def _video(name: str) -> str:
    if name == "builtin":
        return str(BUILT_IN_VIDEO)
    if name.isdecimal():
        return name
    if not Path(name).exists():
        raise SpecError(
            f"video `{name}` does not exist",
            at=_VIDEO_AT,
            accepted=["builtin", "a video file", "a folder of frames", "the index of a camera"],
        )
    return str(Path(name).absolute())
