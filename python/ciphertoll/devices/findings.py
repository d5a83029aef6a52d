"""What the doctor found, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .machine import Machine

Fit = Literal["yes", "reservations", "no"]


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast one AEAD encrypts, on one core."""

    suite: str
    library: str
    size_bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Look:
    """What happened during the look. Percentages of the time looked; of cpu, 100 % is one core. None: not known.

    foreign_percent  processor time of others, in ticks of 10 ms.
    steal_percent    time for which the host gave a core to somebody else.
    stall_percent    kind (cpu, memory, io) -> time in which some task waited for it.
    """

    foreign_percent: float | None
    steal_percent: float | None
    stall_percent: dict[str, float]
    load_average: tuple[float, ...]
    memory_percent: float | None
    temperatures: dict[str, float]
    throttled: bool | None
    under_voltage: bool | None


@dataclass(frozen=True, slots=True)
class Rights:
    """What this process may do. `perf_event_paranoid`: 2 or less lets a user count own instructions."""

    root: bool
    capabilities: tuple[str, ...]
    tun: bool
    perf_event_paranoid: int | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the machine is not simply fit, and what to do about it."""

    fit: Literal["reservations", "no"]
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the doctor found.

    power    "mains", "battery" or None where no supply reports.
    present  metrics that this machine can give; `absent`, what it lacks, in words.
    clocked  what has a frequency reading: "cpu0", "gpu0".
    gpus     names of the GPUs that answer: "gpu0".
    engines  pids of engines that send now; one that only serves is not among them.
    """

    machine: Machine
    look: Look
    rights: Rights
    power: str | None
    free_bytes: int | None
    present: tuple[str, ...]
    absent: tuple[str, ...]
    clocked: tuple[str, ...]
    gpus: tuple[str, ...]
    speeds: tuple[Speed, ...]
    versions: dict[str, str | None]
    engines: tuple[int, ...]
    reasons: tuple[Reason, ...] = ()

    @property
    def fit(self) -> Fit:
        """Whether to measure now: "no" if any reason says so."""
        said = {reason.fit for reason in self.reasons}
        return "no" if "no" in said else "reservations" if said else "yes"
