"""Trees of tensors in memory that several processes see: written front to back by one, read at the same places by another.

What a tree looks like (its form) crosses once; from then on a place, (number of the form, offset), stands for a tree.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaccord.core.state import State

ALIGNED = 64  # bytes; as torch aligns its own tensors: some kernels sum in another order elsewhere
GROWTH = 1 << 20  # bytes

Place = tuple[int, int]  # (number of the form, offset in bytes)


class Unfit(Exception):
    """The tree holds something else than plain tensors in memory."""


class Memory:
    """An anonymous file: it has no name that could stay behind, and is gone with the last process that holds it, however that ends.

    private: what this process writes stays its own.
    """

    def __init__(self, file: int | None = None, *, private: bool = False) -> None:
        self.file = _anonymous_file() if file is None else file
        self._flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        self._bytes, self._end = torch.empty(0, dtype=torch.uint8), 0
        self._of_dtype: dict[torch.dtype, Tensor] = {}
        weakref.finalize(self, os.close, self.file)

    def reach(self, end: int) -> None:
        """Grow the file to `end` bytes, or take up that another process did. Tensors that lie in it stay where they are."""
        if end <= self._end:
            return
        size = -(-end // GROWTH) * GROWTH
        if os.fstat(self.file).st_size < size:
            os.ftruncate(self.file, size)
        mapped = mmap.mmap(self.file, size, flags=self._flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._bytes, self._end, self._of_dtype = torch.frombuffer(mapped, dtype=torch.uint8), size, {}

    def of(self, dtype: torch.dtype) -> Tensor:
        """All of it, as a vector of this dtype."""
        found = self._of_dtype.get(dtype)
        if found is None:
            found = self._of_dtype[dtype] = self._bytes.view(dtype)
        return found

    def flat(self, dtype: torch.dtype, offset: int, span: int) -> Tensor:
        """`span` numbers from `offset` bytes on."""
        return self.of(dtype).narrow(0, offset // dtype.itemsize, span) if span else torch.empty(0, dtype=dtype)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedaccord")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


# What a tree looks like: (dtype, size, stride) of a tensor, (class, parts) of a tuple, (dict, keys, parts) of a dict.
Shape = tuple[Any, ...]


def taken_apart(tree: State, leaves: list[Tensor]) -> Shape:
    """What the tree looks like; its tensors are added to `leaves`. Unfit where it is no tree of plain tensors."""
    kind = type(tree)
    if kind is Tensor or kind is torch.nn.Parameter:
        if tree.layout is not torch.strided or not tree.is_cpu or tree.is_conj() or tree.is_neg():
            raise Unfit(f"{tree.layout} on {tree.device}")
        leaves.append(tree)
        return tree.dtype, tree.shape, tree.stride()
    if kind is dict:
        return dict, tuple(tree), tuple([taken_apart(part, leaves) for part in tree.values()])
    if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return kind, tuple([taken_apart(part, leaves) for part in tree])
    raise Unfit(kind.__name__)


class Leaf(NamedTuple):
    """A tensor's place in its tree. Strides stay as they are, so that whoever reads it sums in the same order."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int  # numbers, from the tree's beginning
    span: int  # numbers, from its first to its last one in memory
    is_dense: bool  # each place in its span is used once


def span_of(size: Sequence[int], stride: Sequence[int]) -> int:
    """Numbers from a tensor's first to its last one in memory."""
    return 0 if 0 in size else 1 + sum((each - 1) * step for each, step in zip(size, stride, strict=True))


def _is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the numbers fill their span, each place once, in whatever order."""
    expected = 1
    for step, each in sorted((step, each) for each, step in zip(size, stride, strict=True) if each != 1):
        if step != expected:
            return 0 in size
        expected *= each
    return True


class Form:
    """Where each tensor of a tree of this shape lies, and how the tree is put together again."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.nbytes = shape, 0
        self._leaves: list[Leaf] = []
        self._make = self._maker(shape)

    def _maker(self, shape: Shape) -> Callable[[list[Tensor]], State]:
        """Makes the tree from all of its tensors."""
        kind = shape[0]
        if isinstance(kind, torch.dtype):
            place = len(self._leaves)
            self._leaves.append(self._leaf(*shape))
            return itemgetter(place)
        parts = [self._maker(part) for part in shape[-1]]
        if not parts and kind in (dict, tuple):
            return lambda tensors: kind()
        if kind is dict:
            return lambda tensors: dict(zip(shape[1], [part(tensors) for part in parts], strict=True))
        if kind is tuple:
            return lambda tensors: tuple([part(tensors) for part in parts])
        return lambda tensors: kind(*[part(tensors) for part in parts])

    def _leaf(self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> Leaf:
        span, start = span_of(size, stride), self.nbytes // dtype.itemsize
        self.nbytes += -(-span * dtype.itemsize // ALIGNED) * ALIGNED
        return Leaf(dtype, tuple(size), tuple(stride), start, span, _is_dense(size, stride))

    def write(self, memory: Memory, offset: int, tensors: list[Tensor]) -> None:
        """Copy the tree's tensors to this place."""
        memory.reach(offset + self.nbytes)
        for (dtype, size, stride, start, span, is_dense), tensor in zip(self._leaves, tensors, strict=True):
            start += offset // dtype.itemsize
            if not is_dense:
                size, stride, tensor = (span,), (1,), tensor.as_strided((span,), (1,))
            memory.of(dtype).as_strided(size, stride, start).copy_(tensor.detach() if tensor.requires_grad else tensor)

    def read(self, memory: Memory, offset: int, *, copy: bool) -> State:
        """The tree at this place: tensors of one's own, or such as lie in the memory and change with it."""
        memory.reach(offset + self.nbytes)
        tensors = []
        for dtype, size, stride, start, span, is_dense in self._leaves:
            start += offset // dtype.itemsize
            if copy and not is_dense:
                tensors.append(memory.of(dtype).narrow(0, start, span).clone().as_strided(size, stride))
            else:
                tensor = memory.of(dtype).as_strided(size, stride, start)
                tensors.append(tensor.clone() if copy else tensor)
        return self._make(tensors)


class Forms:
    """The forms of all trees that one side has written, numbered as they came."""

    def __init__(self) -> None:
        self._numbers: dict[Shape, int] = {}
        self.known: list[Form] = []

    def write(self, memory: Memory, offset: int, tree: State) -> tuple[Place, int]:
        """Write a tree; (its place, the next free offset). Unfit, and nothing is written, where the tree holds what has no form."""
        tensors: list[Tensor] = []
        shape = taken_apart(tree, tensors)
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = len(self.known)
            self.known.append(Form(shape))
        form = self.known[number]
        form.write(memory, offset, tensors)
        return (number, offset), offset + form.nbytes

    def after(self, number: int) -> list[Shape]:
        """What the other side does not know yet, who knows the first `number`."""
        return [form.shape for form in self.known[number:]]

    def learn(self, shapes: list[Shape]) -> None:
        """Take over the forms that the other side has numbered."""
        self.known += [Form(shape) for shape in shapes]

    def read(self, memory: Memory, place: Place, *, copy: bool) -> State:
        """The tree at a place; see `Form.read`."""
        number, offset = place
        return self.known[number].read(memory, offset, copy=copy)
