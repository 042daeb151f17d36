"""policy.py: weights from scalars."""

from __future__ import annotations

from fedaccord.aggregation.policy import BySize, Equal
from fedaccord.core.reports import ClientReport

REPORTS = [ClientReport(1, client, count) for client, count in ((0, 30), (4, 10), (5, 1))]


def test_by_size_is_in_proportion_to_the_counts() -> None:
    assert BySize().weigh(REPORTS).tolist() == [30.0, 10.0, 1.0]


def test_equal_is_the_same_for_all() -> None:
    assert Equal().weigh(REPORTS).tolist() == [1.0, 1.0, 1.0]
