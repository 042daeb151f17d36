"""Where a run comes from: versions, machine, commit, and hashes of all that its numbers depend on."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord import __version__


def provenance(tables: Mapping[str, Any], seed: int, data_hash: str, start: Mapping[str, Tensor]) -> dict[str, Any]:
    """provenance.json. tables: the experiment; start: the arrays before round 1."""
    return {
        "fedaccord": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "seed": seed,
        "data_hash": data_hash,
        "experiment_hash": hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest(),
        "start_hash": _hash(start),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _hash(arrays: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(name.encode() + array.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _commit() -> str | None:
    """The commit of the working folder, where it is a git checkout."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
