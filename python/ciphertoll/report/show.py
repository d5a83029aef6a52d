"""Numbers as they are printed: no digit that the interval does not support."""

from __future__ import annotations

import math
from dataclasses import replace

from ciphertoll.judge import Change, Judgement, Row, Table, metric_of, title_of
from ciphertoll.model import Estimate

NOTHING = "–"
# In the order of the published tables: FPS, RTT, processor, GPU, memory.
COLUMNS = ("fps", "rtt_ns.p50", "rtt_ns.p95", "rtt_ns.p99", "cpu_percent", "gpu_percent", "memory_percent")
SECONDARY = (
    *("puback_ns.p50", "puback_ns.p95", "puback_ns.p99", "lag_ns.p99"),
    *("protocol_cpu_percent", "server_cpu_percent", "workload_cpu_percent", "engine_pss_bytes"),
    *("achieved_hz", "completed", "stage_fps", "detections"),
)


def decimals(value: float, low: float | None, high: float | None) -> int:
    """Decimal places that the interval supports; negative: round to tens, hundreds, ...

    The half-width keeps one significant digit, or two if the first is 1 (as the Particle Data Group rounds).
    Without an interval: three significant digits. Never more than four.
    """
    size = math.floor(math.log10(abs(value))) if value else 0
    if low is None:
        return 2 - size
    half = (high - low) / 2 if high is not None else abs(value - low)
    if half <= 0:
        return 2 - size
    exponent = math.floor(math.log10(half))
    places = -exponent + (1 if half / 10**exponent < 2 else 0)
    return min(places, 3 - size)


def number(value: float, places: int) -> str:
    """Rounded to `places` decimals, with a true minus sign."""
    rounded = round(value, places) + 0.0
    text = f"{rounded:.{max(0, places)}f}"
    return text.replace("-", "−")


def shown(key: str, estimate: Estimate) -> Estimate:
    """The same estimate in the unit of the report."""
    divisor = metric_of(key).divisor
    scaled = {
        name: None if value is None else value / divisor
        for name, value in (
            ("value", estimate.value),
            ("low", estimate.low),
            ("high", estimate.high),
            ("lower_bound", estimate.lower_bound),
        )
    }
    return replace(estimate, **scaled)  # type: ignore[arg-type]


def value_text(key: str, estimate: Estimate | None) -> str:
    """The number of a cell of a table; a dash where it may not be printed."""
    if estimate is None or estimate.value is None:
        return NOTHING
    own = shown(key, estimate)
    assert own.value is not None
    return number(own.value, _places(key, own.value, own.low, own.high))


def interval_text(key: str, estimate: Estimate | None) -> str:
    """What is known of the number: "27.9–28.1", "≥ 3.2" where there is no upper bound, "" where nothing is."""
    if estimate is None:
        return ""
    own = shown(key, estimate)
    if own.value is None:
        bound = own.lower_bound
        return f"≥ {number(bound, _places(key, bound, None, None))}" if bound is not None else ""
    if own.low is None:
        return ""
    places = _places(key, own.value, own.low, own.high)
    low = number(own.low, places)
    return f"≥ {low}" if own.high is None else f"{low}–{number(own.high, places)}"


def _places(key: str, value: float, low: float | None, high: float | None) -> int:
    """Decimals of a metric: a percentage never has more than one."""
    places = decimals(value, low, high)
    if value:
        # One significant digit in any case: a time of 0 ms is none, however wide its interval.
        places = max(places, -math.floor(math.log10(abs(value))))
    return min(places, 1) if metric_of(key).shown_unit == "%" else places


def change_text(change: Change | None) -> str:
    """The change in percent with its sign: "−6.1 %"."""
    if change is None or change.effect.value is None:
        return NOTHING
    low, high = _percent(change.effect.low), _percent(change.effect.high)
    value = 100 * (change.effect.value - 1)
    return f"{_signed(value, percent_places(value, low, high))} %"


