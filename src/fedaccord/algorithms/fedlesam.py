"""FedLESAM (Fan et al. 2024, ICML, arXiv:2405.18890, algorithm 1).

Reference code read: MediaBrain-SJTU/FedLESAM, FL-SAM 2c16149 and FedWMSAM a922a1d.
Deviation: from the code, not the paper. None of the three is faithful: two index a flat vector by tensor number, the third never advances
its slice, so their perturbations are nearly orthogonal to the one of the paper.
Deviation: batch-norm statistics move at w + e, where a step's one pass is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedaccord.algorithms.fedavg import FedAvg
from fedaccord.algorithms.feddyn import FedDyn
from fedaccord.algorithms.scaffold import Scaffold
from fedaccord.core.algorithm import Algorithm, Batch, BatchGrad, NonNegative, Objective, Positive, RoundStart, Work
from fedaccord.core.around import Around, Transformed
from fedaccord.core.gradient import EPS, Grad
from fedaccord.core.state import State


class Kept(NamedTuple):
    last_global: Tensor  # [d], the global model of the client's last accepted round; before the first, the one it met first
    inner: State


class Local(NamedTuple):
    perturbation: Tensor  # [d], e, the same in every step of a round
    inner: State


@dataclass(frozen=True)
class GlobalAscent(Around):
    """The method `around`, each gradient of which is taken at w + e, e = rho (w_old - w_t) / |w_old - w_t|.

    w_old - w_t points uphill for all clients together: against the way that the global model has come since this client saw it.
    """

    rho: float
    around: Algorithm

    @property
    def inner(self) -> Algorithm:
        return self.around

    def init_client(self, w: Tensor) -> Kept:
        return Kept(w, self.inner.init_client(w))  # so that e = 0 in the first round

    def begin(self, start: RoundStart, sent: State, kept: Kept) -> Local:
        back = kept.last_global - sent.w
        return Local(self.rho / (back.norm() + EPS) * back, self.inner.begin(start, sent, kept.inner))

    def objective(self, batch: Batch, sent: State, local: Kept | Local) -> Objective:
        return self.inner.objective(batch, sent, local.inner)

    @property
    def objective_is_loss(self) -> bool:
        return self.inner.objective_is_loss

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: Local) -> tuple[Tensor, Local]:
        def shifted(plain: Grad) -> Grad:
            return lambda v: plain(v + local.perturbation)

        direction, inner = self.inner.direction(Transformed(grad, shifted), w, sent, local.inner)
        return direction, local._replace(inner=inner)

    def beside(self, w: Tensor, sent: State, local: Local) -> Tensor | None:
        return self.inner.beside(w, sent, local.inner)

    def upload(self, w: Tensor, sent: State, local: Local, work: Work) -> tuple[Any, Kept]:
        upload, inner = self.inner.upload(w, sent, local.inner, work)
        return upload, Kept(sent.w, inner)

    def signals(self, kept: Kept) -> dict[str, Tensor]:
        return self.inner.signals(kept.inner)


@dataclass(frozen=True)
class FedLESAM(Around):
    """SAM's look uphill along the move of the global model since the client's last round, at the cost of plain SGD. e = 0 in its first."""

    rho: NonNegative = 0.1  # radius of the perturbation, an absolute length in weight space

    @property
    def inner(self) -> GlobalAscent:
        return GlobalAscent(self.rho, FedAvg())


@dataclass(frozen=True)
class FedLESAM_S(Around):
    """FedLESAM around SCAFFOLD: steps along g(w + e) + c - c_i. Control variates absorb the perturbed gradients."""

    rho: NonNegative = 0.1

    @property
    def inner(self) -> GlobalAscent:
        return GlobalAscent(self.rho, Scaffold())


@dataclass(frozen=True)
class FedLESAM_D(Around):
    """FedLESAM around FedDyn: steps along g(w + e) + alpha (w - w_t + drift_i). The pull is taken at w, not at w + e."""

    rho: NonNegative = 0.1
    alpha: Positive = 0.1  # weight of the pull

    @property
    def inner(self) -> GlobalAscent:
        return GlobalAscent(self.rho, FedDyn(self.alpha))
