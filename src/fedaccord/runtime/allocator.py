"""glibc's allocator, told to keep what a step frees for the next step."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_KEPT_BLOCK = 32 << 20  # bytes; glibc allows no more
LARGEST_KEPT_REST = 256 << 20  # bytes


def keep_freed_blocks() -> bool:
    """Set its thresholds, for the whole process; False where the C library is another one.

    Vectors of a few hundred kB are freed and taken again in every step. By default glibc hands them back to the kernel and faults each
    page in anew, which was measured at about a tenth of a step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST_KEPT_REST))
