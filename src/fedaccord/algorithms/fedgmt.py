"""FedGMT (Li et al. 2025, ICML, PMLR 267:35317-35341, algorithm 1).

Reference code read: harrylee999/FL-SAM 2c16149.
Deviation: a single output per example or pixel is read as the logit of two classes, where a softmax over one would be constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Batch, BatchGrad, Cohort, NonNegative, Objective, Positive, Share, Upload, Work


class Server(NamedTuple):
    w: Tensor  # [d]
    trajectory: Tensor  # [d], the average of the global models BEFORE w; `broadcast` adds w to it
    drift: Tensor  # [d], mean over ALL clients of their `drift`


class Sent(NamedTuple):
    w: Tensor  # [d]
    trajectory: Tensor  # [d], E, the average up to w


class Kept(NamedTuple):
    drift: Tensor  # [d], h_i, sum of the client's accepted moves


@dataclass(frozen=True)
class FedGMT(Algorithm):
    """Clients hold on to what the average of the past global models, E, puts out: where that is lower, w is sharp.

    Objective: the task's loss + gamma tau^2 KL(softmax(f_E / tau) | softmax(f_w / tau)) + <drift_i, w> / beta, for classification
    [B, C] and segmentation [B, C, ...]. E <- alpha E + (1 - alpha) w after each round. The server adds the mean drift of all clients,
    absent ones included, to the mean model. Order: the clip "data_gradient" sees loss and divergence; the dual is added after it.
    """

    alpha: Share = 0.95  # how much of the average stays; the authors try 0.95, 0.995 and 0.998
    gamma: NonNegative = 1.0  # weight of the divergence
    tau: Positive = 3.0  # temperature
    beta: Positive = 10.0  # 1 / weight of the dual

    def init_server(self, w: Tensor) -> Server:
        return Server(w, w, torch.zeros_like(w))

    def init_client(self, w: Tensor) -> Kept:
        return Kept(torch.zeros_like(w))

    def broadcast(self, server: Server) -> Sent:
        return Sent(server.w, torch.lerp(server.w, server.trajectory, self.alpha))

    def objective(self, batch: Batch, sent: Sent, local: Kept) -> Objective:
        def distilled(w: Tensor) -> Tensor:
            outputs = batch.outputs(w)  # first of the two: this pass moves the buffers
            with torch.no_grad():
                target = log_probabilities(batch.outputs(sent.trajectory), self.tau)
            divergence = F.kl_div(log_probabilities(outputs, self.tau), target, reduction="none", log_target=True).sum(1).mean()
            return batch.loss_of(outputs) + self.gamma * self.tau**2 * divergence

        return distilled

    def direction(self, grad: BatchGrad, w: Tensor, sent: Sent, local: Kept) -> tuple[Tensor, Kept]:
        return torch.add(grad(w), local.drift, alpha=1 / self.beta), local

    def upload(self, w: Tensor, sent: Sent, local: Kept, work: Work) -> tuple[Upload, Kept]:
        delta = w - sent.w
        return Upload(delta), Kept(local.drift + delta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        drift = server.drift + cohort.size / cohort.population * cohort.uniform.delta
        return Server(server.w + cohort.weighted.delta + drift, self.broadcast(server).trajectory, drift)


def log_probabilities(outputs: Tensor, tau: float) -> Tensor:
    """Log-softmax [B, C, ...] over the classes, at temperature tau."""
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        logit = outputs.reshape(len(outputs), 1, *outputs.shape[2:])
        outputs = torch.cat([torch.zeros_like(logit), logit], 1)
    return F.log_softmax(outputs / tau, dim=1)
