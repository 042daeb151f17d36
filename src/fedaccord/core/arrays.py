"""Named tensors in a safetensors file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_arrays(arrays: Mapping[str, Tensor], path: Path) -> None:
    """Write the tensors; two that share memory are written twice. A full disk is an `OSError`, as for any other file."""
    try:
        save_file({name: array.clone().contiguous() for name, array in arrays.items()}, path)
    except SafetensorError as problem:
        found = re.search(r"os error (\d+)", str(problem))
        if found:
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from problem
        raise
