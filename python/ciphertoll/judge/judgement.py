"""What judging comes to: tables of estimates, changes against a base, verdicts."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ciphertoll.metrics import METRICS, Metric
from ciphertoll.model import Decision, Estimate, Verdict

Against = Literal["workload alone", "unprotected twin", "no workload"]


@dataclass(frozen=True, slots=True)
class Counts:
    """Trials of a cell by status. The twin's are not among them.

    not_pooled  "ok", but of another machine, build or metric version than most.
    missing     blocks of the spec in which the cell has not been run at all.
    """

    ok: int = 0
    void: int = 0
    failed: int = 0
    unsupported: int = 0
    not_pooled: int = 0
    missing: int = 0

    @property
    def invalid(self) -> int:
        return self.void + self.failed + self.unsupported + self.not_pooled


@dataclass(frozen=True, slots=True)
class Change:
    """One comparison, paired inside blocks. effect is a ratio (cell / base); 1.0 means no change.

    against         what the base is.
    hodges_lehmann  the same ratio, resistant to one odd block; odd_block says that the two disagree.
    better_blocks   in how many of the effect.n blocks the cell was the better one.
    p_adjusted      two-sided, after Holm over all cells and loads of this question and metric.
    margin          share of base within which a change has no practical meaning; None: none is stated.
    blocks_needed   blocks that would turn "unclear" into an answer; None where that cannot be said.
    """

    metric: str
    against: Against
    base_id: str
    base_label: str
    effect: Estimate
    hodges_lehmann: float | None
    odd_block: bool
    better_blocks: int
    p_adjusted: float | None
    margin: float | None
    decision: Decision
    blocks_needed: int | None


@dataclass(slots=True)
class Row:
    """One cell. without_id is the same channel without the workload, if it was run."""

    cell_id: str
    label: str
    protocol: str
    suite: str
    workload: str
    counts: Counts
    without_id: str | None = None
    estimates: dict[str, Estimate] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def change(self, metric: str, against: Against) -> Change | None:
        return next((change for change in self.changes if (change.metric, change.against) == (metric, against)), None)


@dataclass(frozen=True, slots=True)
class Floor:
    """The noise floor of a metric: what two identical cells of a block differ by. effect is twin / original."""

    metric: str
    cell_label: str
    effect: Estimate

    @property
    def log(self) -> float:
        """The largest |log ratio| that its interval leaves possible; infinite without an interval."""
        if self.effect.low is None or self.effect.high is None:
            return math.inf
        return max(abs(math.log(self.effect.low)), abs(math.log(self.effect.high)))


@dataclass(slots=True)
class Table:
    """All cells of one load, and the workload alone."""

    load: str
    rate_hz: float | None
    rows: list[Row] = field(default_factory=list)
    floors: dict[str, Floor] = field(default_factory=dict)

    def row(self, cell_id: str) -> Row | None:
        return next((row for row in self.rows if row.cell_id == cell_id), None)


@dataclass(frozen=True, slots=True)
class Invalid:
    """A trial that is not in the statistics, and why."""

    trial_id: str
    label: str
    status: str
    reasons: tuple[str, ...]


@dataclass(slots=True)
class Judgement:
    """Everything a report needs. block_ns is the measured and warm-up time of one block."""

    name: str
    spec_id: str
    seed: int
    blocks: int
    block_ns: int
    provenance: dict[str, Any]
    trials: int
    invalid: list[Invalid]
    tables: list[Table] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False, default=str, ensure_ascii=False) + "\n"


def metric_of(key: str) -> Metric:
    """The registry entry of a key such as "fps" or "rtt_ns.p95"."""
    return METRICS[key.partition(".")[0]]


def title_of(key: str) -> str:
    """Column heading of a key: "FPS", "RTT p95"."""
    return " ".join((metric_of(key).title, *key.split(".")[1:]))
