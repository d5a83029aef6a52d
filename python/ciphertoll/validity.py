"""What spoils a trial. Each rule is a pure function of the trial and what was observed; it says why, in words.

`void`: the machine spoiled it, so it says nothing about the cell; it is kept, counted and repeated.
`failed`: it did not do what the cell asks; repeating it would hide that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ciphertoll.model import Paced, Status, Trial

if TYPE_CHECKING:
    import polars as pl

# A generator that lags more than this adds its own delay to what it measures.
LAG_FLOOR_NS = 1_000_000
LAG_SHARE_OF_RTT = 0.1
LAG_LEAST_N = 20
DONE_SHARE = 0.99
FREQUENCY_CHANGE = 0.2
FREQUENCY_LEAST_N = 2  # instants in each half of the measured time
FOREIGN_CPU_SHARE = 0.1  # of one core
STEAL_SHARE = 0.02
# /proc/stat counts in ticks of 10 ms; start, end and rounding of each core's counter may be off by one each.
TICK_NS = 10_000_000
TICKS_PER_CORE = 3

Finding = tuple[Status, str]
# Of several findings the first of these is the status: what failed is not repeated, whatever the machine did.
_WORST: tuple[Status, ...] = ("unsupported", "failed", "void")


@dataclass(frozen=True, slots=True)
class Observed:
    """A trial with its tables: exchanges and frames of the measured time only, sensors from its start to its end."""

    trial: Trial
    window: tuple[int, int]
    exchanges: pl.DataFrame
    frames: pl.DataFrame
    sensors: pl.DataFrame

    @property
    def facts(self) -> dict[str, Any]:
        return self.trial.facts

    @property
    def cores(self) -> int:
        return int(self.facts.get("processors", 1))


def check(trial: Trial, exchanges: pl.DataFrame, frames: pl.DataFrame, sensors: pl.DataFrame) -> list[Finding]:
    """Everything that speaks against a trial; empty if nothing does.

    trial      its window and these facts: `engine_outcome`, `engine_reason`, `counts`, `records`, `processors`,
               `roles`, `workload_failure`, `workload_unfit`. A rule without its facts or samples has nothing to say.
    exchanges, frames, sensors
               whole tables as `store.Results` returns them.
    """
    import polars as pl

    findings = [*_engine(trial), *_records(trial), *_workload(trial)]
    if trial.window is None:
        return findings or [("failed", "the measured time never began")]
    start, end = trial.window
    observed = Observed(
        trial,
        trial.window,
        exchanges.filter((pl.col("due_ns") >= start) & (pl.col("due_ns") < end)),
        frames.filter((pl.col("done_ns") >= start) & (pl.col("done_ns") < end)),
        sensors.filter((pl.col("at_ns") >= start) & (pl.col("at_ns") <= end)).sort("at_ns"),
    )
    return findings + [finding for rule in _RULES for finding in rule(observed)]


def settle(trial: Trial, findings: Iterable[Finding]) -> Trial:
    """The trial with its status and reasons."""
    found = list(dict.fromkeys(findings))
    statuses = {status for status, _ in found}
    status: Status = next((worst for worst in _WORST if worst in statuses), "ok")
    return replace(trial, status=status, reasons=tuple(reason for _, reason in found))


def _engine(trial: Trial) -> Iterable[Finding]:
    outcome = trial.facts.get("engine_outcome", "ok")
    if outcome != "ok":
        reason = trial.facts.get("engine_reason")
        said = f"the engine ended with `{outcome}`" + (f": {reason}" if reason else "")
        yield ("unsupported" if outcome == "unsupported" else "failed"), said


def _records(trial: Trial) -> Iterable[Finding]:
    records, counts = trial.facts.get("records"), trial.facts.get("counts")
    if records is not None and counts is not None and records != counts["due"]:
        yield "failed", f"{records} of {counts['due']} exchanges were recorded"


def _workload(trial: Trial) -> Iterable[Finding]:
    for fact in ("workload_failure", "workload_unfit"):
        if reason := trial.facts.get(fact):
            yield "failed", str(reason)


def completion(observed: Observed) -> Iterable[Finding]:
    """Fewer exchanges completed than this share of those that fell due."""
    if not isinstance(observed.trial.cell.load, Paced) or observed.trial.cell.channel is None:
        return
    due = len(observed.exchanges)
    if due == 0:
        if observed.facts.get("engine_outcome", "ok") == "ok":
            yield "failed", "no exchange fell due in the measured time"
        return
    outcomes = dict(observed.exchanges["outcome"].value_counts().sort("outcome").iter_rows())
    done = outcomes.pop("done", 0)
    if done < DONE_SHARE * due:
        others = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in outcomes.items())
        yield "failed", f"only {done} of {due} exchanges completed ({others})"


def lag(observed: Observed) -> Iterable[Finding]:
    """The generator sent late. Held exchanges are the channel's doing and do not count."""
    import polars as pl

    done = observed.exchanges.filter(pl.col("outcome") == "done")
    free = done.filter(~pl.col("held"))
    if len(free) < LAG_LEAST_N:
        return
    # Unsigned columns: a difference below zero would wrap.
    lags = free["sent_ns"].cast(pl.Int64) - free["due_ns"].cast(pl.Int64)
    rtts = done["done_ns"].cast(pl.Int64) - done["due_ns"].cast(pl.Int64)
    p99, middle = float(lags.quantile(0.99, "linear") or 0), float(rtts.quantile(0.5, "linear") or 0)
    limit = max(LAG_FLOOR_NS, LAG_SHARE_OF_RTT * middle)
    if p99 > limit:
        yield "void", f"the generator lagged: p99 {p99 / 1e6:.2f} ms, limit {limit / 1e6:.2f} ms"


