"""FedCM (Xu et al. 2021, arXiv:2106.10874, algorithm 2).

Reference code read: FL-Simulator 502bec6.
Deviation: the scale of the momentum is the mean over the round's own clients; FL-Simulator takes the steps of client 0 for everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from annotated_types import Gt, Le
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, Cohort, Work
from fedaccord.core.state import State


class Server(NamedTuple):
    w: Tensor  # [d]
    momentum: Tensor  # [d], mean gradient of the last round


class Upload(NamedTuple):
    delta: Tensor  # [d]
    displacement: Tensor  # [], what unit gradients would have moved the client by: steps times learning rate


@dataclass(frozen=True)
class FedCM(Algorithm):
    """Each local step goes along alpha gradient + (1 - alpha) momentum, the last round's mean gradient, which the server broadcasts.

    momentum = - mean delta / mean (steps lr).
    """

    alpha: Annotated[float, Gt(0), Le(1)] = 0.1  # 1 is FedAvg

    def init_server(self, w: Tensor) -> Server:
        return Server(w, torch.zeros_like(w))

    def broadcast(self, server: Server) -> Server:
        return server

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: State) -> tuple[Tensor, State]:
        return torch.lerp(sent.momentum, grad(w), self.alpha), local

    def upload(self, w: Tensor, sent: Server, local: State, work: Work) -> tuple[Upload, State]:
        return Upload(w - sent.w, w.new_zeros(()) + work.effective_steps * work.lr), local

    def update(self, server: Server, cohort: Cohort) -> Server:
        delta = cohort.weighted.delta
        return Server(server.w + delta, -delta / cohort.weighted.displacement)
