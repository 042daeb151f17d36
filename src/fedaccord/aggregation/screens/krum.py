"""Krum and Multi-Krum: uploads that lie near many others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedaccord.aggregation.policy import Equal, Policy
from fedaccord.aggregation.robust import nearest_sums, squared_distances
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState, left_out
from fedaccord.core.algorithm import Count, PositiveCount
from fedaccord.core.errors import ConfigError


@dataclass(frozen=True)
class Krum(Screen):
    """The one upload with the smallest sum of squared distances to the C - f - 2 nearest others (Blanchard et al. 2017, arXiv:1703.02757,
    section 4). A cohort that has become smaller than 2f + 3 stands as many Byzantine clients as it can; below five it stands none."""

    num_byzantine: Count = 1

    assumes: ClassVar[str] = "at most `num_byzantine` of a cohort of at least 2f + 3 are bad, and the honest ones lie together"
    policy: ClassVar[type[Policy]] = Equal

    def check_cohort(self, size: int) -> None:
        _require(size, self.num_byzantine)

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        return _best(evidence, self.num_byzantine, 1)


@dataclass(frozen=True)
class MultiKrum(Screen):
    """The mean of the uploads with the best scores of Krum (Blanchard et al. 2017, arXiv:1703.02757, section 5).

    A cohort that has become smaller than 2f + 3 stands as many Byzantine clients as it can, and all are taken where it stands none.
    """

    num_byzantine: Count = 1
    num_selected: PositiveCount | None = None  # left out: C - f

    assumes: ClassVar[str] = Krum.assumes
    policy: ClassVar[type[Policy]] = Equal

    def check_cohort(self, size: int) -> None:
        _require(size, self.num_byzantine)
        if self.num_selected is not None and self.num_selected > size:
            raise ConfigError("E203", f"{self.num_selected} uploads of a cohort of {size}", "aggregation.screen.num_selected", "Name fewer")

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        count = len(evidence.reports)
        f = _stood(count, self.num_byzantine)
        return _best(evidence, self.num_byzantine, min(count, self.num_selected or max(1, count - f)))


def _require(size: int, f: int) -> None:
    if size < 2 * f + 3:
        what = f"Krum needs 2f + 3 = {2 * f + 3} clients to stand {f} Byzantine ones, the cohort has {size}"
        raise ConfigError("E203", what, "aggregation.screen.num_byzantine", "Ask more clients a round, or name fewer Byzantine ones")


def _stood(count: int, f: int) -> int:
    """How many Byzantine clients a cohort of this size stands, at most f."""
    return max(0, min(f, (count - 3) // 2))


def _best(evidence: Evidence, num_byzantine: int, wanted: int) -> Screening:
    count = len(evidence.reports)
    order = nearest_sums(squared_distances(evidence.deltas), count - _stood(count, num_byzantine) - 2).argsort(stable=True)
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[order[:wanted]] = True
    refusals = tuple(
        None if kept else left_out("not_selected", "others lie nearer to one another", report)
        for kept, report in zip(chosen.tolist(), evidence.reports, strict=True)
    )
    return Screening.of(evidence)._replace(factors=chosen.double(), refusals=refusals)