def throttling(observed: Observed) -> Iterable[Finding]:
    """The processor was throttled, or had too little voltage, at any sample."""
    for metric, what in (("throttled", "the processor was throttled"), ("under_voltage", "the voltage was too low")):
        values = _of(observed, metric)["value"]
        if (values > 0).any():
            yield "void", f"{what} in {int((values > 0).sum())} of {len(values)} samples"


def frequency(observed: Observed) -> Iterable[Finding]:
    """The mean frequency of all processors changed from the first half to the second.

    Halves, because a governor that steps up and down all the time is the machine as it is; a machine that becomes
    slower is not.
    """
    import polars as pl

    samples = _of(observed, "frequency_hz")
    middle = sum(observed.window) // 2
    early, late = samples.filter(pl.col("at_ns") < middle), samples.filter(pl.col("at_ns") >= middle)
    if min(early["at_ns"].n_unique(), late["at_ns"].n_unique()) < FREQUENCY_LEAST_N:
        return
    before, after = _mean(early["value"]), _mean(late["value"])
    if before > 0 and abs(after / before - 1) > FREQUENCY_CHANGE:
        yield "void", f"the processors went from {before / 1e9:.2f} to {after / 1e9:.2f} GHz"


def foreign_cpu(observed: Observed) -> Iterable[Finding]:
    """Processor time that none of our processes took."""
    busy = _growth(observed, "cpu_busy_ns")
    roles = observed.facts.get("roles", [])
    own = [_growth(observed, "process_cpu_ns", role) for role in roles]
    if busy is None or not roles:
        return
    known = [growth for growth in own if growth is not None]
    if len(known) < len(own):  # a process that was not seen would count as foreign
        return
    elapsed = busy[1]
    foreign = busy[0] - sum(growth[0] for growth in known)
    if foreign > FOREIGN_CPU_SHARE * elapsed + _slack(observed):
        yield "void", f"other programs took {100 * foreign / elapsed:.0f} % of a processor"


def steal(observed: Observed) -> Iterable[Finding]:
    """Time that the hypervisor gave to others."""
    stolen = _growth(observed, "steal_ns")
    if stolen is not None and stolen[0] > STEAL_SHARE * stolen[1] + _slack(observed):
        yield "void", f"the hypervisor withheld {100 * stolen[0] / stolen[1]:.1f} % of a processor"


_RULES: tuple[Callable[[Observed], Iterable[Finding]], ...] = (
    completion,
    lag,
    throttling,
    frequency,
    foreign_cpu,
    steal,
)


def _slack(observed: Observed) -> int:
    return TICKS_PER_CORE * TICK_NS * observed.cores


def _of(observed: Observed, metric: str, where: str | None = None) -> pl.DataFrame:
    import polars as pl

    samples = observed.sensors.filter(pl.col("metric") == metric)
    return samples if where is None else samples.filter(pl.col("where") == where)


def _growth(observed: Observed, metric: str, where: str | None = None) -> tuple[float, int] | None:
    """How much a counter grew between its first and last sample, and in how many ns; None with fewer than two."""
    samples = _of(observed, metric, where)
    if len(samples) < 2 or samples["at_ns"][0] == samples["at_ns"][-1]:
        return None
    return float(samples["value"][-1] - samples["value"][0]), int(samples["at_ns"][-1]) - int(samples["at_ns"][0])


def _mean(values: pl.Series) -> float:
    return float(values.mean())  # type: ignore[arg-type]
