"""dynamic_sam's sharpness: the mean rise over the steps, where it is not noise beside the mean loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedaccord.algorithms.dynamic_sam import DynamicSAM, Kept
from fedaccord.core.algorithm import RoundStart, Server, Work
from fedaccord.core.vector import Layout

LAYOUT = Layout.of(nn.Linear(1, 1))  # any

AFTER_WARM_UP = 9


class Step:
    """A loss in the first pass, and so much more of it in the second."""

    def __init__(self, loss: float, rise: float, step: int) -> None:
        self.losses, self.step = [loss, loss + rise], step

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.losses.pop(0), dtype=w.dtype), torch.ones_like(w)

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]


def measured(method: DynamicSAM, steps: list[tuple[float, float]], round: int = AFTER_WARM_UP, validation: Any = None) -> tuple[Any, Kept]:
    """The state after the last step, and what is kept. Momentum carried the model twice as far as the steps alone would."""
    sent = Server(torch.zeros(2, dtype=torch.float64))
    local = method.begin(
        RoundStart(round, 0.1, (), validation, lambda: torch.ones_like(sent.w), LAYOUT, 1, 1.0), sent, method.init_client(sent.w)
    )
    for number, (loss, rise) in enumerate(steps):
        _, local = method.direction(Step(loss, rise, number), sent.w, sent, local)
    return local, method.upload(sent.w, sent, local, Work(len(steps), 0.1, 2.0 * len(steps)))[1]


def test_rises_and_losses_add_up_over_the_steps() -> None:
    local, _ = measured(DynamicSAM(), [(3.0, 0.5), (1.0, 0.25)])
    assert (float(local.rises), float(local.losses)) == pytest.approx((0.75, 4.0))


@pytest.mark.parametrize(("second_rise", "sigma"), [(0.008, 0.0), (0.012, 0.021)])
def test_a_mean_rise_below_a_hundredth_of_the_mean_loss_counts_as_none(second_rise: float, sigma: float) -> None:
    """Losses 3 and 1, so the floor is 0.02; the rises are 0.03 and 0.008 (mean 0.019) or 0.012 (mean 0.021)."""
    _, kept = measured(DynamicSAM(noise_floor=0.01), [(3.0, 0.03), (1.0, second_rise)])
    assert float(kept.sigma) == pytest.approx(sigma)


def test_a_rise_of_exactly_the_floor_counts() -> None:
    _, kept = measured(DynamicSAM(noise_floor=0.25), [(1.0, 0.25)])
    assert float(kept.sigma) == 0.25


def test_in_warm_up_what_differs_between_two_passes_is_not_taken_for_sharpness() -> None:
    """Dropout lets the loss differ by 0.5 between two passes at one point; the probe alone measures, and without one nothing is."""
    _, unmeasured = measured(DynamicSAM(), [(1.0, 0.5)], round=1)
    assert float(unmeasured.sigma) == 0.0
    _, probed = measured(DynamicSAM(), [(1.0, 0.5)], round=1, validation=Step(1.0, 0.125, 0))
    assert float(probed.sigma) == 0.125


def test_the_floor_of_a_loss_below_zero_is_as_high() -> None:
    _, kept = measured(DynamicSAM(noise_floor=0.01), [(-2.0, 0.015)])
    assert float(kept.sigma) == 0.0
