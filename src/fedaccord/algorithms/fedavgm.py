"""FedAvgM (Hsu et al. 2019, arXiv:1909.06335, §4.3).

Reference code read: none.
Deviation: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Cohort, Positive, Share


class Server(NamedTuple):
    w: Tensor  # [d]
    velocity: Tensor  # [d]


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """Momentum on the server smooths what cohorts disagree on: v <- beta v + delta, w <- w + lr v.

    The same numbers as `server_optimizer = "sgd"` with momentum around FedAvg; that one goes around any method.
    """

    beta: Share = 0.9
    lr: Positive = 1.0  # of the server

    def init_server(self, w: Tensor) -> Server:
        return Server(w, torch.zeros_like(w))

    def update(self, server: Server, cohort: Cohort) -> Server:
        velocity = self.beta * server.velocity + cohort.weighted.delta
        return Server(server.w + self.lr * velocity, velocity)
