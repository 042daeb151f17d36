"""Refuse data that would not fit in memory before they are read, with the figures."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped, unused-ignore]

from fedaccord.core.errors import DataError


def available_memory() -> int:
    """Bytes that this machine can still give without swapping."""
    return int(psutil.virtual_memory().available)


def refuse_if_too_large(num_bytes: int, split: str) -> None:
    """E307 where `num_bytes` more would not fit. Called before anything is allocated."""
    available = available_memory()
    if num_bytes > available:
        raise DataError(
            "E307",
            f"the {split} set needs {num_bytes / 2**30:.3g} GiB in memory, {available / 2**30:.3g} GiB are available",
            f"split '{split}'",
            "Use fewer or smaller examples, a narrower dtype, or a machine with more memory",
        )
