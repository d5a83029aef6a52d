"""Whether the machine slowed itself down: heat, current, supply voltage."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from ..model import Sample
from .host import HostMeter
from .source import Source, numbered, open_source, read_text, to_int

# What `get_throttled` answers: bits 0-3 now, the same 16 bits higher since boot (Raspberry Pi documentation,
# "vcgencmd"): under-voltage, ARM frequency capped, throttled, soft temperature limit.
UNDER_VOLTAGE = 0x1
CAPPED = 0xE
_SINCE_BOOT = 16
_FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"
# Cooling devices that slow a processor down; fans and displays are others.
_SLOWING = ("cpufreq-", "thermal-cpufreq-", "devfreq-", "thermal-devfreq-", "Processor")


def meters(root: Path) -> list[HostMeter]:
    """The meters of this module. Only boards that watch their supply are expected to have one for it."""
    found: list[HostMeter] = [ThrottleMeter(root)]
    if is_raspberry(root):
        found.append(FirmwareMeter(root, vcgencmd() if root == Path("/") else None))
    return found


def is_raspberry(root: Path) -> bool:
    """Whether the device tree names a Raspberry Pi."""
    return (read_text(root / "proc/device-tree/model") or "").startswith("Raspberry Pi")


class ThrottleMeter(HostMeter):
    """throttled: 1 if the kernel slowed processors down since the last reading, by its counters and cooling devices.

    Counters: thermal_throttle/*_throttle_count (x86), oc*_event_cnt of soctherm (Jetson: over-current). States: the
    cooling devices that limit a processor's or GPU's frequency, and Jetson's throttle alerts.
    """

    name = "throttling"

    def __init__(self, root: Path) -> None:
        self._counters = _counters(root)
        self._states = _states(root)
        self._last = self._count()
        if not self._counters and not self._states:
            self.absent = ("throttling: the kernel has no throttle counters and no cooling devices",)

    def read(self, at_ns: int) -> list[Sample]:
        if not self._counters and not self._states:
            return []
        before, self._last = self._last, self._count()
        throttled = self._last > before or any(_number(source) > 0 for source in self._states)
        return [Sample(at_ns, "throttled", "kernel", float(throttled))]

    def _count(self) -> int:
        return sum(_number(source) for source in self._counters)


class FirmwareMeter(HostMeter):
    """throttled and under_voltage of a Raspberry Pi: 1 if so now, or if it happened since the last reading.

    The firmware remembers only that something happened since boot: what happens a second time, and is over before it
    is looked at, is not seen.

    From the firmware's sysfs file; else from `vcgencmd`, a process each time and so on each fifth tick; else
    under-voltage alone from hwmon. `ask` calls vcgencmd and returns what it prints.
    """

    name = "firmware"

    def __init__(self, root: Path, ask: Callable[[], str] | None = None) -> None:
        source = open_source(root / _FIRMWARE)
        self._ask = source.read if source else ask
        self._alarm = None if self._ask else _voltage_alarm(root)
        self.every = 1 if source or not ask else 5
        self._before = parse_throttled(self._ask()) if self._ask else None
        if self._before is None:
            lost = "throttling" if self._alarm else "throttling and under-voltage"
            self.absent = (
                f"{lost} of the firmware: neither {_FIRMWARE.rpartition('/')[2]} in /sys nor vcgencmd answers",
            )

    def read(self, at_ns: int) -> list[Sample]:
        if self._alarm:
            return [Sample(at_ns, "under_voltage", "firmware", float(_number(self._alarm) > 0))]
        if self._ask is None or self._before is None:
            return []
        flags = parse_throttled(self._ask())
        if flags is None:
            return []
        happened = flags | ((flags & ~self._before) >> _SINCE_BOOT)
        self._before = flags
        return [
            Sample(at_ns, "throttled", "firmware", float(bool(happened & CAPPED))),
            Sample(at_ns, "under_voltage", "firmware", float(bool(happened & UNDER_VOLTAGE))),
        ]


def parse_throttled(text: str) -> int | None:
    """The bits of `get_throttled`, as sysfs (`50000`) or vcgencmd (`throttled=0x50000`) prints them; None otherwise."""
    number = to_int(text.strip().removeprefix("throttled=").removeprefix("0x"), 16)
    return number if number is not None and number >= 0 else None


def vcgencmd() -> Callable[[], str] | None:
    """Asks the firmware through `vcgencmd`; None where there is no such program."""
    program = shutil.which("vcgencmd")
    if program is None or not os.access(program, os.X_OK):
        return None

    def ask() -> str:
        try:
            answer = subprocess.run([program, "get_throttled"], capture_output=True, text=True, timeout=1, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return answer.stdout

    return ask


def _counters(root: Path) -> list[Source]:
    paths = [
        path
        for folder in numbered(root / "sys/devices/system/cpu", "cpu")
        for path in sorted((folder / "thermal_throttle").glob("*_throttle_count"))
    ]
    for chip in numbered(root / "sys/class/hwmon", "hwmon"):
        paths += sorted(chip.glob("oc*_event_cnt"))
    return [source for source in map(open_source, paths) if source]


def _states(root: Path) -> list[Source]:
    found = []
    for device in numbered(root / "sys/class/thermal", "cooling_device"):
        kind = read_text(device / "type") or ""
        if kind.startswith(_SLOWING) or kind.endswith("throttle-alert"):
            source = open_source(device / "cur_state")
            if source is not None:
                found.append(source)
    return found


def _voltage_alarm(root: Path) -> Source | None:
    for chip in numbered(root / "sys/class/hwmon", "hwmon"):
        if read_text(chip / "name") == "rpi_volt":
            return open_source(chip / "in0_lcrit_alarm")
    return None


def _number(source: Source) -> int:
    """The number in the file; 0 if it refuses for once."""
    try:
        return to_int(source.read().strip()) or 0
    except OSError:
        return 0
