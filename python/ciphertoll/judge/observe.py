"""One trial: its samples in the measured window, and the scalars that come of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ciphertoll import stats
from ciphertoll.model import Spec, Trial

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

# A percentile is a metric and a quantile: "rtt_ns.p95". Everything else is a metric of the registry.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PERCENTILES = (
    "rtt_ns.p50",
    "rtt_ns.p95",
    "rtt_ns.p99",
    "puback_ns.p50",
    "puback_ns.p95",
    "puback_ns.p99",
    "lag_ns.p99",
)
# Positive and skewed: geometric mean over blocks. The other scalars are shares, which may be 0: arithmetic mean.
GEOMETRIC = (
    *("fps", "stage_fps", "decode_ns", "preprocess_ns", "inference_ns", "postprocess_ns"),
    *("engine_pss_bytes", "achieved_hz"),
)
ARITHMETIC = (
    *("cpu_percent", "gpu_percent", "memory_percent", "protocol_cpu_percent", "server_cpu_percent"),
    *("workload_cpu_percent", "detections"),
)


class Results(Protocol):
    """What judge reads: `store.Results`, or anything with its members."""

    @property
    def spec(self) -> Spec: ...
    @property
    def provenance(self) -> dict[str, Any]: ...
    @property
    def trials(self) -> Sequence[Trial]: ...
    def exchanges(self, trial: Trial) -> pl.DataFrame: ...
    def frames(self, trial: Trial) -> pl.DataFrame: ...
    def sensors(self, trial: Trial) -> pl.DataFrame: ...


def measure(trial: Trial, results: Results) -> dict[str, float]:
    """The scalars of one trial, in the units of the registry; a key is missing where there is no such number.

    Percentiles are those of this trial alone, for comparison between trials; +infinity where too many
    exchanges were lost, missing where they would be the largest sample.
    """
    return observe(trial, results).scalars


@dataclass(slots=True)
class Observed:
    """One trial in the measured window: scalars, and per metric the samples in the order of their due time."""

    scalars: dict[str, float] = field(default_factory=dict)
    samples: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    attempts: int = 0
    done: int = 0


def observe(trial: Trial, results: Results) -> Observed:
    observed = Observed()
    if trial.window is None:
        return observed
    if trial.cell.channel is not None:
        _observe_exchanges(observed, results.exchanges(trial), trial.window)
    if trial.cell.workload.kind != "none":
        _observe_frames(observed, results.frames(trial), trial.window)
    _observe_sensors(observed, results.sensors(trial), trial.window)
    return observed


def _observe_exchanges(observed: Observed, frame: pl.DataFrame, window: tuple[int, int]) -> None:
    """Exchanges due in the window. Every attempt counts: one that was not done took +infinity (rule R7)."""
    import numpy as np
    import polars as pl

    if frame.is_empty():
        return
    frame = frame.filter((pl.col("due_ns") >= window[0]) & (pl.col("due_ns") < window[1])).sort("due_ns")
    if frame.is_empty():
        return
    due, sent, acked, ended = (
        frame[name].to_numpy().astype(np.float64) for name in ("due_ns", "sent_ns", "acked_ns", "done_ns")
    )
    done = (frame["outcome"] == "done").to_numpy()
    own_pace = (sent > 0) & ~frame["held"].to_numpy()
    observed.samples["rtt_ns"] = np.where(done, ended - due, math.inf)
    observed.samples["lag_ns"] = (sent - due)[own_pace]
    if (acked > 0).any():
        observed.samples["puback_ns"] = np.where(acked > 0, acked - due, math.inf)
    observed.attempts, observed.done = len(due), int(done.sum())
    observed.scalars["achieved_hz"] = observed.done / _seconds(window)
    for key in PERCENTILES:
        name, _, quantile = key.partition(".")
        value = stats.run_quantile(observed.samples.get(name, np.empty(0)), QUANTILES[quantile])
        if value is not None:
            observed.scalars[key] = value


def _observe_frames(observed: Observed, frame: pl.DataFrame, window: tuple[int, int]) -> None:
    import polars as pl

    observed.scalars["fps"] = 0.0
    if frame.is_empty():
        return
    observed.scalars["fps"] = _completed(frame["done_ns"], window) / _seconds(window)
    frame = frame.filter((pl.col("done_ns") >= window[0]) & (pl.col("done_ns") < window[1]))
    if frame.is_empty():
        return
    stages = ("preprocess_ns", "inference_ns", "postprocess_ns")
    for name in ("decode_ns", *stages):
        observed.scalars[name] = _middle(frame[name])
    busy = _middle(frame.select(pl.sum_horizontal(stages)).to_series())
    if busy > 0:
        observed.scalars["stage_fps"] = 1e9 / busy
    observed.scalars["detections"] = _average(frame["detections"])


def _completed(done_ns: pl.Series, window: tuple[int, int]) -> float:
    """Frames completed in the window, those that its ends cut counted in part.

    Whole frames alone would come in steps of 1 / length of the window: in 2 s two trials would often be
    "equal" that differ by 1 %. The count is the line through (completion time, number), read at both ends; where
    no frame lies beyond an end, the whole ones count.
    """
    import numpy as np

    done = np.sort(done_ns.to_numpy().astype(np.float64))
    number = np.arange(1, len(done) + 1, dtype=np.float64)
    begin, end = np.interp(window, done, number, left=0.0 if done[0] > window[0] else 1.0)
    return float(max(end - begin, 0.0))


def _observe_sensors(observed: Observed, frame: pl.DataFrame, window: tuple[int, int]) -> None:
    import polars as pl

    if frame.is_empty():
        return
    frame = frame.filter((pl.col("at_ns") >= window[0]) & (pl.col("at_ns") <= window[1])).sort("at_ns")
    ticks = _busy_percent(frame.filter(pl.col("metric") == "cpu_busy_ns"))
    # The kernel's ticks do not see what wakes up and sleeps again between two of them, as a client at 100/s does; the
    # processes' own clocks do. The machine was at least as busy as its own processes here.
    exact = _busy_percent(frame.filter(pl.col("metric") == "process_cpu_ns"))
    wanted: list[tuple[str, float | None]] = [("cpu_percent", max(filter(None, (ticks, exact)), default=ticks))]
    roles = {"engine": "protocol_cpu_percent", "server": "server_cpu_percent", "workload": "workload_cpu_percent"}
    for role, key in roles.items():
        own = frame.filter((pl.col("metric") == "process_cpu_ns") & (pl.col("where") == role))
        wanted.append((key, _busy_percent(own)))
    pss = frame.filter((pl.col("metric") == "process_pss_bytes") & (pl.col("where") == "engine"))
    wanted.append(("engine_pss_bytes", _summed_means(pss)))
    wanted += [(key, _summed_means(frame.filter(pl.col("metric") == key))) for key in ("gpu_percent", "memory_percent")]
    observed.scalars.update({key: value for key, value in wanted if value is not None})


def _busy_percent(frame: pl.DataFrame) -> float | None:
    """Growth of a counter of busy ns over the time between its first and last sample; 100 % is one core."""
    total, seen = 0.0, False
    for _, part in frame.group_by("where"):
        elapsed = int(part["at_ns"][-1]) - int(part["at_ns"][0])
        if elapsed > 0:
            total += 100 * (float(part["value"][-1]) - float(part["value"][0])) / elapsed
            seen = True
    return total if seen else None


def _summed_means(frame: pl.DataFrame) -> float | None:
    """Mean over time, summed over what it was measured on: with two GPUs, 200 % is both."""
    if frame.is_empty():
        return None
    return math.fsum(_average(part["value"]) for _, part in frame.group_by("where"))


def _seconds(window: tuple[int, int]) -> float:
    return (window[1] - window[0]) / 1e9


def _middle(series: pl.Series) -> float:
    return float(series.median())  # type: ignore[arg-type]


def _average(series: pl.Series) -> float:
    return float(series.mean())  # type: ignore[arg-type]
