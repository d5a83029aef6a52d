"""Detection networks in ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciphertoll.errors import MachineError, unknown
from ciphertoll.workloads.network import not_a_detector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}
_SUFFIX = "ExecutionProvider"
# For an export whose height and width are open and whose metadata does not name them.
_DEFAULT_SIZE = 640


class OnnxNetwork:
    """A `Network` in ONNX Runtime, on one of its execution providers."""

    channels_last = False
    normalised = False

    def __init__(self, path: Path, provider: str, threads: int, *, spinning: bool) -> None:
        import onnxruntime

        self._path = path
        self._session = _session(path, provider, threads, spinning)
        metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        task = metadata.get("task", "detect")
        if task != "detect":
            raise not_a_detector(path, f"is for the task `{task}`, not for detection")
        self._input, self.dtype, self.size = _image_input(path, self._session.get_inputs(), metadata)
        self._outputs = [self._session.get_outputs()[0].name]
        self.stretch = metadata.get("resize") == "stretch"
        self.facts: dict[str, Any] = {
            "runtime": "onnxruntime",
            "runtime_version": onnxruntime.__version__,
            "provider": provider,
            "threads": threads,
            "spinning": spinning,
        }

    def __call__(self, blob: NDArray[Any]) -> NDArray[np.float32]:
        import numpy as np

        (output,) = self._session.run(self._outputs, {self._input: blob})
        return np.asarray(output, np.float32)


def _session(path: Path, provider: str, threads: int, spinning: bool) -> Any:
    import onnxruntime as ort

    available = {name.removesuffix(_SUFFIX).lower(): name for name in ort.get_available_providers()}
    if provider not in available:
        error = unknown("provider", provider, sorted(available), at="workload.provider")
        error.hint = error.hint or f"this is onnxruntime {ort.__version__}; other builds of it have other providers"
        raise error
    ort.set_default_logger_severity(3)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.add_session_config_entry("session.inter_op.allow_spinning", str(int(spinning)))
    wanted = list(dict.fromkeys([available[provider], available["cpu"]]))
    try:
        session = ort.InferenceSession(str(path), options, providers=wanted)
    except Exception as error:  # its exceptions share no public base
        if provider != "cpu":
            raise MachineError(f"provider `{provider}` does not start: {_first_line(error)}", at=str(path)) from error
        raise not_a_detector(path, f"is not an ONNX model that can be loaded: {_first_line(error)}") from error
    if session.get_providers()[0] != available[provider]:  # it falls back to the processor without an error
        raise MachineError(
            f"provider `{provider}` does not start on this machine",
            at="workload.provider",
            hint="its libraries or its device are missing; standard error of the workload says which",
        )
    return session


def _image_input(path: Path, inputs: list[Any], metadata: dict[str, str]) -> tuple[str, str, tuple[int, int]]:
    if len(inputs) != 1:
        raise not_a_detector(path, f"has {len(inputs)} inputs")
    (tensor,) = inputs
    shape = list(tensor.shape)
    batch_is_one = shape and (shape[0] == 1 or not isinstance(shape[0], int))
    if len(shape) != 4 or not batch_is_one or (isinstance(shape[1], int) and shape[1] != 3):
        raise not_a_detector(path, f"has no image input: `{tensor.name}` is {shape}")
    if tensor.type not in _DTYPES:
        raise not_a_detector(path, f"has an input of type {tensor.type}")
    default = _size_in(metadata)
    height, width = (side if isinstance(side, int) else default[axis] for axis, side in enumerate(shape[2:]))
    return tensor.name, _DTYPES[tensor.type], (height, width)


def _size_in(metadata: dict[str, str]) -> tuple[int, int]:
    """(height, width) that the exporter noted, for an input whose sides are open."""
    try:
        height, width = json.loads(metadata.get("imgsz", ""))
        return int(height), int(width)
    except (ValueError, TypeError):
        return _DEFAULT_SIZE, _DEFAULT_SIZE


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
