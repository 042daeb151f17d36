"""Weighted sums over clients that do not depend on who answered first.

Uploads are added in client order inside fixed blocks, and the blocks are combined as a fixed tree, so that whoever computes a block,
the last bit is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedaccord.core.state import State, map_state

BLOCK = 16  # clients


def weighted_sum(uploads: Sequence[State], weights: Sequence[float]) -> State:
    """sum_i weights_i uploads_i over trees of one shape, in the order given; at least one upload."""
    blocks = []
    for start in range(0, len(uploads), BLOCK):
        rows, shares = uploads[start : start + BLOCK], weights[start : start + BLOCK]
        total = map_state(lambda leaf, share=shares[0]: leaf * share, rows[0])
        for row, share in zip(rows[1:], shares[1:], strict=True):
            map_state(lambda into, leaf, share=share: into.add_(leaf, alpha=share), total, row)
        blocks.append(total)
    return _combine(blocks)


def _combine(blocks: list[State]) -> State:
    while len(blocks) > 1:
        pairs = [map_state(torch.add, *blocks[i : i + 2]) for i in range(0, len(blocks) - 1, 2)]
        blocks = pairs + ([blocks[-1]] if len(blocks) % 2 else [])
    return blocks[0]


def mean_buffers(buffers: Sequence[dict[str, torch.Tensor]], weights: Sequence[float]) -> dict[str, torch.Tensor]:
    """The weighted mean of buffers that ride beside the models: floats as above, integers and booleans rounded back to their own dtype."""
    exact = [{name: b if b.is_floating_point() else b.to(torch.float64) for name, b in each.items()} for each in buffers]
    means = weighted_sum(exact, weights)
    return {
        name: mean.to(buffers[0][name].dtype) if mean.dtype == buffers[0][name].dtype else mean.round().to(buffers[0][name].dtype)
        for name, mean in means.items()
    }
