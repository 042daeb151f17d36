"""FedGloSS (Caldarola et al. 2025, CVPR, arXiv:2412.03752, algorithm 1).

Reference code read: pietrocagnasso/fedgloss cbd6cf5.
Deviation: from the code, not the paper. The code divides the server's dual by the cohort's size once more, and warms the server's radius up
with the clients' schedule, so that it sits near rho_local; neither is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.algorithms import feddyn
from fedaccord.core.algorithm import BatchGrad, Cohort, Count, NonNegative, Positive
from fedaccord.core.around import Around, Transformed
from fedaccord.core.gradient import EPS, sam
from fedaccord.core.state import State


class Server(NamedTuple):
    w: Tensor  # [d], the global model, not perturbed
    drift: Tensor  # [d], mean over ALL clients of their `drift`; the paper's sigma is -drift / beta
    pseudo_gradient: Tensor  # [d], mean of w_sent - w_K of the last round; zero before the first
    rounds: Tensor  # [], rounds that changed the model


class Sent(NamedTuple):
    w: Tensor  # [d], the perturbed model
    warmth: Tensor  # [], how much of the warm-up is done, 0 to 1


@dataclass(frozen=True)
class FedGloSS(Around):
    """SAM on the server as well: clients start rho uphill of the global model, along the last round's pseudo-gradient, and take FedDyn's
    steps on SAM's gradients, at weight 1 / beta. Their moves from there are applied to the model that was not perturbed.

    Order: the local ascent sees the data gradient alone. Both radii grow linearly from rho_initial over the warm-up.
    """

    rho: NonNegative = 0.15  # the server's radius, an absolute length in weight space
    rho_local: NonNegative = 0.15  # the clients'
    beta: Positive = 10.0  # 1 / weight of the pull to the model sent
    rho_initial: NonNegative = 0.001  # where the warm-up starts
    warmup_rounds: Count = 0  # the authors warm up over 2000 rounds of 10000

    @property
    def inner(self) -> feddyn.FedDyn:
        return feddyn.FedDyn(1 / self.beta)

    def init_server(self, w: Tensor) -> Server:
        return Server(w, torch.zeros_like(w), torch.zeros_like(w), w.new_zeros(()))

    def broadcast(self, server: Server) -> Sent:
        warmth = (server.rounds / self.warmup_rounds).clamp(max=1) if self.warmup_rounds else torch.ones_like(server.rounds)
        length = self._radius(self.rho, warmth) / (server.pseudo_gradient.norm() + EPS)
        return Sent(torch.addcmul(server.w, length, server.pseudo_gradient), warmth)

    def direction(self, grad: BatchGrad, w: Tensor, sent: Sent, local: State) -> tuple[Tensor, State]:
        radius = self._radius(self.rho_local, sent.warmth)
        return self.inner.direction(Transformed(grad, lambda plain: sam(plain, radius)), w, sent, local)

    def update(self, server: Server, cohort: Cohort) -> Server:
        moved = self.inner.update(feddyn.Server(server.w, server.drift), cohort)
        return Server(moved.w, moved.drift, -cohort.weighted.delta, server.rounds + 1)

    def _radius(self, final: float, warmth: Tensor) -> Tensor:
        return self.rho_initial * (1 - warmth) + final * warmth
