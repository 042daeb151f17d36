"""The source's reward of one client's update, its schedule, and what stands in for a gain that comes too late or never."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaccord.core.algorithm import NonNegative, Share


class Factors(NamedTuple):
    """Of the four terms: length, direction, gain, jumps of the weight."""

    length: float
    direction: float
    gain: float
    jump: float


@dataclass(frozen=True)
class SourceReward:
    """a [|u| < median + 2 std] + b [cos > 0.5] + c gain - d [|w - w_before| > 0.3], one number a client.

    As written its first two terms do not depend on the action, so that nothing can be learned about rejection. Here they are earned by
    accepted updates alone, and lost where the update is too long or points elsewhere; so rejecting such an update is what pays.
    """

    length: NonNegative = 0.4
    direction: NonNegative = 0.3
    gain: NonNegative = 0.3
    jump: NonNegative = 0.2
    scheduled: bool = True  # rounds 0-19 length 0.5, 20-49 gain 0.4, from 50 jump 0.3

    def factors(self, round: int) -> Factors:
        """In this round, counted from 0."""
        own = Factors(self.length, self.direction, self.gain, self.jump)
        if not self.scheduled:
            return own
        return own._replace(length=0.5) if round < 20 else own._replace(gain=0.4) if round < 50 else own._replace(jump=0.3)

    def __call__(
        self, round: int, norms: Tensor, cosines: Tensor, gains: Tensor, accepted: Tensor, weights: Tensor, before: Tensor
    ) -> Tensor:
        """Rewards [C]; before: each client's last weight, NaN for new ones, whose weight cannot jump."""
        a, b, c, d = self.factors(round)
        is_short = norms < norms.quantile(0.5) + 2 * norms.std(unbiased=False) + 1e-12
        earned = a * _sign(is_short) + b * _sign(cosines > 0.5)
        jumps = (weights - before).abs().nan_to_num(nan=0.0) > 0.3
        return torch.where(accepted, earned, 0.0) + c * gains - d * jumps.double()


PRESETS: dict[str, SourceReward] = {
    "default": SourceReward(),
    "accuracy": SourceReward(gain=0.7, scheduled=False),  # medical
    "stability": SourceReward(length=0.5, scheduled=False),  # devices
}


@dataclass(frozen=True)
class LateGains:
    """Gains come when a client is asked again. One that is not gets `discount` times what a line through the others' (loss change, gain)
    says of its own loss change."""

    discount: Share = 0.8

    def fill(self, gains: Tensor, loss_changes: Tensor) -> Tensor:
        """gains [C], NaN where the client did not return; none is NaN afterwards."""
        known = gains.isfinite() & loss_changes.isfinite()
        x, y = loss_changes[known], gains[known]
        slope, level = 0.0, float(y.mean()) if len(y) else 0.0
        if len(y) >= 2 and float(x.var()) > 1e-12:
            slope = float(((x - x.mean()) * (y - y.mean())).mean() / x.var(unbiased=False))
            level = float(y.mean()) - slope * float(x.mean())
        predicted = self.discount * (level + slope * loss_changes.nan_to_num(nan=0.0))
        return torch.where(gains.isfinite(), gains, predicted)


def gains_of(before: Mapping[str, float], after: Mapping[str, float], clients: Sequence[int]) -> Tensor:
    """How each client's metric changed [C]; NaN where it was not measured at both times."""
    pairs: list[tuple[Any, Any]] = [(before.get(str(client)), after.get(str(client))) for client in clients]
    return torch.tensor([torch.nan if one is None or two is None else two - one for one, two in pairs], dtype=torch.float64)


def _sign(holds: Tensor) -> Tensor:
    return torch.where(holds, 1.0, -1.0).double()
