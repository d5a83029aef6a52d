"""Each formula against scipy.stats or a published figure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from ciphertoll import stats
from ciphertoll.model import Estimate


def ratio(value: float, low: float | None, high: float | None, sd_log: float | None = 0.01) -> stats.Ratio:
    return stats.Ratio(Estimate(value, low, high, n=8, unit_of_n="blocks"), value, 0.01, sd_log, 4)


def test_the_samples_that_each_percentile_needs_are_those_of_the_binomial():
    assert [stats.n_required(p) for p in (0.5, 0.9, 0.95, 0.99)] == [6, 36, 72, 368]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_exact_ranks_leave_at_most_half_of_the_error_on_each_side_and_are_the_tightest_that_do(n: int, p: float):
    low, high = stats.quantile_ranks(n, p)
    below = reference.binom.cdf(np.arange(-1, n + 1), n, p)  # below[r] = P(B < r)
    if low is None:
        assert below[1] > 0.025
    else:
        assert below[low] <= 0.025 < below[low + 1]
    if high is None:
        assert 1 - below[n] > 0.025
    else:
        assert 1 - below[high] <= 0.025 + 1e-12 < 1 - below[high - 1] + 2e-12


def test_sixty_samples_give_the_ranks_that_are_published_for_them():
    assert stats.quantile_ranks(60, 0.5) == (22, 39)
    assert stats.quantile_ranks(60, 0.9) == (49, 59)
    assert stats.quantile_ranks(60, 0.95) == (53, None)


def test_the_largest_of_sixty_samples_is_never_called_a_p99():
    samples = np.arange(1.0, 61.0)
    estimate = stats.quantile([samples], 0.99)
    assert (estimate.value, estimate.high, estimate.status) == (None, None, "insufficient_samples")
    assert (estimate.lower_bound, estimate.n, estimate.n_required) == (58.0, 60, 368)


def test_a_p99_of_ten_runs_of_sixty_says_that_it_has_no_upper_bound():
    rng = np.random.default_rng(3)
    estimate = stats.quantile([rng.lognormal(size=60) for _ in range(10)], 0.99)
    assert estimate.status == "no_upper_bound"
    assert estimate.value is not None
    assert estimate.low is not None
    assert estimate.high is None


def test_runs_that_differ_widen_the_interval_of_a_percentile():
    rng = np.random.default_rng(4)
    alike = [rng.normal(100, 1, 500) for _ in range(8)]
    unlike = [run + shift for run, shift in zip(alike, np.linspace(-5, 5, 8), strict=True)]
    narrow, wide = stats.quantile(alike, 0.5), stats.quantile(unlike, 0.5)
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_lost_exchanges_raise_the_percentile_instead_of_leaving_it():
    kept = np.linspace(1, 2, 900)
    runs = [np.concatenate([kept, np.full(100, math.inf)]) for _ in range(10)]
    p95 = stats.quantile(runs, 0.95)
    assert p95.value is None
    assert p95.status == "no_upper_bound"
    assert p95.lower_bound == 2.0
    assert stats.quantile(runs, 0.5).value == pytest.approx(
        np.quantile(np.concatenate(runs), 0.5, method="inverted_cdf")
    )


def test_no_samples_are_no_data_and_not_zero():
    assert stats.quantile([], 0.5).status == "no_data"
    assert stats.mean([]).status == "no_data"
    assert stats.wilson(0, 0).status == "no_data"


def test_a_percentile_of_one_run_is_refused_where_it_would_be_the_maximum():
    assert stats.run_quantile(np.arange(60.0), 0.99) is None
    assert stats.run_quantile(np.arange(60.0), 0.95) == 56.0
    assert stats.run_quantile(np.array([]), 0.5) is None


def test_the_interval_of_a_mean_is_that_of_scipy():
    values = [28.1, 28.4, 27.9, 28.8, 28.0]
    expected = reference.t.interval(0.95, 4, np.mean(values), reference.sem(values))
    estimate = stats.mean(values)
    assert (estimate.low, estimate.high) == pytest.approx(expected)
    logs = np.log(values)
    expected = np.exp(reference.t.interval(0.95, 4, logs.mean(), reference.sem(logs)))
    estimate = stats.log_mean(values)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(expected))


def test_one_block_gives_a_value_without_an_interval():
    estimate = stats.log_mean([28.0])
    assert estimate.value == pytest.approx(28.0)
    assert (estimate.low, estimate.high) == (None, None)
    assert stats.paired_ratio([1.0], [2.0]).p_value is None


def test_a_mean_of_values_that_contain_zero_is_arithmetic():
    assert stats.log_mean([0.0, 2.0]).value == 1.0


def test_the_paired_ratio_and_its_p_value_are_those_of_the_paired_t_test_on_logarithms():
    base, other = [10.0, 11.0, 12.0, 10.5], [9.0, 10.8, 11.0, 10.1]
    result = stats.paired_ratio(base, other)
    expected = reference.ttest_rel(np.log(other), np.log(base))
    assert result.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert (result.estimate.low, result.estimate.high) == pytest.approx(
        (math.exp(interval.low), math.exp(interval.high))
    )
    assert result.n_greater == 0
    assert result.sd_log == pytest.approx(np.std(np.log(np.divide(other, base)), ddof=1))


def test_a_pair_that_has_no_ratio_leaves_no_estimate():
    assert stats.paired_ratio([0.0, 1.0], [1.0, 1.0]).estimate.status == "no_data"
    assert stats.paired_ratio([1.0, 1.0], [math.inf, 1.0]).estimate.value is None


def test_pairs_that_are_all_equal_differ_by_nothing():
    result = stats.paired_ratio([2.0, 3.0], [2.0, 3.0])
    assert result.p_value == 1.0
    assert stats.paired_ratio([2.0, 2.0], [3.0, 3.0]).p_value == 0.0


def test_hodges_lehmann_resists_one_odd_block_and_the_disagreement_is_flagged():
    assert stats.hodges_lehmann([1.0, 2.0, 3.0]) == 2.0
    assert stats.hodges_lehmann([0.0] * 7 + [8.0]) == 0.0
    assert stats.Ratio(Estimate(1.0, 0.9, 1.1), hodges_lehmann=1.2).centres_disagree
    assert not ratio(1.0, 0.9, 1.1).centres_disagree


def test_holm_gives_the_textbook_adjustment_in_the_order_of_the_input():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]) == []
    assert stats.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("good", "of"), [(60, 60), (98, 100), (0, 7), (5, 10)])
def test_wilson_is_that_of_scipy(good: int, of: int):
    expected = reference.binomtest(good, of).proportion_ci(0.95, method="wilson")
    estimate = stats.wilson(good, of)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("good", "of"), [(60, 60), (98, 100), (0, 7), (300, 300)])
def test_the_exact_lower_bound_is_that_of_scipy(good: int, of: int):
    expected = reference.binomtest(good, of, alternative="greater").proportion_ci(0.95, method="exact")
    assert stats.clopper_pearson_lower(good, of) == pytest.approx(expected.low)


def test_n_of_n_gives_the_published_lower_bounds():
    bounds = [round(stats.clopper_pearson_lower(n, n), 3) for n in (60, 100, 300, 1000)]
    assert bounds == [0.951, 0.970, 0.990, 0.997]


def test_same_needs_the_whole_interval_inside_the_margin():
    known = {"p_adjusted": 0.001, "margin": 0.03, "floor_log": 0.0}
    assert stats.decide(ratio(0.99, 0.975, 1.005), "higher", **known) == "same"
    assert stats.decide(ratio(0.95, 0.93, 0.969), "higher", **known) == "worse"
    assert stats.decide(ratio(1.05, 1.031, 1.07), "higher", **known) == "better"
    assert stats.decide(ratio(1.05, 1.031, 1.07), "lower", **known) == "worse"


def test_a_change_inside_the_noise_floor_is_unclear_however_small_its_p_value():
    clear = ratio(0.95, 0.94, 0.96)
    assert stats.decide(clear, "higher", p_adjusted=1e-6, margin=0.03, floor_log=0.06) == "unclear"
    assert stats.decide(clear, "higher", p_adjusted=1e-6, margin=0.03, floor_log=None) == "worse"


def test_a_change_that_does_not_survive_holm_is_unclear():
    assert stats.decide(ratio(0.95, 0.94, 0.96), "higher", p_adjusted=0.06, margin=None, floor_log=0) == "unclear"


def test_without_an_interval_there_is_no_decision():
    assert stats.decide(ratio(0.5, None, None), "higher", p_adjusted=None, margin=0.03, floor_log=0) == "unclear"


def test_the_margin_of_a_fast_round_trip_is_one_millisecond_and_of_a_slow_one_five_percent():
    assert stats.rtt_margin(4e6) == 0.25
    assert stats.rtt_margin(100e6) == 0.05


def test_more_spread_needs_more_blocks_and_the_hopeless_gets_no_number():
    few = stats.blocks_needed(ratio(0.99, 0.95, 1.03, sd_log=0.02), 0.03)
    more = stats.blocks_needed(ratio(0.99, 0.95, 1.03, sd_log=0.05), 0.03)
    assert few is not None
    assert more is not None
    assert few < more
    assert stats.blocks_needed(ratio(1.0, 0.5, 2.0, sd_log=3.0), 0.03) is None
    assert stats.blocks_needed(ratio(1.0, None, None, sd_log=None), 0.03) is None
    assert stats.blocks_needed(ratio(1.2, 0.9, 1.5, sd_log=0.1), 2.0) is not None


def test_a_larger_family_needs_more_blocks_and_an_effect_below_the_noise_floor_is_never_resolved():
    one = stats.blocks_needed(ratio(1.2, 0.9, 1.5, sd_log=0.1), None)
    many = stats.blocks_needed(ratio(1.2, 0.9, 1.5, sd_log=0.1), None, family=24)
    assert one is not None
    assert many is not None
    assert one < many
    assert stats.blocks_needed(ratio(1.2, 0.9, 1.5, sd_log=0.1), None, floor_log=0.3) is None
