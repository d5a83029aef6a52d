"""Results that never were measured: what judge and report read, held in memory, with known truths."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from ciphertoll.model import (
    NS,
    Cell,
    Channel,
    Coap,
    Detector,
    Idle,
    Mqtt,
    NoWorkload,
    Paced,
    Security,
    Spec,
    Trial,
    Workload,
)

WARM_UP_NS = 2 * NS
SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
# What is true of each protocol: share of FPS that is left at 100/s, and the median RTT in ms.
TRUTH = {"http": (0.995, 1.2), "https": (0.94, 2.0), "h3": (0.92, 2.6), "mqtt": (0.99, 1.6), "mqtts": (0.97, 2.4)}
TRUTH |= {"coap": (0.998, 0.9), "coaps": (0.985, 1.4)}
FPS = 28.0


def channel(protocol: str, suite: str = SUITES[0]) -> Channel:
    version = "DTLS 1.3" if protocol == "coaps" else "TLS 1.3"
    security = Security(version, suite) if protocol in ("https", "h3", "mqtts", "coaps") else None
    return Channel(
        protocol,  # type: ignore[arg-type]
        security,
        http="1.1" if protocol in ("http", "https") else None,
        mqtt=Mqtt() if protocol in ("mqtt", "mqtts") else None,
        coap=Coap() if protocol in ("coap", "coaps") else None,
    )


def channels() -> list[Channel]:
    """Three unprotected and four secured protocols with three suites each."""
    plain = [channel(protocol) for protocol in ("http", "mqtt", "coap")]
    return plain + [channel(protocol, suite) for protocol in ("https", "h3", "mqtts", "coaps") for suite in SUITES]


def paced(rate_hz: float = 100, size_bytes: int = 2048, seconds: int = 10) -> Paced:
    return Paced(rate_hz, size_bytes, WARM_UP_NS, seconds * NS, 64)


def cells(
    of: Sequence[Channel], loads: Sequence[Paced], workloads: Sequence[Workload] = (Detector(), NoWorkload())
) -> tuple[Cell, ...]:
    alone = Cell(None, Idle(WARM_UP_NS, loads[0].duration_ns), Detector())
    return (alone, *(Cell(one, load, workload) for load in loads for workload in workloads for one in of))


@dataclass
class Synthetic:
    """The Protocol `Results`, drawn from the trial's own seed. change may spoil or edit a trial."""

    spec: Spec
    provenance: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Trial], Trial] = lambda trial: trial
    lost_share: float = 0.0
    gpu: bool = False
    read: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trials = [self.change(trial) for trial in _plan(self.spec)]

    def exchanges(self, trial: Trial) -> pl.DataFrame:
        self.read.append(trial.id)
        load = trial.cell.load
        if not isinstance(load, Paced) or trial.cell.channel is None:
            return pl.DataFrame()
        rng = _rng(trial, 1)
        n = int(load.rate_hz * (load.warm_up_ns + load.duration_ns) / NS)
        due = NS + np.arange(n) * int(NS / load.rate_hz)
        middle = TRUTH[trial.cell.channel.protocol][1] * (1.5 if trial.cell.workload.kind != "none" else 1.0)
        rtt = middle * 1e6 * np.exp(rng.normal(0, 0.03)) * rng.lognormal(0, 0.3, n)
        done = rng.random(n) >= self.lost_share
        return pl.DataFrame(
            {
                "due_ns": due.astype(np.uint64),
                "sent_ns": (due + 20_000).astype(np.uint64),
                "acked_ns": np.where(trial.cell.channel.mqtt is not None, due + rtt * 0.6, 0).astype(np.uint64),
                "done_ns": np.where(done, due + rtt, 0).astype(np.uint64),
                "outcome": np.where(done, "done", "timed_out"),
                "held": np.zeros(n, dtype=bool),
                "connection": np.zeros(n, dtype=np.uint16),
            }
        )

    def frames(self, trial: Trial) -> pl.DataFrame:
        if trial.cell.workload.kind == "none":
            return pl.DataFrame()
        rng = _rng(trial, 2)
        one, load = trial.cell.channel, trial.cell.load
        left = 1.0
        if one is not None and isinstance(load, Paced):
            left = 1 - (1 - TRUTH[one.protocol][0]) * min(1.0, load.rate_hz / 100)
        fps = FPS * left * np.exp(0.01 * np.sin(trial.block) + rng.normal(0, 0.004))
        step = int(NS / fps)
        done = NS + np.arange(1, (load.warm_up_ns + load.duration_ns) // step + 1) * step
        stages = {"decode_ns": 0.1, "preprocess_ns": 0.1, "inference_ns": 0.6, "postprocess_ns": 0.1}
        columns = {name: np.full(len(done), int(step * share), dtype=np.uint64) for name, share in stages.items()}
        return pl.DataFrame(
            {
                "started_ns": (done - step).astype(np.uint64),
                "done_ns": done.astype(np.uint64),
                **columns,
                "detections": rng.poisson(4, len(done)).astype(np.uint32),
            }
        )

    def sensors(self, trial: Trial) -> pl.DataFrame:
        if trial.window is None:
            return pl.DataFrame()
        rng, (start, end) = _rng(trial, 3), trial.window
        rows: list[tuple[int, str, str, float]] = []
        roles = {"engine": 0.08, "server": 0.05, "workload": 1.8}
        for role, cores in roles.items():
            busy = (end - start) * cores * np.exp(rng.normal(0, 0.02))
            rows += [(start, "process_cpu_ns", role, 5e9), (end, "process_cpu_ns", role, 5e9 + busy)]
        rows += [(start, "cpu_busy_ns", "machine", 0.0), (end, "cpu_busy_ns", "machine", (end - start) * 3.1)]
        for at in range(start, end + 1, NS):
            rows.append((at, "memory_percent", "machine", 6 + rng.normal(0, 0.05)))
            rows.append((at, "process_pss_bytes", "engine", 9e6 + rng.normal(0, 1e5)))
            if self.gpu:
                rows.append((at, "gpu_percent", "gpu0", 40 + rng.normal(0, 3)))
        return pl.DataFrame(
            rows,
            schema={"at_ns": pl.UInt64, "metric": pl.String, "where": pl.String, "value": pl.Float64},
            orient="row",
        )


def spec(of: Sequence[Cell], blocks: int = 6, twins: Sequence[Cell] = (), name: str = "synthetic") -> Spec:
    return Spec(name, tuple(of), blocks, seed=7, twins=tuple(cell.id for cell in twins))


def _plan(of: Spec) -> list[Trial]:
    by_id = {cell.id: cell for cell in of.cells}
    places = [(cell, False) for cell in of.cells] + [(by_id[twin], True) for twin in of.twins]
    planned = []
    for block in range(of.blocks):
        for order, (cell, twin) in enumerate(places):
            start = NS + cell.load.warm_up_ns
            window = (start, start + cell.load.duration_ns)
            seed = zlib.crc32(f"{of.seed} {block} {order}".encode())
            planned.append(Trial(cell, block, order, seed, twin=twin, status="ok", window=window))
    return planned


def spoiled(trial: Trial, reason: str = "the processor was throttled") -> Trial:
    return replace(trial, status="void", reasons=(reason,))


def _rng(trial: Trial, purpose: int) -> np.random.Generator:
    return np.random.default_rng([trial.seed, purpose])
