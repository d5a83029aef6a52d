"""The statistics: what a set of numbers supports, and nothing more (docs/statistics.md).

Arrays are float64 and one-dimensional; a lost exchange is +infinity. Intervals are two-sided at `level`.
A run is one trial: fresh processes, fresh connections, one block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ciphertoll.model import Decision, Estimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVEL = 0.95
FPS_MARGIN = 0.03  # rule R9: no practical cost
RTT_MARGIN = 0.05  # rule R9: the larger of 5 % and 1 ms
RTT_MARGIN_NS = 1e6
BATCHES = 20  # rule R3: contiguous batches when there is a single run


def n_required(p: float, level: float = LEVEL) -> int:
    """How many samples a two-sided interval of the p-quantile needs: 6, 36, 72, 368 for p50, p90, p95, p99.

    The interval from the smallest to the largest of n misses on one side with probability p**n and on the
    other with (1 - p)**n (Conover, Practical Nonparametric Statistics, 1999, section 3.2); each may be at
    most (1 - level) / 2. Necessary, not sufficient: it takes the samples as independent.
    """
    return math.ceil(math.log((1 - level) / 2) / math.log(max(p, 1 - p)))


def quantile_ranks(n: int, p: float, level: float = LEVEL) -> tuple[int | None, int | None]:
    """Ranks, from 1, of the order statistics that enclose the p-quantile; None where no sample is far enough out.

    The low rank l is the largest with P(B < l) <= (1 - level) / 2 and the high rank u the smallest with
    P(B >= u) <= (1 - level) / 2, where B is binomial(n, p) (Conover 1999, section 3.2; exact).
    """
    from scipy.special import bdtr, bdtrc

    tail = (1 - level) / 2
    low = _first(lambda rank: bool(bdtr(rank - 1, n, p) > tail), n + 1) - 1
    high = _first(lambda rank: bool(bdtrc(rank - 1, n, p) <= tail), n + 1)
    return (low if low >= 1 else None, high if high <= n else None)


def point_rank(n: int, p: float) -> int:
    """Rank, from 1, of the sample p-quantile: the smallest r with r / n >= p (Hyndman and Fan 1996, type 1)."""
    return max(1, math.ceil(n * p - 1e-9))


def quantile(runs: Sequence[Floats], p: float, level: float = LEVEL) -> Estimate:
    """The p-quantile of the pooled samples of runs, with an interval that survives unlike and autocorrelated runs.

    runs  one array per run, in the order of time, same unit; +infinity marks a lost exchange.

    Below `n_required` samples the answer has no value, only a lower bound: rule R1; the largest sample is never
    called a p99. Otherwise the interval is Woodruff's (JASA 47, 1952) with the cluster-robust standard error
    of the share of samples below the estimate, rule R3: ranks n * (p -+ t * se), the upper one rounded outwards
    by one more (Conover 1999). Status `no_upper_bound` where that rank lies beyond the largest sample.
    A single run is cut into 20 contiguous batches that stand for runs; below 40 samples the exact ranks serve.
    """
    import numpy as np

    kept = [run for run in runs if len(run)]
    if not kept:
        return Estimate(None, status="no_data", level=level, n_required=n_required(p, level))
    pooled = np.sort(np.concatenate(kept))
    n = len(pooled)
    if n < n_required(p, level):
        return _too_few(pooled, p, level)
    if len(kept) == 1 and n < 2 * BATCHES:
        low, high = quantile_ranks(n, p, level)
    else:
        clusters = kept if len(kept) > 1 else np.array_split(kept[0], BATCHES)
        low, high = _woodruff_ranks(clusters, float(pooled[point_rank(n, p) - 1]), p, level)
    return _read_off(pooled, p, (low, high), level)


def _too_few(pooled: Floats, p: float, level: float) -> Estimate:
    low, _ = quantile_ranks(len(pooled), p, level)
    bound = _finite(float(pooled[low - 1])) if low else None
    need = n_required(p, level)
    return Estimate(None, n=len(pooled), level=level, status="insufficient_samples", lower_bound=bound, n_required=need)


def _woodruff_ranks(clusters: Sequence[Floats], at: float, p: float, level: float) -> tuple[int | None, int | None]:
    """Ranks n * (p -+ t * se); se is that of a ratio of cluster totals (Cochran, Sampling Techniques, 1977, 2.11).

    With clusters of equal size this is sd(f_i) / sqrt(k) of rule R3. It is never below the binomial one.
    """
    import numpy as np

    sizes = np.array([len(cluster) for cluster in clusters], dtype=np.float64)
    below = np.array([np.count_nonzero(cluster <= at) for cluster in clusters], dtype=np.float64)
    n, k = float(sizes.sum()), len(clusters)
    residual = below - sizes * (below.sum() / n)
    between = math.sqrt(k / (k - 1) * float((residual**2).sum())) / n
    half = _t(k - 1, level) * max(between, math.sqrt(p * (1 - p) / n))
    low, high = math.floor(n * (p - half)), math.ceil(n * (p + half)) + 1
    return (low if low >= 1 else None, high if high <= n else None)


def _read_off(pooled: Floats, p: float, ranks: tuple[int | None, int | None], level: float) -> Estimate:
    import numpy as np

    value = _finite(float(pooled[point_rank(len(pooled), p) - 1]))
    low = _finite(float(pooled[ranks[0] - 1])) if ranks[0] else None
    high = _finite(float(pooled[ranks[1] - 1])) if ranks[1] else None
    status: Literal["ok", "no_upper_bound"] = "ok" if high is not None else "no_upper_bound"
    bound = low
    if ranks[0] and low is None:  # even the low end is a lost exchange: the quantile exceeds all that were done
        done = int(np.searchsorted(pooled, math.inf))
        bound = float(pooled[done - 1]) if done else None
    return Estimate(
        value, low, high, n=len(pooled), level=level, status=status, lower_bound=None if value is not None else bound
    )


def run_quantile(samples: Floats, p: float) -> float | None:
    """The p-quantile of one run, to be compared between runs; None where it would be the largest sample.

    +infinity where more than 1 - p of the exchanges were lost.
    """
    import numpy as np

    rank = point_rank(len(samples), p)
    if rank >= len(samples):
        return None
    return float(np.partition(samples, rank - 1)[rank - 1])


def log_mean(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Geometric mean of positive per-run values and its t interval on the logarithm (rule R5).

    Fewer than two values have no interval: status `no_upper_bound`, both ends None. A value that is not
    positive leaves the logarithm undefined: then the arithmetic mean with its t interval.
    """
    if any(value <= 0 for value in values):
        return mean(values, level)
    return _mapped(mean([math.log(value) for value in values], level), math.exp)


