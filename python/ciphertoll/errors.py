"""What a user can cause: said in one form, with an exit code from one table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_DONE = 0
EXIT_WORSE = 1
EXIT_SPEC = 2
EXIT_MACHINE = 3
EXIT_BUG = 4


class CiphertollError(Exception):
    """An error that a user can act on.

    what      what is wrong, lower case, values in backticks, no full stop.
    at        where: a file and line, an option, a device; or None.
    accepted  what would be accepted; may be empty.
    hint      what to do; or None.
    """

    exit_code = EXIT_BUG

    def __init__(
        self, what: str, *, at: str | None = None, accepted: Iterable[str] = (), hint: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.at = at
        self.accepted = tuple(accepted)
        self.hint = hint

    def render(self) -> str:
        """The message as it is printed to standard error."""
        lines = [f"error: {self.what}"]
        if self.at:
            lines.append(f"  at {self.at}")
        if self.accepted:
            lines.append(f"  accepted: {', '.join(self.accepted)}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class SpecError(CiphertollError):
    """The spec, an option or an argument is wrong."""

    exit_code = EXIT_SPEC


class MachineError(CiphertollError):
    """The machine, a file, a device or a peer is not fit for what was asked."""

    exit_code = EXIT_MACHINE


class BugError(CiphertollError):
    """Our own mistake."""

    exit_code = EXIT_BUG


def unknown(noun: str, value: str, accepted: Iterable[str], *, at: str | None = None) -> SpecError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = tuple(accepted)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else None
    return SpecError(f"{noun} `{value}` is unknown", at=at, accepted=names, hint=hint)
