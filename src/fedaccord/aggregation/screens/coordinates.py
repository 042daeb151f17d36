"""Statistics of each coordinate, in place of the weighted mean: median, trimmed mean, and Bulyan.

They take the place of both sums and of every vector of the uploads. What a method's server keeps as the mean of its clients' (SCAFFOLD's
control variate) is a robust statistic of them then, and no longer their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedaccord.aggregation.robust import coordinate_median, nearest_sums, nearest_to_median, squared_distances, trimmed_mean
from fedaccord.aggregation.screen import Combine, Evidence, Screen, Screening, ScreenState, left_out
from fedaccord.core.algorithm import Count
from fedaccord.core.errors import ConfigError


@dataclass(frozen=True)
class Median(Screen):
    """The coordinate-wise median of all uploads (Yin et al. 2018, arXiv:1803.01498, definition 1). Counts and weights play no part.

    Of two uploads that came it is their mean, of one that upload.
    """

    assumes: ClassVar[str] = "fewer than half of a cohort are bad, and the honest ones are alike in each coordinate"
    combines: ClassVar[bool] = True

    def check_cohort(self, size: int) -> None:
        if size < 3:
            raise ConfigError("E203", f"the median of {size} uploads is their mean", "aggregation.screen", "Ask at least 3 clients a round")

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        return Screening.of(evidence)._replace(combine=flat(coordinate_median))


@dataclass(frozen=True)
class TrimmedMean(Screen):
    """The mean of each coordinate without the share's smallest and largest values (Yin et al. 2018, arXiv:1803.01498, definition 2).

    Of a cohort that shrank the same share is cut, rounded down; of one or two uploads nothing.
    """

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2  # of the uploads, cut at each end

    assumes: ClassVar[str] = "at most `share` of a cohort are bad, and the honest ones are alike in each coordinate"
    combines: ClassVar[bool] = True

    def check_cohort(self, size: int) -> None:
        if self.share > 0 and (self.share * size + 1e-9 < 1 or size < 3):
            what = f"a share of {self.share:g} cuts none of {size} uploads"
            raise ConfigError("E203", what, "aggregation.screen.share", "Ask more clients a round, or cut a larger share")

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        return Screening.of(evidence)._replace(combine=flat(lambda vectors: trimmed_mean(vectors, self.share)))


@dataclass(frozen=True)
class Bulyan(Screen):
    """Of theta = C - 2f uploads picked one after another by Krum, the mean of the theta - 2f values nearest their median, coordinate by
    coordinate (El Mhamdi et al. 2018, arXiv:1802.07927, section 4).

    A cohort that has become smaller than 4f + 3 stands as many Byzantine clients as it can, below seven none: then it is the mean of all.
    """

    num_byzantine: Count = 1

    assumes: ClassVar[str] = "at most `num_byzantine` of a cohort of at least 4f + 3 are bad, and the honest ones lie together"
    combines: ClassVar[bool] = True

    def check_cohort(self, size: int) -> None:
        if size < 4 * self.num_byzantine + 3:
            f = self.num_byzantine
            what = f"Bulyan needs 4f + 3 = {4 * f + 3} clients to stand {f} Byzantine ones, the cohort has {size}"
            raise ConfigError("E203", what, "aggregation.screen.num_byzantine", "Ask more clients a round, or name fewer Byzantine ones")

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        count = len(evidence.reports)
        f = max(0, min(self.num_byzantine, (count - 3) // 4))
        chosen = picked_one_by_one(squared_distances(evidence.deltas), f, count - 2 * f)
        refusals = tuple(
            None if i in chosen else left_out("not_selected", "Bulyan did not pick the upload", report)
            for i, report in enumerate(evidence.reports)
        )
        return Screening.of(evidence)._replace(
            factors=torch.tensor([float(i in chosen) for i in range(count)], dtype=torch.float64),
            refusals=refusals,
            combine=flat(lambda vectors: nearest_to_median(vectors, max(1, len(vectors) - 2 * f))),
        )


def flat(rule: Combine) -> Combine:
    """The rule on tensors of any shape, as vectors."""

    def combined(tensors: Sequence[Tensor]) -> Tensor:
        return rule([tensor.reshape(-1) for tensor in tensors]).reshape(tensors[0].shape)

    return combined


def picked_one_by_one(distances: Tensor, f: int, wanted: int) -> frozenset[int]:
    """Krum's choice by squared distances [C, C], again and again among those that are left."""
    left, chosen = list(range(len(distances))), set[int]()
    while len(chosen) < wanted:
        scores = nearest_sums(distances[left][:, left], len(left) - f - 2)
        chosen.add(left.pop(int(scores.argmin())))
    return frozenset(chosen)
