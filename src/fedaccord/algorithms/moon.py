"""MOON (Li et al. 2021, CVPR, arXiv:2103.16257, algorithm 1).

Reference code read: none.
Deviation: no projection head is added; z is what the model's own last layer sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Batch, NonNegative, Objective, Positive, Server, Upload, Work


class Kept(NamedTuple):
    previous: Tensor  # [d], the client's own model after its last accepted round; before the first, the global model it met first


@dataclass(frozen=True)
class Moon(Algorithm):
    """Features z of the local model are drawn to the global model's, z_g, and away from the client's previous model's, z_p.

    Objective: the task's loss + mu mean(-log(e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau)))). z_g and z_p are
    constants. In a client's first round z_p = z_g, and the term has no gradient.
    """

    mu: NonNegative = 1.0  # the paper's best lie between 1 and 5
    tau: Positive = 0.5  # temperature

    def init_client(self, w: Tensor) -> Kept:
        return Kept(w)

    def objective(self, batch: Batch, sent: Server, local: Kept) -> Objective:
        def contrastive(w: Tensor) -> Tensor:
            outputs, z = batch.outputs_and_features(w)  # first of the three: this pass moves the buffers
            with torch.no_grad():
                (_, of_global), (_, of_previous) = batch.outputs_and_features(sent.w), batch.outputs_and_features(local.previous)
            nearer_previous = F.cosine_similarity(z, of_previous) - F.cosine_similarity(z, of_global)  # [B]
            return batch.loss_of(outputs) + self.mu * F.softplus(nearer_previous / self.tau).mean()  # -log(e^a / (e^a + e^b))

        return contrastive

    def upload(self, w: Tensor, sent: Server, local: Kept, work: Work) -> tuple[Upload, Kept]:
        return Upload(w - sent.w), Kept(w)
