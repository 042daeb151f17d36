"""schedule.py: the factor on the learning rate, by round."""

from __future__ import annotations

import itertools

import pytest

from fedaccord.core.schedule import SCHEDULES, Constant, Cosine, Exponential


@pytest.mark.parametrize("schedule", [each() for each in SCHEDULES.values()])
def test_every_schedule_starts_at_one_and_never_rises(schedule: Constant) -> None:
    factors = [schedule.factor(t, 10) for t in range(1, 11)]
    assert factors[0] == 1.0
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors))
    assert schedule.factor(1, 1) == 1.0


def test_exponential_multiplies_once_a_round() -> None:
    assert [Exponential(0.5).factor(t, 99) for t in (1, 2, 4)] == [1.0, 0.5, 0.125]


def test_cosine_is_halfway_in_the_middle_and_never_quite_at_its_end() -> None:
    assert Cosine(final=0.2).factor(6, 10) == pytest.approx(0.6)
    assert Cosine(final=0.2).factor(11, 10) == pytest.approx(0.2), "the round after the last"
    assert all(Cosine().factor(t, 10) > 0 for t in range(1, 11)), "SCAFFOLD divides by the rate"
