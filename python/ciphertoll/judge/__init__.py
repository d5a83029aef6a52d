"""From a result folder to numbers with intervals and to verdicts. It runs nothing and prints nothing."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ciphertoll import stats
from ciphertoll.errors import MachineError
from ciphertoll.judge.cells import cells_of, loads, names, unprotected, without_workload, workload_alone, workload_names
from ciphertoll.judge.judgement import (
    Against,
    Change,
    Counts,
    Floor,
    Invalid,
    Judgement,
    Row,
    Table,
    metric_of,
    title_of,
)
from ciphertoll.judge.observe import (
    ARITHMETIC,
    GEOMETRIC,
    PERCENTILES,
    QUANTILES,
    Observed,
    Results,
    measure,
    observe,
)
from ciphertoll.metrics import METRICS_VERSION
from ciphertoll.model import Cell, Estimate, Paced, Spec, Trial, Verdict

__all__ = [
    "Against",
    "Change",
    "Counts",
    "Floor",
    "Invalid",
    "Judgement",
    "Results",
    "Row",
    "Table",
    "judge",
    "measure",
    "metric_of",
    "title_of",
]

# Facts of a trial that must be equal for trials to be pooled; one that is missing equals another that is missing.
ORIGIN = ("machine", "build", "metrics_version")
_COMPARED: dict[Against, tuple[str, ...]] = {
    "workload alone": ("fps",),
    "unprotected twin": ("rtt_ns.p50", "rtt_ns.p95", "protocol_cpu_percent"),
    "no workload": ("rtt_ns.p50", "rtt_ns.p95", "rtt_ns.p99"),
}


def judge(results: Results) -> Judgement:
    """Estimate every cell and answer the questions. Trials are read one at a time, loads one after another.

    Raises MachineError if the results are of another metric version: their numbers mean something else.
    """
    spec, provenance = results.spec, dict(results.provenance)
    version = provenance.get("metrics_version", METRICS_VERSION)
    if version != METRICS_VERSION:
        raise MachineError(
            f"the results are of metric version `{version}`, this build judges version `{METRICS_VERSION}`",
            hint="judge them with the release that measured them; the two cannot be compared",
        )
    pooled, excluded = _pool(results.trials)
    judgement = Judgement(
        spec.name, spec.id, spec.seed, spec.blocks, _block_ns(spec), provenance, len(results.trials), excluded
    )
    judged = _Judged(results, spec, results.trials, pooled)
    drafts: list[_Draft] = []
    for load in loads(spec.cells):
        table, compared = judged.table(load)
        judgement.tables.append(table)
        drafts += compared
    judgement.verdicts = _decide(drafts)
    return judgement


class _Judged:
    """The trials of one result folder, arranged for tables."""

    def __init__(self, results: Results, spec: Spec, trials: Sequence[Trial], pooled: Sequence[Trial]) -> None:
        self.results = results
        self.spec = spec
        self.trials = trials
        self.names = names(spec.cells)
        self.workloads = workload_names(spec.cells)
        # Of several attempts at one place in the plan, the last.
        self.places = {(trial.cell.id, trial.twin, trial.block): trial for trial in sorted(pooled, key=_attempt)}

    def table(self, load: str) -> tuple[Table, list[_Draft]]:
        """The table of one load, and its comparisons, which wait for those of the other loads."""
        cells = cells_of(self.spec.cells, load)
        table = Table(load, next((cell.load.rate_hz for cell in cells if isinstance(cell.load, Paced)), None))
        seen = {cell.id: self._runs(cell, twin=False) for cell in cells}
        for cell in cells:
            table.rows.append(self._row(cell, cells, seen[cell.id]))
        for cell in cells:
            if cell.id in self.spec.twins:
                self._add_floors(table, cell, seen[cell.id])
        drafts = [
            draft for cell, row in zip(cells, table.rows, strict=True) for draft in self._drafts(cell, cells, row, seen)
        ]
        for draft in drafts:
            draft.base = _must(table.row(draft.base_cell.id))
            draft.floor = table.floors.get(draft.metric)
        return table, [draft for draft in drafts if _printable(draft)]

    def _runs(self, cell: Cell, *, twin: bool) -> dict[int, Observed]:
        """What was observed of a cell, by block."""
        return {
            block: observe(trial, self.results)
            for (cell_id, is_twin, block), trial in sorted(self.places.items(), key=lambda place: place[0])
            if cell_id == cell.id and is_twin == twin
        }

    def _row(self, cell: Cell, cells: Sequence[Cell], runs: dict[int, Observed]) -> Row:
        without = without_workload(cell, cells)
        label, suite = self.names[cell.id]
        protocol = cell.channel.protocol if cell.channel else "none"
        row = Row(cell.id, label, protocol, suite, self.workloads[cell.workload], self._counts(cell, runs))
        row.without_id = without.id if without else None
        row.estimates = _estimates(list(runs.values()))
        return row

    def _counts(self, cell: Cell, runs: dict[int, Observed]) -> Counts:
        own = [trial for trial in self.trials if trial.cell.id == cell.id and not trial.twin]
        by = Counter(trial.status for trial in own)
        kept = {trial.id for trial in self.places.values()}
        other = sum(trial.status == "ok" and trial.id not in kept for trial in own)
        missing = self.spec.blocks - len({trial.block for trial in own})
        return Counts(len(runs), by["void"], by["failed"], by["unsupported"], other, max(0, missing))

    def _add_floors(self, table: Table, cell: Cell, runs: dict[int, Observed]) -> None:
        """Compare a twin with its original; of several twins the one that differs most is the floor."""
        twins = self._runs(cell, twin=True)
        for key in (*PERCENTILES, *GEOMETRIC, *ARITHMETIC):
            _, ratio = _paired(runs, twins, key)
            if ratio.estimate.value is None:
                continue
            floor = Floor(key, self.names[cell.id][0], ratio.estimate)
            if key not in table.floors or table.floors[key].log < floor.log:
                table.floors[key] = floor

    def _drafts(
        self, cell: Cell, cells: Sequence[Cell], row: Row, seen: dict[str, dict[int, Observed]]
    ) -> Iterable[_Draft]:
        bases: dict[Against, Cell | None] = {
            "workload alone": workload_alone(cell, cells),
            "unprotected twin": unprotected(cell, cells),
            "no workload": without_workload(cell, cells),
        }
        for against, base in bases.items():
            if base is None:
                continue
            for key in _COMPARED[against]:
                before, ratio = _paired(seen[base.id], seen[cell.id], key)
                yield _Draft(row, key, against, base, self.names[base.id][0], ratio, cell.load.label, before)


@dataclass(slots=True)
class _Draft:
    """A comparison before Holm. before: the values of the base, in the file's unit."""

    row: Row
    metric: str
    against: Against
    base_cell: Cell
    base_label: str
    ratio: stats.Ratio
    load: str
    before: list[float]
    base: Row | None = None
    floor: Floor | None = None

    @property
    def margin(self) -> float | None:
        if self.metric == "fps":
            return stats.FPS_MARGIN
        middle = stats.log_mean(self.before).value if self.before else None
        if not self.metric.startswith(("rtt_ns", "puback_ns")) or not middle or not math.isfinite(middle):
            return None
        return stats.rtt_margin(middle)

    @property
    def family(self) -> tuple[str, str, str]:
        return (self.against, self.metric, self.row.workload)


