"""sums.py: right, in a fixed order, and integers stay integers."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedaccord.aggregation.chunks import CHUNK
from fedaccord.aggregation.sums import BLOCK, mean_buffers, weighted_sum, weighted_sums


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@pytest.mark.parametrize("num", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 3])
def test_the_sum_is_the_weighted_sum(num: int) -> None:
    generator = torch.Generator().manual_seed(num)
    rows, weights = torch.randn(num, 40, generator=generator), torch.rand(num, generator=generator, dtype=torch.float64)
    got = weighted_sum(list(rows), weights.tolist())
    assert torch.allclose(got.double(), weights @ rows.double(), rtol=1e-5, atol=1e-5)


def test_trees_are_summed_leaf_by_leaf_and_the_uploads_are_not_changed() -> None:
    one, two = Pair(torch.ones(2), torch.zeros(3)), Pair(torch.ones(2), torch.ones(3))
    got = weighted_sum([one, two], [0.25, 0.75])
    assert isinstance(got, Pair) and got.a.tolist() == [1.0, 1.0] and got.b.tolist() == [0.75] * 3
    assert torch.equal(one.a, torch.ones(2)) and torch.equal(two.b, torch.ones(3))


def test_whoever_computes_a_block_the_bits_are_the_same() -> None:
    """Blocks of 16 in client order, combined as a tree: ((b0 + b1) + b2)."""
    rows = list(torch.randn(2 * BLOCK + 5, 100, generator=torch.Generator().manual_seed(0)))
    weights = [1 / (i + 1) for i in range(len(rows))]
    blocks = [weighted_sum(rows[i : i + BLOCK], weights[i : i + BLOCK]) for i in range(0, len(rows), BLOCK)]
    assert torch.equal(weighted_sum(rows, weights), (blocks[0] + blocks[1]) + blocks[2])


def test_one_client_of_weight_one_is_its_upload_to_the_bit() -> None:
    row = torch.randn(50)
    assert torch.equal(weighted_sum([row], [1.0]), row)


def test_mean_buffers_keeps_every_dtype_and_shape() -> None:
    clients = [
        {
            "mean": torch.tensor([0.0, 2.0]),
            "count": torch.tensor(10),
            "on": torch.tensor(True),
            "double": torch.tensor(0.1, dtype=torch.float64),
        },
        {
            "mean": torch.tensor([4.0, 2.0]),
            "count": torch.tensor(13),
            "on": torch.tensor(False),
            "double": torch.tensor(0.3, dtype=torch.float64),
        },
    ]
    mean = mean_buffers(clients, [0.75, 0.25])
    assert mean["mean"].tolist() == [1.0, 2.0]
    assert mean["count"].dtype == torch.int64 and mean["count"].shape == () and mean["count"] == 11  # 10.75 rounded
    assert mean["on"].dtype == torch.bool and bool(mean["on"])
    assert mean["double"].dtype == torch.float64 and float(mean["double"]) == pytest.approx(0.15, abs=1e-16)
    assert clients[0]["mean"].tolist() == [0.0, 2.0] and clients[0]["count"] == 10


def test_large_counters_are_averaged_exactly() -> None:
    big = 2**40 + 1  # float32 cannot hold it
    mean = mean_buffers([{"count": torch.tensor(big)}, {"count": torch.tensor(big)}], [0.5, 0.5])
    assert mean["count"] == big


def test_the_buffers_of_one_client_are_its_own_in_their_dtypes() -> None:
    own = {
        "mean": torch.tensor([0.1, 0.2]),
        "count": torch.tensor(7),
        "seen": torch.tensor([True, False]),
        "wide": torch.tensor(0.3, dtype=torch.float64),
    }
    mean = mean_buffers([own], [1.0])
    assert all(torch.equal(mean[name], value) and mean[name].dtype == value.dtype for name, value in own.items())


def test_float_buffers_are_summed_in_their_own_dtype_as_the_models_are() -> None:
    rows = [torch.tensor([0.1, 1.7]), torch.tensor([0.3, 2.9]), torch.tensor([0.7, 5.3])]
    mean = mean_buffers([{"mean": row} for row in rows], [0.2, 0.3, 0.5])
    assert torch.equal(mean["mean"], weighted_sum(rows, [0.2, 0.3, 0.5]))


@pytest.mark.parametrize("threads", [1, 2])
def test_neither_chunks_nor_threads_move_a_bit(threads: int) -> None:
    """Each number of the result is a sum of its own, whatever stands beside it."""
    size = 2 * CHUNK + 12345
    rows = list(torch.randn(BLOCK + 3, size, generator=torch.Generator().manual_seed(2)))
    weights = [1 / (i + 3) for i in range(len(rows))]
    first = rows[0] * weights[0]
    for row, weight in zip(rows[1:BLOCK], weights[1:BLOCK], strict=True):
        first = torch.add(first, row, alpha=weight)
    second = torch.add(torch.add(rows[BLOCK] * weights[BLOCK], rows[-2], alpha=weights[-2]), rows[-1], alpha=weights[-1])
    torch.set_num_threads(threads)
    try:
        assert torch.equal(weighted_sum(rows, weights), first + second)
    finally:
        torch.set_num_threads(1)


def test_several_sums_in_one_pass_are_those_taken_alone_and_share_no_memory() -> None:
    rows = [Pair(torch.randn(5), torch.randn(3)) for _ in range(BLOCK + 2)]
    weights, equal = [1 / (i + 1) for i in range(len(rows))], [1 / len(rows)] * len(rows)
    for found, alone in zip(weighted_sums(rows, weights, equal), (weighted_sum(rows, weights), weighted_sum(rows, equal)), strict=True):
        assert torch.equal(found.a, alone.a) and torch.equal(found.b, alone.b)
        assert found.a.untyped_storage().nbytes() == found.a.nbytes


def test_leaves_of_any_shape_and_stride_are_summed() -> None:
    scalar, empty, turned = torch.tensor(2.0), torch.empty(0, 3), torch.arange(6.0).view(2, 3).T
    for leaf in (scalar, empty, turned, torch.ones(1).expand(4)):
        found = weighted_sum([leaf, leaf], [0.25, 0.5])
        assert torch.equal(found, 0.75 * leaf) and found.is_contiguous()


def test_beside_uploads_and_result_only_chunks_are_held() -> None:
    """Forty uploads make three blocks; their totals never stand beside each other at full length."""
    upload = torch.ones(16 * CHUNK)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        weighted_sum([upload] * 40, [1.0] * 40)
    changes = [event.nbytes() for event in sorted(_memory_events(profile), key=lambda event: event.start_ns())]
    held = list(itertools.accumulate(changes))
    assert upload.nbytes <= max(held) < 1.5 * upload.nbytes


def _memory_events(profile: torch.profiler.profile) -> list[Any]:
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    return [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
