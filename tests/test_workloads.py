"""What the executor relies on, whatever the workload."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from ciphertoll.errors import MachineError, SpecError
from ciphertoll.model import Detector, NoWorkload
from ciphertoll.workloads import base
from ciphertoll.workloads.frames import COLUMNS, Frames, empty, take
from ciphertoll.workloads.resolve import resolve


def frames_with(*detections: int) -> pl.DataFrame:
    return pl.DataFrame({"detections": detections}, schema={"detections": pl.UInt32})


def test_no_workload_starts_nothing(tmp_path):
    assert base.start(NoWorkload(), tmp_path) is None


def test_importing_the_parents_side_loads_no_heavy_library():
    code = "import sys, ciphertoll.workloads.base as b, ciphertoll.workloads.process, ciphertoll.workloads.resolve\n"
    code += "print([m for m in ('numpy', 'cv2', 'onnxruntime', 'polars', 'ultralytics') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_frames_that_are_saved_are_those_that_were_appended(tmp_path):
    frames = Frames()
    rows = [(start, start + 9, 1, 2, 3, 4, start % 7) for start in range(70_000)]  # more than one chunk
    for row in rows:
        frames.append(*row)
    assert len(frames) == 70_000
    frames.save(tmp_path)
    read = take(tmp_path)
    assert read.rows() == rows
    assert read.schema == empty().schema
    assert list(read.columns) == list(COLUMNS)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_record_has_no_frames(tmp_path):
    assert take(tmp_path).is_empty()


def test_a_full_disk_is_named_and_leaves_no_part_of_a_record(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(MachineError, match="No space left on device") as caught:
        Frames().save(tmp_path)
    assert str(tmp_path) in str(caught.value.at)
    assert list(tmp_path.iterdir()) == []


def test_a_detector_that_sees_nobody_is_unfit():
    facts = {"least_detections_per_frame": 0.5}
    assert "0.25 people" in str(base.unfit(facts, frames_with(0, 1, 0, 0)))
    assert base.unfit(facts, frames_with(3, 4, 3)) is None


def test_a_workload_without_a_known_picture_may_see_nobody():
    assert base.unfit({"least_detections_per_frame": None}, frames_with(0, 0)) is None
    assert base.unfit({}, frames_with(0)) is None


def test_a_workload_without_frames_is_unfit():
    assert "no frame" in str(base.unfit({}, frames_with()))


def test_a_checkpoint_is_refused_with_the_command_that_converts_it():
    with pytest.raises(SpecError) as caught:
        resolve(Detector(model="yolo11n.pt"))
    assert "yolo export model=yolo11n.pt format=onnx imgsz=640" in caught.value.render()


def test_a_misspelt_model_is_answered_with_the_nearest_name():
    with pytest.raises(SpecError) as caught:
        resolve(Detector(model="yollo11n"))
    assert "did you mean `yolo11n`?" in caught.value.render()


@pytest.mark.parametrize(("model", "part"), [("no.onnx", "does not exist"), ("model.engine", "not known")])
def test_a_model_file_that_cannot_be_used_is_refused_by_name(model, part):
    with pytest.raises(SpecError, match=part) as caught:
        resolve(Detector(model=model))
    assert model in caught.value.what


def test_a_missing_video_is_refused_by_name():
    with pytest.raises(SpecError, match=r"gone\.mp4"):
        resolve(Detector(video="gone.mp4"))


def test_a_well_known_model_is_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "yolo11n.onnx").write_bytes(b"")
    assert resolve(Detector(model="yolo11n"))["model"] == str(tmp_path / "yolo11n.onnx")


def test_a_well_known_model_that_is_nowhere_is_refused_with_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SpecError) as caught:
        resolve(Detector(model="yolo26n"))
    assert "yolo export model=yolo26n.pt format=onnx imgsz=640" in str(caught.value.hint)


@pytest.mark.parametrize("works", [True, False])
def test_a_well_known_model_is_exported_where_ultralytics_is_installed(tmp_path, monkeypatch, works):
    package = tmp_path / "site" / "ultralytics"
    package.mkdir(parents=True)
    write = "pathlib.Path(self.name).with_suffix('.onnx').write_bytes(b'')" if works else "raise OSError('no network')"
    (package / "__init__.py").write_text(
        "import pathlib\nclass YOLO:\n    def __init__(self, name): self.name = name\n"
        f"    def export(self, format, imgsz): {write}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(str(package.parent))
    failure = contextlib.nullcontext() if works else pytest.raises(MachineError, match="no network")
    with failure:
        assert resolve(Detector(model="yolov8n"))["model"] == str(tmp_path / "yolov8n.onnx")
