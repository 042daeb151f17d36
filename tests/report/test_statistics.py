"""Figures against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from fedaccord.report.statistics import (
    ONE_SEED,
    band,
    best,
    censored_median,
    estimate,
    first_reached,
    jain,
    mean,
    tail_mean,
    worst_tenth,
)


def test_an_interval_over_three_seeds_is_the_textbook_one() -> None:
    # mean 0.7, standard deviation 0.1, t(0.975, 2) = 4.302653: half width 4.302653 * 0.1 / sqrt(3) = 0.248414
    figure = estimate([0.6, 0.7, 0.8])
    assert figure.mean == pytest.approx(0.7)
    assert figure.low == pytest.approx(0.7 - 0.248414, abs=1e-6)
    assert figure.high == pytest.approx(0.7 + 0.248414, abs=1e-6)
    assert figure.n == 3


def test_one_seed_has_a_mean_and_no_interval_and_says_so() -> None:
    figure = estimate([0.6])
    assert (figure.mean, figure.low, figure.high, figure.n, figure.reason) == (0.6, None, None, 1, ONE_SEED)


def test_no_seed_has_no_mean_and_a_reason() -> None:
    assert estimate([], reason="nothing was evaluated").reason == "nothing was evaluated"


def test_equal_seeds_have_an_interval_of_width_zero() -> None:
    figure = estimate([0.5, 0.5, 0.5])
    assert (figure.low, figure.high) == (0.5, 0.5)


def test_the_target_is_met_by_a_mean_over_rounds_and_not_by_a_lucky_one() -> None:
    lucky = dict(enumerate([0.1, 0.9, 0.1, 0.1, 0.1, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8], start=1))
    # rounds 7 to 11 are the first five with a mean of 0.8; rounds 6 to 10 have 0.78
    assert first_reached(lucky, 0.8, window=5, higher_is_better=True) == 11
    assert first_reached(lucky, 0.8, window=1, higher_is_better=True) == 2


def test_a_window_must_be_complete() -> None:
    assert first_reached(dict.fromkeys(range(1, 5), 1.0), 0.8, window=5, higher_is_better=True) is None
    assert first_reached(dict.fromkeys(range(1, 6), 1.0), 0.8, window=5, higher_is_better=True) == 5


def test_rounds_without_an_evaluation_are_left_out_of_the_window() -> None:
    # evaluated every fourth round: round 8's window (4 to 8) holds 0.7 and 0.9
    assert first_reached({4: 0.7, 8: 0.9, 12: 0.9}, 0.8, window=5, higher_is_better=True) == 8


def test_a_loss_reaches_its_target_from_above() -> None:
    assert first_reached({1: 2.0, 2: 0.5}, 0.6, window=1, higher_is_better=False) == 2


def test_a_median_over_seeds_that_all_arrived_is_known() -> None:
    median = censored_median([40.0, 60.0, 50.0], [100, 100, 100])
    assert (median.low, median.high, median.never, median.known) == (50, 50, 0, True)


def test_one_seed_of_three_that_never_arrived_does_not_hide_the_median() -> None:
    median = censored_median([91.0, None, 95.0], [100, 100, 100])
    assert (median.low, median.high, median.never, median.n) == (95, 95, 1, 3)


def test_when_the_median_seed_never_arrived_only_a_lower_bound_is_known() -> None:
    median = censored_median([91.0, None, None], [100, 100, 100])
    assert (median.low, median.high, median.never) == (100, None, 2)


def test_a_seed_that_was_cut_short_is_not_counted_as_slower_than_it_is_known_to_be() -> None:
    # seeds at 40 and 60; the third stopped in round 12 and might have arrived in 13: the median lies between 40 and 60
    median = censored_median([40.0, None, 60.0], [100, 12, 100])
    assert (median.low, median.high, median.known) == (40, 60, False)


def test_final_tail_and_best_are_three_different_numbers() -> None:
    curve = dict(enumerate([0.2, 0.9, 0.6, 0.7], start=1))
    assert tail_mean(curve, end=4, last=2) == pytest.approx(0.65)
    assert best(curve, higher_is_better=True) == (2, 0.9)
    assert best(curve, higher_is_better=False) == (1, 0.2)


def test_jain_is_one_for_equals_and_one_over_n_where_one_has_all() -> None:
    assert jain([0.4, 0.4, 0.4]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([0.5, 1.0]) == pytest.approx(2.25 / 2.5)


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [0.5, -0.1]])
def test_jain_is_undefined_for_none_all_zero_or_negative_scores(values: list[float]) -> None:
    assert jain(values) is None


def test_the_worst_tenth_is_at_least_one_client_and_rounds_down() -> None:
    assert worst_tenth([0.9, 0.2, 0.5]) == 0.2
    assert worst_tenth([float(i) for i in range(19)]) == 0
    assert worst_tenth([float(i) for i in range(20)]) == 0.5
    assert worst_tenth([1.0, 5.0, 3.0], higher_is_better=False) == 5.0


def test_the_two_means_of_clients_differ_where_sizes_do() -> None:
    assert mean([1.0, 0.0]) == 0.5
    assert mean([1.0, 0.0], [3, 1]) == 0.75
    assert mean([1.0], [0]) is None


def test_a_band_keeps_to_the_rounds_that_every_seed_has() -> None:
    found = band([{1: 0.0, 2: 0.2, 3: 0.9}, {1: 0.2, 2: 0.4}])
    assert found is not None
    assert found.x == [1, 2]
    assert found.mean == pytest.approx([0.1, 0.3])
    # standard deviation of (0, 0.2) is 0.141421; t(0.975, 1) = 12.7062; half width 12.7062 * 0.1 = 1.27062
    assert found.high is not None
    assert found.high[0] == pytest.approx(0.1 + 1.27062, abs=1e-5)


def test_a_band_of_one_seed_has_no_bounds_and_of_none_is_none() -> None:
    alone = band([{1: 0.5}, {}])
    assert alone is not None
    assert (alone.low, alone.high, alone.n) == (None, None, 1)
    assert band([{}]) is None
    assert band([{1: 0.1}, {2: 0.1}]) is None


def test_no_statistic_returns_nan() -> None:
    assert all(value is None or math.isfinite(value) for value in (mean([]), worst_tenth([]), jain([]), tail_mean({}, 3, 2)))
