"""Sensors of a Raspberry Pi 5, a Jetson Orin Nano and NVIDIA cards from recorded and simulated input.

The trees in recorded/ were written by hand from public documentation of these files and from listings that owners
published; none was taken from a board that ran this code. `FakeNvml` stands for pynvml.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciphertoll.devices import gpu, host, meter, process, source, throttle
from ciphertoll.errors import MachineError
from ciphertoll.model import NS, Sample

RECORDED = Path(__file__).parent / "recorded"
PI = RECORDED / "raspberry-pi-5"
JETSON = RECORDED / "jetson-orin-nano"
TICK_NS = NS // 100


def values(samples: list[Sample]) -> dict[tuple[str, str], float]:
    return {(sample.metric, sample.where): sample.value for sample in samples}


def everything(root: Path, processes: dict[str, int] | None = None) -> tuple[dict[tuple[str, str], float], list[str]]:
    """All that the meters of a tree read, and all that they say is absent."""
    meters = meter.discover(processes or {}, root)
    return values([s for m in meters for s in m.read(7)]), [text for m in meters for text in m.absent]


def a_copy(tree: Path, tmp_path: Path, **changed: str) -> Path:
    """A copy of a recorded tree; of `changed`, each name is looked up in FILES."""
    root = tmp_path / tree.name
    shutil.copytree(tree, root)
    for name, text in changed.items():
        (root / FILES[name]).write_text(text)
    return root


FILES = {
    "throttled": "sys/devices/platform/soc/soc:firmware/get_throttled",
    "over_current": "sys/class/hwmon/hwmon3/oc3_event_cnt",
    "gpu_alert": "sys/class/thermal/cooling_device2/cur_state",
    "cv0": "sys/class/thermal/thermal_zone2/temp",
    "busy": "proc/stat",
}


def test_a_raspberry_pi_5_is_read_in_full() -> None:
    seen, absent = everything(PI)

    assert seen["cpu_busy_ns", "machine"] == (18432 + 12 + 9021 + 211) * TICK_NS
    assert seen["steal_ns", "machine"] == 0
    assert seen["memory_percent", "machine"] == pytest.approx(25.0, abs=0.01)
    assert [seen["frequency_hz", f"cpu{n}"] for n in range(4)] == [2.4e9] * 4
    assert seen["temperature_celsius", "cpu-thermal"] == 58.4
    assert seen["throttled", "firmware"] == seen["under_voltage", "firmware"] == 0
    assert sorted(text.partition(":")[0] for text in absent) == ["pressure (cpu, memory, io)", "throttling"]


def test_a_jetson_orin_nano_is_read_in_full() -> None:
    seen, absent = everything(JETSON)

    assert seen["gpu_percent", "gpu0"] == 43.2
    assert seen["frequency_hz", "gpu0"] == 624_750_000
    assert seen["frequency_hz", "cpu5"] == 1_510_400_000
    assert seen["temperature_celsius", "tj-thermal"] == 52.343
    assert seen["pressure_stall_ns", "cpu"] == 8_123_456_000
    assert seen["throttled", "kernel"] == 0
    assert ("temperature_celsius", "cv0-thermal") not in seen
    assert absent == [
        "temperature of cv0-thermal: refuses to be read now (switched off?)",
        "GPU memory: shared with the processor, see memory_percent",
    ]


def test_a_zone_that_is_switched_on_later_is_read(tmp_path: Path) -> None:
    root = a_copy(JETSON, tmp_path)
    zones = host.TemperatureMeter(root)
    (root / FILES["cv0"]).write_text("51000\n")
    assert values(zones.read(1))["temperature_celsius", "cv0-thermal"] == 51.0


@pytest.mark.parametrize(
    ("before", "now", "throttled", "under_voltage"),
    [
        ("0", "0", 0, 0),
        ("0", "1", 0, 1),
        ("0", "2", 1, 0),
        ("0", "4", 1, 0),
        ("0", "8", 1, 0),
        ("50000", "50000", 0, 0),  # since boot, but not now
        ("0", "50000", 1, 1),  # began and ended between two readings
        ("10000", "50000", 1, 0),
        ("50000", "50005", 1, 1),
    ],
)
def test_firmware_bits_say_throttled_and_under_voltage(
    tmp_path: Path, before: str, now: str, throttled: int, under_voltage: int
) -> None:
    root = a_copy(PI, tmp_path, throttled=before)
    firmware = throttle.FirmwareMeter(root)
    (root / FILES["throttled"]).write_text(f"{now}\n")
    assert values(firmware.read(1)) == {
        ("throttled", "firmware"): throttled,
        ("under_voltage", "firmware"): under_voltage,
    }


def test_vcgencmd_is_asked_less_often_where_sysfs_has_no_file(tmp_path: Path) -> None:
    root = a_copy(PI, tmp_path)
    (root / FILES["throttled"]).unlink()
    firmware = throttle.FirmwareMeter(root, ask=lambda: "throttled=0x4\n")
    assert firmware.every == 5
    assert firmware.absent == ()
    assert values(firmware.read(1)) == {("throttled", "firmware"): 1, ("under_voltage", "firmware"): 0}


def test_without_firmware_access_under_voltage_comes_from_hwmon_and_throttling_is_absent(tmp_path: Path) -> None:
    root = a_copy(PI, tmp_path)
    (root / FILES["throttled"]).unlink()
    firmware = throttle.FirmwareMeter(root, ask=None)
    assert values(firmware.read(1)) == {("under_voltage", "firmware"): 0}
    assert firmware.absent == ("throttling of the firmware: neither get_throttled in /sys nor vcgencmd answers",)


def test_a_vcgencmd_that_answers_nonsense_is_absence_and_no_failure(tmp_path: Path) -> None:
    root = a_copy(PI, tmp_path)
    (root / FILES["throttled"]).unlink()
    shutil.rmtree(root / "sys/class/hwmon/hwmon2")
    firmware = throttle.FirmwareMeter(root, ask=lambda: "VCHI initialization failed")
    assert firmware.read(1) == []
    assert len(firmware.absent) == 1


def test_an_over_current_event_counts_as_throttled_once(tmp_path: Path) -> None:
    root = a_copy(JETSON, tmp_path)
    kernel = throttle.ThrottleMeter(root)
    (root / FILES["over_current"]).write_text("5\n")
    assert [kernel.read(n)[0].value for n in (1, 2)] == [1, 0]


def test_a_gpu_throttle_alert_counts_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    root = a_copy(JETSON, tmp_path, gpu_alert="1\n")
    kernel = throttle.ThrottleMeter(root)
    assert [kernel.read(n)[0].value for n in (1, 2)] == [1, 1]


def test_core_throttle_counts_of_x86_count_when_they_grow(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle"
    folder.mkdir(parents=True)
    (folder / "core_throttle_count").write_text("17\n")
    kernel = throttle.ThrottleMeter(tmp_path)
    assert kernel.read(1)[0].value == 0
    (folder / "core_throttle_count").write_text("18\n")
    assert kernel.read(2)[0].value == 1


def test_processors_that_share_a_clock_are_read_once_and_shown_each(tmp_path: Path) -> None:
    policy = tmp_path / "sys/devices/system/cpu/cpufreq/policy0"
    policy.mkdir(parents=True)
    (policy / "scaling_cur_freq").write_text("1800000\n")
    for number in range(2):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}"
        folder.mkdir()
        (folder / "cpufreq").symlink_to("../cpufreq/policy0")
    seen = values(host.FrequencyMeter(tmp_path).read(1))
    assert seen == {("frequency_hz", "cpu0"): 1.8e9, ("frequency_hz", "cpu1"): 1.8e9}


def test_without_zones_temperatures_come_from_hwmon_with_distinct_names(tmp_path: Path) -> None:
    for number, label in enumerate(("Core 0", "Core 1", "Core 0")):
        folder = tmp_path / f"sys/class/hwmon/hwmon{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text("coretemp\n")
        (folder / "temp1_input").write_text("45000\n")
        (folder / "temp1_label").write_text(f"{label}\n")
    wheres = [sample.where for sample in host.TemperatureMeter(tmp_path).read(1)]
    assert wheres == ["coretemp Core 0", "coretemp Core 1", "coretemp Core 0.1"]


def test_an_empty_machine_lacks_everything_and_fails_nowhere(tmp_path: Path) -> None:
    seen, absent = everything(tmp_path, {"engine": 12, "workload": 13})
    assert {where for metric, where in seen if metric != "process_cpu_ns"} == set()
    assert len(absent) == len(set(absent)) >= 8


def test_pss_of_a_workload_includes_its_descendants_and_lacks_what_is_not_permitted() -> None:
    memory = process.ProcessPssMeter({"engine": 812, "workload": 820, "server": 4, "self": 812}, PI)
    assert values(memory.read(1)) == {
        ("process_pss_bytes", "engine"): 7168 * 1024,
        ("process_pss_bytes", "workload"): (180224 + 40960) * 1024,
    }
    assert memory.absent == ("PSS of `server`: /proc/PID/smaps_rollup is missing or not permitted",)


def test_time_of_ended_children_is_the_larger_of_what_was_seen_and_what_was_waited_for(tmp_path: Path) -> None:
    root = a_copy(PI, tmp_path)
    clock = {820: 100, 821: 3 * NS}
    family = process.ProcessCpuMeter({"workload": 820}, root, clock=clock.__getitem__)
    # 2 s is what 820 waited for so far, in ticks: see stat in the recorded tree.
    assert family.read(1)[0].value == 100 + 3 * NS + 2 * NS

    (root / "proc/820/task/820/children").write_text("")
    assert family.read(2)[0].value == 100 + 3 * NS + 2 * NS  # never falls
    stat = root / "proc/820/stat"
    stat.write_text(stat.read_text().replace(" 150 50 ", " 450 60 "))
    assert family.read(3)[0].value == 100 + 5.1 * NS


class NotSupportedError(Exception):
    """As pynvml.NVMLError_NotSupported."""

    def __str__(self) -> str:
        return "Not Supported"


class FakeNvml:
    """What gpu.py uses of pynvml; `refuses` names functions that raise as unsupported ones do."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_GRAPHICS = 0

    def __init__(self, *, reasons: int = 1, refuses: tuple[str, ...] = (), count: int = 1) -> None:
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": count,
            "nvmlDeviceGetHandleByIndex": object(),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=5),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=8 << 30, free=6 << 30, used=2 << 30),
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetClockInfo": 1410,
            "nvmlDeviceGetCurrentClocksThrottleReasons": reasons,
        }
        self.refuses = refuses
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> Any:
            self.calls.append(name)
            if name in self.refuses:
                raise NotSupportedError
            return self.answers[name]

        return call


