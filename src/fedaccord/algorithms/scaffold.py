"""SCAFFOLD (Karimireddy et al. 2020, ICML, arXiv:1910.06378, algorithm 1, option II).

Reference code read: FL-Simulator 502bec6.
Deviation: c_i is scaled by the client's own steps at this round's rate; FL-Simulator takes those of client 0 for everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, Cohort, RoundStart, Work
from fedaccord.core.state import State


class Server(NamedTuple):
    w: Tensor  # [d]
    control: Tensor  # [d], c, mean of the clients' control variates


class Kept(NamedTuple):
    control: Tensor  # [d], c_i, estimate of the client's gradient


class Local(NamedTuple):
    control: Tensor  # [d], c_i
    correction: Tensor  # [d], c - c_i, the same in every step of a round


class Upload(NamedTuple):
    delta: Tensor  # [d]
    control_delta: Tensor  # [d], c_i+ - c_i


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates undo client drift.

    Control variates start at zero, so round 1 is FedAvg. c_i+ = c_i - c + (w_t - w_K) / (a lr), where a lr is the displacement of this
    round's own steps at this round's decayed rate: a = K for plain SGD, more with local momentum. c_i absorbs weight decay and clipping.
    """

    def init_server(self, w: Tensor) -> Server:
        return Server(w, torch.zeros_like(w))

    def init_client(self, w: Tensor) -> Kept:
        return Kept(torch.zeros_like(w))

    def broadcast(self, server: Server) -> Server:
        return server

    def begin(self, start: RoundStart, sent: Server, kept: Kept) -> Local:
        return Local(kept.control, sent.control - kept.control)

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Local) -> tuple[Tensor, Local]:
        return grad(w) + local.correction, local

    def upload(self, w: Tensor, sent: Server, local: Local, work: Work) -> tuple[Upload, State]:
        delta = w - sent.w
        control_delta = -sent.control - delta / (work.effective_steps * work.lr)
        return Upload(delta, control_delta), Kept(local.control + control_delta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        share = cohort.size / cohort.population  # c moves by (1/N) sum over the accepted
        return Server(server.w + cohort.weighted.delta, server.control + share * cohort.uniform.control_delta)
