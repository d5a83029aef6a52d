"""The verdict in sentences. Each says only what an interval supports."""

from __future__ import annotations

from ciphertoll.judge import Against, Change, Judgement, Row, Table, title_of
from ciphertoll.report.show import change_interval, change_text, duration_text

_MOST_NAMES = 8
Found = list[tuple[Table, Row, Change]]


def sentences(judgement: Judgement) -> list[str]:
    """Two to six sentences: frame rate, round trip, security itself, and how to get a sharper answer."""
    if not any(row.counts.ok for table in judgement.tables for row in table.rows):
        return ["No trial is valid, so nothing was estimated.", "The reasons are listed under validity."]
    said = [_fps(judgement), _alike(judgement), _tails(judgement), _security(judgement), _sharper(judgement)]
    return [sentence for sentence in said if sentence] or [
        "No question could be asked: no channel shares a block with a workload alone, an unprotected twin, "
        "or itself without the workload."
    ]


def floor_lines(judgement: Judgement) -> list[str]:
    """What two identical cells of one block differed by, per load and compared metric."""
    lines = []
    for table in judgement.tables:
        compared = dict.fromkeys(change.metric for row in table.rows for change in row.changes)
        for key in compared:
            floor = table.floors.get(key)
            if floor is None:
                lines.append(f"{table.load}: {title_of(key)}: not measured, no twin has it; the test alone decides.")
            elif floor.effect.low is None or floor.effect.high is None:
                lines.append(f"{table.load}: {title_of(key)}: not measured, one block has no interval.")
            else:
                low, high = 100 * (floor.effect.low - 1), 100 * (floor.effect.high - 1)
                lines.append(
                    f"{table.load}: {title_of(key)}: {low:+.1f} to {high:+.1f} % "
                    f"({floor.cell_label}, twice in {floor.effect.n} blocks)".replace("-", "−")
                )
    return lines


def _found(judgement: Judgement, against: Against, metric: str) -> Found:
    return [
        (table, row, change)
        for table in judgement.tables
        for row in table.rows
        if (change := row.change(metric, against)) is not None
    ]


def _fps(judgement: Judgement) -> str:
    asked = _found(judgement, "workload alone", "fps")
    if not asked:
        return ""
    worse = [found for found in asked if found[2].decision == "worse"]
    bounds = [change.effect.low for _, _, change in asked]
    if worse:
        table, row, change = min(worse, key=lambda found: found[2].effect.value or 1.0)
        return (
            f"The largest resolved cost in FPS is {change_text(change)} ({change_interval(change)}) for {row.label} "
            f"at {table.load}; {_tally(asked, _FPS_WORDS)}."
        )
    if all(bound is not None for bound in bounds):
        most = max(0.0, 100 * (1 - min(bound for bound in bounds if bound is not None)))
        tally = _tally(asked, _FPS_WORDS)
        return f"No channel's FPS cost is resolved, and none exceeds {most:.1f} % by its 95 % interval; {tally}."
    return "FPS cost cannot be bounded: at least two blocks are needed for an interval."


def _alike(judgement: Judgement) -> str:
    """Channels whose interval contains no change at all, for the load with the most traffic."""
    table = max(judgement.tables, key=lambda table: table.rate_hz or 0.0)
    asked = [(row, change) for other, row, change in _found(judgement, "workload alone", "fps") if other is table]
    names = [
        row.label
        for row, change in asked
        if change.effect.low is not None and change.effect.high and change.effect.low <= 1 <= change.effect.high
    ]
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (
        f"At {table.load} FPS cannot be told apart from the workload alone for {', '.join(names[:_MOST_NAMES])}{more}."
    )


_FPS_WORDS = {
    "worse": "are slower",
    "better": "are faster",
    "same": "show no practical change",
    "unclear": "are unclear",
}
_RTT_WORDS = {
    "worse": "rise",
    "better": "fall",
    "same": "stay within the margin of 5 % or 1 ms",
    "unclear": "are unclear",
}


def _tally(asked: Found, words: dict[str, str]) -> str:
    """How the answers of one question are spread; `words` says what each decision means for it."""
    counts = {decision: sum(change.decision == decision for _, _, change in asked) for decision in words}
    parts = [f"{count} {words[decision]}" for decision, count in counts.items() if count]
    return f"of {len(asked)} comparisons {', '.join(parts)}"


def _tails(judgement: Judgement) -> str:
    asked = _found(judgement, "no workload", "rtt_ns.p95")
    if not asked:
        return ""
    worse = [found for found in asked if found[2].decision == "worse"]
    if not worse:
        return f"The workload's effect on RTT p95 is in no case a resolved rise: {_tally(asked, _RTT_WORDS)}."
    table, row, change = max(worse, key=lambda found: found[2].effect.value or 1.0)
    return (
        f"Beside the workload RTT p95 rises most for {row.label} at {table.load}: {change_text(change)} "
        f"({change_interval(change)}); {_tally(asked, _RTT_WORDS)}."
    )


def _security(judgement: Judgement) -> str:
    asked = _found(judgement, "unprotected twin", "rtt_ns.p95")
    if not asked:
        return ""
    return f"Against the unprotected twin, RTT p95: {_tally(asked, _RTT_WORDS)}."


def _sharper(judgement: Judgement) -> str:
    """Blocks and time that would settle what is unclear."""
    unclear = [
        change
        for table in judgement.tables
        for row in table.rows
        for change in row.changes
        if change.decision == "unclear" and change.margin is not None
    ]
    if not unclear:
        return ""
    needs = sorted(change.blocks_needed for change in unclear if change.blocks_needed is not None)
    if not needs:
        if any(change.effect.low is None for change in unclear):
            return f"{len(unclear)} comparisons are unclear: run at least 5 blocks, better 8."
        return f"{len(unclear)} comparisons are unclear; more blocks of this length would hardly settle them."
    half = needs[(len(needs) - 1) // 2]
    extra = (half - judgement.blocks) * judgement.block_ns
    time = f" ({duration_text(extra)} more)" if extra > 0 else ""
    return (
        f"{len(unclear)} comparisons with a margin are unclear; about {half} valid blocks{time} would settle half "
        "of them if spread and effect stay as they are."
    )
