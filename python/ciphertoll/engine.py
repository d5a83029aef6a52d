"""The engine binary: the only module that knows how to find it, what to write to it and how to read it.

`Server` and `LoadRun` are each one child process: one job line in, event lines out, read by a thread that sleeps until
a line comes. Start them from a thread that lives as long as they do: Linux tells a child that its parent ended when
the thread that started it did.
"""

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ciphertoll.errors import BugError, CiphertollError, MachineError, SpecError
from ciphertoll.model import NS, Channel, Coap, Load, Mqtt, Security

WIRE_VERSION = 1
BINARY = "ciphertoll-engine"
VARIABLE = "CIPHERTOLL_ENGINE"
_ONE_RELEASE = "use the `ciphertoll` and `ciphertoll-engine` of one release"
_QUERY_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 5.0
_TAIL_BYTES = 1200


class EngineDiedError(MachineError):
    """An engine that ended, or went silent, in the middle of its job. Another trial may do better."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that listens. ca_pem is None where unprotected."""

    channel: Channel
    port: int
    ca_pem: str | None


@dataclass(frozen=True, slots=True)
class Peer:
    """A server to speak to. name is what its certificate must carry."""

    host: str
    port: int
    name: str
    ca_pem: str | None = None


@dataclass(frozen=True, slots=True)
class LoadJob:
    """One load to send. samples is where the engine writes its raw samples."""

    channel: Channel
    peer: Peer
    load: Load
    samples: Path
    pin_cpus: tuple[int, ...] = ()
    connect_timeout_ns: int = 5 * NS
    exchange_timeout_ns: int = 5 * NS

    def to_wire(self) -> dict[str, Any]:
        load = asdict(self.load)
        content = {
            "channel": self.channel.to_wire(),
            "peer": asdict(self.peer),
            "load": {load.pop("kind"): load},
            "samples": str(self.samples),
            "connect_timeout_ns": self.connect_timeout_ns,
            "exchange_timeout_ns": self.exchange_timeout_ns,
        }
        return _job({"load": content}, self.pin_cpus)


