"""Plots as inline SVG. Colours come from the page's style sheet; every mark also has a shape and a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ciphertoll import stats
from ciphertoll.judge import Row, Table
from ciphertoll.model import Decision, Estimate
from ciphertoll.report.show import change_interval, change_text, interval_text, shown, value_text, with_workload

_WIDTH = 860
_LABELS = 215  # left of the plot, px
_NUMBERS = 205  # right of the plot, px
_QUANTILES = ("rtt_ns.p50", "rtt_ns.p95", "rtt_ns.p99")
_SHAPES: dict[Decision, str] = {
    "worse": "M-5,-4 L5,-4 L0,5 Z",
    "better": "M-5,4 L5,4 L0,-5 Z",
    "same": "M-4,-4 H4 V4 H-4 Z",
    "unclear": "M-5,0 A5,5 0 1 0 5,0 A5,5 0 1 0 -5,0 Z",
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where a value lies, px from the left."""

    low: float
    high: float
    log: bool = False

    def x(self, value: float) -> float:
        ends = (self.low, value, self.high)
        low, at, high = (math.log(max(end, 1e-12)) for end in ends) if self.log else ends
        share = (at - low) / (high - low)
        return _LABELS + min(1.0, max(0.0, share)) * (_WIDTH - _LABELS - _NUMBERS)


def fps_changes(table: Table) -> Markup:
    """Change of FPS against the workload alone: a mark and its interval per channel, with noise floor and margin."""
    found = [(row, change) for row in with_workload(table) if (change := row.change("fps", "workload alone"))]
    found = [(row, change) for row, change in found if change.effect.value is not None]
    if not found:
        return Markup()
    margin = 100 * stats.FPS_MARGIN
    floor = table.floors.get("fps")
    band = 100 * math.expm1(floor.log) if floor and math.isfinite(floor.log) else None
    ends = [margin, -margin]
    for _, change in found:
        ends += [100 * (end - 1) for end in (change.effect.value, change.effect.low, change.effect.high) if end]
    axis = _padded(ends)
    step = 28
    bottom = 30 + step * len(found)
    parts = []
    if band is not None:
        left, right = axis.x(-band), axis.x(band)
        parts.append(_svg('<rect class="band" x="{}" y="18" width="{}" height="{}"/>', left, right - left, bottom - 22))
    parts += [_rule(axis.x(end), bottom, "margin") for end in (-margin, margin)]
    parts.append(_rule(axis.x(0), bottom, "zero"))
    parts.append(_ticks(axis, bottom, lambda value: f"{value:+g}".replace("-", "−").replace("+0", "0"), " %"))
    for index, (row, change) in enumerate(found):
        y = 36 + step * index
        parts.append(_label(row, y))
        low, high = change.effect.low, change.effect.high
        if low is not None and high is not None:
            parts.append(_line(axis.x(100 * (low - 1)), axis.x(100 * (high - 1)), y, "interval"))
        at = axis.x(100 * ((change.effect.value or 1.0) - 1))
        parts.append(_mark(_SHAPES[change.decision], at, y, change.decision))
        text = f"{change_text(change)} ({change_interval(change)})" if low is not None else change_text(change)
        parts.append(_text(_WIDTH - _NUMBERS + 12, y + 4, text, "value"))
    about = f"Change of FPS against the workload alone at {table.load}"
    said = "; ".join(f"{row.label}: {change_text(change)}, {change.decision}" for row, change in found)
    return _figure(about, said, bottom + 34, parts)


def round_trips(table: Table) -> Markup:
    """RTT p50, p95, p99 per channel on a logarithmic axis, with the workload and, if it was run, without."""
    rows = [row for row in with_workload(table) if any(key in row.estimates for key in _QUANTILES)]
    rows = rows or [row for row in table.rows if any(key in row.estimates for key in _QUANTILES)]
    pairs = [(row, table.row(row.without_id) if row.without_id else None) for row in rows]
    values = [value for row, other in pairs for one in (row, other) if one for value in _milliseconds(one)]
    if not values or min(values) <= 0:
        return Markup()
    axis = _Axis(min(values) / 1.15, max(values) * 1.15, log=True)
    step = 38
    bottom = 30 + step * len(pairs)
    parts = [_ticks(axis, bottom, lambda value: f"{value:g}", " ms")]
    for index, (row, other) in enumerate(pairs):
        y = 38 + step * index
        parts.append(_label(row, y))
        parts.append(_quantiles(axis, row, y if other is None else y - 7, "with"))
        if other is not None:
            parts.append(_quantiles(axis, other, y + 8, "without"))
        parts.append(_text(_WIDTH - _NUMBERS + 12, y + 4 if other is None else y - 3, _said(row), "value"))
        if other is not None:
            parts.append(_text(_WIDTH - _NUMBERS + 12, y + 12, _said(other), "value quiet"))
    about = f"RTT p50, p95 and p99 at {table.load}, in milliseconds"
    said = "; ".join(
        f"{row.label}: {_said(row)}" + (f", without the workload {_said(other)}" if other else "")
        for row, other in pairs
    )
    return _figure(about, said, bottom + 34, parts)


