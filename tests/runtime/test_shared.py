"""shared.py, carrying.py: trees and objects through memory that two sides see."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedaccord.core.errors import ConfigError, UploadError
from fedaccord.core.vector import FlatModel
from fedaccord.runtime.carrying import LARGE, packed, packed_error, packed_with_arrays, read_tree, unpacked, unpacked_error, write_tree
from fedaccord.runtime.shared import ALIGNED, Forms, Memory


class Pair(NamedTuple):
    first: Any
    second: Any


def other_side(memory: Memory, *, private: bool = False) -> Memory:
    """The same file, mapped once more, as another process does."""
    return Memory(os.dup(memory.file), private=private)


def through(tree: Any, *, copy: bool = True) -> Any:
    """The tree as the other side reads it."""
    memory, writing, reading = Memory(), Forms(), Forms()
    place, _ = write_tree(writing, memory, ALIGNED, tree)
    reading.learn(pickle.loads(pickle.dumps(writing.after(0))))
    return read_tree(reading, other_side(memory), place, copy=copy)


TENSORS = {
    "vector": torch.arange(5.0),
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "integers": torch.arange(6).view(2, 3),
    "booleans": torch.tensor([True, False, True]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "not a number": torch.tensor([float("nan"), -0.0, float("inf")]),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a column": torch.arange(6.0).view(2, 3)[:, 1],
    "expanded": torch.ones(2, 1).expand(2, 4),
    "overlapping": torch.arange(6.0).as_strided((2, 3), (5, 0)),
    "with a gradient": torch.ones(3, requires_grad=True) * 2,
    "complex": torch.tensor([1 + 2j, 3 - 4j]),
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("copy", [True, False])
def test_a_tensor_arrives_with_its_bits_and_its_strides(name: str, copy: bool) -> None:
    tensor = TENSORS[name]
    found: Tensor = through(tensor, copy=copy)
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert not found.requires_grad
    assert pickle.dumps(found.contiguous().numpy() if found.dtype != torch.bfloat16 else found.float().numpy()) == pickle.dumps(
        tensor.detach().contiguous().numpy() if tensor.dtype != torch.bfloat16 else tensor.float().numpy()
    )


def test_a_tree_arrives_as_it_was() -> None:
    tree = Pair({"b": torch.ones(2), "a": ()}, (torch.zeros(3), Pair(torch.tensor(1), {})))
    found = through(tree)
    assert type(found) is Pair and type(found.second[1]) is Pair and list(found.first) == ["b", "a"]
    assert repr(found) == repr(tree)


@pytest.mark.parametrize(
    "tree", [Pair(1.5, "x"), {"list": [torch.ones(2)]}, torch.eye(3).to_sparse(), torch.tensor([1 + 2j]).conj(), None], ids=str
)
def test_what_has_no_form_arrives_too(tree: Any) -> None:
    found = through(tree)
    assert type(found) is type(tree) and repr(found) == repr(tree)


def test_a_form_is_told_once_however_many_trees_have_it() -> None:
    memory, forms, offset = Memory(), Forms(), 0
    for number in range(5):
        place, offset = write_tree(forms, memory, offset, Pair(torch.full((3,), float(number)), ()))
        assert place == (0, number * ALIGNED)
    assert len(forms.after(0)) == 1 and forms.after(1) == []
    assert [read_tree(forms, memory, (0, number * ALIGNED), copy=True).first[0].item() for number in range(5)] == [0, 1, 2, 3, 4]


def test_all_tensors_are_aligned_as_torch_aligns_its_own() -> None:
    memory, forms = Memory(), Forms()
    place, _ = write_tree(forms, memory, ALIGNED, (torch.ones(3), torch.ones(1, dtype=torch.uint8), torch.ones(2)))
    assert all(leaf.data_ptr() % ALIGNED == 0 for leaf in read_tree(forms, memory, place, copy=False))


def test_memory_grows_and_what_lay_in_it_stays() -> None:
    memory, forms = Memory(), Forms()
    place, end = write_tree(forms, memory, 0, torch.arange(4.0))
    before, reader = read_tree(forms, memory, place, copy=False), other_side(memory)
    assert read_tree(forms, reader, place, copy=False).tolist() == [0, 1, 2, 3]
    large, _ = write_tree(forms, memory, end, torch.full((3 << 20,), 7.0))
    assert float(read_tree(forms, reader, large, copy=False).sum()) == 7 * (3 << 20)
    before[0] = 9
    assert float(read_tree(forms, reader, place, copy=False)[0]) == 9, "the old mapping and the new one show the same pages"


def test_a_copy_does_not_change_with_the_memory_and_a_view_does() -> None:
    memory, forms = Memory(), Forms()
    place, _ = write_tree(forms, memory, 0, torch.zeros(2))
    copied, seen = read_tree(forms, memory, place, copy=True), read_tree(forms, memory, place, copy=False)
    write_tree(forms, memory, 0, torch.ones(2))
    assert copied.tolist() == [0, 0] and seen.tolist() == [1, 1]


def test_tensors_and_arrays_of_an_object_lie_in_the_memory_once_and_stay_themselves() -> None:
    shared, table, layer = torch.randn(4), np.arange(5)[::-1].copy(), nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    data, memory = packed_with_arrays({"a": shared, "b": shared, "table": table, "layer": layer, "no rows": np.zeros((0, 2))}, "it")
    found = unpacked(data, other_side(memory, private=True))
    assert found["a"] is found["b"] and torch.equal(found["a"], shared)
    assert np.array_equal(found["table"], table) and found["no rows"].shape == (0, 2)
    assert isinstance(found["layer"].bias, nn.Parameter) and not found["layer"].bias.requires_grad
    assert found["layer"].weight.requires_grad and torch.equal(found["layer"].weight, layer.weight)


def test_a_model_that_has_trained_here_can_travel() -> None:
    """Its parameters are views of a vector that has been written over since."""
    model = FlatModel(nn.Linear(2, 2))
    leaf = model.initial_w.clone().requires_grad_()
    model(leaf, {}, torch.ones(1, 2))
    with torch.no_grad():
        leaf += 1
    data, memory = packed_with_arrays(model, "it")
    found = unpacked(data, other_side(memory, private=True))
    assert torch.equal(found(model.initial_w, {}, torch.ones(1, 2)), model(model.initial_w, {}, torch.ones(1, 2)))


def test_what_a_private_side_writes_stays_its_own_and_what_the_owner_writes_is_seen() -> None:
    x = torch.zeros(LARGE // 4)
    data, memory = packed_with_arrays(x, "it")
    one, other = (unpacked(data, other_side(memory, private=True)) for _ in range(2))
    one[0] = 5
    x[-1] = 7  # it moved into the memory
    assert (float(x[0]), float(other[0]), float(other[-1])) == (0, 0, 7)


def test_a_million_clients_are_a_few_bytes_and_two_arrays() -> None:
    from fedaccord.partition import Shards

    shards = Shards(np.arange(1_000_000), np.arange(1_000_001))
    data, memory = packed_with_arrays(shards, "it")
    assert len(data) < 1000 and unpacked(data, other_side(memory))[999_999].tolist() == [999_999]


def test_what_cannot_travel_is_named_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"E217 the loss cannot be sent to worker processes: .*lock.* runtime.name"):
        packed(threading.Lock(), "the loss")


@pytest.fixture
def unfindable(tmp_path: Path) -> Iterator[ModuleType]:
    """A module from a folder that is not on the search path any more."""
    (tmp_path / "my_unfindable.py").write_text("import math\nclass Net:\n    pass\ndef half(x):\n    return math.floor(x / 2)\n")
    sys.path.insert(0, str(tmp_path))
    try:
        yield __import__("my_unfindable")
    finally:
        sys.modules.pop("my_unfindable", None)
        if str(tmp_path) in sys.path:
            sys.path.remove(str(tmp_path))


def test_code_that_cannot_be_imported_elsewhere_goes_along(unfindable: ModuleType) -> None:
    by_name = packed(unfindable.half, "it")
    sys.path.remove(str(Path(unfindable.__file__ or "").parent))
    by_value = packed((unfindable.half, unfindable.Net), "it")
    assert len(by_name) < 200 < len(by_value)
    del sys.modules["my_unfindable"]
    half, net = unpacked(by_value)
    assert half(5) == 2 and net is unfindable.Net, "a class that we sent comes back as itself"


def test_code_of_a_module_that_is_still_being_imported_goes_along(unfindable: ModuleType) -> None:
    assert unfindable.__spec__ is not None
    unfindable.__spec__._initializing = True  # type: ignore[attr-defined]
    assert len(packed(unfindable.half, "it")) > 200


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_error_arrives_with_its_cause_and_the_place_where_it_was_raised() -> None:
    try:
        raise UploadError("E107", "client_error", "what", "client 3", "remedy") from KeyError("inner")
    except UploadError as raised:
        found = unpacked_error(packed_error(raised))
    assert isinstance(found, UploadError) and isinstance(found.__cause__, KeyError)
    assert (found.code, found.reason, found.where, str(found)) == ("E107", "client_error", "client 3", "E107 what. client 3. remedy.")
    assert "test_shared.py" in found.__notes__[0]


def test_an_error_that_cannot_travel_arrives_as_its_words() -> None:
    found = unpacked_error(packed_error(Odd(1, 2)))
    assert isinstance(found, RuntimeError) and str(found) == "Odd: 1 and 2"
