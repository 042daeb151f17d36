"""The clients' examples: the rows that were asked for, laid out one way whatever the layout of the data."""

from __future__ import annotations

import numpy as np
import torch

import fedaccord as fa
from fedaccord.partition import Shards
from fedaccord.runtime.population import Population


def population(x: torch.Tensor) -> Population:
    own, none = Shards.of([np.arange(len(x))]), Shards.of([np.arange(0)])
    return Population(x, torch.arange(len(x)), own, none, none, seed=0)


def test_pictures_that_lie_channels_last_give_the_batches_of_those_that_do_not() -> None:
    """Else `memory_format="contiguous"` would train in the layout of the user's data, to other bits."""
    x = torch.randn(7, 5, 5, 3).permute(0, 3, 1, 2)
    assert not x.is_contiguous()
    plan = fa.LocalPlan(epochs=1, batch_size=3)
    batches, plain = (list(population(each).batches(0, 1, plan)) for each in (x, x.contiguous()))
    assert [len(y) for _, y in batches] == [3, 3, 1]
    for (given, y), (expected, _) in zip(batches, plain, strict=True):
        assert given.is_contiguous() and torch.equal(given, expected) and torch.equal(given, x[y])


def test_a_table_of_rows_gives_a_table_of_examples() -> None:
    x = torch.arange(12.0).reshape(6, 2)
    rows = np.array([[0, 5, 1], [2, 2, 4]])
    found, y = population(x).examples_at(rows)
    assert found.shape == (2, 3, 2) and y.tolist() == rows.tolist() and torch.equal(found, x[torch.from_numpy(rows)])
