"""GPU load, memory, temperature and throttling: NVML for cards, sysfs for Jetson."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..model import Sample
from .host import HostMeter
from .source import Source, open_source, read_text, to_int

# Reasons for which NVML slows a GPU down that are neither idleness nor a setting: power cap 0x4, hardware slowdown
# 0x8, software thermal 0x20, hardware thermal 0x40, power brake 0x80 (nvml.h, nvmlClocksEventReason*).
_SLOWED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


def meters(root: Path) -> list[HostMeter]:
    """The meter of this machine's GPU. On a Jetson sysfs comes first: NVML starts there, and then refuses each call."""
    jetson = JetsonMeter(root)
    if jetson.found:
        return [jetson]
    if root != Path("/"):
        return []
    return [NvmlMeter()]


class JetsonMeter(HostMeter):
    """gpu_percent and frequency_hz of a Jetson's GPU (gpu.0/load in tenths of a percent, devfreq/cur_freq in Hz).

    Its memory is the machine's: there is no gpu_memory_bytes. Its temperature is among the thermal zones.
    """

    name = "gpu"

    def __init__(self, root: Path) -> None:
        self._load = _first(root, ("sys/devices/platform/gpu.0/load", "sys/devices/gpu.0/load"))
        self._frequency: Source | None = None
        for device in sorted((root / "sys/class/devfreq").glob("*")):
            if _is_gpu(device):
                self._load = self._load or open_source(device / "device/load")
                self._frequency = self._frequency or open_source(device / "cur_freq")
        if self.found:
            lacking = [("load", self._load), ("frequency", self._frequency)]
            self.absent = tuple(f"GPU {what}: not in /sys" for what, source in lacking if source is None)
            self.absent += ("GPU memory: shared with the processor, see memory_percent",)

    @property
    def found(self) -> bool:
        """Whether there is such a GPU."""
        return bool(self._load or self._frequency)

    def read(self, at_ns: int) -> list[Sample]:
        samples = []
        if self._load and (tenths := to_int(self._load.read().strip())) is not None:
            samples.append(Sample(at_ns, "gpu_percent", "gpu0", tenths / 10))
        if self._frequency and (hz := to_int(self._frequency.read().strip())) is not None:
            samples.append(Sample(at_ns, "frequency_hz", "gpu0", float(hz)))
        return samples


class NvmlMeter(HostMeter):
    """gpu_percent, gpu_memory_bytes, temperature_celsius, frequency_hz and throttled of each NVIDIA GPU.

    Each is tried once at the beginning; what a GPU does not support is named in `absent` and not asked for again.
    `library` is pynvml or, in tests, what stands for it.
    """

    name = "gpu"

    def __init__(self, library: Any | None = None) -> None:
        self._readings: list[tuple[str, str, Callable[[], float]]] = []
        try:
            self._nvml = library or _pynvml()
            self._nvml.nvmlInit()
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(n) for n in range(self._nvml.nvmlDeviceGetCount())]
        except Exception as error:  # without a driver, NVML fails in more ways than it documents
            self.absent = (f"GPU: NVML does not answer ({error})",)
            return
        if not handles:
            self.absent = ("GPU: NVML finds none",)
        for number, handle in enumerate(handles):
            self._try(f"gpu{number}", handle)

    def read(self, at_ns: int) -> list[Sample]:
        return [Sample(at_ns, metric, where, take()) for metric, where, take in self._readings]

    def _try(self, where: str, handle: Any) -> None:
        for metric, take in self._offers(handle).items():
            try:
                take()
            except Exception as error:  # pynvml has one class per code, and old drivers lack functions
                self.absent += (f"{metric} of {where}: {error}",)
            else:
                self._readings.append((metric, where, take))

    def _offers(self, handle: Any) -> dict[str, Callable[[], float]]:
        nvml = self._nvml
        return {
            "gpu_percent": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "gpu_memory_bytes": lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "temperature_celsius": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "frequency_hz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_GRAPHICS) * 1e6,
            "throttled": lambda: float(bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _SLOWED)),
        }


def _pynvml() -> Any:
    import pynvml

    return pynvml


def _first(root: Path, paths: tuple[str, ...]) -> Source | None:
    return next((source for source in (open_source(root / path) for path in paths) if source), None)


def _is_gpu(device: Path) -> bool:
    """Whether a devfreq device is a Tegra GPU: 17000000.gpu, 17000000.ga10b, 57000000.gpu, gpu-gpc-0."""
    names = (device.name, read_text(device / "device/of_node/name") or "")
    return any("gpu" in name or name.endswith((".ga10b", ".gv11b", ".gp10b")) for name in names)
