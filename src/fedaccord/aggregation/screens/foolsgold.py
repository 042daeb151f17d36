"""FoolsGold: clients whose past updates are too alike count less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedaccord.aggregation.policy import Equal, Policy
from fedaccord.aggregation.robust import gram
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState, left_out
from fedaccord.core.algorithm import Positive, PositiveCount


@dataclass(frozen=True)
class FoolsGold(Screen):
    """Learning rates from the largest cosine between the sums of clients' past updates, with pardoning and the logit (Fung et al. 2020,
    arXiv:1808.04866, algorithm 1, kappa = `confidence`).

    The server keeps the sum of each client's updates: `last` numbers (d where left out) for every client that was ever seen, in memory and
    in each checkpoint. 1,000 clients of a model of a million numbers take 4 GB; the last layer alone, which the paper finds indicative,
    mostly some thousandth of that. Deviation: only positive similarities are pardoned, since the quotient of negative ones has no meaning.
    A client alone in a round, and a cohort whose members are all alike, count as they are.
    """

    confidence: Positive = 1.0
    last: PositiveCount | None = None  # so many numbers at the end of the vector are compared, as those of the last layer; left out: all

    assumes: ClassVar[str] = "the bad ones are several and alike, while honest clients differ; a single bad client is not seen"
    policy: ClassVar[type[Policy]] = Equal

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        largest = torch.finfo(evidence.deltas[0].dtype).max
        sums = {
            str(report.client): (state.vectors.get(str(report.client), 0) + delta[-(self.last or 0) :]).clamp(-largest, largest)
            for report, delta in zip(evidence.reports, evidence.deltas, strict=True)
        }
        rates = learning_rates([sums[str(report.client)] for report in evidence.reports], self.confidence)
        if not float(rates.sum()) > 0:  # all are alike, so that nobody can be told from anybody
            rates = torch.ones_like(rates)
        refusals = tuple(
            None if rate > 0 else left_out("no_trust", "its updates so far are those of another client", report)
            for rate, report in zip(rates.tolist(), evidence.reports, strict=True)
        )
        kept = ScreenState(state.facts, {**state.vectors, **sums})
        return Screening.of(evidence)._replace(factors=rates, refusals=refusals, state=kept)


def learning_rates(sums: list[Tensor], confidence: float) -> Tensor:
    """FoolsGold's rates [C] in [0, 1] from the sums of past updates."""
    count = len(sums)
    if count == 1:
        return torch.ones(1, dtype=torch.float64)
    products = gram(sums)
    norms = products.diag().clamp(min=0).sqrt()
    similarity = (products / (norms[:, None] * norms)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(-1, 1)
    similarity.fill_diagonal_(-torch.inf)
    largest = similarity.max(dim=1).values
    # Pardoning: an honest client that resembles a more suspicious one is not blamed for it.
    pardon = torch.where(largest[:, None] < largest, largest[:, None] / largest, 1.0).nan_to_num(nan=1.0, posinf=1.0, neginf=1.0)
    pardoned = (similarity * torch.where(pardon > 0, pardon, 1.0)).fill_diagonal_(-torch.inf).max(dim=1).values
    rates = (1 - pardoned).clamp(0, 1)
    best = float(rates.max())
    if not best > 0:
        return rates
    rates = (rates / best).clamp(max=0.99)
    return (confidence * ((rates / (1 - rates)).log() + 0.5)).nan_to_num(neginf=0.0).clamp(0, 1)
