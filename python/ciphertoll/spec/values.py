"""How a value is read: from a command line it is text, from TOML it may be a number, a list or a flag."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ciphertoll.errors import SpecError, unknown

# Reads one value; the second argument says where it stands, for messages.
Reader = Callable[[Any, str], Any]

_SPANS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000, "h": 3_600_000_000_000}
_LONGEST_NS = 7 * 24 * _SPANS_NS["h"]


def many(read: Reader) -> Reader:
    """A list of values without repetition: `a,b` or `["a", "b"]`, or a single one."""

    def read_all(value: Any, at: str) -> list[Any]:
        items = value.split(",") if isinstance(value, str) else value
        items = list(items) if isinstance(items, list | tuple) else [items]
        found = [read(item.strip() if isinstance(item, str) else item, at) for item in items]
        if not found:
            raise SpecError("the list is empty", at=at)
        return list(dict.fromkeys(found))

    return read_all


def name(noun: str, accepted: Sequence[str], aliases: Mapping[str, str] | None = None) -> Reader:
    """One of `accepted`, in any case and with any hyphens; or an alias of one."""
    known = {bare(one): one for one in accepted} | {bare(one): to for one, to in (aliases or {}).items()}

    def read(value: Any, at: str) -> str:
        found = known.get(bare(str(value)))
        if found is None or isinstance(value, bool):
            raise unknown(noun, str(value), accepted, at=at)
        return found

    return read


def bare(text: str) -> str:
    """`AES-128-GCM` and `aes128gcm` are one name."""
    return re.sub(r"[^a-z0-9.+]", "", text.lower())


def number(noun: str, low: float, high: float, *, whole: bool = False, unit: str = "") -> Reader:
    """A number from `low` to `high`, both included."""
    what = "whole number" if whole else "number"
    accepted = [f"a {what} from {low:,.10g} to {high:,.10g}{unit}"]

    def read(value: Any, at: str) -> float | int:
        try:
            found = int(value) if whole else float(value)
            exact = not isinstance(value, bool | float) or found == value
        except (TypeError, ValueError):
            raise SpecError(f"{noun} `{value}` is no {what}", at=at, accepted=accepted) from None
        if isinstance(value, bool) or not exact:
            raise SpecError(f"{noun} `{value}` is no {what}", at=at, accepted=accepted)
        if not low <= found <= high:
            raise SpecError(f"{noun} `{value}` is out of range", at=at, accepted=accepted)
        return found

    return read


def span(noun: str, *, shortest_ns: int = 0) -> Reader:
    """A time with its unit, in ns: `20s`, `500ms`, `2min`."""
    accepted = ["20s", "500ms", "2min"]

    def read(value: Any, at: str) -> int:
        parts = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([a-z]+)", str(value).strip())
        if not parts or parts[2] not in _SPANS_NS:
            raise SpecError(f"{noun} `{value}` is no time with a unit", at=at, accepted=accepted)
        found = round(float(parts[1]) * _SPANS_NS[parts[2]])
        if not max(0, shortest_ns) <= found <= _LONGEST_NS:
            accepted_range = [f"{shown(shortest_ns)} to {shown(_LONGEST_NS)}"]
            raise SpecError(f"{noun} `{value}` is out of range", at=at, accepted=accepted_range)
        return found

    return read


def shown(span_ns: int) -> str:
    """A time as `span` reads it: `2.25s`, `500ms`, `1h`."""
    for unit in ("h", "min", "s", "ms", "us"):
        size = _SPANS_NS[unit]
        if span_ns and span_ns >= size and (span_ns % size == 0 or unit in ("s", "ms", "us")):
            return f"{span_ns / size:g}{unit}"
    return f"{span_ns}ns" if span_ns else "0s"


def flag(noun: str) -> Reader:
    def read(value: Any, at: str) -> bool:
        if not isinstance(value, bool):
            raise SpecError(f"{noun} `{value}` is neither true nor false", at=at, accepted=["true", "false"])
        return value

    return read


def text(noun: str) -> Reader:
    def read(value: Any, at: str) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value):
            raise SpecError(f"{noun} `{value}` is no text", at=at)
        return str(value)

    return read


def processors(value: Any, at: str) -> tuple[int, ...]:
    """A list of processors: `0,2-3` or `[0, 2, 3]`; empty leaves the choice to the kernel."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    found: set[int] = set()
    for item in items:
        ends = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", str(item).strip())
        if not ends or isinstance(item, bool):
            raise SpecError(f"processors `{value}` are no list of processors", at=at, accepted=["0", "0,2", "2-3"])
        found.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return tuple(sorted(found))
