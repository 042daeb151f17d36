"""Long vectors in pieces that the processor's cache holds, so that running totals and copies never travel to main memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

CHUNK = 65536  # numbers: few enough for the cache, enough that a call costs little beside its work


def chunks(size: int, width: int = CHUNK) -> Iterator[slice]:
    """Slices of at most `width` numbers that cover `size` numbers in order."""
    return (slice(start, min(start + width, size)) for start in range(0, size, width))


def stacks(vectors: Sequence[Tensor], chunk: slice) -> Iterator[tuple[slice, Tensor]]:
    """This chunk of the vectors [d] as matrices [some, numbers] of about `CHUNK` numbers, and which of the vectors each holds.

    Many short vectors cost one call that way, and long ones are taken one by one, without a copy.
    """
    together = max(1, CHUNK // max(1, chunk.stop - chunk.start))
    for first in range(0, len(vectors), together):
        some = slice(first, min(first + together, len(vectors)))
        parts = [vector[chunk] for vector in vectors[some]]
        yield some, torch.stack(parts) if len(parts) > 1 else parts[0][None]
