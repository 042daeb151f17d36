"""RFA: the geometric median, by smoothed Weiszfeld steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedaccord.aggregation.robust import central, gram
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState
from fedaccord.core.algorithm import Positive, PositiveCount

SETTLED = 1e-6  # relative change of every weight; steps end there


@dataclass(frozen=True)
class GeometricMedian(Screen):
    """v <- sum b_i u_i / sum b_i with b_i = p_i / max(nu, |v - u_i|), p the sample counts' shares (Pillutla et al. 2022, arXiv:1912.13445,
    algorithm 2).

    The steps go on until the weights stay, where the paper takes three or four, since each costs it a secure sum: four are too few where an
    upload is 1e30 times as long as the others. Here they cost nothing beside the products of the uploads. nu is relative to the median
    distance, so that it means the same for every model. Nobody is left out, and a cohort of any size will do; of two
    uploads the larger client's is the median.
    """

    iterations: PositiveCount = 200  # at most
    nu: Positive = 1e-6  # of the median distance

    assumes: ClassVar[str] = "less than half of the weight is bad; it bounds how far the bad ones pull, and leaves nobody out"

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        own, deltas = Screening.of(evidence), evidence.deltas
        shares = own.counts / own.counts.sum()
        return own._replace(factors=weiszfeld(gram(deltas, centre=deltas[central(deltas)]), shares, self.nu, self.iterations) / shares)


def weiszfeld(products: Tensor, shares: Tensor, nu: float, iterations: int) -> Tensor:
    """Weights [C] that sum to 1 and make the geometric median of vectors with these products [C, C] around one of them."""
    weights, squares = shares, products.diag()
    for _ in range(iterations):
        squared = squares - 2 * products @ weights + weights @ products @ weights
        distances = squared.nan_to_num(nan=torch.inf, posinf=torch.inf).clamp(min=0).sqrt()
        known = distances[distances.isfinite()]
        floor = nu * float(known.quantile(0.5)) if len(known) else 0.0
        pull = shares / distances.clamp(min=floor or nu)
        if not float(pull.sum()) > 0:
            break
        before, weights = weights, pull / pull.sum()
        if bool(((weights - before).abs() <= SETTLED * before).all()):
            break
    return weights
