"""Runs the trials that have not landed yet, one after the other, and lands each as soon as it is over.

Three processes work in a trial: the server, the engine that sends, the workload. This one starts them, sleeps, takes a
sensor sample when the measured time begins and one when it ends, and reads nothing until then.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import ciphertoll
from ciphertoll import engine, store, validity
from ciphertoll.engine import EngineDiedError, Listening, LoadJob, LoadRun, Peer, Server, Started
from ciphertoll.errors import CiphertollError, MachineError, SpecError
from ciphertoll.metrics import METRICS_VERSION
from ciphertoll.model import EXCHANGE_TIMEOUT_NS, NS, Cell, Channel, Sample, Trial
from ciphertoll.workloads import base as workloads

if TYPE_CHECKING:
    import polars as pl

ENGINE_TIMEOUT_S = 15.0
WORKLOAD_TIMEOUT_S = 120.0
# The last sensor sample is taken this long before the measured time ends, so that it lies inside and all processes are
# still there. Rates come from the times of the samples themselves.
END_LEAD_NS = 5_000_000
# Trials in a row that did not begin: then the machine is not fit, and it would take hours to say so of each.
MOST_UNBEGUN = 3
_FIRST_OVERHEAD_S = 1.0
_LOCK_NAME = "ciphertoll-run.lock"


class Progress(Protocol):
    """Who is told how it goes. Called between trials only."""

    def trial_started(self, k: int, n: int, trial: Trial, seconds_left: float) -> None: ...
    def trial_ended(self, trial: Trial) -> None: ...
    def warning(self, text: str) -> None: ...


class Sampling(Protocol):
    """Sensors that are read at an interval, and when asked. failures: those that stopped answering, and why."""

    @property
    def failures(self) -> Mapping[str, str]: ...
    def start(self) -> None: ...
    def sample_now(self) -> object: ...
    def stop(self) -> list[Sample]: ...


Sense = Callable[[dict[str, int], int], Sampling]


@dataclass(frozen=True, slots=True)
class Remote:
    """Servers that run elsewhere. name is what their certificates carry."""

    host: str
    listeners: tuple[Listening, ...]
    name: str = "localhost"

    def peer(self, channel: Channel) -> Peer:
        """Where `channel` is served. Raises SpecError if it is not."""
        for listening in self.listeners:
            if listening.channel == channel:
                return Peer(self.host, listening.port, self.name, listening.ca_pem)
        raise SpecError(
            f"the server at `{self.host}` does not serve `{channel.label}` with these settings",
            at="peer",
            accepted=sorted({listening.channel.label for listening in self.listeners}),
            hint="start it with the same channels: `ciphertoll serve`",
        )


def execute(
    results: store.Results,
    trials: Sequence[Trial],
    *,
    progress: Progress,
    peer: Remote | None = None,
    sense: Sense | None = None,
) -> None:
    """Run what has not landed of `trials`, in their order; a void trial again at the end of its block.

    peer    servers to speak to; None starts one on this machine for each trial.
    sense   makes the sensors of a trial from the pids of its roles and an interval in ns.

    Raises SpecError or MachineError for what would keep every trial from running. On that, and on Ctrl-C, what has
    landed is safe, what was under way is dropped, and no process is left.
    """
    import numpy as np  # noqa: F401 - loaded before anything is measured
    import polars as pl  # noqa: F401

    results.keep_plan(trials)
    if peer is not None:
        for cell in {trial.cell for trial in trials if trial.cell.channel is not None}:
            assert cell.channel is not None
            peer.peer(cell.channel)
    with _alone(progress) as alone:
        if alone:
            _sweep(results.path)
        _Run(results, progress, peer, sense or _sensors, _origin(results)).every(trials)


class _Run:
    """Everything that the trials of one call have in common."""

    def __init__(
        self, results: store.Results, progress: Progress, peer: Remote | None, sense: Sense, origin: Mapping[str, Any]
    ) -> None:
        self.results = results
        self.progress = progress
        self.peer = peer
        self.sense = sense
        self.origin = origin
        self._unbegun = 0
        self._overheads_s: list[float] = []

    def every(self, trials: Sequence[Trial]) -> None:
        waiting = _missing(trials, self.results.trials, self.results.spec.retries)
        n = len(trials)
        k = n - len(waiting)
        while waiting:
            trial = waiting.pop(0)
            k += 1
            self.progress.trial_started(k, max(n, k + len(waiting)), trial, self._seconds_left([trial, *waiting]))
            ended = self._one(trial)
            self.progress.trial_ended(ended)
            self._check_fit(ended)
            if ended.status == "void" and trial.attempt < self.results.spec.retries:
                end_of_block = sum(other.block <= trial.block for other in waiting)
                waiting.insert(end_of_block, replace(trial, attempt=trial.attempt + 1))

    def _one(self, trial: Trial) -> Trial:
        began_ns = time.monotonic_ns()
        scratch = Path(tempfile.mkdtemp(prefix=".scratch-", dir=self.results.path))
        attempt = _Attempt(self, trial, scratch, began_ns)
        try:
            ended = attempt.run()
            self.results.land(ended, attempt.samples, attempt.frames, attempt.sensors)
        finally:
            attempt.kill()
            shutil.rmtree(scratch, ignore_errors=True)
        if ended.window is not None:
            self._overheads_s.append((time.monotonic_ns() - began_ns - _load_ns(trial.cell)) / NS)
        return ended

    def _check_fit(self, ended: Trial) -> None:
        self._unbegun = self._unbegun + 1 if ended.window is None else 0
        if self._unbegun >= MOST_UNBEGUN:
            raise MachineError(
                f"{self._unbegun} trials in a row did not begin: {'; '.join(ended.reasons)}",
                at=str(self.results.path),
                hint="mend that, then `--resume`",
            )

    def _seconds_left(self, waiting: Sequence[Trial]) -> float:
        known = self._overheads_s
        overhead_s = sum(known) / len(known) if known else _FIRST_OVERHEAD_S
        return sum(_load_ns(trial.cell) / NS + overhead_s for trial in waiting)


class _Attempt:
    """One trial under way: what it started and what it knows."""

    def __init__(self, common: _Run, trial: Trial, scratch: Path, began_ns: int) -> None:
        self._common = common
        self.trial = trial
        self.cell = trial.cell
        self.scratch = scratch
        self.samples = scratch / "samples.bin"
        self.began_ns = began_ns
        self.facts: dict[str, Any] = dict(common.origin)
        self.window: tuple[int, int] | None = None
        self.frames: pl.DataFrame | None = None
        self.sensors: list[Sample] = []
        self._server: Server | None = None
        self._workload: workloads.Running | None = None
        self._load: LoadRun | None = None
        self._sampling: Sampling | None = None

    def run(self) -> Trial:
        """Start everything, sleep through it, stop everything, judge."""
        try:
            self._begin()
            self._measure()
        except EngineDiedError as error:
            self.facts |= {"engine_outcome": "died", "engine_reason": _said(error)}
        except _WorkloadError as error:
            self.facts["workload_failure"] = _said(error.cause)
        self._end()
        return self._judged()

    def kill(self) -> None:
        """End whatever is still there. Safe to call again."""
        if self._sampling is not None:
            with contextlib.suppress(Exception):
                self._sampling.stop()
            self._sampling = None
        for running in (self._load, self._workload, self._server):
            if running is not None:
                running.kill()

    def _begin(self) -> None:
        """Server and workload start at the same time; the load when both are ready."""
        channel, device = self.cell.channel, self.cell.device
        if channel is not None and self._common.peer is None:
            self._server = Server.start([(channel, 0)], pin_cpus=device.server_cpus)
        self._workload = workloads.start(self.cell.workload, self.scratch)
        peer = self._peer(channel) if channel is not None else None
        if self._workload is not None:
            with _as_workload_error():
                self.facts["workload"] = self._workload.wait_ready(WORKLOAD_TIMEOUT_S)
        if channel is not None and peer is not None:
            job = LoadJob(channel, peer, self.cell.load, self.samples, device.engine_cpus)
            self._load = LoadRun.start(replace(job, exchange_timeout_ns=EXCHANGE_TIMEOUT_NS))
        self._sampling = self._common.sense(self._pids(), self._common.results.spec.sensor_interval_ns)
        self._sampling.start()

    def _peer(self, channel: Channel) -> Peer:
        if self._common.peer is not None:
            return self._common.peer.peer(channel)
        assert self._server is not None
        (listening,) = self._server.wait_ready(ENGINE_TIMEOUT_S)
        return Peer("127.0.0.1", listening.port, "localhost", listening.ca_pem)

    def _measure(self) -> None:
        assert self._sampling is not None
        started = self._started()
        if started is not None:
            self.window = (started.measure_from_ns, started.measure_to_ns)
            self.facts["placement"] = _placement(self._pids())
            if self._sleep_until(started.measure_from_ns):
                self._sampling.sample_now()
                if self._sleep_until(started.measure_to_ns - END_LEAD_NS):
                    self._sampling.sample_now()
        self._stop_sensing()
        if self._load is not None:
            # The engine waits for the last answers; it may end that much after the measured time.
            finished = self._load.wait(EXCHANGE_TIMEOUT_NS / NS + ENGINE_TIMEOUT_S)
            self.facts |= {
                "engine_outcome": finished.outcome,
                "engine_reason": finished.reason,
                "connections": list(finished.connections),
                "counts": finished.counts,
                "records": finished.records,
                "usage": finished.usage,
            }
        elif self.window is not None:
            _sleep_until(self.window[1])

    def _stop_sensing(self) -> None:
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            self.sensors = sampling.stop()
            if failures := sampling.failures:
                self.facts["sensor_failures"] = dict(failures)

    def _started(self) -> Started | None:
        """When the load begins, as the engine says or, without one, from now on."""
        if self._load is not None:
            return self._load.wait_started(ENGINE_TIMEOUT_S)
        now_ns = time.monotonic_ns()
        measure_from_ns = now_ns + self.cell.load.warm_up_ns
        return Started(now_ns, measure_from_ns, measure_from_ns + self.cell.load.duration_ns)

    def _sleep_until(self, at_ns: int) -> bool:
        """Sleep; False as soon as the engine has ended."""
        if self._load is not None:
            return self._load.sleep_until(at_ns)
        _sleep_until(at_ns)
        return True

    def _end(self) -> None:
        self._stop_sensing()
        if self._workload is not None and "workload" in self.facts:
            try:
                self.frames = self._workload.stop()
            except CiphertollError as error:
                self.facts["workload_failure"] = _said(error)
        if self._server is not None and (usage := self._server.stop()):
            self.facts["server_usage"] = usage
        self.kill()

    def _judged(self) -> Trial:
        import polars as pl

        self.facts["roles"] = sorted(self._pids())
        frames = pl.DataFrame(schema=store.frame_schema()) if self.frames is None else self.frames
        if self.window is not None and self.frames is not None:
            self.facts["workload_unfit"] = workloads.unfit(self.facts["workload"], _within(frames, self.window))
        exchanges = self._exchanges()
        if self.window is not None:
            self.facts["overhead_ns"] = time.monotonic_ns() - self.began_ns - _load_ns(self.cell)
        trial = replace(self.trial, window=self.window, facts=self.facts)
        return validity.settle(trial, validity.check(trial, exchanges, frames, store.sensor_table(self.sensors)))

    def _exchanges(self) -> pl.DataFrame:
        """What the engine left. One that did not end well may leave a file that is no good: then there is none."""
        import polars as pl

        if self.samples.exists():
            try:
                return store.read_samples(self.samples)
            except MachineError:
                if self.facts.get("engine_outcome") == "ok":
                    raise
                self.samples.unlink()
        return pl.DataFrame(schema=store.exchange_schema())

    def _pids(self) -> dict[str, int]:
        roles = {"engine": self._load, "server": self._server, "workload": self._workload}
        return {**{role: running.pid for role, running in roles.items() if running is not None}, "self": os.getpid()}


class _WorkloadError(Exception):
    """The workload did not get ready: the trial fails, another may do better."""

    def __init__(self, cause: CiphertollError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextlib.contextmanager
def _as_workload_error() -> Iterator[None]:
    try:
        yield
    except MachineError as error:
        raise _WorkloadError(error) from error


def _sensors(pids: dict[str, int], interval_ns: int) -> Sampling:
    from ciphertoll.devices import meter

    sampler: Sampling = meter.Sampler(meter.discover(pids), interval_ns)
    return sampler


def _missing(trials: Sequence[Trial], landed: Sequence[Trial], retries: int) -> list[Trial]:
    """What is left to run: places where nothing landed, or only void attempts and fewer than may be made."""
    last: dict[tuple[int, int], Trial] = {}
    for trial in landed:
        place = (trial.block, trial.order)
        if place not in last or last[place].attempt < trial.attempt:
            last[place] = trial
    missing = []
    for trial in trials:
        done = last.get((trial.block, trial.order))
        if done is None:
            missing.append(trial)
        elif done.status == "void" and done.attempt < retries:
            missing.append(replace(trial, attempt=done.attempt + 1))
    return missing


def _origin(results: store.Results) -> dict[str, Any]:
    """The facts that are the same for every trial: trials of another origin are not pooled with these."""
    build = {"ciphertoll": ciphertoll.__version__}
    if any(cell.channel is not None for cell in results.spec.cells):
        build["engine"] = engine.version()
    return {
        "machine": _machine(),
        "build": build,
        "metrics_version": METRICS_VERSION,
        "processors": os.cpu_count() or 1,
    }


def _machine() -> dict[str, Any]:
    """Which machine this is, without its name: a report may be published."""
    named = platform.node()
    with contextlib.suppress(OSError):
        named += Path("/etc/machine-id").read_text()
    return {
        "id": hashlib.sha256(named.encode()).hexdigest()[:12],
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "processors": os.cpu_count() or 1,
    }


def _placement(pids: Mapping[str, int]) -> dict[str, list[int]]:
    """The processors that each process may run on; a process that has ended is left out."""
    places = {}
    for role, pid in pids.items():
        with contextlib.suppress(OSError):
            places[role] = sorted(os.sched_getaffinity(pid))
    return places


def _within(frames: pl.DataFrame, window: tuple[int, int]) -> pl.DataFrame:
    import polars as pl

    return frames.filter((pl.col("done_ns") >= window[0]) & (pl.col("done_ns") < window[1]))


def _sleep_until(at_ns: int) -> None:
    while (left_ns := at_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / NS)


def _load_ns(cell: Cell) -> int:
    return cell.load.warm_up_ns + cell.load.duration_ns


def _said(error: CiphertollError) -> str:
    return f"{error.what}; {error.hint}" if error.hint else error.what


@contextlib.contextmanager
def _alone(progress: Progress) -> Iterator[bool]:
    """Hold the machine's lock if it is free; two runs at once disturb each other, which is worth a warning."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    with contextlib.ExitStack() as held:
        try:
            lock = _open_lock(folder / _LOCK_NAME)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.warning("another ciphertoll run is measuring on this machine: each spoils the other's numbers")
            yield False
            return
        except OSError as error:
            progress.warning(f"cannot tell whether another run is measuring on this machine: {error}")
            yield False
            return
        yield True


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:  # another user's file
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _sweep(folder: Path) -> None:
    """Remove what a killed run left behind."""
    for scratch in folder.glob(".scratch-*"):
        shutil.rmtree(scratch, ignore_errors=True)
