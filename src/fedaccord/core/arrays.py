"""Named tensors in a safetensors file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor


def save_arrays(arrays: Mapping[str, Tensor], path: Path) -> None:
    """Write the tensors; two that share memory are written twice. A full disk is an `OSError`, as for any other file."""
    try:
        save_file(_apart(arrays), path)
    except SafetensorError as problem:
        found = re.search(r"os error (\d+)", str(problem))
        if found:
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from problem
        raise


def load_arrays(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, in memory of their own that begins where torch's own does: the last bits of a product depend on that."""
    return {name: array.clone(memory_format=torch.contiguous_format) for name, array in load_file(path).items()}


def _apart(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory that no other one uses; copied only where it is not so already."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, array in arrays.items():
        place = array.untyped_storage().data_ptr()
        found[name] = array.clone(memory_format=torch.contiguous_format) if place in taken else array.contiguous()
        taken.add(place)
    return found
