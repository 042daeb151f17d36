"""FedAdp: clients count by the angle between their update and the cohort's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedaccord.aggregation import figures
from fedaccord.aggregation.policy import CohortView, Decision, Memory, Policy
from fedaccord.core.algorithm import Positive


@dataclass(frozen=True)
class FedAdp(Policy):
    """n_k exp(f(theta_k)), theta the mean over a client's participations of the angle between its update and the cohort's size-weighted
    mean, f(theta) = alpha (1 - exp(-exp(-alpha (theta - 1)))) (Wu and Wang 2021, arXiv:2012.00661, equations 8 to 11); given relative to
    the largest of the cohort. An angle that is not known counts as a right one."""

    alpha: Positive = 5.0

    looks_at: ClassVar[tuple[str, ...]] = (figures.MEAN_DIRECTION,)

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        known = dict(memory.get("angles", {}))
        angles = []
        for client, cosine in zip(cohort.clients, cohort.figures[figures.MEAN_DIRECTION].tolist(), strict=True):
            times, mean = known.get(str(client), (0, 0.0))
            angle = math.acos(max(-1.0, min(1.0, cosine))) if math.isfinite(cosine) else math.pi / 2
            known[str(client)] = [times + 1, (times * mean + angle) / (times + 1)]
            angles.append(known[str(client)][1])
        theta = torch.tensor(angles, dtype=torch.float64)
        gompertz = self.alpha * (1 - (-(-self.alpha * (theta - 1)).exp()).exp())
        return Decision(cohort.counts * (gompertz - gompertz.max()).exp(), {"angles": known})
