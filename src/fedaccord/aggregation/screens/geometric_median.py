"""RFA: the geometric median, by smoothed Weiszfeld steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedaccord.aggregation.robust import gram
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState
from fedaccord.core.algorithm import Positive, PositiveCount


@dataclass(frozen=True)
class GeometricMedian(Screen):
    """v <- sum b_i u_i / sum b_i with b_i = p_i / max(nu, |v - u_i|), p the sample counts' shares (Pillutla et al. 2022, arXiv:1912.13445,
    algorithm 2). nu is relative to the median distance, so that it means the same for every model."""

    iterations: PositiveCount = 4
    nu: Positive = 1e-6

    assumes: ClassVar[str] = "less than half of the weight is bad; it bounds how far the bad ones pull, and leaves nobody out"

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        own = Screening.of(evidence)
        products = gram(evidence.deltas, centre=evidence.deltas[0])  # distances from a mean of vectors follow from these
        shares = own.counts / own.counts.sum()
        weights = shares
        for _ in range(self.iterations):
            squared = products.diag() - 2 * products @ weights + weights @ products @ weights
            distances = squared.nan_to_num(nan=torch.inf, posinf=torch.inf).clamp(min=0).sqrt()
            floor = self.nu * float(distances.quantile(0.5).nan_to_num(nan=1.0, posinf=1.0)) or self.nu
            pull = shares / distances.clamp(min=floor)
            total = float(pull.sum())
            if not total > 0:
                break
            weights = pull / total
        return own._replace(factors=weights / shares)
