"""FedASAM (Caldarola et al. 2022, ECCV, arXiv:2203.11834, eq. 4): FedAvg whose clients take ASAM's gradient.

Reference code read: debcaldarola/fedsam 64bbf93.
Deviation: from the paper, as the code: parameters without "weight" in their name take plain SAM (scaled = "all" is the paper's).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, NonNegative, RoundStart, Upload, Work
from fedaccord.core.gradient import asam
from fedaccord.core.state import State
from fedaccord.core.vector import Layout


def named_weight(layout: Layout) -> Tensor:
    """True [d] for the parameters that have 'weight' in their name, as the authors' code: biases get plain SAM."""
    return layout.where(lambda name, kind: "weight" in name)


def every_weight(layout: Layout) -> Tensor:
    """True [d] everywhere, as ASAM's paper."""
    return layout.where(lambda name, kind: True)


SCALED: dict[str, Callable[[Layout], Tensor]] = {"named_weight": named_weight, "all": every_weight}


class Local(NamedTuple):
    scaled: Tensor  # [d] bool, the weights whose radius grows with their size


@dataclass(frozen=True)
class FedASAM(Algorithm):
    """The ball of the perturbation scales with the weights: T = |w| + eta (1 where not scaled), e = rho T^2 g / |T g|."""

    rho: NonNegative = 0.7
    eta: NonNegative = 0.2  # floor of the scale
    scaled: Literal["named_weight", "all"] = "named_weight"

    def begin(self, start: RoundStart, sent: State, kept: State) -> Local:
        return Local(SCALED[self.scaled](start.layout).to(sent.w.device))

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: Local) -> tuple[Tensor, Local]:
        return asam(grad, self.rho, self.eta, local.scaled)(w), local

    def upload(self, w: Tensor, sent: State, local: Local, work: Work) -> tuple[Upload, State]:
        return Upload(w - sent.w), ()
