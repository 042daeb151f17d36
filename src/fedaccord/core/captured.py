"""The loss and gradient of a mini-batch as a captured program: the same bits as eager autograd, a good part of the dispatch spared.

A step of a small model spends as long between torch's operators as in them. Where a shape of batch comes again and again, one step is
recorded (`recording`) and written as a flat function of the operators it called (`program`). Every program returns eager's own bits, so
when a shape is captured, and whether it can be at all, moves no number: what cannot be captured stays eager, and `reasons` says why.
"""

from __future__ import annotations

import copy
import threading
import time
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from fedaccord.core.batch import Loss
from fedaccord.core.program import Program, program
from fedaccord.core.recording import (
    NotCapturable,
    Recording,
    made_from_numbers,
    numbered,
    record,
    refuse_what_cannot_be_replayed,
    refuse_where_two_differ,
)
from fedaccord.core.rng import untouched_generators
from fedaccord.core.steps import Held
from fedaccord.core.vector import FlatModel

CAPTURE_AT = 16  # occurrences of a shape; by then a capture (some 20 ms, against 0.3 ms spared a step) is likely to pay
MOST_PROGRAMS = 64
EVERY = "every batch"

_one_at_a_time = threading.Lock()  # captures, of all threads

Batch = tuple[Any, ...]  # shapes, strides and types of x and y, the type of w, the mode: what a program holds for


