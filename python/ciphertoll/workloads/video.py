"""Where frames come from: a video file or a folder of images, again and again, or a camera.

Files and folders are decoded ahead by a thread of their own, a few frames and no more, so that neither a disk nor the
decoder stands in the frame rate. A camera is not: its frames would grow old.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ciphertoll.errors import MachineError, SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]  # [height, width, 3], blue, green, red

_AT = "workload.video"
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
# As many as hide a slow read, few enough that they stay small: 4 frames of 640x480 are 4 MB.
_FRAMES_AHEAD = 4
# Files up to this size are read once before anything is timed: they are then in memory, and their hash is a fact.
_READ_AHEAD_BYTES = 256 * 2**20


class Video(Protocol):
    """A source of frames that does not end.

    facts   what it is: `file`, `kind`, `width`, `height`, and where known `frames`, `rate_hz`, `sha256`.
    """

    facts: dict[str, Any]

    def read(self) -> tuple[Image, int, int]:
        """The next frame, when work on it began (ns of CLOCK_MONOTONIC), and how long its decoding took (ns).

        Waiting for a disk or a sensor is in neither. Raises MachineError if there is no next frame.
        """
        ...


def open_video(source: str) -> Video:
    """Open the path of a file or folder, or the index of a camera.

    Raises SpecError if it has no frame that can be decoded, MachineError if a camera gives none.
    """
    if source.isdecimal():
        return Camera(int(source))
    path = Path(source)
    return Ahead(Folder(path) if path.is_dir() else File(path))


class Ahead:
    """Frames of another source, decoded before they are asked for."""

    def __init__(self, source: Video) -> None:
        self.facts: dict[str, Any] = {**source.facts, "decoded_ahead": _FRAMES_AHEAD}
        self._source = source
        self._frames: queue.Queue[tuple[Image, int] | Exception] = queue.Queue(_FRAMES_AHEAD)
        threading.Thread(target=self._decode, name="decoder", daemon=True).start()

    def read(self) -> tuple[Image, int, int]:
        found = self._frames.get()
        if isinstance(found, Exception):
            raise found
        image, decode_ns = found
        return image, time.monotonic_ns(), decode_ns

    def _decode(self) -> None:
        try:
            while True:
                image, _, decode_ns = self._source.read()
                self._frames.put((image, decode_ns))
        except Exception as error:  # whatever it is, whoever asks for the next frame must hear of it
            self._frames.put(error)


class File:
    """A video file, from the start again when it ends."""

    def __init__(self, path: Path) -> None:
        import cv2

        self._path = path
        sha256 = _read_ahead(path)
        self._capture = self._open()
        image = self._next()
        if image is None:
            raise SpecError(
                f"video `{path.name}` has no frame that can be decoded",
                at=f"{_AT}: {path}",
                hint="`ffprobe` says what the file holds; MP4 with H.264 works everywhere",
            )
        self.facts: dict[str, Any] = {
            "file": path.name,
            "kind": "file",
            "width": image.shape[1],
            "height": image.shape[0],
            "frames": int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)),
            "rate_hz": float(self._capture.get(cv2.CAP_PROP_FPS)),
            "sha256": sha256,
        }
        self._rewind()

    def read(self) -> tuple[Image, int, int]:
        started = time.monotonic_ns()
        image = self._next()
        if image is None:
            self._rewind()
            started = time.monotonic_ns()
            image = self._next()
        if image is None:  # it cannot be searched: open it anew
            self._capture.release()
            self._capture = self._open()
            started = time.monotonic_ns()
            image = self._next()
        if image is None:
            raise MachineError(f"video `{self._path.name}` can no longer be read", at=f"{_AT}: {self._path}")
        return image, started, time.monotonic_ns() - started

    def _open(self) -> Any:
        import cv2

        one_thread = [cv2.CAP_PROP_N_THREADS, 1]
        capture = cv2.VideoCapture(str(self._path), cv2.CAP_FFMPEG, one_thread)
        return capture if capture.isOpened() else cv2.VideoCapture(str(self._path))

    def _next(self) -> Image | None:
        ok, image = self._capture.read()
        return image if ok else None

    def _rewind(self) -> None:
        import cv2

        self._capture.set(cv2.CAP_PROP_POS_FRAMES, 0)


class Folder:
    """A folder of images in the order of their names, again and again; MOT layouts keep them in `img1`."""

    def __init__(self, path: Path) -> None:
        self._paths = _images_in(path / "img1") or _images_in(path)
        self._next = 0
        if not self._paths:
            raise SpecError(
                f"folder `{path.name}` holds no frames",
                at=f"{_AT}: {path}",
                accepted=[f"*{suffix}" for suffix in _IMAGE_SUFFIXES],
            )
        try:
            image, _, _ = self.read()
        except MachineError as error:
            raise SpecError(error.what, at=error.at) from error
        self._next = 0
        self.facts: dict[str, Any] = {
            "file": path.name,
            "kind": "folder",
            "width": image.shape[1],
            "height": image.shape[0],
            "frames": len(self._paths),
        }

    def read(self) -> tuple[Image, int, int]:
        import cv2
        import numpy as np

        path = self._paths[self._next]
        self._next = (self._next + 1) % len(self._paths)
        try:
            data = np.fromfile(path, np.uint8)
        except OSError as error:
            raise MachineError(f"frame `{path.name}` cannot be read: {error.strerror}", at=f"{_AT}: {path}") from error
        started = time.monotonic_ns()
        image = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
        if image is None or image.dtype != np.uint8:
            raise MachineError(f"frame `{path.name}` cannot be decoded", at=f"{_AT}: {path}")
        return image.astype(np.uint8, copy=False), started, time.monotonic_ns() - started


class Camera:
    """A camera, at the rate of its sensor."""

    def __init__(self, index: int) -> None:
        import cv2

        self._index = index
        self._capture = cv2.VideoCapture(index)
        if not self._capture.isOpened():
            raise MachineError(
                f"camera {index} does not open",
                at=f"{_AT}: {index}",
                hint="is it connected, is it in use, may this user read /dev/video*?",
            )
        image, _, _ = self.read()
        self.facts: dict[str, Any] = {
            "file": f"camera {index}",
            "kind": "camera",
            "width": image.shape[1],
            "height": image.shape[0],
            "rate_hz": float(self._capture.get(cv2.CAP_PROP_FPS)),
        }

    def read(self) -> tuple[Image, int, int]:
        grabbed = self._capture.grab()  # waits for the sensor
        started = time.monotonic_ns()
        image: Any = self._capture.retrieve()[1] if grabbed else None
        if image is None:
            raise MachineError(f"camera {self._index} gives no frame", at=f"{_AT}: {self._index}")
        return image, started, time.monotonic_ns() - started


def _images_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _IMAGE_SUFFIXES)


def _read_ahead(path: Path) -> str | None:
    """Bring a file of bearable size into memory and return its SHA-256; None for a larger one."""
    if path.stat().st_size > _READ_AHEAD_BYTES:
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
