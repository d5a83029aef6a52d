"""What this machine is: board, processor, kernel, clock, memory. Facts that stay while nobody changes a setting."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .host import parse_sizes
from .source import numbered, read_int, read_text, to_int

_CPU = "sys/devices/system/cpu"
# Instructions that AEADs, hashes and their vectorised forms use, as /proc/cpuinfo spells them.
_X86 = ("aes", "pclmulqdq", "vaes", "vpclmulqdq", "sha_ni", "avx2", "avx512f")
_ARM = ("aes", "pmull", "sha1", "sha2", "sha3", "sve")
# "CPU part" of implementer 0x41, from Arm's technical reference manuals (MIDR_EL1); arm64 prints no model name.
_ARM_CORES = {
    "0xd03": "Cortex-A53",
    "0xd04": "Cortex-A35",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse N1",
    "0xd40": "Neoverse V1",
    "0xd42": "Cortex-A78AE",
    "0xd49": "Neoverse N2",
}
_CLOCK_REMARKS = {
    "tsc": "read in user space, tens of ns",
    "kvm-clock": "the host's clock, read in user space; a migration or a busy host can show",
    "arch_sys_counter": "Arm generic timer, read in user space; steps of tens of ns",
    "hpet": "a system call and about 1 µs per reading",
    "acpi_pm": "a system call and about 1 µs per reading",
    "jiffies": "steps of milliseconds",
}
SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies"})


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor. None: this machine does not say.

    cores, online  logical processors that exist, and those that are switched on ("0-3").
    smt            two hardware threads per core: "on", "off", "notsupported", as the kernel says.
    extensions     of the instructions that cryptography uses, those that are there; `lacking`, those that are not.
    quota          cores' worth of time that the control group (a container) may use; None without a limit.
    governor       of all processors, each once: "performance", or "performance+schedutil".
    driver, min_hz, max_hz, current_hz, turbo   cpufreq of the first processor.
    """

    model: str | None
    cores: int
    quota: float | None
    online: str | None
    smt: str | None
    extensions: tuple[str, ...]
    lacking: tuple[str, ...]
    driver: str | None
    governor: str | None
    min_hz: int | None
    max_hz: int | None
    current_hz: int | None
    turbo: bool | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What does not change from second to second. None: this machine does not say.

    virtual        why it looks like a virtual machine; None if nothing does.
    preemption     preemption model of the kernel, as its version string says.
    clock_remark   what the clock source means for a measurement.
    """

    board: str | None
    virtual: str | None
    processor: Processor
    kernel: str | None
    preemption: str | None
    clock_source: str | None
    clock_remark: str | None
    timer_slack_ns: int | None
    memory_bytes: int | None
    swap_bytes: int | None


def identify(root: str | Path = "/") -> Machine:
    """The facts of the machine whose /proc and /sys are under root."""
    root = Path(root)
    cpuinfo = read_text(root / "proc/cpuinfo") or ""
    sizes = parse_sizes(read_text(root / "proc/meminfo") or "")
    clock = read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    return Machine(
        board=_board(root),
        virtual=_virtual(root, cpuinfo),
        processor=_processor(root, cpuinfo),
        kernel=read_text(root / "proc/sys/kernel/osrelease"),
        preemption=_preemption(root),
        clock_source=clock,
        clock_remark=_CLOCK_REMARKS.get(clock or ""),
        timer_slack_ns=read_int(root / "proc/self/timerslack_ns"),
        memory_bytes=sizes.get("MemTotal"),
        swap_bytes=sizes.get("SwapTotal"),
    )


def fingerprint(root: str | Path = "/") -> dict[str, Any]:
    """Facts that make two results comparable, for the provenance of a run. JSON values; no name, no serial number."""
    machine = identify(root)
    processor = machine.processor
    return {
        "architecture": platform.machine(),
        "board": machine.board,
        "virtual": machine.virtual is not None,
        "cpu": processor.model,
        "cores": processor.cores,
        "quota": processor.quota,
        "online": processor.online,
        "smt": processor.smt,
        "extensions": list(processor.extensions),
        "governor": processor.governor,
        "min_hz": processor.min_hz,
        "max_hz": processor.max_hz,
        "turbo": processor.turbo,
        "kernel": machine.kernel,
        "preemption": machine.preemption,
        "clock_source": machine.clock_source,
        "memory_bytes": machine.memory_bytes,
    }


def _board(root: Path) -> str | None:
    dmi = root / "sys/class/dmi/id"
    maker = [text for name in ("sys_vendor", "product_name") if (text := read_text(dmi / name))]
    return read_text(root / "proc/device-tree/model") or " ".join(maker) or None


def _virtual(root: Path, cpuinfo: str) -> str | None:
    if "hypervisor" in _field(cpuinfo, "flags").split():
        return "the processor says `hypervisor`"
    kind = read_text(root / "sys/hypervisor/type")
    if kind:
        return f"/sys/hypervisor says `{kind}`"
    if (root / "proc/device-tree/hypervisor").exists():
        return "the device tree has a `hypervisor`"
    maker = read_text(root / "sys/class/dmi/id/sys_vendor") or ""
    return f"made by `{maker}`" if maker in ("QEMU", "VMware, Inc.", "innotek GmbH", "Xen") else None


def _processor(root: Path, cpuinfo: str) -> Processor:
    features = (_field(cpuinfo, "flags") or _field(cpuinfo, "Features")).split()
    wanted = _X86 if _field(cpuinfo, "flags") else _ARM
    cpufreq = root / _CPU / "cpu0/cpufreq"
    return Processor(
        model=_model(cpuinfo),
        cores=len(numbered(root / _CPU, "cpu")),
        quota=_quota(root),
        online=read_text(root / _CPU / "online"),
        smt=read_text(root / _CPU / "smt/control"),
        extensions=tuple(name for name in wanted if name in features),
        lacking=tuple(name for name in wanted if name not in features) if features else (),
        driver=read_text(cpufreq / "scaling_driver"),
        governor=_governor(root),
        min_hz=_khz(cpufreq / "scaling_min_freq"),
        max_hz=_khz(cpufreq / "scaling_max_freq"),
        current_hz=_khz(cpufreq / "scaling_cur_freq"),
        turbo=_turbo(root),
    )


def _field(cpuinfo: str, name: str) -> str:
    """The first `name : value` of /proc/cpuinfo; empty if there is none."""
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return ""


def _model(cpuinfo: str) -> str | None:
    named = _field(cpuinfo, "model name")
    part = _field(cpuinfo, "CPU part")
    if named or not part:
        return named or None
    arm = _ARM_CORES.get(part) if _field(cpuinfo, "CPU implementer") == "0x41" else None
    return arm or f"implementer {_field(cpuinfo, 'CPU implementer')} part {part}"


def _governor(root: Path) -> str | None:
    found = (read_text(cpu / "cpufreq/scaling_governor") for cpu in numbered(root / _CPU, "cpu"))
    return "+".join(dict.fromkeys(name for name in found if name)) or None


def _quota(root: Path) -> float | None:
    """The tightest cpu.max ("150000 100000": one and a half) from our control group up to the root of what we see."""
    path = (read_text(root / "proc/self/cgroup") or "").rpartition("::")[2].partition("\n")[0].strip("/")
    if "\0" in path or ".." in path:
        return None
    top = root / "sys/fs/cgroup"
    quotas = []
    for folder in (top / path, *(top / path).parents):
        numbers = [to_int(word) or 0 for word in (read_text(folder / "cpu.max") or "").split()]
        if len(numbers) == 2 and min(numbers) > 0:
            quotas.append(numbers[0] / numbers[1])
        if folder == top:
            break
    return min(quotas, default=None)


def _khz(path: Path) -> int | None:
    value = read_int(path)
    return None if value is None else value * 1000


def _turbo(root: Path) -> bool | None:
    off = read_int(root / _CPU / "intel_pstate/no_turbo")
    if off is not None:
        return off == 0
    boost = read_int(root / _CPU / "cpufreq/boost")
    return None if boost is None else boost == 1


def _preemption(root: Path) -> str | None:
    version = read_text(root / "proc/version")
    if version is None:
        return None
    named = next((word for word in ("PREEMPT_RT", "PREEMPT_DYNAMIC", "PREEMPT") if f" {word} " in version), None)
    chosen = (read_text(root / "sys/kernel/debug/sched/preempt") or "").partition("(")[2].partition(")")[0]
    return f"{named or 'none or voluntary'}{f' ({chosen})' if chosen else ''}"
