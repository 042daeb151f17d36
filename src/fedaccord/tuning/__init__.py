"""Staged tuning: a little of the data first, then more, then all; each stage says pass, or what to move.

tuned = fa.tune(task, fa.FedSAM(), search={"algorithm.rho": (0.01, 0.5)}, partition=fa.IID(clients=10), rounds=50)

Choices use validation data only; the test set is never looked at.
"""

from fedaccord.tuning.door import Request, Tuned, tune, tune_experiment
from fedaccord.tuning.space import Choices, Range

__all__ = ["Choices", "Range", "Request", "Tuned", "tune", "tune_experiment"]
