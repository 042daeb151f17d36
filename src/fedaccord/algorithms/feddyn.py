"""FedDyn (Acar et al. 2021, ICLR, arXiv:2111.04263, algorithm 1).

Reference code read: FL-Simulator 502bec6 and the authors' alpemreacar/FedDyn.
Deviation: from the code, not the paper: alpha is the same for all clients; the authors' code scales it by the client's share of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, Cohort, Positive, RoundStart, Upload, Work
from fedaccord.core.gradient import proximal
from fedaccord.core.state import State


class Server(NamedTuple):
    w: Tensor  # [d]
    drift: Tensor  # [d], mean over ALL clients of their `drift`; the paper's h is -alpha times it


class Kept(NamedTuple):
    drift: Tensor  # [d], sum of the client's accepted moves; the paper's dual is -alpha times it


class Local(NamedTuple):
    drift: Tensor  # [d]
    anchor: Tensor  # [d], w_t - drift: the dual's term is a shift of the point that the proximal term pulls to


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """A moving regulariser aligns local and global optima.

    Objective f(w) + alpha <drift_i, w> + alpha/2 |w - w_t|^2. The server adds the mean drift of all clients, absent ones included, to
    the mean model.
    """

    alpha: Positive = 0.1

    def init_server(self, w: Tensor) -> Server:
        return Server(w, torch.zeros_like(w))

    def init_client(self, w: Tensor) -> Kept:
        return Kept(torch.zeros_like(w))

    def begin(self, start: RoundStart, sent: State, kept: Kept) -> Local:
        return Local(kept.drift, sent.w - kept.drift)

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: Local) -> tuple[Tensor, Local]:
        return proximal(grad, local.anchor, self.alpha)(w), local

    def upload(self, w: Tensor, sent: State, local: Local, work: Work) -> tuple[Upload, Kept]:
        delta = w - sent.w
        return Upload(delta), Kept(local.drift + delta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        drift = server.drift + cohort.size / cohort.population * cohort.uniform.delta
        return Server(server.w + cohort.weighted.delta + drift, drift)

    @property
    def proximal_weight(self) -> float:
        return self.alpha
