"""Processor time and memory of the processes of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ..model import NS, Sample
from .host import MACHINE, parse_sizes
from .source import read_text, to_int

# The roles whose descendants count as theirs. The descendants of `self` are the other roles.
_WITH_DESCENDANTS = frozenset({"workload"})
_TICK_NS = NS // os.sysconf("SC_CLK_TCK")


def process_clock_ns(pid: int) -> int:
    """Exact run time of all threads of a process, ended ones included, zombies too. Raises OSError if it is gone.

    The clock that clock_getcpuclockid(3) names: the sum that the scheduler keeps in ns, no ticks. /proc/PID/schedstat
    is the main thread only, task/*/schedstat forgets the threads that ended, /proc/PID/stat has steps of 10 ms.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)  # 2: CPUCLOCK_SCHED, of linux/posix-timers.h


class ProcessCpuMeter:
    """process_cpu_ns of each role. A process that has ended gives no more samples.

    The workload includes its descendants: those alive, exactly; those that ended, from the last reading or, if that
    is more, from what the kernel added up when they were waited for, in steps of 10 ms (a lower bound).
    """

    name = "process cpu"
    every = 1

    def __init__(
        self, processes: Mapping[str, int], root: Path, clock: Callable[[int], int] = process_clock_ns
    ) -> None:
        self.absent: tuple[str, ...] = ()
        self._roles: dict[str, Callable[[], int]] = {}
        for role, pid in processes.items():
            if role in _WITH_DESCENDANTS:
                self._roles[role] = _Family(pid, root, clock).total_ns
                if not (root / f"proc/{pid}/task/{pid}/children").exists():
                    self.absent += (f"descendants of `{role}`: no /proc/PID/task/TID/children",)
            else:
                self._roles[role] = _Alone(pid, clock).total_ns

    def read(self, at_ns: int) -> list[Sample]:
        samples = []
        for role, total_ns in self._roles.items():
            try:
                samples.append(Sample(at_ns, "process_cpu_ns", role, float(total_ns())))
            except OSError:
                continue  # it has ended
        return samples


class ProcessPssMeter:
    """process_pss_bytes of engine, server and workload with its descendants (/proc/PID/smaps_rollup).

    The kernel walks all pages of the process for it, so it is read on each fifth tick. Where it is not permitted it is
    absent: resident size would count shared pages once per process and is not comparable.
    """

    name = "process memory"
    every = 5

    def __init__(self, processes: Mapping[str, int], root: Path) -> None:
        self._root = root
        self._pids = {role: pid for role, pid in processes.items() if role != "self"}
        refused = [role for role, pid in self._pids.items() if self._pss(pid) is None]
        self.absent = tuple(f"PSS of `{role}`: /proc/PID/smaps_rollup is missing or not permitted" for role in refused)

    def read(self, at_ns: int) -> list[Sample]:
        samples = []
        for role, pid in self._pids.items():
            total = self._pss(pid)
            if total is None:
                continue
            if role in _WITH_DESCENDANTS:
                total += sum(self._pss(child) or 0 for child in descendants(pid, self._root))
            samples.append(Sample(at_ns, "process_pss_bytes", role, float(total)))
        return samples

    def _pss(self, pid: int) -> int | None:
        return parse_sizes(read_text(self._root / f"proc/{pid}/smaps_rollup") or "").get("Pss")


def descendants(pid: int, root: Path) -> list[int]:
    """Children, their children and so on, of all threads; empty if the kernel does not list children."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        task = root / f"proc/{waiting.pop()}/task"
        try:
            threads = list(task.iterdir())
        except OSError:
            continue
        for thread in threads:
            children = [to_int(word) for word in (read_text(thread / "children") or "").split()]
            waiting += [child for child in children if child is not None and child not in found]
            found += [child for child in children if child is not None and child not in found]
    return found


def waited_for_ns(stat: str) -> int:
    """What ended and waited-for children used, from /proc/PID/stat: cutime + cstime; 0 if the text is none."""
    # The name in brackets may hold anything, brackets too; cutime and cstime are fields 16 and 17 (proc_pid_stat(5)).
    words = stat.rpartition(")")[2].split()
    ticks = [to_int(word) or 0 for word in words[13:15]]
    return sum(ticks) * _TICK_NS


def foreign_cpu_ns(samples: Iterable[Sample]) -> float | None:
    """Processor time that others used between the first and the last sample: the machine's minus each role's.

    None if the machine's was not sampled twice. The machine counts in ticks (10 ms, and blind to work that fits
    between two of them), the roles exactly: the difference can be some ticks below zero, and a foreign load of many
    short wake-ups can be missing from it. Of a role that ended in between, what came after its last sample is foreign.
    """
    ends: dict[tuple[str, str], tuple[Sample, Sample]] = {}
    for sample in samples:
        if sample.metric in ("cpu_busy_ns", "process_cpu_ns"):
            key = (sample.metric, sample.where)
            first, last = ends.get(key, (sample, sample))
            ends[key] = (min(first, sample, key=_time_of), max(last, sample, key=_time_of))
    machine = ends.pop(("cpu_busy_ns", MACHINE), None)
    if machine is None or machine[0].at_ns == machine[1].at_ns:
        return None
    own = sum(last.value - first.value for (metric, _), (first, last) in ends.items() if metric == "process_cpu_ns")
    return machine[1].value - machine[0].value - own


def _time_of(sample: Sample) -> int:
    return sample.at_ns


class _Alone:
    """One process without its children."""

    def __init__(self, pid: int, clock: Callable[[int], int]) -> None:
        self._pid = pid
        self._clock = clock

    def total_ns(self) -> int:
        return self._clock(self._pid)


class _Family:
    """One process with its descendants. The total never falls."""

    def __init__(self, pid: int, root: Path, clock: Callable[[int], int]) -> None:
        self._pid = pid
        self._root = root
        self._clock = clock
        self._seen: dict[int, int] = {}
        self._ended_ns = 0
        self._total_ns = 0

    def total_ns(self) -> int:
        own = self._clock(self._pid)
        alive = self._alive()
        self._ended_ns += sum(used for pid, used in self._seen.items() if pid not in alive)
        self._seen = alive
        waited = sum(waited_for_ns(read_text(self._root / f"proc/{pid}/stat") or "") for pid in (self._pid, *alive))
        self._total_ns = max(self._total_ns, own + sum(alive.values()) + max(self._ended_ns, waited))
        return self._total_ns

    def _alive(self) -> dict[int, int]:
        alive = {}
        for pid in descendants(self._pid, self._root):
            try:
                alive[pid] = self._clock(pid)
            except OSError:
                continue  # it has ended since it was listed
        return alive
