"""The doctor on recorded boards, on invented machines and on this one; the pauses are injected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciphertoll.devices import doctor, fitness, machine
from ciphertoll.devices.process import foreign_cpu_ns
from ciphertoll.errors import MachineError
from ciphertoll.model import NS, Sample

RECORDED = Path(__file__).parent / "recorded"
PI = RECORDED / "raspberry-pi-5"
JETSON = RECORDED / "jetson-orin-nano"
THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"


def no_pause(_: float) -> None:
    """Recorded trees do not change."""


def examine(root: Path, **arguments: Any) -> doctor.Findings:
    return doctor.examine(root, pause=no_pause, **arguments)


def a_copy(tree: Path, tmp_path: Path, changed: dict[str, str]) -> Path:
    root = tmp_path / tree.name
    shutil.copytree(tree, root)
    for name, text in changed.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def performance(tree: Path) -> dict[str, str]:
    """The changes that give each processor of a tree a fixed frequency."""
    governors = sorted(tree.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"))
    return {str(path.relative_to(tree)): "performance\n" for path in governors}


def healthy(tmp_path: Path) -> doctor.Findings:
    """Findings against which nothing speaks."""
    found = examine(a_copy(PI, tmp_path, performance(PI)))
    return replace(found, free_bytes=8 * 2**30, reasons=())


def test_a_raspberry_pi_5_is_identified() -> None:
    found = machine.identify(PI)
    assert found.board == "Raspberry Pi 5 Model B Rev 1.0"
    assert (found.processor.model, found.processor.cores) == ("Cortex-A76", 4)
    assert found.processor.extensions == ("aes", "pmull", "sha1", "sha2")
    assert found.processor.lacking == ("sha3", "sve")
    assert (found.processor.governor, found.processor.max_hz) == ("ondemand", 2_400_000_000)
    assert (found.kernel, found.preemption) == ("6.6.51+rpt-rpi-2712", "PREEMPT")
    assert found.clock_source == "arch_sys_counter"
    assert found.virtual is None


def test_a_jetson_orin_nano_is_identified() -> None:
    found = machine.identify(JETSON)
    assert found.board is not None
    assert found.board.startswith("NVIDIA Jetson Orin Nano")
    assert (found.processor.model, found.processor.cores) == ("Cortex-A78AE", 6)
    assert examine(JETSON).gpus == ("gpu0",)


def test_a_machine_with_nothing_against_it_is_fit(tmp_path: Path) -> None:
    found = examine(a_copy(PI, tmp_path, performance(PI)), results=tmp_path)
    if found.free_bytes is not None and found.free_bytes < fitness.DISK_BYTES:
        pytest.skip("the disk of the tests is nearly full")
    assert found.reasons == ()
    assert found.fit == "yes"


@pytest.mark.parametrize("governor", ["powersave", "ondemand", "schedutil"])
def test_a_governor_that_changes_the_frequency_gives_reservations(tmp_path: Path, governor: str) -> None:
    changed = dict.fromkeys(performance(PI), f"{governor}\n")
    found = examine(a_copy(PI, tmp_path, changed))
    assert found.fit == "reservations"
    assert any(f"`{governor}`" in reason.text for reason in found.reasons)


@pytest.mark.parametrize(("bits", "word"), [("4", "throttled"), ("8", "throttled"), ("1", "under-voltage")])
def test_a_throttled_or_starved_board_is_not_fit(tmp_path: Path, bits: str, word: str) -> None:
    found = examine(a_copy(PI, tmp_path, {THROTTLED: bits}))
    assert found.fit == "no"
    assert [reason.text.split()[0] for reason in found.reasons if reason.fit == "no"] == [word]


def test_what_happened_before_the_look_does_not_make_a_board_unfit() -> None:
    found = examine(PI)  # under-voltage and throttling since boot, neither now
    assert (found.look.throttled, found.look.under_voltage) == (False, False)


def look(**changed: Any) -> Callable[[doctor.Findings], doctor.Findings]:
    return lambda found: replace(found, look=replace(found.look, **changed))


def processor(**changed: Any) -> Callable[[doctor.Findings], doctor.Findings]:
    return lambda found: replace(
        found, machine=replace(found.machine, processor=replace(found.machine.processor, **changed))
    )


def changed(**values: Any) -> Callable[[doctor.Findings], doctor.Findings]:
    return lambda found: replace(found, **values)


@pytest.mark.parametrize(
    ("change", "fit", "words"),
    [
        (look(foreign_percent=10.0), None, ""),
        (look(foreign_percent=11.0), "reservations", "other programs use 11 % of a core"),
        (look(foreign_percent=80.0), "no", "other programs use 80 % of a core"),
        (look(steal_percent=1.5), "reservations", "steal 1.5 %"),
        (look(load_average=(2.5, 0.1, 0.1)), "reservations", "load average 2.50 on 4 cores"),
        (look(load_average=(1.9, 0.1, 0.1)), None, ""),
        (look(stall_percent={"cpu": 50.0, "memory": 3.0}), "reservations", "waited for memory 3.0 %"),
        (look(memory_percent=95.0), "reservations", "95 % of memory in use"),
        (look(memory_percent=None, foreign_percent=None, steal_percent=None, load_average=()), None, ""),
        (processor(cores=1), "reservations", "one core"),
        (processor(governor=None), None, ""),
        (processor(governor="performance+ondemand"), "reservations", "governor `performance+ondemand`"),
        (processor(quota=1.5), "reservations", "the control group allows 1.5 cores"),
        (processor(quota=2.0), None, ""),
        (changed(power="battery"), "reservations", "on battery"),
        (changed(power="mains"), None, ""),
        (changed(clocked=("gpu0",)), "reservations", "no frequency reading"),
        (changed(free_bytes=2**20), "reservations", "1 MiB free"),
        (changed(engines=(71, 72)), "no", "another engine is running (pid 71, 72)"),
    ],
)
def test_each_reason_is_named_and_weighed(
    tmp_path: Path, change: Callable[[doctor.Findings], doctor.Findings], fit: str | None, words: str
) -> None:
    found = fitness.reasons(change(healthy(tmp_path)))
    assert [reason.fit for reason in found] == ([fit] if fit else [])
    assert all(words in reason.text for reason in found)


def test_a_slow_clock_source_gives_reservations(tmp_path: Path) -> None:
    root = a_copy(PI, tmp_path, {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"})
    assert any("`hpet`" in reason.text for reason in examine(root).reasons)


@pytest.mark.parametrize(
    ("supplies", "power"),
    [
        ({}, None),
        ({"AC/type": "Mains", "AC/online": "1", "BAT0/type": "Battery", "BAT0/status": "Charging"}, "mains"),
        ({"AC/type": "Mains", "AC/online": "0", "BAT0/type": "Battery", "BAT0/status": "Discharging"}, "battery"),
        ({"mouse/type": "Battery", "mouse/scope": "Device", "mouse/status": "Discharging"}, None),
    ],
)
def test_mains_and_battery_are_told_apart(tmp_path: Path, supplies: dict[str, str], power: str | None) -> None:
    root = a_copy(PI, tmp_path, {f"sys/class/power_supply/{name}": f"{text}\n" for name, text in supplies.items()})
    assert examine(root).power == power


def test_engines_that_send_are_found_and_those_that_serve_are_not(tmp_path: Path) -> None:
    engines = {
        "proc/90/comm": "ciphertoll-engi\n",
        "proc/90/cmdline": "ciphertoll-engine\0load\0",
        "proc/91/comm": "ciphertoll-engi\n",
        "proc/91/cmdline": "/usr/bin/ciphertoll-engine\0serve\0",
        "proc/92/comm": "bash\n",
    }
    assert examine(a_copy(PI, tmp_path, engines)).engines == (90,)


def test_speeds_of_the_engine_are_shown() -> None:
    row = {"suite": "TLS_AES_128_GCM_SHA256", "library": "rustls", "size_bytes": 16384, "bytes_per_second": 2.5e9}
    found = examine(PI, engine=lambda: [row])
    assert found.speeds == (doctor.Speed("TLS_AES_128_GCM_SHA256", "rustls", 16384, 2.5e9),)
    assert "2500 MB/s at 16384 B (rustls)" in doctor.render_text(found)


def fails() -> list[dict[str, Any]]:
    raise MachineError("`ciphertoll-engine` is not installed")


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (None, "no engine to ask"),
        (fails, "`ciphertoll-engine` is not installed"),
        (lambda: [{"suite": "x"}], "is not understood (KeyError: 'library')"),
    ],
)
def test_an_engine_that_cannot_tell_its_speed_is_absence(engine: Any, said: str) -> None:
    found = examine(PI, engine=engine)
    assert found.speeds == ()
    assert [text for text in found.absent if text.startswith("speed of the cipher suites") and said in text]


def test_json_is_stable_and_has_the_verdict() -> None:
    found = examine(JETSON)
    text = doctor.to_json(found)
    assert json.loads(text)["fit"] == found.fit == "reservations"
    assert json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) == text
    assert sorted(json.loads(text)) == [
        "absent",
        "clocked",
        "engines",
        "fit",
        "free_bytes",
        "gpus",
        "look",
        "machine",
        "power",
        "present",
        "reasons",
        "rights",
        "speeds",
        "versions",
    ]


def test_text_ends_with_the_verdict_and_its_hints() -> None:
    text = doctor.render_text(examine(PI))
    _, _, verdict = text.partition("fit to measure now: ")
    assert verdict.startswith("with reservations\n")
    assert "governor `ondemand`" in verdict
    assert "scaling_governor" in verdict
    assert "Cortex-A76" in text


def test_fingerprint_is_the_same_twice_and_names_nobody() -> None:
    assert doctor.fingerprint(PI) == doctor.fingerprint(PI)
    assert json.loads(json.dumps(doctor.fingerprint(JETSON))) == doctor.fingerprint(JETSON)
    forbidden = {"host", "hostname", "boot_id", "serial"}
    assert not forbidden & doctor.fingerprint().keys()


def test_an_empty_tree_is_examined_without_an_error(tmp_path: Path) -> None:
    found = examine(tmp_path)
    assert found.machine.board is None
    assert found.fit == "reservations"
    assert "not said" in doctor.render_text(found)


def test_this_machine_is_examined() -> None:
    found = doctor.examine(pause=no_pause)
    assert found.machine.processor.cores >= 1
    assert "cpu_busy_ns" in found.present
    assert found.versions["python"]
    assert json.loads(doctor.to_json(found))["fit"] in ("yes", "reservations", "no")


@settings(deadline=None, max_examples=50)  # files on a disk that others use
@given(st.text())
def test_any_text_in_proc_gives_facts_or_nothing(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.mktemp("tree")
    for name in ("proc/cpuinfo", "proc/meminfo", "proc/loadavg", "proc/version", "proc/self/status"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8", errors="replace")
    assert doctor.render_text(examine(root))


ODD = ("9" * 400, "9" * 4000, "-1", "nan inf 1e999", f"MemTotal: {'9' * 400} kB", f"cpu {'9' * 400} 1 1 1 1 1 1 1",
       f"some avg10=0 total={'9' * 400}", f"{'9' * 400} 100000", "0::/../\0")  # fmt: skip
READ = ("proc/stat", "proc/meminfo", "proc/loadavg", "proc/pressure/memory", "proc/self/status", "proc/self/cgroup",
        "sys/fs/cgroup/cpu.max", "sys/class/thermal/thermal_zone0/temp", THROTTLED,
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq")  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_numbers_beyond_all_bounds_are_no_facts_and_no_error(tmp_path: Path, name: str) -> None:
    root = a_copy(PI, tmp_path, {})
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    for text in ODD:
        (root / name).write_text(text)
        found = examine(root)
        assert doctor.render_text(found)
        assert "Infinity" not in doctor.to_json(found)
        assert "NaN" not in doctor.to_json(found)


def test_a_sensor_that_fails_during_the_look_is_said_to_be_missing(tmp_path: Path) -> None:
    found = examine(a_copy(PI, tmp_path, {"proc/stat": "no such counters"}))
    assert found.look.foreign_percent is None
    assert any(text.startswith("cpu: MachineError: ") for text in found.absent)


def test_every_processors_governor_counts(tmp_path: Path) -> None:
    last = "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor"
    root = a_copy(PI, tmp_path, performance(PI) | {last: "schedutil"})
    assert machine.identify(root).processor.governor == "performance+schedutil"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "300000 100000", "a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
    ],
)
def test_the_tightest_control_group_limits_the_processors(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    there = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = a_copy(PI, tmp_path, there | {"proc/self/cgroup": "0::/a/b\n"})
    assert machine.identify(root).processor.quota == quota


def test_foreign_time_is_the_machines_minus_that_of_the_roles() -> None:
    samples = [
        Sample(0, "cpu_busy_ns", "machine", 5.0 * NS),
        Sample(0, "process_cpu_ns", "engine", 1.0 * NS),
        Sample(0, "process_cpu_ns", "workload", 0.0),
        Sample(NS, "cpu_busy_ns", "machine", 6.5 * NS),
        Sample(NS, "process_cpu_ns", "workload", 0.9 * NS),
        Sample(NS, "process_cpu_ns", "engine", 1.5 * NS),
        Sample(NS, "steal_ns", "machine", 9.0 * NS),
    ]
    assert foreign_cpu_ns(samples) == pytest.approx(0.1 * NS)
    assert foreign_cpu_ns(reversed(samples)) == pytest.approx(0.1 * NS)
    assert foreign_cpu_ns(samples[:3]) is None
    assert foreign_cpu_ns([]) is None