def _quantiles(axis: _Axis, row: Row, y: float, kind: str) -> Markup:
    """p50 a bar, p95 a dot, p99 a diamond; an open arrow head where only a lower bound is known."""
    shapes = ("M-1.5,-6 H1.5 V6 H-1.5 Z", "M-4,0 A4,4 0 1 0 4,0 A4,4 0 1 0 -4,0 Z", "M0,-5.5 L5.5,0 L0,5.5 L-5.5,0 Z")
    found, parts = [], []
    for key, shape in zip(_QUANTILES, shapes, strict=True):
        estimate = row.estimates.get(key)
        if estimate is None:
            continue
        own = shown(key, estimate)
        at = own.value if own.value is not None else own.lower_bound
        if at is None:
            continue
        found.append(axis.x(at))
        if own.low is not None:
            parts.append(_line(axis.x(own.low), axis.x(own.high or axis.high), y, f"interval {kind}"))
        parts.append(_mark(shape if own.value is not None else "M-3,-5 L4,0 L-3,5", axis.x(at), y, _class(own, kind)))
    if not found:
        return Markup()
    return _line(min(found), max(found), y, f"span {kind}") + Markup().join(parts)


def _class(estimate: Estimate, kind: str) -> str:
    return kind if estimate.value is not None else f"{kind} bound"


def _milliseconds(row: Row) -> list[float]:
    found = []
    for key in _QUANTILES:
        if key in row.estimates:
            own = shown(key, row.estimates[key])
            found += [value for value in (own.value, own.low, own.high, own.lower_bound) if value is not None]
    return found


def _said(row: Row) -> str:
    texts = []
    for key in _QUANTILES:
        estimate = row.estimates.get(key)
        value = value_text(key, estimate)
        texts.append(interval_text(key, estimate) or value if estimate and estimate.value is None else value)
    return " / ".join(texts)


def _padded(ends: Sequence[float]) -> _Axis:
    room = 0.06 * (max(ends) - min(ends))
    return _Axis(min(ends) - room, max(ends) + room)


def _ticks(axis: _Axis, bottom: float, name: Callable[[float], str], unit: str) -> Markup:
    values = _log_ticks(axis) if axis.log else _linear_ticks(axis)
    parts = []
    for index, value in enumerate(values):
        parts.append(_rule(axis.x(value), bottom, "grid"))
        parts.append(
            _text(axis.x(value), bottom + 16, name(value) + (unit if index == len(values) - 1 else ""), "tick")
        )
    return Markup().join(parts)


def _linear_ticks(axis: _Axis) -> list[float]:
    raw = (axis.high - axis.low) / 7
    size = 10 ** math.floor(math.log10(raw))
    step = next(step * size for step in (1, 2, 5, 10) if step * size >= raw)
    return [round(i * step, 10) for i in range(math.ceil(axis.low / step), math.floor(axis.high / step) + 1)]


def _log_ticks(axis: _Axis) -> list[float]:
    first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
    decades = last - first
    steps = (1, 2, 5) if decades <= 4 else (1,)
    ticks = [step * 10.0**exponent for exponent in range(first, last + 1) for step in steps]
    inside = [tick for tick in ticks if axis.low <= tick <= axis.high]
    return inside if len(inside) >= 3 else [tick for tick in _linear_ticks(axis) if tick > 0]


def _label(row: Row, y: float) -> Markup:
    return _text(_LABELS - 14, y + 4, row.label, "label")


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return _svg('<text class="{}" x="{}" y="{}">{}</text>', kind, x, y, text)


def _line(left: float, right: float, y: float, kind: str) -> Markup:
    return _svg('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>', kind, left, right, y, y)


def _rule(x: float, bottom: float, kind: str) -> Markup:
    return _svg('<line class="{}" x1="{}" x2="{}" y1="18" y2="{}"/>', kind, x, x, bottom - 4)


def _mark(shape: str, x: float, y: float, kind: str) -> Markup:
    return _svg('<path class="mark {}" d="{}" transform="translate({},{})"/>', kind, shape, x, y)


def _figure(about: str, said: str, height: float, parts: Sequence[Markup]) -> Markup:
    head = _svg('<svg role="img" viewBox="0 0 {} {}" aria-label="{}">', _WIDTH, height, f"{about}. {said}")
    return head + _svg("<title>{}</title>", about) + Markup().join(parts) + Markup("</svg>")


def _svg(template: str, *values: object) -> Markup:
    """Fill a template; numbers are rounded to a tenth of a pixel, texts are escaped."""
    texts = [f"{value:.1f}" if isinstance(value, float) else escape(value) for value in values]
    return Markup(template).format(*texts)
