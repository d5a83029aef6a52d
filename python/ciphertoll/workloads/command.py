"""The supervisor of a command: `python -m ciphertoll.workloads.command`, configured by one line of standard input.

Starts a program that prints a line per unit of work and notes when each line arrives. It is a process of its own, so
that the executor sleeps while lines come.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
import tty
from collections.abc import Callable
from typing import Any

from ciphertoll.errors import MachineError
from ciphertoll.workloads import child

_PIECE_BYTES = 65_536
_GRACE_S = 2.0


def work(parent: child.Child) -> None:
    """Run `parent.config["argv"]` and note its lines until stopped.

    Raises MachineError if the program cannot be started or ends by itself.
    """
    argv: list[str] = parent.config["argv"]
    affinity = child.apply_affinity(parent.config["affinity"])
    program, output = _start(argv)
    try:
        _note_lines(parent, output, {"kind": "command", "argv": argv, "affinity": affinity, "pid": program.pid})
        raise _ended(argv[0], program, len(parent.frames))
    finally:
        _end_group(program)


def _start(argv: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The program, and the descriptor to read its output from.

    Its output is a terminal, because into a pipe most programs write blocks of 4 KiB, and lines would arrive in bursts.
    """
    output, terminal = os.openpty()
    tty.setraw(terminal)  # lines end as the program ended them
    try:
        environment = {**os.environ, "TERM": "dumb"}
        program = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=terminal, env=environment, preexec_fn=_end_with_parent()
        )
    except OSError as error:
        raise MachineError(
            f"command `{argv[0]}` cannot be started: {error.strerror or error}", at="workload.argv"
        ) from error
    finally:
        os.close(terminal)
    return program, output


def _end_with_parent() -> Callable[[], None] | None:
    """What a new process does first so that it ends when this one is killed; None where the system cannot."""
    pr_set_pdeathsig = 1  # prctl(2)
    try:
        prctl = ctypes.CDLL(None).prctl
    except (AttributeError, OSError, TypeError):
        return None

    def ask() -> None:
        prctl(pr_set_pdeathsig, signal.SIGKILL)

    return ask


def _note_lines(parent: child.Child, output: int, facts: dict[str, Any]) -> None:
    """Note when each line arrives, from the second on; return when no more can come."""
    previous = 0
    while True:
        try:
            piece = os.read(output, _PIECE_BYTES)
        except OSError:  # how Linux says that the last writer is gone
            return
        arrived = time.monotonic_ns()
        if not piece:
            return
        for _ in range(piece.count(b"\n")):
            if previous:
                parent.frames.append(previous, arrived, 0, 0, arrived - previous, 0, 0)
            else:
                parent.ready(facts)
            previous = arrived


def _ended(name: str, program: subprocess.Popen[bytes], units: int) -> MachineError:
    try:
        code = program.wait(_GRACE_S)
        how = (
            f"ended by itself with signal {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit status {code}"
        )
    except subprocess.TimeoutExpired:
        how = "closed its output"
    when = f"after {units} units of work" if units else "before it had done a unit of work"
    return MachineError(
        f"command `{name}` {how} {when}",
        at="workload.argv",
        hint="it must print a line per unit of work until it is stopped by SIGTERM",
    )


def _end_group(program: subprocess.Popen[bytes]) -> None:
    """End the program and what it started: all that is in this process's own group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    try:
        program.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        program.kill()


if __name__ == "__main__":
    child.serve(work)
