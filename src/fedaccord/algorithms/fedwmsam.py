"""FedWMSAM (Li et al. 2025, NeurIPS, arXiv:2511.22080, algorithm 1).

Reference code read: Huang-Yongzhi/NeurlPS_FedWMSAM a922a1d.
Deviation: from the code, not the paper. The code looks the opposite way (perturbation = "downhill"), moves alpha towards 1 minus the
agreement (agreement = "dissent"), and indexes the flat perturbation by tensor number; the last is not copied.
Deviation: the cosine that sets alpha is that of two gradients, the client's mean one and Delta: our reading of the paper.
Deviation: momentum and control variates are scaled by each client's own steps, where the code takes the steps of client 0 for everybody's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from fedaccord.algorithms import scaffold
from fedaccord.core.algorithm import BatchGrad, Cohort, NonNegative, Share, Work
from fedaccord.core.around import Around, Transformed
from fedaccord.core.gradient import EPS, Grad, cosine

LEAST_ALPHA, MOST_ALPHA = 0.1, 0.9  # bounds of where alpha is drawn to


class Server(NamedTuple):
    w: Tensor  # [d]
    control: Tensor  # [d], c, mean of the clients' control variates
    momentum: Tensor  # [d], Delta, mean gradient of the last round: an ascent direction
    alpha: Tensor  # [], weight of the gradient


class Upload(NamedTuple):
    delta: Tensor  # [d]
    control_delta: Tensor  # [d], c_i+ - c_i
    displacement: Tensor  # [], what unit gradients would have moved the client by: steps times learning rate
    agreement: Tensor  # [], cosine of the client's mean gradient and Delta; 0 before there is one


def uphill(towards: Tensor) -> Tensor:
    """The paper's sign. Delta is a gradient, so (w_t + b Delta_i) - w points uphill, as SAM's perturbation does."""
    return towards


def downhill(towards: Tensor) -> Tensor:
    """The code's sign: a look ahead along the descent."""
    return -towards


PERTURBATIONS: dict[str, Callable[[Tensor], Tensor]] = {"uphill": uphill, "downhill": downhill}


def agreed(cosine: Tensor) -> Tensor:
    """The paper's: clients that agree with the momentum raise alpha, so momentum fades."""
    return cosine


def dissent(cosine: Tensor) -> Tensor:
    """The code's, whose cosine + 1 is of the client's DESCENT and Delta: clients that agree lower alpha, so momentum grows."""
    return 1 - cosine


AGREEMENTS: dict[str, Callable[[Tensor], Tensor]] = {"cosine": agreed, "dissent": dissent}


@dataclass(frozen=True)
class FedWMSAM(Around):
    """SCAFFOLD and momentum, on gradients that momentum's own forecast perturbs, so that SAM's first pass is saved.

    Delta_i = Delta + alpha / (1 - alpha) (c - c_i), step b along alpha g(w + e) + (1 - alpha) Delta_i, with e of length rho along
    (w_t + b Delta_i) - w, b counted from 0, so e = 0 in a round's first step. Signs: Delta is a mean gradient, every step goes against
    it, and e goes uphill. alpha moves by `rate` towards clip(mean agreement, 0.1, 0.9). c_i absorbs the whole step, momentum included.
    """

    rho: NonNegative = 0.01  # radius of the perturbation, an absolute length in weight space
    alpha: Annotated[float, Gt(0), Lt(1)] = 0.1  # of the first round
    rate: Share = 0.01
    perturbation: Literal["uphill", "downhill"] = "uphill"
    agreement: Literal["cosine", "dissent"] = "cosine"

    @property
    def inner(self) -> scaffold.Scaffold:
        return scaffold.Scaffold()

    def init_server(self, w: Tensor) -> Server:
        return Server(w, torch.zeros_like(w), torch.zeros_like(w), w.new_full((), self.alpha))

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: scaffold.Local) -> tuple[Tensor, scaffold.Local]:
        own_momentum = torch.addcmul(sent.momentum, sent.alpha / (1 - sent.alpha), local.correction)
        towards = torch.add(sent.w - w, own_momentum, alpha=grad.step)
        e = PERTURBATIONS[self.perturbation](self.rho / (towards.norm() + EPS) * towards)

        def shifted(plain: Grad) -> Grad:
            return lambda v: plain(v + e)

        corrected, local = self.inner.direction(Transformed(grad, shifted), w, _controls(sent), local)
        return torch.lerp(sent.momentum, corrected, sent.alpha), local  # = alpha g + (1 - alpha) Delta_i

    def upload(self, w: Tensor, sent: Server, local: scaffold.Local, work: Work) -> tuple[Upload, scaffold.Kept]:
        sums, kept = self.inner.upload(w, _controls(sent), local, work)
        displacement = w.new_zeros(()) + work.effective_steps * work.lr
        return Upload(*sums, displacement, cosine(-sums.delta, sent.momentum)), kept

    def update(self, server: Server, cohort: Cohort) -> Server:
        moved = self.inner.update(_controls(server), cohort)
        target = AGREEMENTS[self.agreement](cohort.uniform.agreement).clamp(LEAST_ALPHA, MOST_ALPHA)
        momentum = -cohort.weighted.delta / cohort.weighted.displacement
        return Server(moved.w, moved.control, momentum, torch.lerp(server.alpha, target, self.rate))


def _controls(server: Server) -> scaffold.Server:
    return scaffold.Server(server.w, server.control)
