"""The rule guard: caps and checks that cost little where nobody is bad, for deployments; it changes what uploads count for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedaccord.aggregation.figures import cosines, lengths
from fedaccord.aggregation.robust import coordinate_median
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState, left_out
from fedaccord.aggregation.screens.norm_clipping import shortening
from fedaccord.core.algorithm import Positive, PositiveCount
from fedaccord.core.errors import UploadError
from fedaccord.core.state import children

HISTORY = 10  # norms of a client that are remembered


@dataclass(frozen=True)
class RuleGuard(Screen):
    """A count above `max_count` medians counts as that; the change of the model is shortened to the cohort's median length. Left out are
    uploads that point away from the cohort's coordinate-wise median, any of whose vectors is longer than `max_norm` medians, whose
    length jumps over `jump` standard deviations above the client's own history, that are next to nothing, or that repeat the last global
    move.

    The plain mean of the second sum takes those that count as they came: SCAFFOLD's, FedDyn's and FedSMOO's vectors stay the mean of the
    clients', and what bounds them is `max_norm`. If everybody were left out, everybody counts, shortened.
    """

    max_count: Positive = 3.0  # medians
    max_norm: Positive = 5.0  # medians
    min_cosine: Annotated[float, Ge(-1), Le(1)] = 0.0  # to the cohort's coordinate-wise median; at or below is left out
    jump: Positive = 5.0  # standard deviations of the client's own lengths
    min_history: PositiveCount = 5  # lengths before a jump can be told
    least: Positive = 1e-3  # of the median length; below is no update
    repeats: Annotated[float, Ge(0), Le(1)] = 0.999  # cosine to the last global move

    assumes: ClassVar[str] = "more than half of a cohort are honest and agree on the sign of most coordinates"

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        deltas, reports = evidence.deltas, evidence.reports
        own, norms, count = Screening.of(evidence), lengths(deltas), len(reports)
        middle = float(norms.quantile(0.5))
        history: Mapping[str, Any] = state.facts.get("norms", {})
        towards = cosines(deltas, norms, coordinate_median(deltas)) if count >= 3 else torch.ones(count, dtype=torch.float64)
        along = torch.zeros_like(norms) if evidence.previous is None else cosines(deltas, norms, evidence.previous)
        longest = _longest(evidence.uploads)
        refusals: list[UploadError | None] = []
        for i, report in enumerate(reports):
            norm, past = float(norms[i]), history.get(str(report.client), [])
            if middle > 0 and norm < self.least * middle:
                why = left_out("no_update", f"the update is {norm:.3g} long, the cohort's median is {middle:.3g}", report)
            elif count >= 3 and longest[i] > self.max_norm:
                why = left_out("norm_jump", f"a vector is {longest[i]:.3g} times as long as the cohort's median", report)
            elif _jumps(norm, past, self.jump, self.min_history):
                why = left_out("norm_jump", f"the update is {norm:.3g} long, its own were {sum(past) / len(past):.3g}", report)
            elif float(along[i]) > self.repeats:
                why = left_out("replayed", "the update is the last move of the global model", report)
            elif float(towards[i]) <= self.min_cosine:
                why = left_out("opposed", f"its cosine to the cohort's median is {float(towards[i]):.3g}", report)
            else:
                why = None
            refusals.append(why)
        if all(refusals):
            refusals = [None] * count
        caps = self.max_count * float(own.counts.quantile(0.5))
        kept = _remembered(history, reports, norms, refusals)
        return Screening(
            torch.tensor([float(why is None) for why in refusals], dtype=torch.float64),
            shortening(norms, middle),
            own.counts.clamp(max=caps),
            tuple(refusals),
            state=ScreenState({**state.facts, "norms": kept}, state.vectors),
        )


def _longest(uploads: Sequence[Any]) -> list[float]:
    """Of each upload's vectors, the largest length in medians of the cohort's."""
    found = [0.0] * len(uploads)
    for name in children(uploads[0]):
        vectors: list[Tensor] = [children(upload)[name].reshape(-1) for upload in uploads]
        if not vectors[0].is_floating_point() or not vectors[0].numel():
            continue
        norms = lengths(vectors)
        middle = float(norms.quantile(0.5))
        if middle > 0:
            found = [max(known, float(norm) / middle) for known, norm in zip(found, norms.tolist(), strict=True)]
    return found


def _jumps(norm: float, past: Sequence[float], deviations: float, least: int) -> bool:
    if len(past) < least:
        return False
    mean = sum(past) / len(past)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in past) / len(past))
    return norm - mean > deviations * max(deviation, 0.1 * mean)


def _remembered(
    history: Mapping[str, Any], reports: Sequence[Any], norms: Tensor, refusals: Sequence[UploadError | None]
) -> dict[str, list[float]]:
    """The lengths of uploads that counted."""
    kept = {client: list(past) for client, past in history.items()}
    for report, norm, why in zip(reports, norms.tolist(), refusals, strict=True):
        if why is None:
            kept[str(report.client)] = [*kept.get(str(report.client), []), norm][-HISTORY:]
    return kept
