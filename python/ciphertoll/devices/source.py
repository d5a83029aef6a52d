"""Small text files of /proc and /sys: opened once, read often."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

# One page: no file that is kept open here says anything of interest beyond it (of /proc/stat, the first line).
_READ_BYTES = 4096
# 20 digits hold 64 bits; a longer number is none of the kernel's, and may not fit a float.
_MOST_CHARACTERS = 24


class Source:
    """One file, kept open and read from its start each time: half the cost of opening it again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)

    def read(self) -> str:
        """The first 4096 bytes as they are now. Raises OSError if the kernel refuses."""
        return os.pread(self._fd, _READ_BYTES, 0).decode("utf-8", "replace")


def open_source(path: Path) -> Source | None:
    """The file if it exists and answers; some sensors exist, and refuse each read."""
    try:
        source = Source(path)
        source.read()
    except OSError:
        return None
    return source


def read_text(path: Path) -> str | None:
    """The whole file without surrounding white space and NULs; None if it is missing or refuses."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip(" \t\r\n\0")
    except OSError:
        return None


def read_int(path: Path, base: int = 10) -> int | None:
    """The one number of a file; None if it is missing, refuses or holds no number."""
    return to_int(read_text(path) or "", base)


def to_int(text: str, base: int = 10) -> int | None:
    """The number that a text is; None if it is none, or longer than any counter of 64 bits."""
    if len(text) > _MOST_CHARACTERS:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def numbered(folder: Path, prefix: str) -> list[Path]:
    """The entries of a folder named prefix + number, in the order of the number."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    numbers = sorted(int(name[len(prefix) :]) for name in names if _is_numbered(name, prefix))
    return [folder / f"{prefix}{number}" for number in numbers]


def _is_numbered(name: str, prefix: str) -> bool:
    tail = name[len(prefix) :]
    return name.startswith(prefix) and tail.isascii() and tail.isdigit()
