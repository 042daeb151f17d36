"""Refuse what would not fit in memory before it is made, with the figures."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped, unused-ignore]

from fedaccord.core.errors import DataError


def available_memory() -> int:
    """Bytes that this machine can still give without swapping."""
    return int(psutil.virtual_memory().available)


def require_memory(num_bytes: int, what: str, where: str, remedy: str) -> None:
    """E307 where `num_bytes` more would not fit. Called before anything is allocated."""
    available = available_memory()
    if num_bytes > available:
        figures = f"{num_bytes / 2**30:.3g} GiB in memory, {available / 2**30:.3g} GiB are available"
        raise DataError("E307", f"{what} needs {figures}", where, remedy)


def refuse_if_too_large(num_bytes: int, split: str) -> None:
    """E307 for a split of a task."""
    remedy = "Use fewer or smaller examples, a narrower dtype, or a machine with more memory"
    require_memory(num_bytes, f"the {split} set", f"split '{split}'", remedy)