class Captured:
    """(w [d], x [B, ...], y [B, ...]) -> (loss [], gradient [d]), both fresh; w is not differentiated through. One thread at a time.

    One program per shape, layout and type of the batch, from its `capture_at`-th occurrence on. To capture it, the step is run twice on a
    copy of the model; a loss that is no module is not copied, so it is called two times more. Plain numbers (of the module, or that the
    loss reads from elsewhere) are those of the capture ever after; tensors are read in each call.
    """

    def __init__(self, model: FlatModel, loss: Loss, capture_at: int = CAPTURE_AT) -> None:
        self.reasons: dict[str, str] = {}  # batch, in words -> why it stays eager
        self.seconds = 0.0  # spent on capturing
        self._model, self._loss, self._capture_at = model, loss, capture_at
        self._programs: dict[Batch, Program] = {}
        self._seen: dict[Batch, int] = {}
        self._refused_modes: set[bool] = set()
        self._mode = next((part for part, was_training in model._modes if was_training), model.module)  # the others follow, or are frozen
        if model.own:
            self._refuse_all("some parameters stay with each client: they come with the buffers")
        elif model.initial_buffers:
            self._refuse_all(f"the model has buffers that travel beside w ({next(iter(model.initial_buffers))})")
        elif model.layout.dtype not in (torch.float32, torch.float64):
            self._refuse_all(f"the weights are {model.layout.dtype}")

    def __call__(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        batch = x.shape, x.stride(), x.dtype, x.device, y.shape, y.stride(), y.dtype, w.dtype, self._mode.training
        step = self._programs.get(batch)
        if step is None or torch.is_autocast_enabled(x.device.type):
            return self._without_program(batch, w, x, y)
        return step(w, x, y)

    def eager(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The same by autograd. Buffers are the module's own."""
        return loss_and_gradient(self._model, self._loss, w, x, y)

    @property
    def num_programs(self) -> int:
        return len(self._programs)

    def _without_program(self, batch: Batch, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        result = self.eager(w, x, y)
        if self._mode.training not in self._refused_modes and not torch.is_autocast_enabled(x.device.type):
            seen = self._seen[batch] = self._seen.get(batch, 0) + 1
            if seen == self._capture_at:
                start = time.perf_counter()
                self._capture(batch, w, x, y, result)
                self.seconds += time.perf_counter() - start
        return result

    def _capture(self, batch: Batch, w: Tensor, x: Tensor, y: Tensor, result: tuple[Tensor, Tensor]) -> None:
        in_words = f"x {list(x.shape)} {x.dtype}, y {list(y.shape)} {y.dtype}"
        if len(self._programs) == MOST_PROGRAMS:
            self.reasons[in_words] = f"{MOST_PROGRAMS} other shapes are captured already"
            return
        try:
            with _one_at_a_time, untouched_generators(x.device):
                step = captured_program(self._model, self._loss, w, x, y)
                again = step(w, x, y)
        except NotCapturable as reason:  # holds for the model, whatever the shape
            self._refused_modes.add(self._mode.training)
            self.reasons[f"{EVERY} in {'training' if self._mode.training else 'evaluation'}"] = str(reason)
        except Exception as error:  # whatever user code or torch may raise: eager has just shown that it can do the step
            self.reasons[in_words] = f"capturing failed: {type(error).__name__}: {error}".splitlines()[0]
        else:
            if all(map(_same_bits, result, again)):
                self._programs[batch] = step
            else:
                self.reasons[in_words] = "the captured step differs from the eager one"

    def _refuse_all(self, reason: str) -> None:
        self._refused_modes |= {True, False}
        self.reasons[EVERY] = reason


def loss_and_gradient(model: FlatModel, loss: Loss, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    leaf = w.detach().requires_grad_()
    buffers = {name: slots[0][0][slots[0][1]] for name, slots in model._buffer_slots.items()}
    value = loss(model(leaf, buffers, x), y)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def captured_program(model: FlatModel, loss: Loss, w: Tensor, x: Tensor, y: Tensor) -> Program:
    """Record the step twice on a copy of the model and write it as a program of the model itself. Raises NotCapturable."""
    twin, twin_loss, originals = _twin(model, loss)
    parameters = list(model.layout.unflatten(w).values())
    if any(p.numel() == 0 for p in parameters):
        raise NotCapturable("a parameter has no numbers")

    def step(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return loss_and_gradient(twin, twin_loss, w, x, y)

    modules = [part for part in (twin.module, twin_loss) if isinstance(part, nn.Module)]
    before = _kept_by(modules, twin)
    turned = record(step, w, _copied(x, turned=True), _copied(y, turned=True), parameters)  # so that a branch on the examples shows
    refuse_what_cannot_be_replayed(turned)
    calls, outside = numbered(turned), turned.outside()
    del turned  # and its activations
    recording = record(step, w, _copied(x), _copied(y), parameters)
    refuse_where_two_differ(calls, numbered(recording))
    for name, value in _kept_by(modules, twin).items():
        if before.get(name) != value:
            raise NotCapturable(f"a forward pass changes {name}: the model keeps a state")
    return program(recording, _constants(recording, outside, originals))


def _twin(model: FlatModel, loss: Loss) -> tuple[FlatModel, Loss, dict[int, Tensor | Held]]:
    """A copy that recording may do anything to, and what each of its tensors (by id) is in the original."""
    shared = [model.initial_w, *(place[key] for slots in model._parameter_slots for place, key in slots)]
    memo: dict[int, Any] = {id(t): t for t in shared}  # replaced in each forward pass, so never read
    try:
        twin = copy.deepcopy(model, memo)
        twin_loss = copy.deepcopy(loss, memo) if isinstance(loss, nn.Module) else loss
    except Exception as error:
        raise NotCapturable(f"the model cannot be copied ({type(error).__name__}: {error})") from error
    kept_alive = memo.get(id(memo), [])  # where deepcopy keeps what it has copied
    originals: dict[int, Tensor | Held] = {id(memo[id(t)]): t for t in kept_alive if isinstance(t, Tensor) and id(t) in memo}
    for mine, theirs in ((model.module, twin.module), (loss, twin_loss)):
        if isinstance(mine, nn.Module) and isinstance(theirs, nn.Module):
            for part, copied in zip(mine.modules(), theirs.modules(), strict=True):
                for place, copied_place in zip(_places(part), _places(copied), strict=True):
                    originals |= {id(t): Held(place, key) for key, t in copied_place.items() if isinstance(t, Tensor)}
    return twin, twin_loss, originals


def _places(part: nn.Module) -> tuple[dict[str, Any], ...]:
    return part._parameters, part._buffers, part.__dict__


def _constants(recording: Recording, earlier: list[Tensor], originals: dict[int, Tensor | Held]) -> dict[int, Tensor | Held]:
    """What each tensor that the step found ready is: the module's, one from outside, or made from numbers in the forward pass."""
    from_numbers, constants = made_from_numbers(recording), {}
    for tensor, before in zip(recording.outside(), earlier, strict=True):
        known = originals.get(id(tensor))
        if known is None and tensor is not before and not (id(tensor) in from_numbers and _same_bits(tensor, before)):
            raise NotCapturable("each forward pass makes a tensor from other numbers, or without an operator")
        constants[id(tensor)] = tensor if known is None else known
    return constants


def _kept_by(modules: list[nn.Module], model: FlatModel) -> dict[str, Any]:
    """All that the modules hold but for trained parameters, in a form that shows whether it has changed."""
    trained = {id(place[key]) for slots in model._parameter_slots for place, key in slots}
    found: dict[str, Any] = {}
    for root in modules:
        for path, part in root.named_modules():
            where = f"{path or type(root).__name__}."
            plain = {key: value for key, value in part.__dict__.items() if key not in _EVERY_MODULE_HAS}
            found |= {where + key: _comparable(value, trained) for key, value in (part._parameters | plain).items()}
            for key, buffer in part._buffers.items():
                found[where + key] = _comparable(buffer, trained), None if buffer is None else _digest(buffer)
    return found


def _digest(tensor: Tensor) -> int:
    return hash(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy(force=True).tobytes())


_EVERY_MODULE_HAS = frozenset(nn.Module().__dict__) - {"training"}


def _comparable(value: Any, trained: set[int], depth: int = 3) -> Any:
    if isinstance(value, Tensor):
        return "trained" if id(value) in trained else (id(value), value._version)
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, weakref.ref):  # recurrent layers keep their weights in a list of these too
        return _comparable(value(), trained, depth)
    if depth and isinstance(value, list | tuple):
        return tuple(_comparable(part, trained, depth - 1) for part in value)
    if depth and isinstance(value, dict):
        return tuple((repr(key), _comparable(part, trained, depth - 1)) for key, part in value.items())
    return id(value), len(value) if hasattr(value, "__len__") else None


def _copied(examples: Tensor, *, turned: bool = False) -> Tensor:
    """The examples (from last to first if `turned`) in the same layout, in memory of their own: x and y may be one tensor."""
    copied = torch.empty_strided(examples.shape, examples.stride(), dtype=examples.dtype, device=examples.device)
    return copied.copy_(examples.flip(0) if turned and examples.dim() else examples)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, but for what a NaN holds."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    alike = ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
    return bool(alike.all())
