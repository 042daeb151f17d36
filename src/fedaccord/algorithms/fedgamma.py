"""FedGAMMA (Dai et al. 2023, IEEE TNNLS, doi:10.1109/TNNLS.2023.3304453, algorithm 1): SCAFFOLD whose clients take SAM's gradient.

Reference code read: FL-Simulator 502bec6.
Deviation: as SCAFFOLD's.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedaccord.algorithms.scaffold import Scaffold
from fedaccord.core.algorithm import BatchGrad, NonNegative
from fedaccord.core.around import Around, Transformed
from fedaccord.core.gradient import sam
from fedaccord.core.state import State


@dataclass(frozen=True)
class FedGamma(Around):
    """Local steps along g(w + e) + c - c_i. The ascent sees the plain gradient, without control variates, which absorb SAM's gradients."""

    rho: NonNegative = 0.01  # radius of the perturbation, an absolute length in weight space

    @property
    def inner(self) -> Scaffold:
        return Scaffold()

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: State) -> tuple[Tensor, State]:
        return self.inner.direction(Transformed(grad, lambda plain: sam(plain, self.rho)), w, sent, local)
