"""Peak resident memory of this process."""

from __future__ import annotations

import resource
from pathlib import Path


def peak_megabytes() -> float:
    """MB (10^6 bytes). From /proc where there is one: getrusage's figure of a new process begins with its parent's."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
