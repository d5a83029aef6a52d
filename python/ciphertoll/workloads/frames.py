"""The frames record: one row per unit of work, written by the child once it ends."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciphertoll.errors import MachineError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

FILE_NAME = "frames.npy"
# Little-endian numpy types. Instants are CLOCK_MONOTONIC nanoseconds, the rest are spans of nanoseconds and a count.
COLUMNS = {
    "started_ns": "<u8",
    "done_ns": "<u8",
    "decode_ns": "<u8",
    "preprocess_ns": "<u8",
    "inference_ns": "<u8",
    "postprocess_ns": "<u8",
    "detections": "<u4",
}
# 52 bytes a row: 3.4 MB at a time, an hour at 18 frames/s, and pages are touched only when rows reach them.
_CHUNK_ROWS = 65_536


class Frames:
    """An append-only record that never copies what it holds."""

    def __init__(self) -> None:
        self._chunks: list[NDArray[np.void]] = [_chunk()]
        self._rows = 0

    def append(self, *row: int) -> None:
        """Add one row, in the order of `COLUMNS`."""
        chunk, place = divmod(self._rows, _CHUNK_ROWS)
        if chunk == len(self._chunks):
            self._chunks.append(_chunk())
        self._chunks[chunk][place] = row
        self._rows += 1  # last, so that a stop at any point leaves whole rows

    def __len__(self) -> int:
        return self._rows

    def save(self, folder: Path) -> None:
        """Write the record to `folder`; it appears whole or not at all. Raises MachineError if it cannot be written."""
        import numpy as np

        rows = np.concatenate(self._chunks)[: self._rows]
        part = folder / f"{FILE_NAME}.part"
        try:
            with part.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(rows))
                file.write(rows.view(np.uint8).data)  # numpy's own writing loses the reason of a failure
            part.replace(folder / FILE_NAME)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise MachineError(
                f"the frames of the workload cannot be written: {error.strerror or error}",
                at=str(folder / FILE_NAME),
                hint=f"{rows.nbytes} bytes are needed there",
            ) from error


def take(folder: Path) -> pl.DataFrame:
    """Read what `Frames.save` wrote, and remove the file; no rows if it wrote nothing."""
    import numpy as np
    import polars as pl

    path = folder / FILE_NAME
    if not path.exists():
        return empty()
    rows: NDArray[Any] = np.load(path)
    discard(folder)
    return pl.DataFrame({name: np.ascontiguousarray(rows[name]) for name in COLUMNS})


def empty() -> pl.DataFrame:
    """A record without rows."""
    import polars as pl

    types = {"<u8": pl.UInt64, "<u4": pl.UInt32}
    return pl.DataFrame(schema={name: types[kind] for name, kind in COLUMNS.items()})


def discard(folder: Path) -> None:
    """Remove what an earlier workload left in `folder`."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def _chunk() -> NDArray[np.void]:
    import numpy as np

    return np.empty(_CHUNK_ROWS, list(COLUMNS.items()))
