"""How it goes, on standard error: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from ciphertoll.model import Trial

_SPARSE_S = 30.0
_SPOILED_IN_A_ROW = 4


class Progress:
    """Told between trials only: while one is measured, nothing is printed and nothing wakes up.

    quiet   only trials that are spoiled, and warnings.
    """

    def __init__(self, out: TextIO, *, blocks: int, quiet: bool = False) -> None:
        self._out = out
        self._blocks = blocks
        self._quiet = quiet
        self._live = out.isatty() and not quiet
        self._last_s = float("-inf")
        self._block = -1
        self._spoiled = 0

    def trial_started(self, k: int, n: int, trial: Trial, seconds_left: float) -> None:
        line = f"[{k}/{n}] block {trial.block + 1} of {self._blocks}: {trial.cell.label}"
        line += f" ({duration(seconds_left)} left)"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{line[:width]}")
        elif not self._quiet and (trial.block != self._block or time.monotonic() - self._last_s >= _SPARSE_S):
            self._last_s = time.monotonic()
            self._write(line + "\n")
        self._block = trial.block

    def trial_ended(self, trial: Trial) -> None:
        if trial.status != "ok":
            self._above(f"{trial.status}: {trial.cell.label}, block {trial.block + 1}: {'; '.join(trial.reasons)}")
        self._spoiled = self._spoiled + 1 if trial.status == "void" else 0
        if self._spoiled == _SPOILED_IN_A_ROW:
            self.warning(
                f"{self._spoiled} trials in a row were spoiled: this machine is not quiet enough; `ciphertoll doctor` "
                "says why, Ctrl-C saves what there is"
            )

    def warning(self, text: str) -> None:
        self._above(f"warning: {text}")

    def say(self, text: str) -> None:
        """A line for people who watch."""
        if not self._quiet:
            self._above(text)

    def close(self) -> None:
        """Leave an empty line for what comes next."""
        if self._live:
            self._write("\r\x1b[K")

    def _above(self, text: str) -> None:
        self._write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def duration(seconds: float) -> str:
    """`45 s`, `6 min`, `5 h 12 min`."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
