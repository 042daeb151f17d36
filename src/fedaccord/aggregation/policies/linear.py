"""The linear policy: a residual on FedAvg's weights from features of the cohort, with coefficients that one can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le

from fedaccord.aggregation import figures
from fedaccord.aggregation.policies.features import RELATIVE, LossChange, relative, remembered, seven
from fedaccord.aggregation.policy import CohortView, Decision, Memory, Policy


@dataclass(frozen=True)
class Linear(Policy):
    """w_k proportional to n_k exp(beta tanh(a . x_k + b)), x the features that `Residual` reads.

    The defaults are set by hand, on the side of caution: towards the direction of the others, the server's own and a fall of the validation
    loss, and away from updates that are much longer than the rest. `fedaccord policy train --kind linear` finds others by CMA-ES.
    """

    norm_ratio: float = -0.5
    median_direction: float = 1.0
    root_direction: float = 1.0
    credit: float = 1.0
    bias: float = 0.0
    beta: Annotated[float, Gt(0), Le(1)] = 1.0
    loss_change: LossChange = "within"

    looks_at: ClassVar[tuple[str, ...]] = figures.FIGURES
    is_learned: ClassVar[bool] = True

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        told = seven(cohort, memory, self.loss_change)
        features = relative(cohort, told, memory)
        tilts = torch.full_like(cohort.counts, self.bias)
        for name in ("norm_ratio", "median_direction", "root_direction", "credit"):
            tilts = tilts + getattr(self, name) * features[:, RELATIVE.index(name)]
        tilts = (tilts - tilts.mean()).tanh()
        factors = (self.beta * tilts).exp()
        clients = remembered(cohort, told, memory, weight=factors.tolist())
        actions = None if bool((tilts == 0).all()) else (1 + tilts) / 2
        return Decision(cohort.counts * factors, {"clients": clients}, actions=actions, notes={"tilt": tilts})
