"""Detection networks in LiteRT (TensorFlow Lite), as Ultralytics exports them: boxes in 0 .. 1 of the input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciphertoll.errors import MachineError
from ciphertoll.workloads.network import not_a_detector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LiteRtNetwork:
    """A `Network` in LiteRT, on the processor. Its threads never spin."""

    stretch = False
    normalised = True

    def __init__(self, path: Path, threads: int) -> None:
        import numpy as np

        runtime, version = _runtime()
        try:
            self._interpreter = runtime.Interpreter(model_path=str(path), num_threads=threads)
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise not_a_detector(path, f"is not a TFLite model that can be loaded: {reason}") from error
        inputs, outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        if len(inputs) != 1:
            raise not_a_detector(path, f"has {len(inputs)} inputs")
        shape = [int(side) for side in inputs[0]["shape"]]
        if len(shape) != 4 or shape[0] != 1 or 3 not in (shape[1], shape[3]):
            raise not_a_detector(path, f"has no image input: it is {shape}")
        self.dtype = np.dtype(inputs[0]["dtype"]).name
        if self.dtype not in ("float32", "float16"):
            raise not_a_detector(path, f"has an input of type {self.dtype}")
        self.channels_last = shape[3] == 3
        self.size = (shape[1], shape[2]) if self.channels_last else (shape[2], shape[3])
        self._input, self._output = inputs[0]["index"], outputs[0]["index"]
        self.facts: dict[str, Any] = {
            "runtime": "litert",
            "runtime_version": version,
            "provider": "cpu",
            "threads": threads,
            "spinning": False,
        }

    def __call__(self, blob: NDArray[Any]) -> NDArray[np.float32]:
        import numpy as np

        self._interpreter.set_tensor(self._input, blob)
        self._interpreter.invoke()
        return np.asarray(self._interpreter.get_tensor(self._output), np.float32)


def _runtime() -> tuple[Any, str]:
    """The module with the interpreter, and its version."""
    from importlib.metadata import version

    try:
        from ai_edge_litert import interpreter

        return interpreter, version("ai-edge-litert")
    except ImportError as error:
        raise MachineError(
            "a TFLite model needs the package `ai-edge-litert`, which is not installed",
            hint="`pip install ai-edge-litert`, or export the model with format=onnx",
        ) from error
