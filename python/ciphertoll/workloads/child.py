"""The child's side of a workload: one JSON line in, event lines out, and an end that keeps the frames.

Events: `ready` with facts, `error` with the parts of a message, `finished` with the number of frames. Nothing is
printed between the first and the last of them.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ciphertoll.errors import BugError, CiphertollError, MachineError, SpecError
from ciphertoll.workloads.frames import Frames

# An orphan that is stuck in native code ends after this many seconds.
_ORPHAN_GRACE_S = 5.0


class Stop(BaseException):
    """The parent wants the end: raised in the main thread, wherever it is."""


class Child:
    """What a workload sees of its parent.

    config     what the parent sent.
    frames     where rows go.
    stopping   whether the end was asked for: checked once per frame, for the case that `Stop` was raised where
               Python must swallow it.
    """

    def __init__(self) -> None:
        self._events = _take_stdout()
        self.config: dict[str, Any] = json.loads(_first_line())
        self.frames = Frames()
        self.stopping = False

    def listen(self) -> None:
        """From here on SIGTERM, or the death of the parent, raises `Stop`."""
        signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=_watch_parent, daemon=True).start()

    def ready(self, facts: dict[str, Any]) -> None:
        """Say that work is under way; rows count from here on."""
        gc.collect()
        gc.freeze()  # what was loaded is not searched again while frames are timed
        self.emit("ready", facts=facts)

    def emit(self, event: str, **fields: Any) -> None:
        """Send one event; nobody listening is not an error."""
        line = json.dumps({"event": event, **fields}) + "\n"
        try:
            os.write(self._events, line.encode())
        except BrokenPipeError:
            self.stopping = True

    def _stop(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.stopping = True
        raise Stop


def serve(work: Callable[[Child], None]) -> NoReturn:
    """Run `work` until it returns, raises or is stopped; save its frames; end the process.

    The process ends without Python's own teardown, which waits for the threads of native libraries.
    """
    child = Child()
    try:
        child.listen()
        failure = _failure_of(work, child)
    except Stop:
        failure = None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        child.frames.save(Path(child.config["folder"]))
    except MachineError as error:
        failure = failure or error
    if failure:
        child.emit("error", **_parts(failure))
    child.emit("finished", frames=len(child.frames))
    sys.stderr.flush()
    os._exit(failure.exit_code if failure else 0)


def apply_affinity(cpus: list[int]) -> list[int]:
    """Bind this process to `cpus` (empty: leave it) and return the processors it may run on.

    Raises SpecError if one of them is not available, MachineError where the system cannot bind.
    """
    if not hasattr(os, "sched_getaffinity"):
        if cpus:
            raise MachineError("this system cannot bind a process to processors", at="workload.affinity")
        return list(range(os.cpu_count() or 1))
    available = sorted(os.sched_getaffinity(0))
    if missing := sorted(set(cpus) - set(available)):
        raise SpecError(
            f"processor {missing[0]} is not available", at="workload.affinity", accepted=[str(cpu) for cpu in available]
        )
    if cpus:
        os.sched_setaffinity(0, cpus)
    return sorted(os.sched_getaffinity(0))


def _failure_of(work: Callable[[Child], None], child: Child) -> CiphertollError | None:
    try:
        work(child)
    except CiphertollError as error:
        return error
    except Exception as error:
        traceback.print_exc()
        return BugError(f"the workload broke: {type(error).__name__}: {error}")
    return None


def _parts(error: CiphertollError) -> dict[str, Any]:
    kinds = {SpecError: "spec", MachineError: "machine"}
    return {
        "kind": kinds.get(type(error), "bug"),
        "what": error.what,
        "at": error.at,
        "accepted": list(error.accepted),
        "hint": error.hint,
    }


def _take_stdout() -> int:
    """Keep standard output for events: what libraries print goes to standard error."""
    events = os.dup(1)
    os.dup2(2, 1)
    return events


def _first_line() -> bytes:
    """The configuration. Unbuffered, so that the watch on the parent sees all that follows."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(0, 65_536)
        if not piece:
            raise SystemExit("no configuration on standard input")
        line += piece
    return bytes(line)


def _watch_parent() -> None:
    """Sleep until standard input closes, which it does when the parent dies however it dies; then end."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_GRACE_S)
    os._exit(1)
