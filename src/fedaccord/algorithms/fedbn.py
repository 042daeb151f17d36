"""FedBN (Li et al. 2021, ICLR, arXiv:2102.07623, algorithm 1).

Reference code read: none.
Deviation: none.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedaccord.core.algorithm import Algorithm, LocalParts


@dataclass(frozen=True)
class FedBN(Algorithm):
    """FedAvg without batch norm: its weights, biases and statistics stay with each client, where they are trained.

    They are no part of w, so neither clipped nor sent, and no perturbation or pull reaches them: they follow the gradient of a step's last
    pass (of SAM's, the one at w + e) with the client's optimiser and weight decay. There is no global model to test: see the clients' own
    metrics. Any other method does the same with `aggregation.local_parts = "batch_norm"`. It is FedAvg where the model has no batch norm.
    """

    @property
    def local_parts(self) -> LocalParts:
        return "batch_norm"
