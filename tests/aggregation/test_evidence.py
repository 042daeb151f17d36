"""evidence.py: looking after every round costs nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedaccord.aggregation.evidence import BETS, bet, evidence


def wealths(differences: np.ndarray, value: float = 0.0) -> list[float]:
    wealth: tuple[float, ...] = ()
    found = []
    for difference in differences:
        wealth = bet(wealth, float(difference), value)
        found.append(evidence(wealth))
    return found


def test_one_bet_by_hand() -> None:
    """Each share of the wealth is bet on the difference: 1 + share * 0.5, averaged over the bets."""
    assert evidence(()) == 1.0
    assert evidence(bet((), 0.5)) == pytest.approx(sum(1 + 0.5 * share for share in BETS) / len(BETS))
    assert evidence(bet((), -1.0, -0.2)) == pytest.approx(sum(1 - share for share in BETS) / len(BETS)), "the largest loss ruins nobody"


def test_without_a_difference_wealth_reaches_twenty_in_at_most_a_twentieth_of_long_runs() -> None:
    rng = np.random.default_rng(0)
    reached = sum(max(wealths(rng.choice([-1.0, 1.0], 300))) >= 20 for _ in range(400))
    assert reached <= 0.05 * 400 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_a_difference_is_found() -> None:
    rng = np.random.default_rng(1)
    found = [max(wealths(rng.normal(0.2, 0.3, 100))) >= 20 for _ in range(50)]
    assert sum(found) >= 48


def test_equal_is_evidence_against_harm_by_more_than_the_margin() -> None:
    """All differences 0 against 'the mean is at most -0.1': about fifty rounds."""
    reached = next(i for i, wealth in enumerate(wealths(np.zeros(200), -0.1)) if wealth >= 20)
    assert 30 < reached < 80


def test_differences_count_as_at_most_one() -> None:
    assert bet((), 50.0) == bet((), 1.0) and bet((), -50.0) == bet((), -1.0)
