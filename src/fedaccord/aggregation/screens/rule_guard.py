"""The rule guard: caps and checks that cost little where nobody is bad, for deployments; it changes what uploads count for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedaccord.aggregation.figures import cosines, dots, lengths
from fedaccord.aggregation.robust import coordinate_median, gram
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState, left_out
from fedaccord.aggregation.screens.norm_clipping import shortening
from fedaccord.core.algorithm import Positive, Share
from fedaccord.core.errors import UploadError
from fedaccord.core.reports import ClientReport
from fedaccord.core.state import children

HISTORY = 10  # lengths of a client that are remembered
ENOUGH = 3  # uploads: of fewer, none is compared with the others
WITNESSES = 10  # uploads: among fewer, of skewed clients, an honest one may resemble none of the others
CLEAR = 0.2  # a cosine; where chance alone comes so far, in models of a few hundred numbers, noise cannot be told


@dataclass(frozen=True)
class RuleGuard(Screen):
    """Left out is an upload that is zero, repeats the last move of the global model (cosine above `repeats`), or is noise: what it holds
    beside that move resembles no other upload's beyond chance. Left out is one of whose vectors any is longer than `max_norm` medians,
    whose length jumps `jump` standard deviations above the client's own history, or whose cosine to the cohort's coordinate-wise median is
    at most `min_cosine`. The others' change of the model is shortened to their median length, and their counts are capped at `max_count`
    medians.

    The median is of all that broke no other rule, with the upload itself: against the others' alone every fourth honest upload of skewed
    clients (Dirichlet 0.2) points away, against this one every 25th. Lengths that are remembered are ten numbers a client, in each
    checkpoint. An update that looks like an honest one and is turned a little passes; so does noise on top of an honest direction.

    The plain mean of the second sum takes those that count as they came: SCAFFOLD's, FedDyn's and FedSMOO's vectors stay the mean of the
    clients', and what bounds them is `max_norm`.

    When it does not act: one or two uploads are never compared with each other. What hits more than half of a cohort at once (repeats,
    noise, jumps: of a tiny model, of a channel that adds noise, of a learning rate that goes up) is no client's doing and passes. If
    still nobody were left, the half of the opposed with the highest cosines counts; if none is opposed, everybody.
    """

    max_count: Positive = 3.0  # medians
    max_norm: Positive = 5.0  # medians
    min_cosine: Annotated[float, Ge(-1), Le(1)] = -0.05  # to the cohort's coordinate-wise median; at or below is left out
    jump: Positive = 5.0  # standard deviations of the client's own lengths, taken as a tenth of their mean at least
    min_history: Annotated[int, Ge(1), Le(HISTORY)] = 5  # lengths before a jump can be told
    repeats: Annotated[float, Ge(0), Le(1)] = 0.999  # cosine to the last global move
    chance: Share = 0.05  # of noise that passes; 1: noise is not looked for

    assumes: ClassVar[str] = "more than half of a cohort are honest and agree on the sign of most coordinates"

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        own, reports, norms = Screening.of(evidence), evidence.reports, lengths(evidence.deltas)
        history: Mapping[str, list[float]] = state.facts.get("norms", {})
        refusals = self._refusals(evidence, norms, [history.get(str(report.client), []) for report in reports])
        towards = _towards_median(evidence.deltas, norms, [why is None for why in refusals])
        for i, report in enumerate(reports):
            if refusals[i] is None and towards[i] <= self.min_cosine:
                refusals[i] = left_out("opposed", f"its cosine to the cohort's median is {towards[i]:.3g}", report)
        if all(refusals):
            refusals = _half_back(refusals, towards)
        kept = torch.tensor([why is None for why in refusals])
        return own._replace(
            factors=kept.double(),
            scales=shortening(norms, float(norms[kept].quantile(0.5))),
            counts=own.counts.clamp(max=self.max_count * float(own.counts[kept].quantile(0.5))),
            refusals=tuple(refusals),
            state=ScreenState({**state.facts, "norms": _remembered(history, reports, norms, refusals, self.max_norm)}, state.vectors),
        )

    def _refusals(self, evidence: Evidence, norms: Tensor, past: Sequence[Sequence[float]]) -> list[UploadError | None]:
        """Of each upload the first rule that it breaks, beside the direction to the median."""
        along = torch.zeros_like(norms) if evidence.previous is None else cosines(evidence.deltas, norms, evidence.previous)
        longest = _longest(evidence.uploads)
        rules = (
            _Rule("no_update", norms == 0, lambda i: "the update is zero", needs_most=False),
            _Rule("norm_jump", longest > self.max_norm, lambda i: f"a vector is {longest[i]:.3g} times as long as the cohort's median"),
            _Rule("norm_jump", self._jumps(norms, past), lambda i: f"the update is {norms[i]:.3g} long, its own were {_mean(past[i]):.3g}"),
            _Rule("replayed", along > self.repeats, lambda i: "the update is the last move of the global model"),
            _Rule("no_update", self._noise(evidence), lambda i: "the update resembles no other one beyond chance"),
        )
        applied = [rule for rule in rules if not rule.needs_most or int(rule.broken.sum()) * 2 <= len(norms)]
        first = [next((rule for rule in applied if rule.broken[i]), None) for i in range(len(norms))]
        return [None if r is None else left_out(r.reason, r.say(i), evidence.reports[i]) for i, r in enumerate(first)]

    def _jumps(self, norms: Tensor, past: Sequence[Sequence[float]]) -> Tensor:
        known = [len(own) >= self.min_history for own in past]
        limits = [_mean(own) + self.jump * max(_deviation(own), 0.1 * _mean(own)) for own in past]
        return (norms > torch.tensor(limits, dtype=torch.float64)) & torch.tensor(known)

    def _noise(self, evidence: Evidence) -> Tensor:
        """bool [C]: what is left without the last move has cosines of chance's size to everybody else's. Those of a random vector to others
        that do not depend on it are normal, with deviation 1/sqrt(d)."""
        count, size = len(evidence.deltas), len(evidence.deltas[0])
        each = (1 - self.chance) ** (1 / max(1, count - 1))
        bound = math.sqrt(2 / size) * float(torch.erfinv(torch.tensor(each, dtype=torch.float64)))
        if count < WITNESSES or bound > CLEAR:
            return torch.zeros(count, dtype=torch.bool)
        return _closest(evidence.deltas, evidence.previous) < bound


class _Rule(NamedTuple):
    reason: str
    broken: Tensor  # bool [C]
    say: Callable[[int], str]
    needs_most: bool = True  # that most of the cohort keep it, else it does not apply


def _towards_median(vectors: Sequence[Tensor], norms: Tensor, among: Sequence[bool]) -> Tensor:
    """Cosines [C] to the median of those that broke no other rule; 1 where these are too few to compare."""
    others = [vector for vector, counts in zip(vectors, among, strict=True) if counts]
    return cosines(vectors, norms, coordinate_median(others)) if len(others) >= ENOUGH else torch.ones_like(norms)


def _closest(vectors: Sequence[Tensor], move: Tensor | None) -> Tensor:
    """Of each vector less its part along the move [d], the largest size of its cosine to any other's [C]."""
    products = gram(vectors)
    length = 0.0 if move is None else float(move.double().norm())
    if move is not None and length > 0:
        parts = dots(vectors, move) / length
        products = products - torch.outer(parts, parts)
    norms = products.diag().clamp(min=0).sqrt()
    return (products / torch.outer(norms, norms)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).fill_diagonal_(0).abs().amax(dim=1)


