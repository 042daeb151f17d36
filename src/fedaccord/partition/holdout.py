"""Which of a client's examples are held out: stratified, and without a loop over clients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaccord.partition.shards import Int64

BLOCK = 1 << 19  # entries that are looked at together: sorting them takes some 60 MB


def held_out(owners: Int64, strata: Int64, clients: int, fraction: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """A mask [n] of held-out entries, given the client, in ascending order, and the class of each entry.

    A client of m examples holds out round(fraction * m), at most m - 1. Its entries queue up in three tiers: first one of each class
    that it has twice or more (large classes first), then the others so that classes keep their shares, last the only remaining example
    of each class. A block of whole clients is drawn at a time.
    """
    mask, ends = np.zeros(owners.size, dtype=bool), np.cumsum(np.bincount(owners, minlength=clients))
    first = start = 0
    while first < clients:
        last = max(first + 1, int(np.searchsorted(ends, start + BLOCK, side="right")))
        end = int(ends[last - 1])
        mask[start:end] = _of_block(owners[start:end] - first, strata[start:end], last - first, fraction, rng)
        first, start = last, end
    return mask


def _of_block(owners: Int64, strata: Int64, clients: int, fraction: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    sizes = np.bincount(owners, minlength=clients)
    quota = np.clip(np.floor(fraction * sizes + 0.5).astype(np.int64), 0, np.maximum(sizes - 1, 0))  # [N]

    shuffled = rng.permutation(owners.size)
    order = shuffled[np.lexsort((strata[shuffled], owners[shuffled]))]  # by client, then class, then chance
    owner, stratum = owners[order], strata[order]
    starts = np.ones(order.size, dtype=bool)
    starts[1:] = (owner[1:] != owner[:-1]) | (stratum[1:] != stratum[:-1])
    group = np.cumsum(starts) - 1
    count = np.bincount(group)[group] if order.size else group  # examples of this class at this client
    rank = np.arange(order.size) - np.flatnonzero(starts)[group]  # 0 .. count - 1

    tier = np.where(rank == count - 1, 2, np.where(rank == 0, 0, 1))
    share = (rank + 0.5) / count  # ascending over several classes at once, this takes from each in proportion (Webster)
    queue = np.lexsort((rng.permutation(order.size), share, tier, owner))  # chance breaks ties
    place = np.arange(order.size) - (np.cumsum(sizes) - sizes)[owner[queue]]
    mask = np.zeros(order.size, dtype=bool)
    mask[order[queue]] = place < quota[owner[queue]]
    return mask
