"""The report as one HTML page that needs nothing else: it is opened from disk, printed, sent by mail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ciphertoll import stats
from ciphertoll.judge import Change, Judgement, Row, Table, title_of
from ciphertoll.report import figures, show
from ciphertoll.report.text import invalid_lines
from ciphertoll.report.words import floor_lines, sentences

_LONGEST = 400  # characters of one value in the provenance


def render(judgement: Judgement) -> str:
    """The whole page. Everything that comes from a result folder is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        {name: getattr(show, name) for name in ("value_text", "interval_text", "change_text", "change_interval")}
    )
    environment.globals.update(heading=show.heading, title_of=title_of, p_text=_p_text, margin_text=_margin_text)
    return environment.get_template("page.html").render(
        judgement=judgement,
        block_time=show.duration_text(judgement.block_ns),
        sentences=sentences(judgement),
        tables=[_table(table) for table in judgement.tables],
        floors=floor_lines(judgement),
        missing=show.missing_estimates(judgement),
        kinds_of_invalid=invalid_lines(judgement),
        provenance=_flat(judgement.provenance),
    )


def _table(table: Table) -> dict[str, Any]:
    """A table's grids: each has a title, rows, and the columns that any of its rows fills."""
    grids = []
    for title, rows in (
        ("with the workload", show.with_workload(table)),
        ("without the workload", show.without_workload(table)),
    ):
        if rows:
            grids.append({"title": title, "rows": rows, "keys": _keys(rows, show.COLUMNS), "changes": _has_fps(rows)})
    changes = [(row, change) for row in table.rows for change in row.changes if change.against != "workload alone"]
    return {
        "load": table.load,
        "grids": grids,
        "more": _keys(table.rows, show.SECONDARY),
        "rows": table.rows,
        "changes": changes,
        "fps_figure": figures.fps_changes(table),
        "rtt_figure": figures.round_trips(table),
    }


def _keys(rows: list[Row], keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if any(key in row.estimates for row in rows)]


def _has_fps(rows: list[Row]) -> bool:
    return any(row.change("fps", "workload alone") for row in rows)


def _p_text(p_value: float | None) -> str:
    if p_value is None:
        return show.NOTHING
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _margin_text(change: Change) -> str:
    """What a change may be without practical meaning; above the relative margin of RTT it is the millisecond."""
    if change.margin is None:
        return show.NOTHING
    relative = f"±{100 * change.margin:.0f} %"
    in_time = change.metric != "fps" and change.margin > stats.RTT_MARGIN
    return f"±{stats.RTT_MARGIN_NS / 1e6:g} ms ({relative})" if in_time else relative


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested facts as lines: ("machine cores", "4")."""
    if isinstance(value, dict):
        return [line for key, inner in value.items() for line in _flat(inner, f"{name} {key}".strip())]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return [(name, text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … (the whole is in the result folder)")]
