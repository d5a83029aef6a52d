"""Meters read sensors; the Sampler reads the meters on a schedule, beside the run, and never takes it down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from ..errors import BugError, SpecError
from ..model import NS, Sample

MIN_INTERVAL_NS = NS // 10
# The dearest reading (PSS of three processes) takes milliseconds: who needs two seconds does not come back.
HANG_S = 2.0


class Meter(Protocol):
    """One group of sensors of this machine.

    name    for messages: "cpu", "temperature".
    every   read on each nth tick of the schedule; at the ends of the measured time it is read in any case.
    absent  what this machine lacks of it, in words, each said once; empty if nothing.
    """

    @property
    def name(self) -> str: ...

    @property
    def every(self) -> int: ...

    @property
    def absent(self) -> tuple[str, ...]: ...

    def read(self, at_ns: int) -> list[Sample]:
        """Every sensor as it is now; at_ns (CLOCK_MONOTONIC) goes into the samples as it is."""
        ...


def discover(processes: Mapping[str, int], root: str | Path = "/") -> list[Meter]:
    """Every meter of this machine; what it lacks is in their `absent`.

    processes  role ("engine", "server", "workload", "self") -> pid of a running process.
    root       where /proc and /sys are found; tests point it at a recorded tree.

    Counters that a judge subtracts from one another come first, so that they are read close together.
    """
    from . import gpu, host, process, throttle

    root = Path(root)
    meters: list[Meter] = [process.ProcessCpuMeter(processes, root)]
    meters += host.meters(root)
    meters += throttle.meters(root)
    meters += gpu.meters(root)
    meters.append(process.ProcessPssMeter(processes, root))
    return meters


def next_due(due_ns: int, interval_ns: int, now_ns: int) -> int:
    """The next tick after now on the grid of due_ns; ticks that were missed are left out, never made up for."""
    missed = max(0, now_ns - due_ns) // interval_ns
    return due_ns + (missed + 1) * interval_ns


class _Batch:
    """Meters to be read together. `at_ns` is when the reading began."""

    def __init__(self, meters: Sequence[Meter]) -> None:
        self.meters = meters
        self.at_ns = 0
        self.samples: list[Sample] = []
        self.failures: dict[str, str] = {}
        self.reading: Meter | None = None
        self.abandoned = False
        self.done = threading.Event()

    def run(self, now_ns: Callable[[], int]) -> None:
        self.at_ns = now_ns()
        for meter in self.meters:
            if self.abandoned:  # another thread has the meters now
                return
            self.reading = meter
            try:
                self.samples += meter.read(self.at_ns)
            except Exception as error:
                self.failures[meter.name] = f"{type(error).__name__}: {error}"
        self.reading = None
        self.done.set()


class Sampler:
    """Reads meters on an absolute schedule in a thread of its own.

    interval_ns  100 ms or more; else SpecError.
    now_ns       the clock; CLOCK_MONOTONIC unless a test brings its own.
    wait         sleeps up to that many seconds and says whether it was told to stop; for tests.
    hang_s       how long one reading may take before the meter under way counts as failed.

    A meter that raises or hangs is not read again; why is in `failures` (name -> reason).
    """

    def __init__(
        self,
        meters: Sequence[Meter],
        interval_ns: int = NS,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wait: Callable[[float], bool] | None = None,
        hang_s: float = HANG_S,
    ) -> None:
        if interval_ns < MIN_INTERVAL_NS:
            raise SpecError(
                f"sensor interval of {interval_ns / 1e6:g} ms is too short",
                accepted=("100 ms or more",),
                hint="shorter intervals disturb what they measure",
            )
        self.failures: dict[str, str] = {}
        self._meters = list(meters)
        self._interval_ns = interval_ns
        self._now_ns = now_ns
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._hang_s = hang_s
        self._samples: list[Sample] = []
        self._turn = threading.Lock()
        self._requests = _start_reader(now_ns)
        self._thread: threading.Thread | None = None

    @property
    def absent(self) -> tuple[str, ...]:
        """What the meters together lack, each said once."""
        return tuple(dict.fromkeys(text for meter in self._meters for text in meter.absent))

    def start(self) -> None:
        """Begin to sample, at once and then once per interval."""
        if self._thread is not None:
            raise BugError("the sampler was started twice")
        self._thread = threading.Thread(target=self._keep_time, name="sampler", daemon=True)
        self._thread.start()

    def sample_now(self) -> int:
        """Read every meter now, whatever its cadence; returns the at_ns of these samples.

        Any thread may call it. If a meter hangs, the others are read again and that later time is returned.
        """
        if self._stopping.is_set():
            raise BugError("the sampler has been stopped")
        return self._sample(None)

    def stop(self) -> list[Sample]:
        """End the schedule and return all samples, in the order in which they were taken."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._requests.put(None)
        return list(self._samples)

    def _keep_time(self) -> None:
        due_ns, tick = self._now_ns(), 0
        while not self._stopping.is_set():
            self._sample(tick)
            tick += 1
            due_ns = next_due(due_ns, self._interval_ns, self._now_ns())
            if self._wait((due_ns - self._now_ns()) / NS):
                return

    def _sample(self, tick: int | None) -> int:
        with self._turn:
            while True:
                batch = _Batch([meter for meter in self._alive() if tick is None or tick % meter.every == 0])
                self._requests.put(batch)
                if batch.done.wait(self._hang_s):
                    break
                self._abandon(batch)
            self.failures.update(batch.failures)
            self._samples += batch.samples
            return batch.at_ns

    def _alive(self) -> list[Meter]:
        return [meter for meter in self._meters if meter.name not in self.failures]

    def _abandon(self, batch: _Batch) -> None:
        """Leave the thread that hangs behind, together with what it read: its times are no longer true."""
        meter = batch.reading
        batch.abandoned = True
        self._requests.put(None)
        self._requests = _start_reader(self._now_ns)
        if meter is not None:
            self.failures[meter.name] = f"no answer within {self._hang_s:g} s"


def _start_reader(now_ns: Callable[[], int]) -> SimpleQueue[_Batch | None]:
    """A thread that reads one batch after another, until it finds None."""
    requests: SimpleQueue[_Batch | None] = SimpleQueue()

    def read() -> None:
        while (batch := requests.get()) is not None:
            batch.run(now_ns)

    threading.Thread(target=read, name="meters", daemon=True).start()
    return requests
