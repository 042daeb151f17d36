"""FedAvg (McMahan et al. 2017, arXiv:1602.05629, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from fedaccord.core.algorithm import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Local SGD, then the mean of the models, weighted by sample counts. One gradient a step; traffic d down, d up; no client state."""