def _decide(drafts: Sequence[_Draft]) -> list[Verdict]:
    """Adjust each family for its size, attach the changes to their rows, and say what is decided."""
    families: dict[tuple[str, str, str], list[_Draft]] = defaultdict(list)
    for draft in drafts:
        families[draft.family].append(draft)
    verdicts = []
    for family in families.values():
        tested = [draft for draft in family if draft.ratio.p_value is not None]
        adjusted = stats.holm([draft.ratio.p_value or 0.0 for draft in tested])
        p_of = {id(draft): p for draft, p in zip(tested, adjusted, strict=True)}
        for draft in family:
            change = _change(draft, p_of.get(id(draft)), len(tested))
            draft.row.changes.append(change)
            verdicts.append(_verdict(draft, change))
    return verdicts


def _change(draft: _Draft, p_adjusted: float | None, family: int) -> Change:
    ratio, margin = draft.ratio, draft.margin
    better = metric_of(draft.metric).better or "lower"
    floor = draft.floor.log if draft.floor else None
    decision = stats.decide(ratio, better, p_adjusted=p_adjusted, margin=margin, floor_log=floor)
    n, greater = ratio.estimate.n, ratio.n_greater
    needed = None
    if decision == "unclear":
        needed = stats.blocks_needed(ratio, margin, family=family, floor_log=floor)
    return Change(
        metric=draft.metric,
        against=draft.against,
        base_id=draft.base_cell.id,
        base_label=draft.base_label,
        effect=ratio.estimate,
        hodges_lehmann=ratio.hodges_lehmann,
        odd_block=ratio.centres_disagree,
        better_blocks=greater if better == "higher" else n - greater,
        p_adjusted=p_adjusted,
        margin=margin,
        decision=decision,
        blocks_needed=needed if needed is not None and needed > n else None,
    )


