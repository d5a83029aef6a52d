"""From the output of a detection network to boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# "raw": [1, 4 + classes, boxes], centre x, centre y, width, height, a score per class; overlaps are still in it.
# "final": [1, boxes, 6], x1, y1, x2, y2, score, class; overlaps are out.
Layout = Literal["raw", "final"]
# As Ultralytics: no picture has more objects that matter, and what a bad model costs stays bounded.
_MOST_BOXES = 300
_MOST_CANDIDATES = 30_000


class Boxes(NamedTuple):
    """What was found.

    corners  float32 [n, 4]: x1, y1, x2, y2.
    scores   float32 [n], best first.
    classes  int64 [n].
    """

    corners: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: NDArray[np.int64]


def layout_of(shape: tuple[int, ...]) -> Layout | None:
    """The layout of an output by its shape (metadata is no guide: see docs/detector.md); None if it is neither."""
    if len(shape) != 3 or shape[0] != 1:
        return None
    if shape[2] == 6:
        return "final"
    return "raw" if 5 <= shape[1] < shape[2] else None


def decode(output: NDArray[np.float32], layout: Layout, *, confidence: float, iou: float) -> Boxes:
    """Boxes with a score above `confidence`, in the units of the output.

    output      float32, of a shape that `layout_of` accepts.
    confidence  0 < confidence < 1.
    iou         0 .. 1: of two boxes of one class that overlap more than this, the better one stays.
    """
    if layout == "final":
        return _final(output[0], confidence)
    return _suppress(_candidates(output[0], confidence), iou)


def _final(rows: NDArray[np.float32], confidence: float) -> Boxes:
    import numpy as np

    rows = rows[rows[:, 4] > confidence]
    rows = rows[np.isfinite(rows).all(axis=1)]
    rows = rows[np.argsort(-rows[:, 4], kind="stable")]
    return Boxes(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))


def _candidates(columns: NDArray[np.float32], confidence: float) -> Boxes:
    """All boxes above `confidence`, best first."""
    import numpy as np

    best = columns[4] if len(columns) == 5 else columns[4:].max(axis=0)
    (chosen,) = np.nonzero(best > confidence)
    chosen = chosen[np.isfinite(columns[:, chosen]).all(axis=0)]
    chosen = chosen[np.argsort(-best[chosen], kind="stable")][:_MOST_CANDIDATES]
    columns = columns[:, chosen]
    centre, half = columns[:2], columns[2:4] / 2
    corners = np.concatenate([centre - half, centre + half]).T
    return Boxes(corners, best[chosen], columns[4:].argmax(axis=0))


def _suppress(boxes: Boxes, iou: float) -> Boxes:
    """Greedy non-maximum suppression within each class."""
    import cv2
    import numpy as np

    if len(boxes.scores) < 2:
        return boxes
    corners = boxes.corners.astype(np.float64)
    # Classes are moved apart, so that boxes of different ones never overlap.
    span = corners.max() - corners.min() + 1
    apart = corners[:, :2] + boxes.classes[:, None] * span
    rectangles: Any = np.concatenate([apart, corners[:, 2:] - corners[:, :2]], axis=1)
    scores: Any = boxes.scores
    kept = np.asarray(cv2.dnn.NMSBoxes(rectangles, scores, 0.0, iou), np.int64).ravel()[:_MOST_BOXES]
    return Boxes(boxes.corners[kept], boxes.scores[kept], boxes.classes[kept])
