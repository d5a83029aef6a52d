"""Whether a machine is fit to measure now: each reason against it, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .findings import Findings, Reason
from .machine import SLOW_CLOCKS

# Limits of the verdict. A tenth of a core stolen cost a detector on two cores a tenth of its frame rate.
FOREIGN_PERCENT = 10.0  # of one core
FOREIGN_TOO_MUCH_PERCENT = 50.0
STEAL_PERCENT = 1.0
MEMORY_STALL_PERCENT = 1.0
MEMORY_USED_PERCENT = 90.0
LOAD_PER_CORE = 0.5
DISK_BYTES = 2**30


def reasons(found: Findings) -> tuple[Reason, ...]:
    """All reasons against measuring now: what somebody set, what passes, what stays. Empty if there is none."""
    return (*_settings(found), *_moment(found), *_others(found), *_limits(found))


def _settings(found: Findings) -> Iterator[Reason]:
    governor, clock = found.machine.processor.governor, found.machine.clock_source
    if governor not in (None, "performance", "userspace"):
        yield Reason(
            "reservations",
            f"governor `{governor}` changes the frequency with the load",
            "write `performance` to /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )
    if found.power == "battery":
        yield Reason("reservations", "on battery: the machine may slow down to save it", "connect it to the mains")
    if clock in SLOW_CLOCKS:
        yield Reason("reservations", f"clock source `{clock}`: {found.machine.clock_remark}")


def _moment(found: Findings) -> Iterator[Reason]:
    look = found.look
    if look.throttled:
        yield Reason("no", "throttled now: too hot, or short of power", "cool it, and look again")
    if look.under_voltage:
        yield Reason("no", "under-voltage now", "use a stronger power supply or a shorter cable")
    if look.steal_percent is not None and look.steal_percent > STEAL_PERCENT:
        yield Reason("reservations", f"steal {look.steal_percent:.1f} %: the host gives the cores to others")
    stalled = look.stall_percent.get("memory", 0.0)
    if stalled > MEMORY_STALL_PERCENT:
        yield Reason("reservations", f"tasks waited for memory {stalled:.1f} % of the time", "end what fills it")
    if look.memory_percent is not None and look.memory_percent > MEMORY_USED_PERCENT:
        yield Reason("reservations", f"{look.memory_percent:.0f} % of memory in use", "end what fills it")


def _others(found: Findings) -> Iterator[Reason]:
    look, cores = found.look, found.machine.processor.cores
    foreign = look.foreign_percent or 0.0
    if found.engines:
        pids = ", ".join(map(str, found.engines))
        yield Reason("no", f"another engine is running (pid {pids})", "wait for it, or end it")
    if foreign > FOREIGN_PERCENT:
        fit: Literal["reservations", "no"] = "no" if foreign > FOREIGN_TOO_MUCH_PERCENT else "reservations"
        yield Reason(
            fit, f"other programs use {foreign:.0f} % of a core (limit {FOREIGN_PERCENT:.0f} %)", "`top` names them"
        )
    if look.load_average and look.load_average[0] > LOAD_PER_CORE * cores:
        text = f"load average {look.load_average[0]:.2f} on {cores} cores: it was busy in the last minute"
        yield Reason("reservations", text, "wait a minute")


def _limits(found: Findings) -> Iterator[Reason]:
    quota = found.machine.processor.quota
    if quota is not None and quota < min(2, found.machine.processor.cores):
        yield Reason("reservations", f"the control group allows {quota:g} cores: it pauses us when they are used up")
    if found.machine.processor.cores < 2:
        yield Reason("reservations", "one core: traffic, server and workload take turns on it")
    if not any(name.startswith("cpu") for name in found.clocked):
        yield Reason("reservations", "no frequency reading: a slower clock would look like a slower channel")
    if found.free_bytes is not None and found.free_bytes < DISK_BYTES:
        yield Reason("reservations", f"{found.free_bytes / 2**20:.0f} MiB free for results", "choose another folder")
