"""FedProx (Li et al. 2020, MLSys, arXiv:1812.06127, eq. 2).

Reference code read: FL-Simulator 502bec6.
Deviation: none. (FL-Simulator hides half of the pull in the optimiser's weight decay, outside the clip: `local.clip_scope`.)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, NonNegative
from fedaccord.core.gradient import proximal
from fedaccord.core.state import State


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Each local step is pulled to the global model: objective f(w) + mu/2 |w - w_t|^2."""

    mu: NonNegative = 0.01

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: State) -> tuple[Tensor, State]:
        return proximal(grad, sent.w, self.mu)(w), local

    @property
    def proximal_weight(self) -> float:
        return self.mu
