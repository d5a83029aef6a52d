"""The engine binary: the only package that knows how to find it, what to write to it and how to read it.

`Server` and `LoadRun` are each one child process: one job line in, event lines out, read by a thread that sleeps until
a line comes. Start them from a thread that lives as long as they do: Linux tells a child that its parent ended when
the thread that started it did.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ciphertoll.engine.child import (
    BINARY,
    EXIT_TIMEOUT_S,
    VARIABLE,
    WIRE_VERSION,
    Child,
    EngineDiedError,
    find,
    parse_event,
)
from ciphertoll.errors import BugError, CiphertollError, MachineError
from ciphertoll.model import CONNECT_TIMEOUT_NS, EXCHANGE_TIMEOUT_NS, NS, Channel, Coap, Load, Mqtt, Security

__all__ = [
    "BINARY",
    "VARIABLE",
    "WIRE_VERSION",
    "EngineDiedError",
    "Finished",
    "Listening",
    "LoadJob",
    "LoadRun",
    "Peer",
    "ServeJob",
    "Server",
    "Started",
    "channel_from_wire",
    "channels",
    "find",
    "parse_event",
    "speeds",
    "version",
]
_QUERY_TIMEOUT_S = 60.0


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
    connect_timeout_ns: int = CONNECT_TIMEOUT_NS
    exchange_timeout_ns: int = EXCHANGE_TIMEOUT_NS

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


def channels() -> list[dict[str, str]]:
    """Every combination of names that this build can do: protocol and, where secured, version, suite, group,
    certificate and library."""
    return _rows("channels", "channels")


def speeds() -> list[dict[str, Any]]:
    """How fast this machine seals with each suite: suite, library, size_bytes, bytes_per_second."""
    return _rows("speed", "speeds")


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

    def __init__(self, child: Child) -> None:
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
        return cls(Child("serve", job.to_wire(), "the server"))

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
            deadline = time.monotonic() + EXIT_TIMEOUT_S
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

    def __init__(self, child: Child) -> None:
        self._child = child
        self.release = ""
        self._connections: list[dict[str, Any]] = []
        self._started: Started | None = None
        self._finished: Finished | None = None

    @classmethod
    def start(cls, job: LoadJob) -> LoadRun:
        """Start it and return at once."""
        return cls(Child("load", job.to_wire(), "the engine"))

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


def _job(task: dict[str, Any], pin_cpus: Sequence[int]) -> dict[str, Any]:
    return {"version": WIRE_VERSION, "pin_cpus": list(pin_cpus), "die_with_parent": True, "task": task}


def _listening(content: dict[str, Any]) -> Listening:
    return Listening(channel_from_wire(content["channel"]), content["port"], content["ca_pem"])


def _rows(argument: str, name: str) -> list[dict[str, Any]]:
    text = _query(argument)
    try:
        rows = json.loads(text)[name]
    except (ValueError, KeyError, TypeError):
        shown = text.strip()[:200]
        raise BugError(f"`{BINARY} {argument}` printed `{shown}`, which is not understood") from None
    assert isinstance(rows, list)
    return rows


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
