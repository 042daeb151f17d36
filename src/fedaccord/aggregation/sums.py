"""Weighted sums over clients that do not depend on who answered first.

Uploads are added in client order inside fixed blocks, and the blocks are combined as a fixed tree, so that whoever computes a block,
the last bit is the same. The sum goes over the vectors in chunks, whose running totals stay in the processor's cache: each upload is read
once, whatever the number of sums, and beside the result only a few chunks are held. The chunk moves no bit, since each number of the
result is a sum of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedaccord.aggregation.chunks import chunks
from fedaccord.core.state import State, map_state

BLOCK = 16  # clients


def weighted_sum(uploads: Sequence[State], weights: Sequence[float]) -> State:
    """sum_i weights_i uploads_i over trees of one shape, in the order given; at least one upload."""
    return weighted_sums(uploads, weights)[0]


def weighted_sums(uploads: Sequence[State], *weightings: Sequence[float]) -> tuple[State, ...]:
    """One weighted sum for each of the weightings, in one pass over the uploads."""
    count = len(weightings)
    sums = tuple(map_state(lambda leaf: torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device), uploads[0]) for _ in weightings)
    map_state(lambda *leaves: _fill(leaves[:count], leaves[count:], weightings), *sums, *uploads)
    return sums


def _fill(sums: Sequence[Tensor], rows: Sequence[Tensor], weightings: Sequence[Sequence[float]]) -> Tensor:
    into, flat = [each.view(-1) for each in sums], [row.reshape(-1) for row in rows]
    for chunk in chunks(sums[0].numel()):
        parts = [row[chunk] for row in flat]
        blocks = [
            _block_totals(parts[first : first + BLOCK], [weights[first : first + BLOCK] for weights in weightings])
            for first in range(0, len(parts), BLOCK)
        ]
        for target, of_all_blocks in zip(into, zip(*blocks, strict=True), strict=True):
            target[chunk] = _combine(of_all_blocks)
    return sums[0]


def _block_totals(rows: Sequence[Tensor], weightings: Sequence[Sequence[float]]) -> list[Tensor]:
    totals = [rows[0] * shares[0] for shares in weightings]
    for row, *shares in zip(rows[1:], *(each[1:] for each in weightings), strict=True):
        for total, share in zip(totals, shares, strict=True):
            total.add_(row, alpha=share)
    return totals


def _combine(blocks: Sequence[Tensor]) -> Tensor:
    while len(blocks) > 1:
        pairs = [blocks[i] + blocks[i + 1] for i in range(0, len(blocks) - 1, 2)]
        blocks = [*pairs, blocks[-1]] if len(blocks) % 2 else pairs
    return blocks[0]


def mean_buffers(buffers: Sequence[dict[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of buffers that ride beside the models: floats as above, integers and booleans rounded back to their own dtype."""
    exact = [{name: b if b.is_floating_point() else b.to(torch.float64) for name, b in each.items()} for each in buffers]
    means = weighted_sum(exact, weights)
    return {
        name: mean.to(buffers[0][name].dtype) if mean.dtype == buffers[0][name].dtype else mean.round().to(buffers[0][name].dtype)
        for name, mean in means.items()
    }
