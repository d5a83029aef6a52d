"""Is this machine fit to measure now, what can it tell, and what will be missing?"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import CiphertollError
from ..metrics import METRICS
from ..model import Sample
from .findings import Findings, Look, Reason, Rights, Speed
from .fitness import reasons
from .machine import fingerprint, identify
from .meter import Meter, Sampler, discover
from .process import foreign_cpu_ns
from .source import numbered, read_text, to_int

__all__ = ["Findings", "Reason", "Speed", "examine", "fingerprint", "render_text", "to_json"]

LOOK_S = 1.0
# Bits of CapEff, from linux/capability.h.
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_NICE": 23, "CAP_PERFMON": 38, "CAP_BPF": 39}
_PACKAGES = (
    "ciphertoll",
    "ciphertoll-engine",
    "onnxruntime",
    "opencv-python-headless",
    "numpy",
    "polars",
    "nvidia-ml-py",
)
_ENGINE = "ciphertoll-engine"


def examine(
    root: str | Path = "/",
    engine: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
    *,
    results: str | Path = ".",
    pause: Callable[[float], None] = time.sleep,
) -> Findings:
    """Look at the machine for one second and judge it.

    root     where /proc and /sys are found.
    engine   returns the `speeds` of `ciphertoll-engine speed`; None if there is no engine.
    results  folder that will hold the results; need not exist yet.
    pause    sleeps that many seconds; for tests.
    """
    root = Path(root)
    machine = identify(root)
    meters = discover({"self": os.getpid()}, root)
    look, seen, failures = _look(meters, root, pause)
    present = tuple(name for name in METRICS if any(metric == name for metric, _ in seen))
    clocked = tuple(sorted(where for metric, where in seen if metric == "frequency_hz"))
    gpus = tuple(sorted({where for metric, where in seen if metric.startswith("gpu_")}))
    speeds, speechless = _speeds(engine)
    found = Findings(
        machine=machine,
        look=look,
        rights=_rights(root),
        power=_power(root),
        free_bytes=_free_bytes(Path(results)),
        present=present,
        absent=tuple(dict.fromkeys([text for meter in meters for text in meter.absent] + failures + speechless)),
        clocked=clocked,
        gpus=gpus,
        speeds=speeds,
        versions=_versions(),
        engines=_engines(root),
    )
    return replace(found, reasons=reasons(found))


def to_json(findings: Findings) -> str:
    """The findings as one JSON object with sorted keys; `fit` is among them."""
    return json.dumps({**asdict(findings), "fit": findings.fit}, indent=2, sort_keys=True, ensure_ascii=False)


def render_text(findings: Findings) -> str:
    """The findings for people, the verdict last."""
    lines = []
    for title, rows in _sections(findings):
        lines.append(title)
        lines += [f"  {name:<23} {value}" for name, value in rows]
    lines.append("will be missing")
    lines += [f"  {text}" for text in findings.absent] or ["  nothing"]
    words = {"yes": "yes", "reservations": "with reservations", "no": "no"}
    lines.append(f"fit to measure now: {words[findings.fit]}")
    for reason in findings.reasons:
        lines.append(f"  {'!!' if reason.fit == 'no' else '! '} {reason.text}")
        if reason.hint:
            lines.append(f"     hint: {reason.hint}")
    return "\n".join(lines)


def _sections(found: Findings) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        ("machine", _machine_rows(found)),
        ("processor", _processor_rows(found)),
        ("now", _now_rows(found)),
        ("this process", _process_rows(found)),
        ("can be measured", [(name, METRICS[name].unit) for name in found.present]),
    ]


def _machine_rows(found: Findings) -> list[tuple[str, str]]:
    machine = found.machine
    remark = f" ({machine.clock_remark})" if machine.clock_remark else ""
    return [
        ("board", _said(machine.board)),
        ("virtual", machine.virtual or "no sign of it"),
        ("kernel", f"{_said(machine.kernel)}, preemption {_said(machine.preemption)}"),
        ("clock source", _said(machine.clock_source) + remark),
        ("timer slack", _said(machine.timer_slack_ns, " ns")),
        ("memory", f"{_mib(machine.memory_bytes)}, swap {_mib(machine.swap_bytes)}"),
        ("power", _said(found.power)),
        ("gpu", ", ".join(found.gpus) or "none that answers"),
        ("disk for results", f"{_mib(found.free_bytes)} free"),
    ]


def _processor_rows(found: Findings) -> list[tuple[str, str]]:
    processor = found.machine.processor
    turbo = {True: "on", False: "off", None: "not said"}[processor.turbo]
    bounds = f"{_ghz(processor.min_hz)} to {_ghz(processor.max_hz)}, now {_ghz(processor.current_hz)}"
    governor = f"{_said(processor.governor)} ({_said(processor.driver)})"
    has_bounds = (processor.min_hz, processor.max_hz, processor.current_hz) != (None, None, None)
    rows = [
        ("model", _said(processor.model)),
        ("cores", f"{processor.cores}, online {_said(processor.online)}, SMT {_said(processor.smt)}"),
        ("limited to", _said(processor.quota, " cores by the control group") if processor.quota else "no quota"),
        ("governor", f"{governor if processor.governor else _said(None)}, turbo {turbo}"),
        ("frequency", bounds if has_bounds else _said(None)),
        ("has", " ".join(processor.extensions) or "no instructions for cryptography"),
        ("has not", " ".join(processor.lacking) or "-"),
    ]
    rows += [
        (row.suite, f"{row.bytes_per_second / 1e6:.0f} MB/s at {row.size_bytes} B ({row.library})")
        for row in found.speeds
    ]
    return rows


def _now_rows(found: Findings) -> list[tuple[str, str]]:
    look = found.look
    return [
        ("load average", " ".join(f"{load:.2f}" for load in look.load_average) or "not said"),
        ("other programs", f"{_percents(look.foreign_percent)} of a core, steal {_percents(look.steal_percent)}"),
        ("waiting", ", ".join(f"{kind} {part:.1f} %" for kind, part in look.stall_percent.items()) or "not said"),
        ("memory in use", _percents(look.memory_percent)),
        ("temperature", ", ".join(f"{zone} {t:.1f} °C" for zone, t in look.temperatures.items()) or "not said"),
        ("throttled", f"{_yes(look.throttled)}, under-voltage {_yes(look.under_voltage)}"),
        ("engines running", ", ".join(map(str, found.engines)) or "none"),
    ]


def _process_rows(found: Findings) -> list[tuple[str, str]]:
    rights = found.rights
    return [
        ("root", _yes(rights.root)),
        ("capabilities", " ".join(rights.capabilities) or "none that matter"),
        ("/dev/net/tun", "open to us" if rights.tun else "not open to us"),
        ("perf_event_paranoid", _said(rights.perf_event_paranoid)),
        *((name, version or "not installed") for name, version in found.versions.items()),
    ]


def _said(value: object, unit: str = "") -> str:
    return "not said" if value is None else f"{value}{unit}"


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "not said"}[value]


def _percents(value: float | None) -> str:
    return "not said" if value is None else f"{value:.1f} %"


def _mib(size_bytes: int | None) -> str:
    return "not said" if size_bytes is None else f"{size_bytes / 2**20:.0f} MiB"


def _ghz(hz: int | None) -> str:
    return "not said" if hz is None else f"{hz / 1e9:.2f} GHz"


def _look(
    meters: Sequence[Meter], root: Path, pause: Callable[[float], None]
) -> tuple[Look, dict[tuple[str, str], float], list[str]]:
    """Read twice; returns what was seen, the second reading by metric and place, and what failed or hung."""
    sampler = Sampler(meters)
    first_ns = sampler.sample_now()
    pause(LOOK_S)
    last_ns = sampler.sample_now()
    samples = sampler.stop()
    before = [sample for sample in samples if sample.at_ns == first_ns]
    after = [sample for sample in samples if sample.at_ns == last_ns]
    first, last = _by_key(before), _by_key(after)
    growth = {key: value - first[key] for key, value in last.items() if key in first}
    own = [sample for sample in before + after if sample.metric in ("cpu_busy_ns", "process_cpu_ns")]
    look = Look(
        foreign_percent=_percent(foreign_cpu_ns(own), before, after),
        steal_percent=_percent(growth.get(("steal_ns", "machine")), before, after),
        stall_percent={
            where: _percent(value, before, after) or 0.0
            for (metric, where), value in growth.items()
            if metric == "pressure_stall_ns"
        },
        load_average=_load_average(root),
        memory_percent=last.get(("memory_percent", "machine")),
        temperatures={where: value for (metric, where), value in last.items() if metric == "temperature_celsius"},
        throttled=_any(last, "throttled"),
        under_voltage=_any(last, "under_voltage"),
    )
    return look, last, [f"{name}: {reason}" for name, reason in sampler.failures.items()]


def _by_key(samples: Sequence[Sample]) -> dict[tuple[str, str], float]:
    return {(sample.metric, sample.where): sample.value for sample in samples}


def _percent(used_ns: float | None, before: Sequence[Sample], after: Sequence[Sample]) -> float | None:
    """used_ns in percent of the time between two readings; never below zero, which ticks can give."""
    if used_ns is None or not before or not after:
        return None
    elapsed_ns = max(1, after[0].at_ns - before[0].at_ns)
    return max(0.0, 100 * used_ns / elapsed_ns)


def _any(values: Mapping[tuple[str, str], float], metric: str) -> bool | None:
    flags = [value for (name, _), value in values.items() if name == metric]
    return any(flags) if flags else None


def _load_average(root: Path) -> tuple[float, ...]:
    words = (read_text(root / "proc/loadavg") or "").split()[:3]
    try:
        loads = tuple(float(word) for word in words)
    except ValueError:
        return ()
    return loads if all(map(math.isfinite, loads)) else ()


def _rights(root: Path) -> Rights:
    lines = (read_text(root / "proc/self/status") or "").splitlines()
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    effective = to_int((fields.get("CapEff") or ["0"])[0], 16) or 0
    uids = fields.get("Uid") or []
    return Rights(
        root=len(uids) > 1 and uids[1] == "0",
        capabilities=tuple(name for name, bit in _CAPABILITIES.items() if effective >> bit & 1),
        tun=os.access(root / "dev/net/tun", os.R_OK | os.W_OK),
        perf_event_paranoid=to_int(read_text(root / "proc/sys/kernel/perf_event_paranoid") or ""),
    )


def _power(root: Path) -> str | None:
    """Batteries of mice and keyboards say `Device` in their scope and do not count."""
    supplies = sorted((root / "sys/class/power_supply").glob("*"))
    ours = [supply for supply in supplies if read_text(supply / "scope") != "Device"]
    if any(read_text(supply / "online") == "1" for supply in ours):
        return "mains"
    batteries = [read_text(supply / "status") for supply in ours if read_text(supply / "type") == "Battery"]
    if "Discharging" in batteries:
        return "battery"
    return "mains" if batteries else None


def _free_bytes(folder: Path) -> int | None:
    """Space on the disk that holds the folder, or will: its nearest parent that exists."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _speeds(engine: Callable[[], Sequence[Mapping[str, Any]]] | None) -> tuple[tuple[Speed, ...], list[str]]:
    if engine is None:
        return (), ["speed of the cipher suites: no engine to ask"]
    try:
        return tuple(_speed(row) for row in engine()), []
    except CiphertollError as error:
        return (), [f"speed of the cipher suites: {error.what}"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        return (), [
            f"speed of the cipher suites: the engine's answer is not understood ({type(error).__name__}: {error})"
        ]


def _speed(row: Mapping[str, Any]) -> Speed:
    return Speed(str(row["suite"]), str(row["library"]), int(row["size_bytes"]), float(row["bytes_per_second"]))


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _engines(root: Path) -> tuple[int, ...]:
    """Processes with the name of the engine, which the kernel cuts to 15 characters.

    One that serves does not count: it is idle until somebody measures, and may be the peer of this run.
    """
    named = [p for p in numbered(root / "proc", "") if read_text(p / "comm") == _ENGINE[:15]]
    return tuple(int(p.name) for p in named if "serve" not in (read_text(p / "cmdline") or "").split("\0")[1:2])
