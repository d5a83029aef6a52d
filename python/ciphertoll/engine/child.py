"""One engine process: found, told its job, listened to, and never left behind."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from ciphertoll.errors import BugError, CiphertollError, MachineError, SpecError

WIRE_VERSION = 1
BINARY = "ciphertoll-engine"
VARIABLE = "CIPHERTOLL_ENGINE"
EXIT_TIMEOUT_S = 5.0
_ONE_RELEASE = "use the `ciphertoll` and `ciphertoll-engine` of one release"
_TAIL_BYTES = 1200


class EngineDiedError(MachineError):
    """An engine that ended, or went silent, in the middle of its job. Another trial may do better."""


def find() -> Path:
    """The engine: what $CIPHERTOLL_ENGINE names, or beside this Python, or in PATH. Raises MachineError without one."""
    if named := os.environ.get(VARIABLE):
        if os.access(named, os.X_OK) and Path(named).is_file():
            return Path(named).absolute()
        raise MachineError(f"`{named}` is not a program", at=f"the environment variable {VARIABLE}")
    beside = Path(sys.executable).parent / BINARY
    if os.access(beside, os.X_OK):
        return beside
    if found := shutil.which(BINARY):
        return Path(found)
    raise MachineError(
        f"`{BINARY}` is not installed", hint=f"`pip install {BINARY}`, or let {VARIABLE} name the program"
    )


_LIVE: set[Child] = set()


class Child:
    """One engine process, in a session of its own so that Ctrl-C reaches only us."""

    def __init__(self, command: str, job: dict[str, Any], name: str) -> None:
        self._name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        self._events: queue.Queue[dict[str, Any] | CiphertollError | None] = queue.Queue()
        self._said_hello = False
        program = find()
        try:
            self._process = subprocess.Popen(
                [str(program), command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise MachineError(f"{name} cannot be started: {error.strerror or error}", at=str(program)) from error
        self.pid = self._process.pid
        _LIVE.add(self)
        self._reader = threading.Thread(target=self._read, name=f"events of {name}", daemon=True)
        self._reader.start()
        self._send(job)

    def next_event(self, deadline: float, awaited: str) -> dict[str, Any]:
        """What it says next, progress left out; awaited is for the message.

        Raises what `Server.wait_ready` and `LoadRun.wait` say.
        """
        event = self.event_within(deadline - time.monotonic())
        if event is None:
            error = EngineDiedError(f"{self._name} did not {awaited}", hint=self._tail())
            self.kill()
            raise error
        return event

    def event_within(self, timeout_s: float) -> dict[str, Any] | None:
        """What it says next; None if that is nothing within the time."""
        try:
            event = self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if event is None:
            raise self._died()
        if isinstance(event, CiphertollError):
            self.kill()
            raise event
        if not self._said_hello and event["event"] != "hello":
            self.kill()
            raise BugError(f"{self._name} did not say which version it is first", hint=_ONE_RELEASE)
        self._said_hello = True
        if event["event"] == "refused":
            self.close()
            raise SpecError(event["what"], at=event["at"], accepted=event["accepted"], hint=event["hint"])
        return event

    def alive(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Wait for its end, or bring it about, and give back what it held."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        if self not in _LIVE:
            return
        _LIVE.discard(self)
        self._process.kill()
        self._process.wait()
        self._reader.join(EXIT_TIMEOUT_S)
        for file in (self._process.stdin, self._process.stdout, self._stderr):
            if file is not None and not (file is self._process.stdout and self._reader.is_alive()):
                with contextlib.suppress(OSError):
                    file.close()

    def _send(self, job: dict[str, Any]) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it died already: `next_event` says why
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        """Sleep until a line comes; in a thread of its own."""
        assert self._process.stdout
        with contextlib.suppress(OSError, ValueError):  # closed while reading
            for line in self._process.stdout:
                try:
                    event = parse_event(line)
                except CiphertollError as error:
                    self._events.put(error)
                    break
                if event["event"] != "progress":
                    self._events.put(event)
        self._events.put(None)

    def _died(self) -> EngineDiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT_S)
        code = self._process.poll()
        how = "its output closed" if code is None else f"exit status {code}"
        if code is not None and code < 0:
            how = f"signal {signal.Signals(-code).name}"
        error = EngineDiedError(f"{self._name} ended unexpectedly: {how}", hint=self._tail())
        self.kill()
        return error

    def _tail(self) -> str | None:
        """The end of what it wrote to standard error, or None."""
        with contextlib.suppress(OSError, ValueError):
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - _TAIL_BYTES))
            text = self._stderr.read().decode(errors="replace").strip()
            return f"it said: {text}" if text else None
        return None


@atexit.register
def _kill_all() -> None:
    for child in list(_LIVE):
        child.kill()


# What each event consists of, as crates/wire/src/event.rs says; a nested name is a table of its own.
EVENTS: dict[str, set[str]] = {
    "hello": {"version", "engine", "features", "pid"},
    "ready": {"listeners"},
    "connected": {"id", "opened_ns", "ready_ns", "negotiated"},
    "started": {"from_ns", "measure_from_ns", "measure_to_ns"},
    "progress": {"at_ns", "counts"},
    "finished": {"outcome", "reason", "counts", "records", "usage"},
    "refused": {"what", "at", "accepted", "hint"},
}
_NESTED: dict[str, set[str]] = {
    "listeners": {"channel", "port", "ca_pem"},
    "negotiated": {"version", "suite", "group", "certificate", "resumed"},
    "counts": {"due", "done", "timed_out", "closed", "refused", "corrupt", "unfinished", "held"},
    "usage": {"threads", "peak_rss_bytes"},
    "threads": {"thread", "total_ns", "measured_ns"},
}


def parse_event(line: str | bytes) -> dict[str, Any]:
    """One line of the engine, with every field that its kind has and no other.

    Raises BugError for anything else, MachineError for an engine of another wire version.
    """
    try:
        event = json.loads(line)
        kind = event["event"]
    except (ValueError, KeyError, TypeError):
        shown = line.decode(errors="replace") if isinstance(line, bytes) else line
        raise BugError(f"the engine printed a line that is no event: `{shown.strip()[:200]}`") from None
    if kind == "hello" and event.get("version") != WIRE_VERSION:
        raise MachineError(
            f"the engine speaks wire version `{event.get('version')}`, this build speaks `{WIRE_VERSION}`",
            hint=_ONE_RELEASE,
        )
    if kind not in EVENTS:
        raise BugError(f"the engine printed an event `{kind}` that is not known", hint=_ONE_RELEASE)
    _check_fields(event, {"event", *EVENTS[kind]}, kind)
    assert isinstance(event, dict)
    return event


def _check_fields(content: Any, expected: set[str], at: str) -> None:
    given = set(content) if isinstance(content, dict) else set()
    if given != expected:
        wrong = ", ".join(sorted(given ^ expected))
        raise BugError(f"an event of the engine has other fields than expected: {wrong}", at=at, hint=_ONE_RELEASE)
    for name in expected & set(_NESTED):
        value = content[name]
        for item in value if isinstance(value, list) else [value] if value is not None else []:
            _check_fields(item, _NESTED[name], f"{at}.{name}")