@dataclass(frozen=True, slots=True)
class ServeJob:
    """Servers to be: a channel and a port each, port 0 takes a free one. names go into the certificates."""

    listeners: tuple[tuple[Channel, int], ...]
    bind: str = "127.0.0.1"
    names: tuple[str, ...] = ("localhost", "127.0.0.1")
    pin_cpus: tuple[int, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        listeners = [{"channel": channel.to_wire(), "port": port} for channel, port in self.listeners]
        return _job({"serve": {"bind": self.bind, "names": list(self.names), "listeners": listeners}}, self.pin_cpus)


@dataclass(frozen=True, slots=True)
class Started:
    """The load begins; absolute times."""

    from_ns: int
    measure_from_ns: int
    measure_to_ns: int


@dataclass(frozen=True, slots=True)
class Finished:
    """How a job ended. outcome "ok" or what went wrong; the rest are JSON values as the engine printed them."""

    outcome: str
    reason: str | None
    counts: dict[str, int]
    records: int
    usage: dict[str, Any]
    connections: tuple[dict[str, Any], ...] = ()


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


def channels() -> list[dict[str, str]]:
    """Every combination of names that this build can do: protocol and, where secured, version, suite, group,
    certificate and library."""
    rows: list[dict[str, str]] = json.loads(_query("channels"))["channels"]
    return rows


def speeds() -> list[dict[str, Any]]:
    """How fast this machine seals with each suite: suite, library, size_bytes, bytes_per_second."""
    rows: list[dict[str, Any]] = json.loads(_query("speed"))["speeds"]
    return rows


def version() -> str:
    """Release, wire version and licence of the engine, a line each."""
    return _query("--version").strip()


def channel_from_wire(content: dict[str, Any]) -> Channel:
    """The inverse of `Channel.to_wire`. Raises BugError for a field that is not known."""
    fields = dict(content)
    try:
        for name, kind in (("security", Security), ("mqtt", Mqtt), ("coap", Coap)):
            if name in fields:
                fields[name] = kind(**fields[name])
        return Channel(**fields)
    except TypeError as error:
        raise BugError(f"the engine speaks of a channel that is not understood: {error}") from error


class Server:
    """An engine that serves. Use `start`."""

    def __init__(self, child: _Child) -> None:
        self._child = child
        self.release = ""

    @classmethod
    def start(
        cls,
        listeners: Sequence[tuple[Channel, int]],
        bind: str = "127.0.0.1",
        names: Sequence[str] = ("localhost", "127.0.0.1"),
        pin_cpus: Sequence[int] = (),
    ) -> Server:
        """Start it and return at once."""
        job = ServeJob(tuple(listeners), bind, tuple(names), tuple(pin_cpus))
        return cls(_Child("serve", job.to_wire(), "the server"))

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_ready(self, timeout_s: float) -> list[Listening]:
        """Wait until it listens; in the order of the listeners.

        Raises SpecError if it refused, MachineError if it cannot listen, EngineDiedError if it died or was not ready
        in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            event = self._child.next_event(deadline, f"get ready within {timeout_s:g} s")
            if event["event"] == "hello":
                self.release = event["engine"]
            if event["event"] == "ready":
                return [_listening(listener) for listener in event["listeners"]]
            if event["event"] == "finished":
                self._child.close()
                raise MachineError(f"the server did not start: {event['reason'] or event['outcome']}")

    def alive(self) -> bool:
        return self._child.alive()

    def stop(self) -> dict[str, Any] | None:
        """End it and return its usage; None if it had ended by itself, or did not end in time and was killed."""
        usage = None
        if self._child.alive():
            self._child.terminate()
            deadline = time.monotonic() + _EXIT_TIMEOUT_S
            with contextlib.suppress(CiphertollError):
                while (event := self._child.next_event(deadline, "finish"))["event"] != "finished":
                    pass
                usage = event["usage"]
        self._child.close()
        return usage

    def kill(self) -> None:
        """End it at once. Safe to call again."""
        self._child.kill()


class LoadRun:
    """An engine that sends a load. Use `start`."""

    def __init__(self, child: _Child) -> None:
        self._child = child
        self.release = ""
        self._connections: list[dict[str, Any]] = []
        self._started: Started | None = None
        self._finished: Finished | None = None

    @classmethod
    def start(cls, job: LoadJob) -> LoadRun:
        """Start it and return at once."""
        return cls(_Child("load", job.to_wire(), "the engine"))

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_started(self, timeout_s: float) -> Started | None:
        """Wait until the load begins; None if the job ended before: `wait` says how.

        Raises SpecError if the job was refused, EngineDiedError if the engine died or nothing began in time.
        """
        deadline = time.monotonic() + timeout_s
        while self._started is None and self._finished is None:
            self._take(deadline, f"begin its load within {timeout_s:g} s")
        return self._started

    def sleep_until(self, at_ns: int) -> bool:
        """Sleep until CLOCK_MONOTONIC reads at_ns, or less long if the job ends; whether it is still under way."""
        while self._finished is None and (left_ns := at_ns - time.monotonic_ns()) > 0:
            event = self._child.event_within(left_ns / NS)
            if event is not None:
                self._accept(event)
        return self._finished is None

    def wait(self, timeout_s: float) -> Finished:
        """Wait until the job is over. Raises EngineDiedError if the engine died or is not done in time."""
        deadline = time.monotonic() + timeout_s
        while self._finished is None:
            self._take(deadline, f"finish within {timeout_s:g} s")
        self._child.close()
        return self._finished

    def alive(self) -> bool:
        return self._child.alive()

    def terminate(self) -> None:
        """Ask it to end early and to save what it has; `wait` says when."""
        self._child.terminate()

    def kill(self) -> None:
        """End it at once. Safe to call again."""
        self._child.kill()

    def _take(self, deadline: float, awaited: str) -> None:
        self._accept(self._child.next_event(deadline, awaited))

    def _accept(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "hello":
            self.release = event["engine"]
        elif kind == "connected":
            self._connections.append(event)
        elif kind == "started":
            self._started = Started(**event)
        elif kind == "finished":
            self._finished = Finished(**event, connections=tuple(self._connections))


# What each event consists of, as crates/wire/src/event.rs says; a nested name is a table of its own.
_EVENTS: dict[str, set[str]] = {
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
    if kind not in _EVENTS:
        raise BugError(f"the engine printed an event `{kind}` that is not known", hint=_ONE_RELEASE)
    _check_fields(event, {"event", *_EVENTS[kind]}, kind)
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


_LIVE: set[_Child] = set()


class _Child:
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
            self._process.wait(_EXIT_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        if self not in _LIVE:
            return
        _LIVE.discard(self)
        self._process.kill()
        self._process.wait()
        self._reader.join(_EXIT_TIMEOUT_S)
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
            self._process.wait(_EXIT_TIMEOUT_S)
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


def _job(task: dict[str, Any], pin_cpus: Sequence[int]) -> dict[str, Any]:
    return {"version": WIRE_VERSION, "pin_cpus": list(pin_cpus), "die_with_parent": True, "task": task}


def _listening(content: dict[str, Any]) -> Listening:
    return Listening(channel_from_wire(content["channel"]), content["port"], content["ca_pem"])


def _query(argument: str) -> str:
    program = find()
    try:
        done = subprocess.run(
            [str(program), argument],
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=_QUERY_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None)
        raise MachineError(
            f"`{BINARY} {argument}` failed: {error}", at=str(program), hint=f"it said: {said}" if said else None
        ) from error
    return done.stdout
