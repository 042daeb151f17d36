"""The draws and the repair that several schemes share. Owners are int64 [n], the client of each example."""

from __future__ import annotations

import numpy as np

from fedaccord.partition.shards import Float64, Int64

ATTEMPTS = 20  # redraws for `min_size` before the repair


def log_dirichlet(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> Float64:
    """Logarithms of unnormalised Dirichlet(alpha) draws along the last axis.

    In linear space a small alpha underflows to 0 in every place, and normalising gives 0/0. Here log Gamma(alpha) = log Gamma(alpha +
    1) + log(U) / alpha (Marsaglia and Tsang 2000), so also the places that are all but empty keep their order.
    """
    if alpha >= 1.0:
        return np.log(rng.standard_gamma(alpha, shape))
    return np.log(rng.standard_gamma(alpha + 1.0, shape)) - rng.standard_exponential(shape) / alpha


def shares(logs: Float64, allowed: np.ndarray) -> Float64:
    """Normalise along the last axis over the places that `allowed` keeps; at least one must be. Never 0/0: the largest becomes exp(0)."""
    kept = np.where(allowed, logs, -np.inf)
    weights = np.exp(kept - kept.max(axis=-1, keepdims=True))
    result: Float64 = weights / weights.sum(axis=-1, keepdims=True)
    return result


def cut(share: Float64, total: int) -> Int64:
    """Whole parts of `total` [N], by cutting at the rounded-down cumulative shares; a place with share 0 gets nothing."""
    cumulative = np.cumsum(share)
    ends = np.floor(cumulative / cumulative[-1] * total).astype(np.int64)
    counts: Int64 = np.diff(ends, prepend=0)
    return counts


def even_sizes(total: int, parts: int) -> Int64:
    """`total` in `parts` that differ by at most one, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def deal(members: Int64, to: Int64, sizes: Int64, owner: Int64, rng: np.random.Generator) -> None:
    """Write into `owner`: shuffled `members` go to clients `to`, `sizes` each (the sizes add up to the members)."""
    owner[rng.permutation(members)] = np.repeat(to, sizes)


def deal_by_size(sizes: Int64, rng: np.random.Generator) -> Int64:
    """Owners of sum(sizes) examples that are alike."""
    owner = np.empty(int(sizes.sum()), dtype=np.int64)
    deal(np.arange(owner.size), np.arange(sizes.size), sizes, owner, rng)
    return owner


def top_up(owner: Int64, clients: int, min_size: int, rng: np.random.Generator) -> tuple[Int64, str]:
    """The repair: examples drawn from the largest clients go to those below `min_size`, and a note says how many.

    The largest are levelled down together, never below `min_size`; needs clients * min_size <= examples.
    """
    sizes = np.bincount(owner, minlength=clients)
    lack = np.maximum(min_size - sizes, 0)
    needed = int(lack.sum())
    low, high = min_size, int(sizes.max())  # the highest level whose surplus covers the need
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= needed else (low, middle - 1)
    give = np.maximum(sizes - low, 0)
    spare = int(give.sum()) - needed
    give[np.flatnonzero(give)[:spare]] -= 1

    shuffled = rng.permutation(owner.size)
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    place = np.arange(owner.size) - (np.cumsum(sizes) - sizes)[owner[order]]
    moved = order[place < give[owner[order]]]
    repaired = owner.copy()
    deal(moved, np.arange(clients), lack, repaired, rng)
    return repaired, (
        f"min_size {min_size} was not met in {ATTEMPTS} draws: {int(np.count_nonzero(lack))} clients were topped up "
        f"with {needed} examples of the {int(np.count_nonzero(give))} largest"
    )
