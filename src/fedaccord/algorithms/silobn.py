"""SiloBN (Andreux et al. 2020, arXiv:2008.07424, §3).

Reference code read: none.
Deviation: none.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedaccord.core.algorithm import Algorithm, LocalParts


@dataclass(frozen=True)
class SiloBN(Algorithm):
    """FedAvg whose clients keep their own batch-norm statistics; the layers' weights and biases are shared.

    There is no global model to test: see the clients' own metrics. Any other method does the same with
    `aggregation.local_parts = "buffers"`. It is FedAvg where the model has no buffers.
    """

    @property
    def local_parts(self) -> LocalParts:
        return "buffers"