def _verdict(draft: _Draft, change: Change) -> Verdict:
    beside = "" if draft.row.workload == "none" else f" beside the {draft.row.workload}"
    base = "the same channel without the workload" if change.against == "no workload" else change.base_label
    question = f"{title_of(change.metric)} of {draft.row.label} at {draft.load}{beside}, against {base}"
    return Verdict(question, change.metric, draft.row.cell_id, change.base_id, change.effect, change.decision)


def _printable(draft: _Draft) -> bool:
    """A percentile that may not be printed (rule R1) may not be compared either; nor can what no block has in both."""
    if draft.ratio.estimate.n == 0:
        return False
    if "." not in draft.metric:
        return draft.metric in draft.row.estimates and draft.metric in _must(draft.base).estimates
    both = (draft.row.estimates.get(draft.metric), _must(draft.base).estimates.get(draft.metric))
    return all(estimate is not None and estimate.value is not None for estimate in both)


def _paired(base: dict[int, Observed], other: dict[int, Observed], key: str) -> tuple[list[float], stats.Ratio]:
    """Values of the base, and the ratio, over the blocks in which both have the metric."""
    blocks = [b for b in sorted(base) if b in other and key in base[b].scalars and key in other[b].scalars]
    before = [base[block].scalars[key] for block in blocks]
    return before, stats.paired_ratio(before, [other[block].scalars[key] for block in blocks])


def _estimates(runs: Sequence[Observed]) -> dict[str, Estimate]:
    """Every number of a cell that some run of it has."""
    found: dict[str, Estimate] = {}
    for key in PERCENTILES:
        name, _, quantile = key.partition(".")
        samples = [run.samples[name] for run in runs if name in run.samples]
        if samples:
            found[key] = stats.quantile(samples, QUANTILES[quantile])
    kinds: tuple[tuple[tuple[str, ...], Callable[[Sequence[float]], Estimate]], ...] = (
        (GEOMETRIC, stats.log_mean),
        (ARITHMETIC, _share),
    )
    for keys, estimate in kinds:
        for key in keys:
            values = [run.scalars[key] for run in runs if key in run.scalars]
            if values:
                found[key] = estimate(values)
    attempts = sum(run.attempts for run in runs)
    if attempts:
        done = sum(run.done for run in runs)
        exact = stats.clopper_pearson_lower(done, attempts)
        found["completed"] = replace(stats.wilson(done, attempts), lower_bound=exact)
    return found


def _share(values: Sequence[float]) -> Estimate:
    """A mean of what cannot be negative; neither can the end of its interval."""
    estimate = stats.mean(values)
    return estimate if estimate.low is None else replace(estimate, low=max(0.0, estimate.low))


def _pool(trials: Sequence[Trial]) -> tuple[list[Trial], list[Invalid]]:
    """The "ok" trials of the most frequent origin, and everything that is left out, with reasons."""
    ok = [trial for trial in trials if trial.status == "ok"]
    origins = Counter(_origin(trial) for trial in ok)
    usual = origins.most_common(1)[0][0] if origins else None
    pooled = [trial for trial in ok if _origin(trial) == usual]
    left_out = [
        Invalid(trial.id, trial.cell.label, trial.status, trial.reasons or ("no reason was recorded",))
        for trial in trials
        if trial.status not in ("ok", "planned")
    ]
    for trial in ok:
        unlike = [name for name, own, most in zip(ORIGIN, _origin(trial), usual or (), strict=True) if own != most]
        if unlike:
            reason = f"not pooled: another {' and '.join(unlike)} than most trials"
            left_out.append(Invalid(trial.id, trial.cell.label, "not pooled", (reason.replace("_", " "),)))
    return pooled, left_out


def _origin(trial: Trial) -> tuple[str, ...]:
    return tuple(json.dumps(trial.facts.get(name), sort_keys=True, default=str) for name in ORIGIN)


def _attempt(trial: Trial) -> int:
    return trial.attempt


def _block_ns(spec: Spec) -> int:
    own = {cell.id: cell.load.warm_up_ns + cell.load.duration_ns for cell in spec.cells}
    return sum(own.values()) + sum(own.get(twin, 0) for twin in spec.twins)


def _must(row: Row | None) -> Row:
    assert row is not None
    return row
