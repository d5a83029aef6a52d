"""The report for a terminal, and the same numbers as tidy CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from typing import TextIO

from ciphertoll.judge import Judgement, Row, Table, metric_of
from ciphertoll.model import Decision, Estimate
from ciphertoll.report.show import (
    change_interval,
    change_text,
    columns_of,
    counts_text,
    duration_text,
    heading,
    interval_text,
    missing_estimates,
    value_text,
    with_workload,
    without_workload,
)
from ciphertoll.report.words import floor_lines, sentences

WIDTH = 110
CSV_COLUMNS = (
    *("load", "cell_id", "protocol", "suite", "workload", "metric", "against", "value", "low", "high"),
    *("n", "unit_of_n", "unit", "status", "lower_bound", "n_required", "decision", "p_adjusted"),
)
_COLOURS: dict[Decision, str] = {"worse": "31", "better": "32", "same": "2", "unclear": "33"}
_MOST_REASONS = 8

# Two lines of one cell of a table: the number, and below it its interval.
_Pair = tuple[str, str]


def print_to(stream: TextIO, judgement: Judgement) -> None:
    """Write the report; in colour only if the stream is a terminal."""
    stream.write(render(judgement, colour=stream.isatty()))


def render(judgement: Judgement, *, colour: bool = False, width: int = WIDTH) -> str:
    """The whole report. Intervals stand below their number; nothing is said by colour alone."""
    parts = [_head(judgement)]
    for table in judgement.tables:
        parts += _table_parts(table, colour)
    parts.append(_section("Noise floor (A/A twins, 95 %)", floor_lines(judgement), width))
    parts.append(_section("Verdict", sentences(judgement), width))
    parts.append("Client and server CPU, PSS, PUBACK, lag and stages: in the page and in the CSV.")
    parts.append(_section("Not estimable", missing_estimates(judgement), width))
    parts.append(_section("Trials left out", invalid_lines(judgement), width))
    return "\n\n".join(part for part in parts if part) + "\n"


def to_csv(judgement: Judgement) -> str:
    """One line per cell and metric, in the units of the metric registry; a change has `against`, and is a ratio."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in judgement.tables:
        for row in table.rows:
            own = (table.load, row.cell_id, row.protocol, row.suite, row.workload)
            for key, estimate in row.estimates.items():
                writer.writerow((*own, key, "", *_fields(estimate, metric_of(key).unit), "", ""))
            for change in row.changes:
                ends = (change.decision, _blank(change.p_adjusted))
                writer.writerow((*own, change.metric, change.against, *_fields(change.effect, "ratio"), *ends))
    return out.getvalue()


def invalid_lines(judgement: Judgement) -> list[str]:
    """Trials that are in no number, by status and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for invalid in judgement.invalid:
        groups.setdefault((invalid.status, "; ".join(invalid.reasons)), []).append(invalid.label)
    lines = []
    for (status, reason), labels in sorted(groups.items(), key=lambda group: -len(group[1])):
        names = "; ".join(dict.fromkeys(labels))
        lines.append(f"{len(labels)} {status}: {reason} ({names})")
    if len(lines) > _MOST_REASONS:
        lines[_MOST_REASONS:] = [f"{len(lines) - _MOST_REASONS} more kinds of reason: see the page or judgement.json"]
    return lines


def _head(judgement: Judgement) -> str:
    left_out = len(judgement.invalid)
    blocks = "1 block" if judgement.blocks == 1 else f"{judgement.blocks} blocks"
    return (
        f"{judgement.name}: {blocks} of {duration_text(judgement.block_ns)}, "
        f"{judgement.trials} trials, {left_out} left out. Intervals: 95 %, below each number."
    )


def _table_parts(table: Table, colour: bool) -> list[str]:
    parts = []
    beside, alone = with_workload(table), without_workload(table)
    if beside:
        title = f"{table.load}, with the workload"
        parts.append(f"{title}\n{_grid(beside, columns_of(table), colour)}")
    if alone:
        keys = [key for key in columns_of(table) if any(key in row.estimates for row in alone)]
        parts.append(f"{table.load}, without the workload\n{_grid(alone, keys, colour)}")
    return parts


def _grid(rows: list[Row], keys: list[str], colour: bool) -> str:
    changes = any(row.change("fps", "workload alone") for row in rows)
    mixed = len({row.workload for row in rows}) > 1
    head: list[_Pair] = [("channel", "")]
    for key in keys:
        title, _, rest = heading(key).partition(" ")
        head.append((title, rest))
        if key == "fps" and changes:
            head.append(("FPS change", "v alone"))
    head.append(("n", ""))
    lines = [head, *(_line(row, keys, changes, row.workload if mixed else "") for row in rows)]
    widths = [max(len(part) for line in lines for part in line[column]) for column in range(len(head))]
    decisions = [None, *(_fps_decision(row) if changes else None for row in rows)]
    text = []
    for line, decision in zip(lines, decisions, strict=True):
        for level in (0, 1):
            plain = "  ".join(
                _padded(pair[level], width, i == 0) for i, (pair, width) in enumerate(zip(line, widths, strict=True))
            )
            text.append(_painted(plain.rstrip(), decision, level, colour))
        if decision is None and line is head:
            text.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(text)


def _line(row: Row, keys: list[str], changes: bool, beside: str) -> list[_Pair]:
    named = ", ".join(part for part in (row.suite if row.protocol != "none" else "", beside) if part)
    line: list[_Pair] = [(row.label if row.protocol == "none" else row.protocol, f"  {named}" if named else "")]
    for key in keys:
        estimate = row.estimates.get(key)
        line.append((value_text(key, estimate), interval_text(key, estimate)))
        if key == "fps" and changes:
            change = row.change("fps", "workload alone")
            decision = f" {change.decision:<7}" if change else ""
            line.append((change_text(change) + decision, change_interval(change)))
    valid, _, others = counts_text(row).partition(" ")
    line.append((valid, others.strip("()").replace("unsupported", "unsup.")))
    return line


def _fps_decision(row: Row) -> Decision | None:
    change = row.change("fps", "workload alone")
    return change.decision if change else None


def _padded(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def _painted(text: str, decision: Decision | None, level: int, colour: bool) -> str:
    """Colour only repeats the decision, which is printed as a word."""
    if not colour or not decision:
        return text
    return f"\x1b[{_COLOURS[decision] if level == 0 else '2'}m{text}\x1b[0m"


def _section(title: str, lines: list[str], width: int) -> str:
    if not lines:
        return ""
    wrapped = [
        textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        for line in lines
    ]
    return "\n".join((title, *wrapped))


def _fields(estimate: Estimate, unit: str) -> tuple[object, ...]:
    return (
        *(_blank(value) for value in (estimate.value, estimate.low, estimate.high)),
        *(estimate.n, estimate.unit_of_n, unit, estimate.status),
        *(_blank(estimate.lower_bound), _blank(estimate.n_required)),
    )


def _blank(value: float | None) -> object:
    return "" if value is None else value
