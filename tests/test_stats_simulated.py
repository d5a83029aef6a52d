"""What the intervals and decisions do on data whose truth is known; seeded, with Monte-Carlo bounds."""

from __future__ import annotations

import math

import numpy as np

from ciphertoll import stats

REPLICATES = 1000


def at_least(hits: int, replicates: int, nominal: float) -> bool:
    """False if so few hits are a 1 in 10,000 event at the nominal rate."""
    return hits >= replicates * nominal - 3.7 * math.sqrt(replicates * nominal * (1 - nominal))


def at_most(hits: int, replicates: int, nominal: float) -> bool:
    return hits <= replicates * nominal + 3.7 * math.sqrt(replicates * nominal * (1 - nominal))


def covers(estimate, truth: float) -> bool:
    low = -math.inf if estimate.low is None else estimate.low
    high = math.inf if estimate.high is None else estimate.high
    return low <= truth <= high


def test_the_interval_of_a_p95_covers_when_runs_differ_by_five_percent():
    rng = np.random.default_rng(11)
    z95 = 1.6448536269514722
    # log of a sample is normal(0, run sd² + within sd²), so the pooled p95 is known exactly
    truth = math.exp(z95 * math.hypot(0.05, 0.5))
    hits = 0
    for _ in range(REPLICATES):
        runs = np.exp(rng.normal(0, 0.5, (10, 200)) + rng.normal(0, 0.05, (10, 1)))
        hits += covers(stats.quantile(list(runs), 0.95), truth)
    assert at_least(hits, REPLICATES, 0.95)


def test_the_interval_of_a_median_covers_when_one_run_is_autocorrelated():
    rng = np.random.default_rng(12)
    hits, replicates, rho, n = 0, 600, 0.6, 2000
    for _ in range(replicates):
        noise = rng.normal(size=n)
        series = np.empty(n)
        series[0] = noise[0] / math.sqrt(1 - rho**2)
        for i in range(1, n):
            series[i] = rho * series[i - 1] + noise[i]
        hits += covers(stats.quantile([series], 0.5), 0.0)
    assert at_least(hits, replicates, 0.945)


def test_the_exact_interval_of_a_short_run_covers():
    rng = np.random.default_rng(13)
    hits = sum(covers(stats.quantile([rng.exponential(size=20)], 0.5), math.log(2)) for _ in range(REPLICATES))
    assert at_least(hits, REPLICATES, 0.95)


def test_the_interval_of_a_ratio_covers_under_drift_between_blocks():
    rng = np.random.default_rng(14)
    hits = 0
    for _ in range(REPLICATES):
        drift = np.linspace(0, 0.04, 8)
        base = np.exp(drift + rng.normal(0, 0.01, 8))
        other = 0.985 * np.exp(drift + rng.normal(0, 0.01, 8))
        hits += covers(stats.paired_ratio(list(base), list(other)).estimate, 0.985)
    assert at_least(hits, REPLICATES, 0.95)
    assert at_most(hits, REPLICATES, 0.95)


def test_the_ratio_of_p95_per_run_covers_with_few_samples_in_a_run():
    rng = np.random.default_rng(15)
    hits = 0
    for _ in range(REPLICATES):
        base = rng.lognormal(0, 0.5, (8, 55)) * np.exp(rng.normal(0, 0.05, (8, 1)))
        other = 1.3 * rng.lognormal(0, 0.5, (8, 55)) * np.exp(rng.normal(0, 0.05, (8, 1)))
        per_run = [[stats.run_quantile(run, 0.95) for run in runs] for runs in (base, other)]
        hits += covers(stats.paired_ratio(*per_run).estimate, 1.3)
    assert at_least(hits, REPLICATES, 0.95)


def test_identical_channels_are_told_apart_in_at_most_one_family_in_twenty():
    rng = np.random.default_rng(16)
    wrong, replicates = 0, 400
    for _ in range(replicates):
        base = np.exp(rng.normal(0, 0.01, 8))
        # two baseline runs of each block make the noise floor, as in a plan
        twin = stats.paired_ratio(list(base), list(np.exp(rng.normal(0, 0.01, 8)))).estimate
        floor = max(abs(math.log(twin.low)), abs(math.log(twin.high)))
        others = [stats.paired_ratio(list(base), list(np.exp(rng.normal(0, 0.01, 8)))) for _ in range(12)]
        adjusted = stats.holm([other.p_value for other in others])
        wrong += any(
            stats.decide(other, "higher", p_adjusted=p, margin=None, floor_log=floor) in ("better", "worse")
            for other, p in zip(others, adjusted, strict=True)
        )
    assert at_most(wrong, replicates, 0.05)


def test_a_real_loss_beyond_the_margin_is_hardly_ever_called_the_same():
    rng = np.random.default_rng(17)
    same = 0
    for _ in range(REPLICATES):
        result = stats.paired_ratio(list(np.exp(rng.normal(0, 0.01, 8))), list(0.97 * np.exp(rng.normal(0, 0.01, 8))))
        same += stats.decide(result, "higher", p_adjusted=1.0, margin=0.03, floor_log=None) == "same"
    assert at_most(same, REPLICATES, 0.025)


def test_a_loss_of_five_percent_is_found_nine_times_in_ten_with_eight_blocks():
    rng = np.random.default_rng(18)
    found = 0
    for _ in range(REPLICATES):
        result = stats.paired_ratio(list(np.exp(rng.normal(0, 0.01, 8))), list(0.95 * np.exp(rng.normal(0, 0.01, 8))))
        found += stats.decide(result, "higher", p_adjusted=12 * result.p_value, margin=0.03, floor_log=0.01) == "worse"
    assert found >= 0.9 * REPLICATES