def change_interval(change: Change | None) -> str:
    """ "−7.0 to −5.2 %"; empty without an interval."""
    if change is None or change.effect.value is None or change.effect.low is None or change.effect.high is None:
        return ""
    low, high = 100 * (change.effect.low - 1), 100 * (change.effect.high - 1)
    places = percent_places(100 * (change.effect.value - 1), low, high)
    return f"{_signed(low, places)} to {_signed(high, places)} %"


def percent_places(value: float, low: float | None, high: float | None) -> int:
    """Decimals of a percentage: at most one beyond tenths, and whole numbers at least."""
    if low is None:
        return 0 if abs(value) >= 10 else 1
    return max(0, min(2, decimals(value, low, high)))


def counts_text(row: Row) -> str:
    """How many trials the numbers of a row rest on, and what became of the others: "5 (1 void)"."""
    counts = row.counts
    others = [
        f"{count} {name}"
        for name, count in (
            ("void", counts.void),
            ("failed", counts.failed),
            ("unsupported", counts.unsupported),
            ("not pooled", counts.not_pooled),
            ("not run", counts.missing),
        )
        if count
    ]
    return f"{counts.ok} ({', '.join(others)})" if others else str(counts.ok)


def duration_text(ns: float) -> str:
    """ "45 s", "12 min", "3.5 h"."""
    seconds = ns / 1e9
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def heading(key: str) -> str:
    """Title and unit: "RTT p95 ms", "FPS"."""
    unit = metric_of(key).shown_unit
    return title_of(key) if unit in ("1", "1/s") or unit in title_of(key) else f"{title_of(key)} {unit}"


def columns_of(table: Table, keys: tuple[str, ...] = COLUMNS) -> list[str]:
    """The columns for which any row has anything to say."""
    return [key for key in keys if any(key in row.estimates for row in table.rows)]


def with_workload(table: Table) -> list[Row]:
    return [row for row in table.rows if row.workload != "none"]


def without_workload(table: Table) -> list[Row]:
    return [row for row in table.rows if row.workload == "none"]


def missing_estimates(judgement: Judgement) -> list[str]:
    """What could not be estimated and what it would need, one line per load and metric."""
    lines = []
    for table in judgement.tables:
        for key in columns_of(table, (*COLUMNS, *SECONDARY)):
            lines += _missing(judgement, table, key)
    return lines


def _missing(judgement: Judgement, table: Table, key: str) -> list[str]:
    short, open_ended = [], []
    for row in table.rows:
        estimate = row.estimates.get(key)
        if estimate is not None and estimate.status == "insufficient_samples" and estimate.n_required:
            short.append((estimate, row))
        elif estimate is not None and estimate.status == "no_upper_bound" and estimate.unit_of_n == "samples":
            open_ended.append(row)
    lines = []
    if short:
        lines.append(f"{table.load}: {title_of(key)} of {_rows(short, table)}: {_needs(judgement, short)}")
    if open_ended:
        lines.append(
            f"{table.load}: {title_of(key)} of {len(open_ended)} of {len(table.rows)} cells has no upper bound: "
            "too few runs, runs too unlike, or exchanges lost; more blocks bound it."
        )
    return lines


def _rows(short: list[tuple[Estimate, Row]], table: Table) -> str:
    return short[0][1].label if len(short) == 1 else f"{len(short)} of {len(table.rows)} cells"


def _needs(judgement: Judgement, short: list[tuple[Estimate, Row]]) -> str:
    least, row = min(short, key=lambda pair: pair[0].n)
    required = least.n_required or 0
    text = f"not estimable, {least.n} of {required} samples."
    if not least.n or not row.counts.ok:
        return text
    blocks = math.ceil(required / (least.n / row.counts.ok))
    needed_ns = (blocks - judgement.blocks) * judgement.block_ns
    more = f", {duration_text(needed_ns)} more" if needed_ns > 0 else ""
    return f"{text} At this rate and length {blocks} blocks are needed{more}."


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * (ratio - 1)


def _signed(value: float, places: int) -> str:
    text = number(value, places)
    return text if text.startswith("−") or float(text) == 0 else f"+{text}"