def test_nvml_gives_load_memory_temperature_clock_and_throttling() -> None:
    assert values(gpu.NvmlMeter(FakeNvml()).read(1)) == {
        ("gpu_percent", "gpu0"): 37,
        ("gpu_memory_bytes", "gpu0"): 2 << 30,
        ("temperature_celsius", "gpu0"): 61,
        ("frequency_hz", "gpu0"): 1.41e9,
        ("throttled", "gpu0"): 0,
    }


@pytest.mark.parametrize(("reasons", "throttled"), [(0, 0), (1, 0), (2, 0), (0x10, 0), (0x4, 1), (0x28, 1), (0x80, 1)])
def test_only_power_and_heat_count_as_throttling_of_a_gpu(reasons: int, throttled: int) -> None:
    assert values(gpu.NvmlMeter(FakeNvml(reasons=reasons)).read(1))["throttled", "gpu0"] == throttled


def test_an_unsupported_nvml_metric_is_named_once_and_never_asked_for_again() -> None:
    nvml = FakeNvml(refuses=("nvmlDeviceGetMemoryInfo",))
    cards = gpu.NvmlMeter(nvml)
    nvml.calls.clear()
    assert {sample.metric for sample in cards.read(1)} == {
        "gpu_percent",
        "temperature_celsius",
        "frequency_hz",
        "throttled",
    }
    assert "nvmlDeviceGetMemoryInfo" not in nvml.calls
    assert cards.absent == ("gpu_memory_bytes of gpu0: Not Supported",)


