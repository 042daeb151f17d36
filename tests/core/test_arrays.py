"""arrays.py: named tensors in a file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from fedaccord.core.arrays import load_arrays, save_arrays


def test_tensors_that_share_memory_and_parts_of_others_come_back(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    arrays = {"whole": whole, "again": whole, "row": whole[1], "column": whole[:, 2], "none": torch.zeros(0), "nothing": torch.zeros(0, 3)}
    save_arrays(arrays, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert found.keys() == arrays.keys() and all(torch.equal(found[name], array) for name, array in arrays.items())
    save_arrays({"column": whole[:, 2], "row": whole[1]}, tmp_path / "file")
    assert load_file(tmp_path / "file")["column"].tolist() == [2.0, 6.0, 10.0]


def test_loaded_tensors_begin_where_torchs_own_do(tmp_path: Path) -> None:
    """In the file they stand one after another, wherever that is; a product's last bits depend on where its numbers begin."""
    arrays = {"one": torch.randn(3), "two": torch.randn(83), "three": torch.randn(2, 5)}
    save_arrays(arrays, tmp_path / "file")
    found = load_arrays(tmp_path / "file")
    assert all(torch.equal(found[name], array) for name, array in arrays.items())
    assert {array.data_ptr() % 64 for array in found.values()} == {torch.empty(9).data_ptr() % 64} == {0}
