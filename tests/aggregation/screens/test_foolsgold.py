"""foolsgold.py: what it remembers, and when it says nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import fedaccord as fa
from fedaccord.aggregation.screen import Evidence, ScreenState
from fedaccord.core.reports import ClientReport


class Upload(NamedTuple):
    delta: Tensor


def evidence(u: Any) -> Evidence:
    vectors = torch.from_numpy(np.asarray(u, dtype=np.float32))
    return Evidence(1, [Upload(v) for v in vectors], [ClientReport(1, i, 10.0) for i in range(len(u))])


def test_it_goes_by_the_sum_of_what_clients_sent() -> None:
    """The first two differ as the others do, but what wobbles apart in two rounds cancels in the third: the sums are alike."""
    rng, state = np.random.default_rng(0), ScreenState()
    wobble = rng.normal(size=40) * 3
    for turn in (1, 1, -2):
        rows = np.stack([1 + wobble * turn, 1 - wobble * turn, rng.normal(size=40), rng.normal(size=40)])
        found = fa.FoolsGold().look(evidence(rows), state)
        if turn == 1:
            assert found.factors[:2].min() > 0.5, "their wobble keeps them apart"
        state = found.state
    assert found.factors[:2].max() < 0.01 < found.factors[2:].min()
    assert [why and why.reason for why in found.refusals] == ["no_trust", "no_trust", None, None]
    assert set(state.vectors) == {"0", "1", "2", "3"}


def test_an_absent_clients_sum_stays() -> None:
    first = fa.FoolsGold().look(evidence(np.eye(3)), ScreenState())
    alone = Evidence(2, [Upload(torch.ones(3))], [ClientReport(2, 1, 10.0)])
    second = fa.FoolsGold().look(alone, first.state)
    assert second.state.vectors["0"].tolist() == [1, 0, 0] and second.state.vectors["1"].tolist() == [1, 2, 1]
    assert second.factors.tolist() == [1.0], "alone in a round it counts"


def test_of_the_last_layer_alone_no_more_is_kept_and_looked_at() -> None:
    """All four share their first numbers; the last four tell the honest from the copies."""
    rng = np.random.default_rng(1)
    u = np.concatenate([np.full((4, 30), 5.0), rng.normal(size=(4, 4))], axis=1)
    u[1, 30:] = u[0, 30:] * 1.1
    u[2:, 30:] = [[1, -1, 1, -1], [-1, -1, 1, 1]]
    found = fa.FoolsGold(last=4).look(evidence(u), ScreenState())
    assert {len(vector) for vector in found.state.vectors.values()} == {4}
    assert found.factors[:2].max() == 0 < found.factors[2:].min()
    assert len(fa.FoolsGold().look(evidence(u), ScreenState()).state.vectors["0"]) == 34


def test_a_cohort_of_copies_counts_as_it_is() -> None:
    found = fa.FoolsGold().look(evidence(np.ones((3, 5))), ScreenState())
    assert found.factors.tolist() == [1.0] * 3 and found.refusals == (None,) * 3
