"""Which of a recorded step's calls are needed to get its results again.

Left out are detached and doubly transposed tensors (a view that lies exactly where an earlier one does is that one), whatever leads to no
result, tensors that are the same in every pass, and the last concatenation: gradients go straight into slices of one fresh vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaccord.core.recording import Call, Recording, made_from_numbers, storage_of, tensors_in

LARGEST_KEPT = 4096  # numbers; a larger tensor that is the same in every pass is made anew in each, to save memory
SAME_IN_EVERY_PASS = frozenset(
    f"aten::{name}"
    for name in (
        *("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"),
        *("ones", "zeros", "full", "scalar_tensor", "arange", "linspace", "eye"),
    )
)
# Operators that compute the same bits when told where to put them (structured kernels: one implementation for both); products only where
# that begins as torch's own memory does, since for small shapes the order of their sums depends on it on some processors.
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
ALIGNED = 64  # bytes
INTO: dict[str, Callable[..., Any]] = {
    "aten::mm": torch.mm,
    "aten::addmm": torch.addmm,
    "aten::bmm": torch.bmm,
    "aten::sum.dim_IntList": torch.sum,
    "aten::add.Tensor": torch.add,
    "aten::mul.Tensor": torch.mul,
}


class Held(NamedTuple):
    """A tensor of the module, to be read anew in each pass: modules may replace theirs."""

    place: dict[str, Any]
    key: str


Constants = Mapping[int, Tensor | Held]  # what a tensor from outside the step is, by the recorded tensor's id


@dataclass(eq=False)
class Step:
    """A call that stays, with what it is given after tensors stood in for others."""

    call: Call
    args: Any
    kwargs: dict[str, Any]
    into: int | None = None  # number of the parameter whose slice of the gradient it fills

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def given(self) -> list[Tensor]:
        return list(tensors_in((self.args, self.kwargs)))


@dataclass(frozen=True, eq=False)
class Needed:
    """The steps that lead to loss and gradient. `fixed` are tensors known beforehand, by the recorded tensor's id.

    `copies` says what is to be copied into which parameter's slice of the gradient; None where the gradient is a tensor of its own.
    """

    steps: list[Step]
    loss: Tensor
    gradient: Tensor
    fixed: dict[int, Tensor]
    copies: dict[int, Tensor] | None


def needed(recording: Recording, constants: Constants) -> Needed:
    steps, stand_in = _without_doubles(recording)
    loss, gradient = (stand_in.get(id(t), t) for t in (recording.loss, recording.gradient))
    steps = _leading_to(steps, [loss, gradient])
    fixed = _fixed(steps, recording, constants)
    steps = [step for step in steps if not step.call.outputs or not all(id(t) in fixed for t in step.call.outputs)]
    copies = _into_slices(steps, recording, gradient, fixed)
    if copies is not None:
        results = [loss, *copies.values(), *(t for step in steps if step.into is not None for t in step.call.outputs)]
        steps = _leading_to([step for step in steps if not any(t is gradient for t in step.call.outputs)], results)
    return Needed(steps, loss, gradient, fixed, copies)


def _without_doubles(recording: Recording) -> tuple[list[Step], dict[int, Tensor]]:
    """(steps, the tensor that stands in for each one left out)."""
    first: dict[tuple[Any, ...], Tensor] = {}
    stand_in: dict[int, Tensor] = {}
    for tensor in (*recording.inputs, *recording.outside()):
        first.setdefault(_lies(tensor), tensor)
    steps = []
    for call in recording.calls:
        step = Step(call, _replaced(call.args, stand_in), _replaced(call.kwargs, stand_in))
        is_new = False
        for tensor in call.outputs:
            earlier = first.setdefault(_lies(tensor), tensor)
            if earlier is tensor:
                is_new = True
            else:
                stand_in[id(tensor)] = earlier
        if is_new or call.written:
            steps.append(step)
    return steps, stand_in


def _lies(tensor: Tensor) -> tuple[Any, ...]:
    """Where and how; tensors of no numbers lie nowhere and are told apart."""
    where = storage_of(tensor) if tensor.numel() else id(tensor)
    return where, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _replaced(tree: Any, stand_in: Mapping[int, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return stand_in.get(id(tree), tree)
    if isinstance(tree, list | tuple):
        return type(tree)(_replaced(part, stand_in) for part in tree)
    if isinstance(tree, dict):
        return {key: _replaced(value, stand_in) for key, value in tree.items()}
    return tree


def _leading_to(steps: list[Step], results: list[Tensor]) -> list[Step]:
    """The steps that the results need, and all that write in place."""
    wanted, kept = {id(t) for t in results}, []
    for step in reversed(steps):
        if step.call.written or any(id(t) in wanted for t in step.call.outputs):
            kept.append(step)
            wanted |= {id(t) for t in step.given}
    return kept[::-1]


def _fixed(steps: list[Step], recording: Recording, constants: Constants) -> dict[int, Tensor]:
    """Tensors that are the same in every pass, small, and never written to nor returned."""
    not_kept = {storage_of(t) for step in steps for t in step.call.written}
    not_kept |= {storage_of(recording.loss), storage_of(recording.gradient)}
    literal = made_from_numbers(recording)
    fixed = {key: constant for key, constant in constants.items() if key in literal and isinstance(constant, Tensor)}
    for step in steps:
        given, outputs = step.given, step.call.outputs
        is_known = step.call.packet in SAME_IN_EVERY_PASS or (given and all(id(t) in fixed for t in given))
        if is_known and not any(storage_of(t) in not_kept or t.numel() > LARGEST_KEPT for t in outputs):
            fixed |= {id(t): t.detach() for t in outputs}
    return fixed


def _into_slices(steps: list[Step], recording: Recording, gradient: Tensor, fixed: Mapping[int, Tensor]) -> dict[int, Tensor] | None:
    """Mark the steps that can compute a part of the gradient where it is to lie; returns the parts that must be copied there."""
    last = next((step for step in steps if any(t is gradient for t in step.call.outputs)), None)
    if last is None or last.name != "aten::cat" or len(last.args) > 1 or any(t is gradient for step in steps for t in step.given):
        return None
    if [tuple(part.shape) for part in last.args[0]] != [(parameter.numel(),) for parameter in recording.parameters]:
        return None
    made = {storage_of(t): step for step in reversed(steps) for t in step.call.outputs}  # the first step on each storage
    copies = {}
    for number, (part, parameter) in enumerate(zip(last.args[0], recording.parameters, strict=True)):
        maker = None if id(part) in fixed else made.get(storage_of(part))
        whole = [] if maker is None else [t for t in maker.call.outputs if _is_flat_of(part, t)]
        begins = parameter.data_ptr() - recording.w.data_ptr()  # bytes into the gradient
        if maker is not None and whole and maker.into is None and _can_fill(maker, whole[0], parameter, begins):
            maker.into = number
        else:
            copies[number] = whole[0] if whole and whole[0].shape == parameter.shape else part
    return copies


def _is_flat_of(part: Tensor, whole: Tensor) -> bool:
    """Whether part [n] holds all numbers of `whole`, in order."""
    alike = storage_of(part) == storage_of(whole) and part.storage_offset() == whole.storage_offset() and part.dtype == whole.dtype
    return alike and part.numel() == whole.numel() and part.is_contiguous() and whole.is_contiguous()


def _can_fill(maker: Step, output: Tensor, parameter: Tensor, begins: int) -> bool:
    if maker.name not in INTO or maker.kwargs or output.dtype != parameter.dtype or (maker.name in PRODUCTS and begins % ALIGNED):
        return False
    shape = output.shape
    if maker.name == "aten::sum.dim_IntList" and maker.args[1:] == ([0], True):
        shape = shape[1:]  # summed without keeping the dimension: a bias has not got it
    return shape == parameter.shape
