"""A Spec in TOML: every value with the line on which it stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ciphertoll.errors import SpecError, unknown
from ciphertoll.spec.settings import BY_KEY, Given

_TABLES = tuple(dict.fromkeys(key.split(".")[0] for key in BY_KEY if "." in key))


def read(path: Path) -> dict[str, Given]:
    """What the file chooses.

    Raises SpecError, with the line, for what is no TOML, for a key that does not exist and for a value that cannot be.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"spec `{path}` cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        content = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"spec `{path}` is no TOML: {_reason(error)}", at=f"{path}{_line_of(error)}") from None
    found = {}
    for key, value in _flat(content, path, source):
        at = f"{path}:{line_of(source, key)} ({key})"
        setting = BY_KEY.get(key)
        if setting is None:
            raise _unknown_key(key, at)
        if key in found:
            raise SpecError("the workload has both a kind and a command", at=at, hint="a command is a kind of its own")
        found[key] = Given(setting.read(value, at), at, 1)
    return found


def _flat(content: dict[str, Any], path: Path, source: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values. `workload = "none"` and `workload = { command = ".." }` choose the kind."""
    for key, value in content.items():
        if key == "workload" and not isinstance(value, dict):
            yield "workload.kind", value
        elif isinstance(value, dict) and key in _TABLES:
            for name, inner in value.items():
                yield (
                    ("workload.kind", {"command": inner})
                    if (key, name) == ("workload", "command")
                    else (
                        f"{key}.{name}",
                        inner,
                    )
                )
        elif key in _TABLES:
            raise SpecError(f"`{key}` must be a table", at=f"{path}:{line_of(source, key)}", hint=f"write `[{key}]`")
        else:
            yield key, value


def _unknown_key(key: str, at: str) -> SpecError:
    table, dot, _ = key.rpartition(".")
    beside = [known for known in BY_KEY if known.rpartition(".")[0] == table]
    if dot and beside:
        return unknown("key", key, beside, at=at)
    return unknown("key", key, (*(known for known in BY_KEY if "." not in known), *_TABLES), at=at)


def line_of(source: str, key: str) -> int:
    """The line, from 1, on which `key` is set, or its table begins; 1 if that cannot be told."""
    wanted = key.split(".")
    table: list[str] = []
    fallback = 1
    for number, line in enumerate(source.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            table = _parts(header[1])
            fallback = number if table == wanted[: len(table)] else fallback
        elif setter := re.match(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"))*)\s*=", line):
            own = table + _parts(setter[1])
            if own == wanted or (own == ["workload", "command"] and key == "workload.kind"):
                return number
            fallback = number if own == wanted[: len(own)] else fallback
    return fallback


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _reason(error: tomllib.TOMLDecodeError) -> str:
    return re.sub(r"\s*\(at .*\)$", "", str(error)).lower()


def _line_of(error: tomllib.TOMLDecodeError) -> str:
    place = re.search(r"line (\d+)", str(error))
    return f":{place[1]}" if place else ""
