"""From a video frame to the input of a network, and boxes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The grey that Ultralytics pads with in training, validation and prediction.
_PADDING = 114


class Picture:
    """Fits frames into the input of a network and remembers how, for one frame at a time.

    size           (height, width) of the input in pixels.
    dtype          "float32" or "float16".
    channels_last  input [1, height, width, 3] rather than [1, 3, height, width].
    stretch        fill the input whatever the proportions; otherwise keep them, centred on grey.
    """

    def __init__(self, size: tuple[int, int], dtype: str, *, channels_last: bool, stretch: bool) -> None:
        import numpy as np

        self._size = size
        self._stretch = stretch
        self._frame: tuple[int, int] | None = None
        self._left = self._top = 0
        self._inner = size  # (height, width) of the frame within the input
        self._canvas = np.full((*size, 3), _PADDING, np.uint8)
        self._channels_last = channels_last
        shape = (1, *size, 3) if channels_last else (1, 3, *size)
        self._blob = np.empty(shape, dtype)

    def fit(self, image: NDArray[np.uint8]) -> NDArray[Any]:
        """The network's input for a frame uint8 [height, width, 3] in BGR: RGB, 0 .. 1.

        The array is overwritten by the next call.
        """
        import cv2
        import numpy as np

        if image.shape[:2] != self._frame:
            self._place(image.shape[0], image.shape[1])
        height, width = self._inner
        inner: Any = image
        if (height, width) != self._frame:
            inner = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        inside = self._canvas[self._top : self._top + height, self._left : self._left + width]
        cv2.cvtColor(inner, cv2.COLOR_BGR2RGB, dst=inside)
        planes = self._canvas if self._channels_last else self._canvas.transpose(2, 0, 1)
        scale = self._blob.dtype.type(1 / 255)
        np.multiply(planes, scale, out=self._blob[0], casting="unsafe", dtype=self._blob.dtype)
        return self._blob

    def to_frame(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Boxes [n, 4] (x1, y1, x2, y2) in pixels of the input, in pixels of the last frame and cut to it."""
        import numpy as np

        assert self._frame
        height, width = self._frame
        scale_y, scale_x = self._inner[0] / height, self._inner[1] / width
        offset = np.array([self._left, self._top] * 2, np.float32)
        scale = np.array([scale_x, scale_y] * 2, np.float32)
        limit = np.array([width, height] * 2, np.float32)
        inside: NDArray[np.float32] = np.clip((boxes - offset) / scale, 0, limit, dtype=np.float32)
        return inside

    def _place(self, height: int, width: int) -> None:
        """Where a frame of this size goes."""
        self._frame = (height, width)
        if self._stretch:
            return
        gain = min(self._size[0] / height, self._size[1] / width)
        self._inner = (max(1, round(height * gain)), max(1, round(width * gain)))
        self._top = (self._size[0] - self._inner[0]) // 2
        self._left = (self._size[1] - self._inner[1]) // 2
        self._canvas[:] = _PADDING
