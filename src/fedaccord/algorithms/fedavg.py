"""FedAvg (McMahan et al. 2017, AISTATS, arXiv:1602.05629, algorithm 1).

Reference code read: FL-Simulator 502bec6.
Deviation: none.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedaccord.core.algorithm import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Local SGD, then the mean of the models, weighted by sample counts."""
