"""The parent's side of a workload that runs in a child process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciphertoll.errors import BugError, CiphertollError, MachineError, SpecError
from ciphertoll.workloads import frames

if TYPE_CHECKING:
    import polars as pl

STDERR_NAME = "workload-stderr.txt"
_STOP_TIMEOUT_S = 5.0
_TAIL_BYTES = 1200
_ERRORS: dict[str, type[CiphertollError]] = {"spec": SpecError, "machine": MachineError, "bug": BugError}


class WorkloadProcess:
    """A workload in a process group of its own, which ends when its parent does.

    name      what messages call it.
    unready   what it did not do if it was not ready in time.
    pid       of the process that does the work: the child, or for a command the program, once that is ready.
    """

    def __init__(self, module: str, config: dict[str, Any], folder: Path, *, name: str, unready: str) -> None:
        self._folder = folder
        self._name = name
        self._unready = unready
        self._stderr = folder / STDERR_NAME
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        self._facts: dict[str, Any] | None = None
        self._frames: pl.DataFrame | None = None
        self._stopped = False
        frames.discard(folder)
        try:
            self._child = self._spawn(module)
        except OSError as error:
            raise MachineError(f"{name} cannot be started: {error.strerror or error}") from error
        self.pid = self._child.pid
        self._send({**config, "folder": str(folder)})

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Wait until work is under way and return its facts.

        Raises SpecError or MachineError as the child said, MachineError if it died or was not ready in time (it is
        killed then).
        """
        deadline = time.monotonic() + timeout_s
        while self._facts is None:
            if error := self._said_error():
                self.kill()
                raise error
            if not self._read(max(0.0, deadline - time.monotonic())):
                error = self._not_ready(timeout_s)
                self.kill()
                raise error
            self._facts = next((event["facts"] for event in self._events if event["event"] == "ready"), None)
        self.pid = self._facts.get("pid", self.pid)
        return self._facts

    def alive(self) -> bool:
        """Whether it still works; False from the moment its process ended."""
        return self._child.poll() is None

    def failure(self) -> CiphertollError | None:
        """Why it ended by itself; None while it lives and after a clean stop."""
        if self.alive():
            return None
        self._drain()
        before_its_handler = self._stopped and self._child.returncode == -signal.SIGTERM
        return self._said_error() or (None if self._finished() or before_its_handler else self._died())

    def stop(self) -> pl.DataFrame:
        """End it and return its frames, a row per unit of work; columns as `frames.COLUMNS`.

        Safe to call again. Raises what `failure` returns if it had ended by itself or could not save its frames, and
        MachineError if it did not end within 5 seconds.
        """
        if self._child.poll() is None:
            self._stopped = True
            os.kill(self._child.pid, signal.SIGTERM)
        try:
            self._child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            late = MachineError(f"{self._name} did not stop within {_STOP_TIMEOUT_S:g} s", hint=self._tail())
            self.kill()
            raise late from None
        error = self.failure()
        self.kill()
        if error:
            raise error
        return self.frames()

    def frames(self) -> pl.DataFrame:
        """All frames once it has ended, however it ended; no rows before. The child's file is gone afterwards."""
        if self._frames is None and not self.alive():
            self._frames = frames.take(self._folder)
        return frames.empty() if self._frames is None else self._frames

    def kill(self) -> None:
        """End it and all that it started, at once, without saving. Safe to call again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold it in a device
            self._child.wait(_STOP_TIMEOUT_S)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe and not pipe.closed:
                with contextlib.suppress(OSError):
                    self._drain()
                    pipe.close()
        with contextlib.suppress(OSError):
            if self._stderr.stat().st_size == 0:
                self._stderr.unlink()

    def _spawn(self, module: str) -> subprocess.Popen[bytes]:
        with self._stderr.open("wb") as stderr:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_environment(),
                start_new_session=True,
            )

    def _send(self, config: dict[str, Any]) -> None:
        assert self._child.stdin
        with contextlib.suppress(BrokenPipeError):  # it died already: `wait_ready` says why
            self._child.stdin.write(json.dumps(config).encode() + b"\n")
            self._child.stdin.flush()

    def _read(self, timeout_s: float) -> bool:
        """Take in what the child says next. False if nothing came in time or nothing can come."""
        assert self._child.stdout
        if self._child.stdout.closed:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return False
        piece = os.read(self._child.stdout.fileno(), 65_536)
        *lines, self._unread = (self._unread + piece).split(b"\n")
        self._events += [json.loads(line) for line in lines]
        return bool(piece)

    def _drain(self) -> None:
        while self._read(0.0):
            pass

    def _finished(self) -> bool:
        return any(event["event"] == "finished" for event in self._events)

    def _said_error(self) -> CiphertollError | None:
        for event in self._events:
            if event["event"] == "error":
                kind = _ERRORS.get(event["kind"], BugError)
                return kind(event["what"], at=event["at"], accepted=event["accepted"], hint=event["hint"])
        return None

    def _not_ready(self, timeout_s: float) -> CiphertollError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.2)  # its output closes a moment before it can be waited for
        if not self.alive():
            return self._died()
        return MachineError(f"{self._name} {self._unready} within {timeout_s:g} s", hint=self._tail())

    def _died(self) -> CiphertollError:
        code = self._child.returncode
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit status {code}"
        return MachineError(f"{self._name} ended unexpectedly with {how}", hint=self._tail())

    def _tail(self) -> str | None:
        """The end of what the child wrote to standard error, or None."""
        with contextlib.suppress(OSError):
            text = self._stderr.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
            return f"it said: {text}" if text else None
        return None


def _environment() -> dict[str, str]:
    """The child's environment: it finds this package, and numpy starts no threads that nobody asked for."""
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parents[2]
    if root.name not in ("site-packages", "dist-packages"):  # run from a source tree
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(root)]))
    return variables
