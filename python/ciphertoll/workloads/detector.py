"""The detector's process: `python -m ciphertoll.workloads.detector`, configured by one JSON line on standard input.

Frame after frame: decode, fit into the network's input, infer, find boxes; as fast as it goes, until it is stopped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ciphertoll.errors import SpecError
from ciphertoll.workloads import child

# The first pictures pay for memory and code that later ones find in place.
_WARM_FRAMES = 3


def work(parent: child.Child) -> None:
    """Load what `parent.config` names, say so, and detect until stopped."""
    config = parent.config
    affinity = child.apply_affinity(config["affinity"])
    _quiet_libraries()
    from ciphertoll.workloads.network import load_network
    from ciphertoll.workloads.video import open_video

    video = open_video(config["video"])
    network = load_network(
        Path(config["model"]),
        provider=config["provider"],
        threads=config["threads"] or max(1, len(affinity) // 2),
        spinning=config["spinning"],
    )
    loop = Loop(video, network, config)
    for _ in range(_WARM_FRAMES):
        loop.step()
    parent.ready({**loop.facts(), "affinity": affinity, "pid": os.getpid()})
    while not parent.stopping:
        parent.frames.append(*loop.step())


class Loop:
    """One frame at a time, with the time that each part of it took."""

    def __init__(self, video: Any, network: Any, config: dict[str, Any]) -> None:
        import numpy as np

        from ciphertoll.workloads.boxes import layout_of
        from ciphertoll.workloads.picture import Picture

        self._video = video
        self._network = network
        self._config = config
        self._picture = Picture(
            network.size, network.dtype, channels_last=network.channels_last, stretch=network.stretch
        )
        height, width = network.size
        self._unit = np.array([width, height] * 2, np.float32) if network.normalised else None
        self._shape = self._try_network().shape
        layout = layout_of(self._shape)
        if layout is None:
            raise _refusal(config, f"is not a detector: its output is {list(self._shape)}")
        self._layout = layout

    def facts(self) -> dict[str, Any]:
        """What a result must name to be repeated."""
        from ciphertoll.workloads.network import sha256_of

        model = Path(self._config["model"])
        return {
            "kind": "detector",
            **self._network.facts,
            "model": model.name,
            "model_sha256": sha256_of(model),
            "input_size": list(self._network.size),
            "input_type": self._network.dtype,
            "fit": "stretch" if self._network.stretch else "letterbox",
            "layout": self._layout,
            "output_shape": list(self._shape),
            "video": self._video.facts,
            "least_detections_per_frame": self._config["least_detections_per_frame"],
        }

    def step(self) -> tuple[int, int, int, int, int, int, int]:
        """Detect on the next frame; a row of the frames record."""
        from ciphertoll.workloads.boxes import decode

        image, started, decode_ns = self._video.read()
        decoded = time.monotonic_ns()
        blob = self._picture.fit(image)
        fitted = time.monotonic_ns()
        output = self._network(blob)
        inferred = time.monotonic_ns()
        found = decode(output, self._layout, confidence=self._config["confidence"], iou=self._config["iou"])
        corners = found.corners if self._unit is None else found.corners * self._unit
        self._picture.to_frame(corners)
        done = time.monotonic_ns()
        return started, done, decode_ns, fitted - decoded, inferred - fitted, done - inferred, len(found.scores)

    def _try_network(self) -> Any:
        """One output, for its shape: an export with open sides declares none."""
        image, _, _ = self._video.read()
        try:
            return self._network(self._picture.fit(image))
        except Exception as error:  # runtimes share no base for theirs
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise _refusal(self._config, f"does not run on a picture: {reason}") from error


def _refusal(config: dict[str, Any], why: str) -> SpecError:
    from ciphertoll.workloads.network import not_a_detector

    return not_a_detector(Path(config["model"]), why)


def _quiet_libraries() -> None:
    """Only errors to standard error, and one thread for what OpenCV does: the runtime's are the ones that count."""
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "16")  # AV_LOG_ERROR
    import cv2

    cv2.setNumThreads(1)


if __name__ == "__main__":
    child.serve(work)
