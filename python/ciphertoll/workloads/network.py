"""A detection network in one of the runtimes, behind one interface."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ciphertoll.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AT = "workload.model"
# What a network that detects looks like; named in every refusal.
ACCEPTED = (
    "one image input [1, 3, height, width], float32 or float16",
    "output [1, 4 + classes, boxes] or [1, boxes, 6]",
)


class Network(Protocol):
    """A network that is loaded.

    size             (height, width) of its input in pixels.
    dtype            of its input: "float32" or "float16".
    channels_last    whether its input is [1, height, width, 3], not [1, 3, height, width].
    stretch          whether it expects a picture stretched to `size`; otherwise one that keeps its proportions,
                     padded with grey.
    normalised       whether its boxes are in 0 .. 1, not in pixels of its input.
    facts            runtime, runtime_version, provider, threads.
    """

    size: tuple[int, int]
    dtype: str
    channels_last: bool
    stretch: bool
    normalised: bool
    facts: dict[str, Any]

    def __call__(self, blob: NDArray[Any]) -> NDArray[np.float32]:
        """The first output for an input of the shape and type above, as float32."""
        ...


def load_network(path: Path, *, provider: str, threads: int, spinning: bool) -> Network:
    """Load an ONNX or TFLite file.

    threads   of the runtime for one picture, >= 1.
    spinning  whether threads that wait for work keep their processor.

    Raises SpecError if it is not a detection network or the provider does not exist, MachineError if the runtime is
    missing or its provider does not work here.
    """
    if path.suffix == ".tflite":
        from ciphertoll.workloads.litert import LiteRtNetwork

        if provider != "cpu":
            raise SpecError(
                f"provider `{provider}` does not run TFLite models", at="workload.provider", accepted=["cpu"]
            )
        return LiteRtNetwork(path, threads)
    from ciphertoll.workloads.onnx import OnnxNetwork

    return OnnxNetwork(path, provider, threads, spinning=spinning)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def not_a_detector(path: Path, why: str) -> SpecError:
    """The refusal of a file that is no detection network; `why` continues "model `x` "."""
    return SpecError(f"model `{path.name}` {why}", at=f"{AT}: {path}", accepted=ACCEPTED)
