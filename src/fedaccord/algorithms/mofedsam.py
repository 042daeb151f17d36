"""MoFedSAM (Qu et al. 2022, ICML, arXiv:2206.02618, algorithm 2): FedCM whose clients take SAM's gradient.

Reference code read: FL-Simulator 502bec6.
Deviation: as FedCM's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le
from torch import Tensor

from fedaccord.algorithms.fedcm import FedCM
from fedaccord.core.algorithm import BatchGrad, NonNegative
from fedaccord.core.around import Around, Transformed
from fedaccord.core.gradient import sam
from fedaccord.core.state import State


@dataclass(frozen=True)
class MoFedSAM(Around):
    """Local steps along alpha g(w + e) + (1 - alpha) momentum. The ascent sees the plain gradient alone, not scaled by alpha."""

    rho: NonNegative = 0.1  # radius of the perturbation, an absolute length in weight space
    alpha: Annotated[float, Gt(0), Le(1)] = 0.1  # 1 is FedSAM

    @property
    def inner(self) -> FedCM:
        return FedCM(self.alpha)

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: State) -> tuple[Tensor, State]:
        return self.inner.direction(Transformed(grad, lambda plain: sam(plain, self.rho)), w, sent, local)
