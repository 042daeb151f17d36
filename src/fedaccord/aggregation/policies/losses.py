"""Weights by the clients' losses: q-FFL and AFL. They count more whom the model serves worse, so they trust what clients report."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.aggregation.policy import CohortView, Decision, Memory, Policy
from fedaccord.core.algorithm import NonNegative, Positive
from fedaccord.core.reports import ClientReport, number


@dataclass(frozen=True)
class QFFL(Policy):
    """n_k F_k^q, F_k the client's loss in its first epoch (Li et al. 2020, arXiv:1905.10497, equation 4); given relative to the largest
    loss of the cohort, so that no power of it overflows.

    The paper's update divides by an estimate of the curvature, which sets its step length; as weights that sum to 1 the step is FedAvg's.
    q = 0 is FedAvg. A client that reports no loss counts with the cohort's mean.
    """

    q: NonNegative = 1.0

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        losses = _filled(cohort)
        return Decision(cohort.counts * (losses / losses.max()).pow(self.q), memory)


@dataclass(frozen=True)
class AFL(Policy):
    """A mixture over clients that is played against the model: lambda takes a step along the losses of those asked and is projected back
    onto the simplex (Mohri et al. 2019, arXiv:1902.00146, section 4.2), here over the clients seen so far, each beginning at its share.

    Deviation: the round is weighed by lambda after its step; the paper moves model and lambda at once, by those before it. A cohort whose
    lambda is 0 throughout is weighed by size, where the paper's model would stand still.
    """

    lr: Positive = 0.1

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        known: dict[str, float] = dict(memory.get("mixture", {}))
        new = [str(client) for client in cohort.clients if str(client) not in known]
        if new:  # everyone seen so far makes room for the newcomers
            share = 1 / (len(known) + len(new))
            known = {client: value * (1 - share * len(new)) for client, value in known.items()} | dict.fromkeys(new, share)
        for client, loss in zip(cohort.clients, _filled(cohort).tolist(), strict=True):
            known[str(client)] += self.lr * loss
        names = list(known)
        mixture = dict(zip(names, on_simplex(torch.tensor(list(known.values()), dtype=torch.float64)).tolist(), strict=True))
        own = torch.tensor([mixture[str(client)] for client in cohort.clients], dtype=torch.float64)
        return Decision(own if float(own.sum()) > 0 else cohort.counts, {"mixture": mixture})


def on_simplex(v: Tensor) -> Tensor:
    """The nearest point [n] with non-negative parts that sum to 1 (Duchi et al. 2008)."""
    v = v - v.max()  # the same point, and far from 0 the 1 would be lost to rounding
    ordered = v.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    count = int((ordered - excess / torch.arange(1, len(v) + 1) > 0).sum())
    projected: Tensor = (v - excess[count - 1] / count).clamp(min=0)
    return projected


def _filled(cohort: CohortView) -> Tensor:
    """Each client's loss [C], at least a little above 0; the mean of the others' where it is no number."""
    losses = [_first(report) for report in cohort.reports]
    known = [loss for loss in losses if loss is not None]
    mean = sum(known) / len(known) if known else 1.0
    return torch.tensor([mean if loss is None else loss for loss in losses], dtype=torch.float64).clamp(min=1e-10, max=1e10)


def _first(report: ClientReport) -> float | None:
    """Before it has trained, as nearly as a client says."""
    first = number(report.epoch_losses[0]) if isinstance(report.epoch_losses, tuple | list) and report.epoch_losses else None
    return number(report.loss) if first is None else first
