"""The calls of aten operators that one step makes, recorded while it runs, and the reasons why they may not be played again.

A recording is real (the step runs on the tensors it is given, nothing is symbolic) and keeps every tensor alive, so that tensors may be
told apart by `id` and storages by their address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fedaccord.core.batch import Differentiate

MOST_MEMORY = 256 * 2**20  # bytes; a step that fills more waits for memory and arithmetic, not for dispatch, and recording keeps it all


class NotCapturable(Exception):
    """The step cannot be recorded once and played again; the message says why, for users to read."""


@dataclass(frozen=True, eq=False)
class Call:
    """One operator, what it was given and what it returned (tensors stand inside lists and tuples)."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """As in "aten::add.Tensor"."""
        return str(self.op.name())

    @property
    def packet(self) -> str:
        """The name without the overload, as in "aten::add"."""
        return self.name.partition(".")[0]

    @property
    def given(self) -> list[Tensor]:
        return list(tensors_in((self.args, self.kwargs)))

    @property
    def outputs(self) -> list[Tensor]:
        return list(tensors_in(self.result))

    @property
    def written(self) -> list[Tensor]:
        """The given tensors that the operator writes to, by its schema."""
        if not self.op._schema.is_mutable:
            return []
        writes = [a.name for a in self.op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        return list(tensors_in([self.argument(name) for name in writes]))

    def argument(self, name: str) -> Any:
        """What the argument of this name was given, or its default; None where there is none such."""
        for position, argument in enumerate(self.op._schema.arguments):
            if argument.name == name:
                given = self.args[position] if position < len(self.args) else self.kwargs.get(name)
                return argument.default_value if given is None else given
        return None


@dataclass(frozen=True, eq=False)
class Recording:
    """One step: its calls in order, what went in and what came out. `parameters` are views of w, one a parameter."""

    calls: list[Call]
    w: Tensor
    x: Tensor
    y: Tensor
    parameters: list[Tensor]
    loss: Tensor
    gradient: Tensor

    @property
    def inputs(self) -> list[Tensor]:
        return [self.w, self.x, self.y, *self.parameters]

    def outside(self) -> list[Tensor]:
        """Tensors that no call has made and that are no inputs, in order of their first use."""
        known, found = {id(t) for t in self.inputs}, []
        for call in self.calls:
            for tensor in call.given:
                if id(tensor) not in known:
                    known.add(id(tensor))
                    found.append(tensor)
            known |= {id(t) for t in call.outputs}
        return found


class Tape(TorchDispatchMode):
    """Records the calls made in its `with` block, below autograd: those of the backward pass too. NotCapturable beyond `MOST_MEMORY`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._storages: set[int] = set()
        self._filled = 0  # bytes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else defining or first using a mode imports the whole compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append(Call(func, args, kwargs or {}, result))
        for tensor in tensors_in(result):
            if tensor.layout == torch.strided and storage_of(tensor) not in self._storages:
                self._storages.add(storage_of(tensor))
                self._filled += tensor.untyped_storage().nbytes()
        if self._filled > MOST_MEMORY:
            raise NotCapturable(f"a step fills more than {MOST_MEMORY >> 20} MiB: dispatch is a small part of it")
        return result


def record(step: Differentiate, w: Tensor, x: Tensor, y: Tensor, parameters: Sequence[Tensor]) -> Recording:
    """Run `step` once and keep what it called."""
    with Tape() as tape:
        loss, gradient = step(w, x, y)
    return Recording(tape.calls, w, x, y, list(parameters), loss, gradient)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested lists, tuples and dictionaries, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from tensors_in(part)
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))


def made_from_numbers(recording: Recording) -> set[int]:
    """Ids of the tensors that `torch.tensor(...)` made in the forward pass."""
    return {id(t) for call in recording.calls if call.packet in ("aten::lift_fresh", "aten::lift_fresh_copy") for t in call.given}


def storage_of(tensor: Tensor) -> int:
    """Which memory the tensor lies in; holds as long as some tensor on it lives."""
    return int(tensor.untyped_storage()._cdata)


def refuse_what_cannot_be_replayed(recording: Recording) -> None:
    """Raise NotCapturable for random operators, branches on values, shapes that depend on values, and writes to what the step was given."""
    for tensor in (*recording.inputs, *recording.outside()):
        _refuse_unusual(tensor)
    protected = {storage_of(t) for t in (*recording.inputs, *recording.outside())}
    for call in recording.calls:
        if not isinstance(call.op, OpOverload):
            raise NotCapturable(f"the step calls {call.op}, which is no plain operator")
        where = f"({call.name})"
        if torch.Tag.nondeterministic_seeded in call.op.tags and call.argument("dropout_p") != 0:
            raise NotCapturable(f"the step draws random numbers {where}")
        if not _is_made_of_tensors(call.result):
            raise NotCapturable(f"the step reads a number out of a tensor, and may branch on it {where}")
        if _shape_depends_on_values(call):
            raise NotCapturable(f"a shape depends on values {where}")
        if torch.Tag.inplace_view in call.op.tags or call.packet in ("aten::set_", "aten::resize_"):
            raise NotCapturable(f"the step changes a tensor's shape in place {where}")
        if any(storage_of(t) in protected for t in call.written):
            raise NotCapturable(f"the step writes to its inputs, a parameter or a buffer {where}")
        for tensor in call.outputs:
            _refuse_unusual(tensor)
    for tensor in (recording.loss, recording.gradient):
        if storage_of(tensor) in protected:
            raise NotCapturable("the loss or its gradient is a view of what the step was given")


def numbered(recording: Recording) -> list[Any]:
    """The calls with tensors by the order of their first appearance, then what came out: equal where two recordings did the same."""
    numbers = _Numbers()
    numbers.of(recording.inputs)
    calls = [(call.name, *map(numbers.of, (call.args, call.kwargs, call.result))) for call in recording.calls]
    return [*calls, ("the results", numbers.of((recording.loss, recording.gradient)))]


def refuse_where_two_differ(one: list[Any], other: list[Any]) -> None:
    """Raise NotCapturable unless both `numbered` recordings made the same calls with the same numbers."""
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            raise NotCapturable(f"two passes on the same weights differ at {mine[0]}: they depend on values, or the model keeps a state")


def _is_made_of_tensors(result: Any) -> bool:
    if isinstance(result, list | tuple):
        return all(map(_is_made_of_tensors, result))
    return result is None or isinstance(result, Tensor)


def _shape_depends_on_values(call: Call) -> bool:
    if not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(call.op.tags):
        return False
    return call.packet != "aten::index" or any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(call.args[1]))


def _refuse_unusual(tensor: Tensor) -> None:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
        what = f"a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout}"
        raise NotCapturable(f"the step uses {what}: only plain dense real tensors are captured")


@dataclass
class _Numbers:
    """Tensors by the order in which they appear."""

    seen: dict[int, int] = field(default_factory=dict)

    def of(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return "tensor", self.seen.setdefault(id(tree), len(self.seen)), tuple(tree.shape), tree.stride(), tree.dtype
        if isinstance(tree, list | tuple):
            return tuple(map(self.of, tree))
        if isinstance(tree, dict):
            return tuple((key, self.of(value)) for key, value in tree.items())
        return repr(tree)  # not the value itself: NaN differs from NaN, and 1 equals True
