"""The token: what a run on one machine must know of the servers on another. It holds no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ciphertoll
from ciphertoll.errors import CiphertollError, MachineError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciphertoll.engine import Listening
    from ciphertoll.execute import Remote

_VERSION = 1


def write(path: Path, names: Sequence[str], listeners: Sequence[Listening]) -> None:
    """Write the token; it appears whole. Raises MachineError if it cannot be written."""
    rows = [{"channel": one.channel.to_wire(), "port": one.port, "ca_pem": one.ca_pem} for one in listeners]
    token = {"token_version": _VERSION, "ciphertoll": ciphertoll.__version__, "names": list(names), "listeners": rows}
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(json.dumps(token, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise MachineError(f"the token cannot be written: {error.strerror or error}", at=str(path)) from error


def read(path: Path, host: str | None) -> Remote:
    """The servers of a token.

    host   where they are; None: the first name in the token.

    Raises SpecError if the file is no token of this version.
    """
    from ciphertoll.engine import Listening, channel_from_wire
    from ciphertoll.execute import Remote

    token = _content(path)
    try:
        names = [str(name) for name in token["names"]]
        listeners = tuple(
            Listening(channel_from_wire(row["channel"]), int(row["port"]), row["ca_pem"]) for row in token["listeners"]
        )
        where = host or names[0]
        return Remote(where, listeners, where if where in names else names[0])
    except (KeyError, IndexError, TypeError, ValueError, CiphertollError) as error:
        raise _no_token(path, str(error)) from None


def _content(path: Path) -> dict[str, Any]:
    try:
        token = json.loads(path.read_bytes())
    except OSError as error:
        raise SpecError(f"token `{path}` cannot be read: {error.strerror or error}", at="--token") from None
    except ValueError as error:
        raise _no_token(path, str(error)) from None
    version = token.get("token_version") if isinstance(token, dict) else None
    if version != _VERSION:
        raise _no_token(path, f"its version is `{version}`, this release reads `{_VERSION}`")
    assert isinstance(token, dict)
    return token


def _no_token(path: Path, why: str) -> SpecError:
    hint = "`ciphertoll serve` of the same release writes it; copy it whole"
    return SpecError(f"`{path}` is no token: {why}", at="--token", hint=hint)
