"""Processor, memory, pressure, frequency and temperature of the whole machine, from /proc and /sys."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

from ..errors import MachineError
from ..model import NS, Sample
from .source import Source, numbered, open_source, read_text, to_int

MACHINE = "machine"
# /proc/stat counts in USER_HZ, which is 100 on every Linux this runs on (proc_stat(5), sysconf(3)).
_TICK_NS = NS // os.sysconf("SC_CLK_TCK")


def meters(root: Path) -> list[HostMeter]:
    """The meters of this module, cheap counters first."""
    return [CpuMeter(root), PressureMeter(root), MemoryMeter(root), FrequencyMeter(root), TemperatureMeter(root)]


class HostMeter(ABC):
    """What the meters of the host share: they are read on each tick, and lack nothing until they say so."""

    name = "host"
    every = 1
    absent: tuple[str, ...] = ()

    @abstractmethod
    def read(self, at_ns: int) -> list[Sample]:
        """See `meter.Meter`."""


class CpuMeter(HostMeter):
    """cpu_busy_ns and steal_ns since boot, summed over cores, in steps of 10 ms (/proc/stat).

    Busy is user + nice + system + irq + softirq. Kernels that account by ticks do not see work that begins and ends
    between two ticks: thousands of short wake-ups per second can be invisible here.
    """

    name = "cpu"

    def __init__(self, root: Path) -> None:
        self._stat = open_source(root / "proc/stat")
        if self._stat is None:
            self.absent = ("processor time of the machine: no /proc/stat",)

    def read(self, at_ns: int) -> list[Sample]:
        if self._stat is None:
            return []
        busy_ns, steal_ns = parse_stat(self._stat.read())
        return [
            Sample(at_ns, "cpu_busy_ns", MACHINE, float(busy_ns)),
            Sample(at_ns, "steal_ns", MACHINE, float(steal_ns)),
        ]


class PressureMeter(HostMeter):
    """pressure_stall_ns of cpu, memory and io since boot: time in which some task waited (/proc/pressure)."""

    name = "pressure"

    def __init__(self, root: Path) -> None:
        found = {kind: open_source(root / "proc/pressure" / kind) for kind in ("cpu", "memory", "io")}
        self._sources = {kind: source for kind, source in found.items() if source is not None}
        if len(self._sources) < len(found):
            missing = ", ".join(kind for kind in found if kind not in self._sources)
            self.absent = (f"pressure ({missing}): the kernel has none, or needs `psi=1` on its command line",)

    def read(self, at_ns: int) -> list[Sample]:
        return [
            Sample(at_ns, "pressure_stall_ns", kind, float(parse_pressure(source.read())))
            for kind, source in self._sources.items()
        ]


class MemoryMeter(HostMeter):
    """memory_percent: 100 x (1 - MemAvailable / MemTotal) (/proc/meminfo)."""

    name = "memory"

    def __init__(self, root: Path) -> None:
        self._meminfo = open_source(root / "proc/meminfo")
        if self._meminfo is None:
            self.absent = ("memory of the machine: no /proc/meminfo",)

    def read(self, at_ns: int) -> list[Sample]:
        if self._meminfo is None:
            return []
        sizes = parse_sizes(self._meminfo.read())
        total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable")
        if not total or available is None:
            raise MachineError("`/proc/meminfo` has no `MemTotal` or no `MemAvailable`")
        return [Sample(at_ns, "memory_percent", MACHINE, 100 * (1 - available / total))]


class FrequencyMeter(HostMeter):
    """frequency_hz of each processor (cpufreq/scaling_cur_freq), one file per group of processors that share a clock.

    On many ARM boards this is what the governor asked for: firmware that throttles shows in `throttled`, not here.
    """

    name = "frequency"

    def __init__(self, root: Path) -> None:
        self._groups: list[tuple[list[str], Source]] = []
        groups: dict[Path, list[str]] = {}
        for folder in numbered(root / "sys/devices/system/cpu", "cpu"):
            groups.setdefault((folder / "cpufreq").resolve(), []).append(folder.name)
        for policy, names in groups.items():
            source = open_source(policy / "scaling_cur_freq")
            if source is not None:
                self._groups.append((names, source))
        if not self._groups:
            self.absent = ("frequency: no cpufreq (usual in virtual machines)",)

    def read(self, at_ns: int) -> list[Sample]:
        samples = []
        for names, source in self._groups:
            khz = _value(source)
            if khz is not None:
                samples += [Sample(at_ns, "frequency_hz", name, khz * 1e3) for name in names]
        return samples


class TemperatureMeter(HostMeter):
    """temperature_celsius of each thermal zone, by the name of the zone; of hwmon chips where there are no zones.

    A zone that refuses a reading (a unit that is switched off) is left out of that reading.
    """

    name = "temperature"

    def __init__(self, root: Path) -> None:
        found = _zones(root) or _chips(root)
        self._sensors = list(zip(_unique([label for label, _ in found]), [s for _, s in found], strict=True))
        self.absent = tuple(
            f"temperature of {label}: refuses to be read now (switched off?)"
            for label, source in self._sensors
            if _value(source) is None
        )
        if not self._sensors:
            self.absent = ("temperature: neither thermal zones nor hwmon",)

    def read(self, at_ns: int) -> list[Sample]:
        readings = ((label, _value(source)) for label, source in self._sensors)
        return [
            Sample(at_ns, "temperature_celsius", label, value / 1e3) for label, value in readings if value is not None
        ]


def parse_stat(text: str) -> tuple[int, int]:
    """Busy and stolen ns since boot, summed over processors. Raises MachineError if the text is not /proc/stat."""
    words = text.partition("\n")[0].split()
    ticks = [to_int(word) for word in words[1:9]]
    numbers = [tick for tick in ticks if tick is not None]
    if not words or words[0] != "cpu" or len(numbers) < 8:
        raise MachineError("`/proc/stat` does not begin with a `cpu` line of eight numbers")
    user, nice, system, _idle, _iowait, irq, softirq, steal = numbers
    return (user + nice + system + irq + softirq) * _TICK_NS, steal * _TICK_NS


def parse_pressure(text: str) -> int:
    """ns in which some task waited, since boot. Raises MachineError if the text is not a pressure file."""
    for line in text.splitlines():
        if line.startswith("some "):
            total_us = to_int(line.rpartition("total=")[2])
            if total_us is not None:
                return total_us * 1000
    raise MachineError("a file of `/proc/pressure` has no `some ... total=` line")


def parse_sizes(text: str) -> dict[str, int]:
    """The `Name:  123 kB` lines of meminfo or smaps_rollup, in bytes; any other line is left out."""
    sizes = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and len(words) == 2 and words[1] == "kB":
            kilobytes = to_int(words[0])
            if kilobytes is not None:
                sizes[name] = kilobytes * 1024
    return sizes


def _value(source: Source) -> int | None:
    try:
        return to_int(source.read().strip())
    except OSError:
        return None


def _zones(root: Path) -> list[tuple[str, Source]]:
    zones = numbered(root / "sys/class/thermal", "thermal_zone")
    found = [(read_text(zone / "type") or zone.name, _opened(zone / "temp")) for zone in zones]
    return [(label, source) for label, source in found if source is not None]


def _chips(root: Path) -> list[tuple[str, Source]]:
    found = []
    for chip in numbered(root / "sys/class/hwmon", "hwmon"):
        name = read_text(chip / "name") or chip.name
        for path in sorted(chip.glob("temp*_input")):
            source = _opened(path)
            if source is not None:
                label = read_text(path.with_name(path.name.replace("_input", "_label")))
                found.append((f"{name} {label}" if label else name, source))
    return found


def _opened(path: Path) -> Source | None:
    """The file if it exists, even if it refuses to be read now: a zone may be switched on later."""
    try:
        return Source(path)
    except OSError:
        return None


def _unique(labels: list[str]) -> list[str]:
    """Labels that occur more than once get a number: acpitz, acpitz.1."""
    seen: dict[str, int] = {}
    unique = []
    for label in labels:
        seen[label] = seen.get(label, -1) + 1
        unique.append(f"{label}.{seen[label]}" if seen[label] else label)
    return unique