def test_an_nvml_that_starts_and_then_refuses_everything_is_absence_not_zero() -> None:
    starts = {"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}  # as on a Jetson
    nvml = FakeNvml(refuses=tuple(FakeNvml().answers.keys() - starts))
    cards = gpu.NvmlMeter(nvml)
    assert cards.read(1) == []
    assert len(cards.absent) == 5


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_machine_without_a_driver_lacks_its_gpu_in_one_sentence(broken: str) -> None:
    cards = gpu.NvmlMeter(FakeNvml(refuses=(broken,)))
    assert cards.read(1) == []
    assert cards.absent == ("GPU: NVML does not answer (Not Supported)",)


def test_devfreq_serves_where_gpu_0_is_missing(tmp_path: Path) -> None:
    root = a_copy(JETSON, tmp_path)
    shutil.rmtree(root / "sys/devices/platform/gpu.0")
    assert values(gpu.JetsonMeter(root).read(1))["gpu_percent", "gpu0"] == 43.2


@given(st.text())
def test_any_text_is_a_stat_or_a_named_error(text: str) -> None:
    for candidate in (text, "cpu " + text):
        try:
            busy_ns, steal_ns = host.parse_stat(candidate)
        except MachineError:
            continue
        assert isinstance(busy_ns, int)
        assert isinstance(steal_ns, int)


@given(st.lists(st.integers(0, 10**12), min_size=8, max_size=10))
def test_busy_time_leaves_out_idle_and_iowait(ticks: list[int]) -> None:
    busy_ns, steal_ns = host.parse_stat("cpu  " + " ".join(map(str, ticks)) + "\ncpu0 1 1\n")
    assert busy_ns == (sum(ticks[:8]) - ticks[3] - ticks[4] - ticks[7]) * TICK_NS
    assert steal_ns == ticks[7] * TICK_NS


@given(st.text(), st.text())
def test_any_text_is_a_pressure_or_a_named_error(head: str, tail: str) -> None:
    for candidate in (head, f"some avg10={head} total={tail}"):
        try:
            assert isinstance(host.parse_pressure(candidate), int)
        except MachineError:
            continue


@given(st.text(), st.text())
def test_any_text_is_sizes_or_none(name: str, value: str) -> None:
    for candidate in (name, f"{name}: {value} kB\n{value}"):
        assert all(isinstance(size, int) for size in host.parse_sizes(candidate).values())


@given(st.text())
def test_any_text_is_flags_ticks_or_none(text: str) -> None:
    flags = throttle.parse_throttled(text)
    assert flags is None or flags >= 0
    assert isinstance(process.waited_for_ns(text), int)
    assert isinstance(process.waited_for_ns(f"1 ({text}) S " + text), int)
    assert source.to_int(text) is None or text.strip()
