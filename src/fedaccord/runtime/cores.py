"""How many cores there are for us."""

from __future__ import annotations

import math
import os
from pathlib import Path

CORES = "FEDACCORD_CORES"  # environment: how many of them, where several processes of ours share a machine
_QUOTAS = (  # files that say (microseconds of computing, microseconds): cgroup 2 in one file, cgroup 1 in two
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)


def cores() -> int:
    """Cores that this process may use: those it is bound to, no more than its container may keep busy, nor than the environment says."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get(CORES, "")
    bound = min(bound, int(asked)) if asked.isdecimal() else bound
    return max(1, min([bound, *(quota for files in _QUOTAS if (quota := _quota(files)) is not None)]))


def _quota(files: tuple[str, ...]) -> int | None:
    """Whole cores that a container's quota is worth; None where there is no quota."""
    try:
        numbers = [int(number) for file in files for number in Path(file).read_text().split()]
        return math.ceil(numbers[0] / numbers[1]) if numbers[0] > 0 else None
    except (OSError, ValueError, IndexError, ZeroDivisionError):  # no such file, or "max"
        return None