def _longest(uploads: Sequence[Any]) -> Tensor:
    """Of each upload's vectors, the largest length in medians of the cohort's [C]; 0 where there are too few to compare."""
    found = torch.zeros(len(uploads), dtype=torch.float64)
    for name in children(uploads[0]) if len(uploads) >= ENOUGH else ():
        vectors: list[Tensor] = [children(upload)[name].reshape(-1) for upload in uploads]
        if vectors[0].is_floating_point() and vectors[0].numel():
            norms = lengths(vectors)
            middle = norms.quantile(0.5)
            found = found.maximum(norms / middle) if middle > 0 else found
    return found


def _half_back(refusals: Sequence[UploadError | None], towards: Tensor) -> list[UploadError | None]:
    """Of refusals of everybody, without those of the half of the opposed that point best; of all where none is opposed."""
    opposed = [i for i, why in enumerate(refusals) if why is not None and why.reason == "opposed"]
    if not opposed:
        return [None] * len(refusals)
    best = float(towards[opposed].quantile(0.5))
    return [None if i in opposed and float(towards[i]) >= best else why for i, why in enumerate(refusals)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _deviation(values: Sequence[float]) -> float:
    return math.sqrt(_mean([(each - _mean(values)) ** 2 for each in values]))


def _remembered(
    history: Mapping[str, list[float]], reports: Sequence[ClientReport], norms: Tensor, refusals: Sequence[UploadError | None], most: float
) -> dict[str, list[float]]:
    """The last lengths of each client: of uploads that counted, and of jumps within `most` medians, so that a client whose data changed
    is left out for some rounds and not for good."""
    kept, limit = dict(history), most * float(norms.quantile(0.5))
    for report, norm, why in zip(reports, norms.tolist(), refusals, strict=True):
        if math.isfinite(norm) and (why is None or (why.reason == "norm_jump" and norm <= limit)):
            kept[str(report.client)] = [*kept.get(str(report.client), []), norm][-HISTORY:]
    return kept
