"""policy.py: weights from scalars."""

from __future__ import annotations

import torch

from fedaccord.aggregation.policy import NOTHING, BySize, CohortView, Equal
from fedaccord.core.reports import ClientReport

REPORTS = tuple(ClientReport(1, client, count) for client, count in ((0, 30), (4, 10), (5, 1)))
COHORT = CohortView(1, 0, REPORTS, torch.tensor([30.0, 10.0, 1.0], dtype=torch.float64))


def test_by_size_is_in_proportion_to_the_counts() -> None:
    assert BySize().weigh(COHORT, NOTHING).weights.tolist() == [30.0, 10.0, 1.0]


def test_equal_is_the_same_for_all() -> None:
    assert Equal().weigh(COHORT, NOTHING).weights.tolist() == [1.0, 1.0, 1.0]
