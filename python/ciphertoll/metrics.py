"""The metric registry: the unit of every number, what is better, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Raised when a metric of this name would no longer be comparable with earlier results.
METRICS_VERSION = 1


@dataclass(frozen=True, slots=True)
class Metric:
    """One kind of number.

    unit        unit in files.
    better      which way is better; None where neither is.
    title       column heading.
    shown_unit  unit in the report; shown value = value in files / divisor.
    cumulative  a counter that only grows: differences mean something, values do not.
    """

    name: str
    unit: str
    better: Literal["higher", "lower"] | None
    title: str
    shown_unit: str
    divisor: float = 1.0
    cumulative: bool = False


def _time(name: str, title: str) -> Metric:
    return Metric(name, "ns", "lower", title, "ms", 1e6)


_ALL = (
    # Per exchange, from exchanges.parquet.
    _time("rtt_ns", "RTT"),  # done - due
    _time("lag_ns", "lag"),  # sent - due, of exchanges that were not held
    _time("puback_ns", "PUBACK"),  # acked - due
    # Per frame, from frames.parquet.
    Metric("fps", "1/s", "higher", "FPS", "1/s"),  # frames completed in the measured time / its length
    Metric("stage_fps", "1/s", "higher", "stage FPS", "1/s"),  # 1 / median(preprocess + inference + postprocess)
    _time("decode_ns", "decode"),
    _time("preprocess_ns", "preprocess"),
    _time("inference_ns", "inference"),
    _time("postprocess_ns", "postprocess"),
    Metric("detections", "1", None, "detections per frame", "1"),
    # Sensors, from sensors.parquet; `where` says of what.
    Metric("cpu_busy_ns", "ns", "lower", "CPU", "s", 1e9, cumulative=True),  # whole machine, summed over cores
    Metric("steal_ns", "ns", "lower", "steal", "ms", 1e6, cumulative=True),
    Metric("process_cpu_ns", "ns", "lower", "CPU", "s", 1e9, cumulative=True),  # where: engine, server, workload, self
    Metric("pressure_stall_ns", "ns", "lower", "stall", "ms", 1e6, cumulative=True),  # where: cpu, memory, io
    Metric("process_pss_bytes", "B", "lower", "PSS", "MiB", 2**20),  # where: engine, server, workload
    Metric("memory_percent", "%", "lower", "memory", "%"),
    Metric("frequency_hz", "Hz", None, "frequency", "GHz", 1e9),  # where: cpu0, ...
    Metric("temperature_celsius", "°C", "lower", "temperature", "°C"),  # where: zone
    Metric("throttled", "1", "lower", "throttled", "1"),  # 0 or 1
    Metric("under_voltage", "1", "lower", "under-voltage", "1"),  # 0 or 1
    Metric("gpu_percent", "%", "lower", "GPU", "%"),  # where: gpu0, ...
    Metric("gpu_memory_bytes", "B", "lower", "GPU memory", "MiB", 2**20),
    # Per trial, derived by judge.
    Metric("cpu_percent", "%", "lower", "CPU", "%"),  # whole machine, 100 % is one core
    Metric("protocol_cpu_percent", "%", "lower", "client CPU", "%"),  # the engine that sends
    Metric("server_cpu_percent", "%", "lower", "server CPU", "%"),
    Metric("workload_cpu_percent", "%", "lower", "workload CPU", "%"),
    Metric("engine_pss_bytes", "B", "lower", "client PSS", "MiB", 2**20),
    Metric("achieved_hz", "1/s", "higher", "done", "1/s"),  # exchanges completed / measured time
    Metric("completed", "1", "higher", "completed", "%", 0.01),  # exchanges completed / exchanges due
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
