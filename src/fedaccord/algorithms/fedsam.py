"""FedSAM (Qu et al. 2022, ICML, arXiv:2206.02618, algorithm 1; Caldarola et al. 2022, ECCV, arXiv:2203.11834).

Reference code read: FL-Simulator 502bec6 and debcaldarola/fedsam 64bbf93.
Deviation: none.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, NonNegative
from fedaccord.core.gradient import sam
from fedaccord.core.state import State


@dataclass(frozen=True)
class FedSAM(Algorithm):
    """FedAvg whose clients look for flat minima."""

    rho: NonNegative = 0.1  # radius of the perturbation, an absolute length in weight space: small models need a smaller one

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: State) -> tuple[Tensor, State]:
        return sam(grad, self.rho)(w), local