def mean(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Arithmetic mean of per-run values, Student's t interval; for shares and percentages, which may be 0."""
    if not values:
        return Estimate(None, unit_of_n="blocks", level=level, status="no_data")
    centre, error = _mean_and_error(values)
    if error is None:
        return Estimate(centre, n=1, unit_of_n="blocks", level=level, status="no_upper_bound")
    half = _t(len(values) - 1, level) * error
    return Estimate(centre, centre - half, centre + half, n=len(values), unit_of_n="blocks", level=level)


@dataclass(frozen=True, slots=True)
class Ratio:
    """other / base from pairs inside blocks; 1.0 means no change.

    estimate        geometric mean ratio with its t interval on the logarithm.
    hodges_lehmann  median of the pairwise means of the log ratios, as a ratio: resists one odd block.
    p_value         two-sided, of the t test that the ratio is 1; None with fewer than two blocks.
    sd_log          standard deviation of the log ratios; None with fewer than two blocks.
    n_greater       in how many blocks other exceeded base.
    """

    estimate: Estimate
    hodges_lehmann: float | None = None
    p_value: float | None = None
    sd_log: float | None = None
    n_greater: int = 0

    @property
    def log(self) -> float:
        """The logarithm of the ratio; 0.0 where there is no estimate."""
        return math.log(self.estimate.value) if self.estimate.value else 0.0

    @property
    def centres_disagree(self) -> bool:
        """Rule R6: the Hodges-Lehmann ratio lies outside the interval of the mean, so one block drives it."""
        low, high = self.estimate.low, self.estimate.high
        if self.hodges_lehmann is None or low is None or high is None:
            return False
        return not low <= self.hodges_lehmann <= high


def paired_ratio(base: Sequence[float], other: Sequence[float], level: float = LEVEL) -> Ratio:
    """Estimate other / base from paired runs (rule R8): mean of the log ratios, Student's t.

    base, other  row i of both ran in block i; same unit. A pair with a value that is not positive and finite
                 has no ratio: if there is any, nothing is estimated, for leaving it out would choose by value.
    """
    pairs = list(zip(base, other, strict=True))
    if not pairs or not all(0 < value < math.inf for pair in pairs for value in pair):
        return Ratio(Estimate(None, n=len(pairs), unit_of_n="blocks", level=level, status="no_data"))
    logs = [math.log(after / before) for before, after in pairs]
    estimate = _mapped(mean(logs, level), math.exp)
    centre, error = _mean_and_error(logs)
    return Ratio(
        estimate,
        math.exp(hodges_lehmann(logs)),
        None if error is None else _t_test(centre, error, len(logs) - 1),
        None if error is None else error * math.sqrt(len(logs)),
        sum(log > 0 for log in logs),
    )


def hodges_lehmann(differences: Sequence[float]) -> float:
    """Median of all pairwise means, each value with itself included (Hodges and Lehmann, Ann. Math. Stat. 34, 1963)."""
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    row, column = np.triu_indices(len(values))
    return float(np.median((values[row] + values[column]) / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values of a family, in the order given (Holm, Scand. J. Statist. 6, 1979)."""
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        reached = max(reached, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = reached
    return adjusted


def wilson(successes: int, attempts: int, level: float = LEVEL) -> Estimate:
    """Share of attempts that succeeded, two-sided Wilson score interval (Wilson, JASA 22, 1927)."""
    from scipy.special import ndtri

    if attempts == 0:
        return Estimate(None, unit_of_n="attempts", level=level, status="no_data")
    z2 = float(ndtri((1 + level) / 2)) ** 2
    share = successes / attempts
    centre = (share + z2 / (2 * attempts)) / (1 + z2 / attempts)
    spread = share * (1 - share) / attempts + z2 / (4 * attempts**2)
    half = math.sqrt(z2 * spread) / (1 + z2 / attempts)
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Estimate(share, low, high, n=attempts, unit_of_n="attempts", level=level)


def clopper_pearson_lower(successes: int, attempts: int, level: float = LEVEL) -> float:
    """The share that is exceeded with confidence `level`, one-sided, exact (Clopper, Pearson, Biometrika 1934)."""
    from scipy.special import betaincinv

    if successes == 0:
        return 0.0
    return float(betaincinv(successes, attempts - successes + 1, 1 - level))


def rtt_margin(base_ns: float) -> float:
    """The change of an RTT quantile that has no practical meaning, as a share of base: max(5 %, 1 ms)."""
    return max(RTT_MARGIN, RTT_MARGIN_NS / base_ns)


def decide(
    ratio: Ratio,
    better: Literal["higher", "lower"],
    *,
    p_adjusted: float | None,
    margin: float | None,
    floor_log: float | None,
    level: float = LEVEL,
) -> Decision:
    """One of four answers (rules R8, R9, R12).

    same          the whole interval lies within 1 -+ margin (two one-sided tests: Schuirmann 1987); asked first,
                  because a change that is resolved and too small to matter is still no practical change.
    better/worse  p_adjusted, from `holm` over the family, is at most 1 - level, and the change exceeds
                  floor_log, the largest |log ratio| that the A/A twins leave possible.
    unclear       otherwise.

    margin     share of base; None: no margin is stated for this metric, so never `same`.
    floor_log  None: no twin has this metric, so the test alone decides.
    """
    low, high = ratio.estimate.low, ratio.estimate.high
    if low is None or high is None:
        return "unclear"
    if margin is not None and 1 - margin <= low and high <= 1 + margin:
        return "same"
    resolved = p_adjusted is not None and p_adjusted <= 1 - level
    if not resolved or abs(ratio.log) <= (floor_log or 0.0):
        return "unclear"
    return "better" if (ratio.log > 0) == (better == "higher") else "worse"


def blocks_needed(
    ratio: Ratio, margin: float | None, *, family: int = 1, floor_log: float | None = None, level: float = LEVEL
) -> int | None:
    """How many blocks would turn an `unclear` into an answer, if effect and spread stay as they are.

    Either the interval fits into the margin, or the test excludes 1 at the level that Holm asks of the
    smallest p value of a family of that size, and the effect exceeds the noise floor. None beyond 1,000 blocks,
    or where nothing is known. It plans, it does not promise.
    """
    if ratio.sd_log is None:
        return None
    room = 0.0
    if margin is not None:
        below = math.log1p(-margin) if margin < 1 else -math.inf
        room = min(math.log1p(margin) - ratio.log, ratio.log - below)
    effect = abs(ratio.log) if abs(ratio.log) > (floor_log or 0.0) else 0.0
    strict = 1 - (1 - level) / family
    for blocks in range(2, _MOST_BLOCKS + 1):
        error = ratio.sd_log / math.sqrt(blocks)
        if _t(blocks - 1, level) * error <= room or (effect and _t(blocks - 1, strict) * error <= effect):
            return blocks
    return None


_MOST_BLOCKS = 1000


def _first(holds: Callable[[int], bool], end: int) -> int:
    """The first rank from 1 at which a condition that stays true once true holds; `end` if it never does."""
    low, high = 1, end
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _mapped(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    """The same estimate on another scale; `function` is increasing."""
    value, low, high = (
        None if number is None else function(number) for number in (estimate.value, estimate.low, estimate.high)
    )
    return replace(estimate, value=value, low=low, high=high)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error; None for a single value."""
    n = len(values)
    centre = math.fsum(values) / n
    if n < 2:
        return centre, None
    return centre, math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1) / n)


def _t_test(centre: float, error: float, df: int) -> float:
    from scipy.special import stdtr

    if error == 0:
        return 1.0 if centre == 0 else 0.0
    return float(2 * stdtr(df, -abs(centre) / error))


def _t(df: int, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + level) / 2))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
