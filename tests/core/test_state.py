"""state.py: trees of tensors, leaf by leaf and by path."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedaccord.core.errors import StorageError
from fedaccord.core.state import children, from_arrays, map_state, num_bytes, to_arrays


class Pair(NamedTuple):
    w: Tensor
    inner: Any


def tree() -> Pair:
    return Pair(torch.arange(3.0), {"bn.mean": torch.ones(2), "count": torch.tensor(5)})


def test_to_arrays_names_every_leaf_by_its_path_and_from_arrays_undoes_it() -> None:
    arrays = to_arrays(tree())
    assert list(arrays) == ["w", "inner.bn.mean", "inner.count"]
    back = from_arrays(tree(), arrays)
    assert isinstance(back, Pair) and list(back.inner) == ["bn.mean", "count"]
    assert torch.equal(back.w, tree().w) and torch.equal(back.inner["count"], torch.tensor(5))


@pytest.mark.parametrize("state", [(), Pair(torch.ones(2), ()), (torch.ones(1), {}), {"a": (torch.ones(1), torch.zeros(2))}])
def test_empty_parts_and_plain_tuples_survive(state: Any) -> None:
    back = from_arrays(state, to_arrays(state))
    assert type(back) is type(state) and children(back).keys() == children(state).keys()


def test_a_leaf_that_is_missing_or_of_another_shape_or_dtype_is_named() -> None:
    arrays = to_arrays(tree())
    for change, said in (
        ({"w": torch.zeros(4)}, r"'w' is \(4,\) torch.float32, expected \(3,\) torch.float32"),
        ({"inner.count": torch.tensor(5.0)}, "'inner.count' is .* torch.float32, expected .* torch.int64"),
    ):
        with pytest.raises(StorageError, match=f"E110 {said}"):
            from_arrays(tree(), arrays | change)
    del arrays["inner.bn.mean"]
    with pytest.raises(StorageError, match=r"'inner.bn.mean' is missing"):
        from_arrays(tree(), arrays)


def test_map_state_walks_several_trees_together() -> None:
    total = map_state(torch.add, tree(), tree())
    assert torch.equal(total.w, 2 * tree().w) and total.inner["count"] == 10


def test_num_bytes_counts_elements_times_their_size() -> None:
    assert num_bytes(tree()) == 3 * 4 + 2 * 4 + 8
    assert num_bytes(()) == 0
