"""The order of a sum, written out: sixteen clients a block, one after another, then blocks in pairs of pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedaccord.aggregation.sums import mean_buffers, weighted_sum


def in_order(rows: list[Tensor], weights: list[float]) -> Tensor:
    total = rows[0] * weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        total = torch.add(total, row, alpha=weight)
    return total


@pytest.mark.parametrize("num_clients", [16, 17, 40, 80])
def test_the_bits_are_those_of_blocks_of_sixteen_in_a_fixed_tree(num_clients: int) -> None:
    rows = list(torch.randn(num_clients, 200, generator=torch.Generator().manual_seed(num_clients)))
    weights = [1 / (i + 2) for i in range(num_clients)]
    b = [in_order(rows[i : i + 16], weights[i : i + 16]) for i in range(0, num_clients, 16)]
    trees = {1: lambda: b[0], 2: lambda: b[0] + b[1], 3: lambda: (b[0] + b[1]) + b[2], 5: lambda: ((b[0] + b[1]) + (b[2] + b[3])) + b[4]}
    assert torch.equal(weighted_sum(rows, weights), trees[len(b)]())


def test_an_upload_without_a_weight_is_a_fault_and_is_not_left_out() -> None:
    with pytest.raises(ValueError, match="shorter"):
        weighted_sum([torch.ones(2)] * 3, [0.5, 0.5])


def test_the_buffers_of_one_client_alone_are_its_own() -> None:
    own = {"mean": torch.tensor([0.5, 2.0]), "count": torch.tensor(7), "on": torch.tensor(True)}
    mean = mean_buffers([own], [1.0])
    assert all(torch.equal(mean[name], value) and mean[name].dtype == value.dtype for name, value in own.items())
