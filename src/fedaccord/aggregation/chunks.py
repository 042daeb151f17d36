"""Long vectors in pieces that the processor's cache holds, so that running totals and copies never travel to main memory."""

from __future__ import annotations

from collections.abc import Iterator

CHUNK = 65536  # numbers: few enough for the cache, enough that a call costs little beside its work


def chunks(size: int, width: int = CHUNK) -> Iterator[slice]:
    """Slices of at most `width` numbers that cover `size` numbers in order."""
    return (slice(start, min(start + width, size)) for start in range(0, size, width))
