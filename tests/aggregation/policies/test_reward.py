"""reward.py: the source's reward, term by term."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedaccord.aggregation.policies.reward import PRESETS, LateGains, SourceReward


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_terms_by_hand() -> None:
    """Norms 1, 1, 1, 9: median 1, deviation sqrt(12) = 3.46, so that only 9 is too long (1 + 6.93)."""
    reward = SourceReward(0.4, 0.3, 0.3, 0.2, scheduled=False)
    found = reward(
        0,
        column(1, 1, 1, 9),
        column(0.6, 0.4, 0.6, 0.1),
        column(0.1, 0.0, -0.2, 0.0),
        torch.tensor([True, True, False, True]),
        column(0.5, 0.5, 0.9, 0.5),
        column(0.5, math.nan, 0.5, 0.4),
    )
    assert found.tolist() == pytest.approx([0.7 + 0.03, 0.1, -0.06 - 0.2, -0.7])


def test_rejecting_a_long_update_that_points_elsewhere_is_what_pays() -> None:
    reward = SourceReward()
    norms, cosines, gains, weights = column(1, 1, 1, 1, 9), column(0.9, 0.9, 0.9, 0.9, 0.1), column(0, 0, 0, 0, 0), column(*[0.5] * 5)
    accepted, rejected = (reward(0, norms, cosines, gains, torch.tensor([*[True] * 4, a]), weights, weights)[4] for a in (True, False))
    assert rejected > accepted


@pytest.mark.parametrize(
    ("round", "expected"),
    [
        (0, (0.5, 0.3, 0.3, 0.2)),
        (19, (0.5, 0.3, 0.3, 0.2)),
        (20, (0.4, 0.3, 0.4, 0.2)),
        (49, (0.4, 0.3, 0.4, 0.2)),
        (50, (0.4, 0.3, 0.3, 0.3)),
    ],
)
def test_the_schedule(round: int, expected: tuple[float, ...]) -> None:
    assert tuple(SourceReward().factors(round)) == expected


def test_presets_have_no_schedule() -> None:
    assert all(tuple(PRESETS["accuracy"].factors(t)) == (0.4, 0.3, 0.7, 0.2) for t in (0, 30, 60))
    assert all(tuple(PRESETS["stability"].factors(t)) == (0.5, 0.3, 0.3, 0.2) for t in (0, 30, 60))


def test_a_gain_that_does_not_come_is_eight_tenths_of_what_the_line_says() -> None:
    """Gains 0.1, 0.2, 0.3 at loss changes 1, 2, 3: the line says 0.5 at 5."""
    found = LateGains().fill(column(0.1, 0.2, 0.3, math.nan), column(1, 2, 3, 5))
    assert found.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("gains", [[math.nan] * 3, [0.5, math.nan, math.nan], [0.5, 0.5, math.nan]])
def test_with_next_to_nothing_known_gains_are_still_numbers(gains: list[float]) -> None:
    found = LateGains().fill(column(*gains), column(math.nan, 1, 1))
    assert bool(found.isfinite().all())
