"""One mini-batch: the objective on it, and its gradient, in whole or in parts, in float32 or less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.core.algorithm import Objective
from fedaccord.core.gradient import shortened
from fedaccord.core.precision import Precision, computing_in
from fedaccord.core.vector import Buffers, FlatModel, Layout

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs [B, ...], y [B, ...]) -> mean loss []
Examples = tuple[Tensor, Tensor]  # x [n, ...], y [n, ...]


class BoundBatch:
    """One mini-batch bound to the model and to one set of buffers, which its first forward pass moves."""

    def __init__(self, model: FlatModel, loss: Loss, buffers: Buffers, x: Tensor, y: Tensor) -> None:
        self.model, self.loss, self.buffers, self.x, self.y = model, loss, buffers, x, y
        self._has_moved = False

    def outputs(self, w: Tensor) -> Tensor:
        return self.model(w, self._next_buffers(), self.x)

    def outputs_and_features(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.with_features(w, self._next_buffers(), self.x)

    def loss_of(self, outputs: Tensor) -> Tensor:
        return self.loss(outputs, self.y)

    def _next_buffers(self) -> Buffers:
        if self._has_moved:
            return {name: b.clone() for name, b in self.buffers.items()}
        self._has_moved = True
        return self.buffers


Differentiate = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (w [d], x [B, ...], y [B, ...]) -> (loss [], gradient [d])


class Numerics(NamedTuple):
    """How gradients are computed, the same for all steps of a round."""

    max_norm: float | None = None  # of the data gradient
    precision: Precision = "float32"
    same_masks: bool = False
    own: Layout | None = None  # parameters that stay with the client; they lie among the buffers
    differentiate: Differentiate | None = None  # the task's loss, to autograd's bits, where it is the whole objective; None: by autograd


def micro_batches(example: Examples, size: int | None) -> Iterator[tuple[float, Examples]]:
    """(share of the mini-batch, part of it), the shares summing to 1."""
    x, y = example
    if size is None or size >= len(x):
        yield 1.0, example
    else:
        yield from ((len(own_x) / len(x), (own_x, own_y)) for own_x, own_y in zip(x.split(size), y.split(size), strict=True))


class Part(NamedTuple):
    """Some examples of a mini-batch, and the objective on them."""

    share: float  # of the mini-batch
    objective: Callable[[Buffers], Objective]
    examples: Examples


class ObjectiveGrad:
    """Gradient of a method's objective on one mini-batch; keeps the loss of its first pass and counts its passes.

    `moving` are the buffers that the first, clean pass moves in place; `resting` those that every other pass reads, each from a fresh copy.
    `scale` [] multiplies the loss before the backward pass and divides the gradient after it (float16), before anybody sees it.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        moving: Buffers | None,
        resting: Buffers,
        numerics: Numerics,
        step: int,
        scale: Tensor | None = None,
    ) -> None:
        self._parts, self._moving, self._resting, self._numerics, self._scale = parts, moving, resting, numerics, scale
        self._masks: Tensor | None = None
        self.step = step
        self.passes = 0
        self.first_loss: Tensor | None = None
        self.own_gradient: Tensor | None = None  # of the last pass, flat

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = self._evaluated(w)
        if self.first_loss is None:
            self.first_loss = loss
        self.passes += 1
        max_norm = self._numerics.max_norm
        return loss, gradient if max_norm is None else shortened(gradient, max_norm)

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        total = torch.zeros_like(w)
        if self._numerics.same_masks:
            self._masks = _same_masks(self._masks)
        for part in self._parts:
            leaf = w.detach().requires_grad_()
            with computing_in(self._numerics.precision, w):
                loss = part.objective(self._resting_copy())(leaf)
            (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
            if gradient.requires_grad:  # else the objective is linear
                (product,) = torch.autograd.grad(gradient @ v, leaf)
                total = total + part.share * product
        self.passes += 2
        return total

    def _evaluated(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(loss [], gradient [d]), summed over the parts."""
        buffers = self._moving if self.first_loss is None and self._moving is not None else self._resting_copy()
        if self._numerics.same_masks:
            self._masks = _same_masks(self._masks)
        first, *others = self._parts
        loss, gradient, own = self._part(first, buffers, w)
        if others:
            loss, gradient, own = first.share * loss, first.share * gradient, None if own is None else first.share * own
        for part in others:
            more = self._part(part, buffers, w)
            loss, gradient = loss + part.share * more[0], torch.add(gradient, more[1], alpha=part.share)
            own = None if own is None or more[2] is None else torch.add(own, more[2], alpha=part.share)
        self.own_gradient = own
        return loss, gradient

    def _part(self, part: Part, buffers: Buffers, w: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self._numerics.differentiate is not None:
            return *self._numerics.differentiate(w, *part.examples), None
        layout, leaf = self._numerics.own, w.detach().requires_grad_()
        own = {name: buffers[name].detach().requires_grad_() for name in layout.names} if layout else {}
        with computing_in(self._numerics.precision, w):
            loss = part.objective(buffers | own if own else buffers)(leaf)
        scaled = loss if self._scale is None else loss * self._scale
        gradient, *of_own = torch.autograd.grad(scaled, [leaf, *own.values()])
        flat = torch.cat([each.reshape(-1) for each in of_own]) if own else None
        if self._scale is not None:
            gradient, flat = gradient / self._scale, None if flat is None else flat / self._scale
        return loss.detach(), gradient, flat

    def _resting_copy(self) -> Buffers:
        return {name: b.clone() for name, b in self._resting.items()}


class WholeLossGrad(ObjectiveGrad):
    """The same where the objective is the loss of the whole mini-batch, the model has no buffers, and `differentiate` computes it."""

    def __init__(
        self, differentiate: Differentiate, examples: Examples, objective: Callable[[Buffers], Objective], numerics: Numerics, step: int
    ) -> None:
        super().__init__((), None, {}, numerics, step)
        self._differentiate, self._examples, self._objective = differentiate, examples, objective

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        self._parts = [Part(1.0, self._objective, self._examples)]
        return super().hessian_product(w, v)

    def _evaluated(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return self._differentiate(w, *self._examples)


class FunctionalGrad:
    """The gradient of an objective as torch.func computes it, for many clients at once under vmap."""

    def __init__(self, objective: Objective, step: int, max_norm: float | None = None) -> None:
        self._objective, self._max_norm, self.step = objective, max_norm, step
        self.passes = 0
        self.first_loss: Tensor | None = None

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        gradient, loss = torch.func.grad_and_value(self._objective)(w)
        if self.first_loss is None:
            self.first_loss = loss
        self.passes += 1
        return loss, gradient if self._max_norm is None else shortened(gradient, self._max_norm)

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        self.passes += 2
        product: Tensor = torch.func.jvp(torch.func.grad(self._objective), (w,), (v,))[1]
        return product


def _same_masks(drawn_from: Tensor | None) -> Tensor:
    """Turn the generator of dropout back to where the step's first pass found it; returns that place."""
    if drawn_from is None:
        return torch.get_rng_state()
    torch.set_rng_state(drawn_from)
    return drawn_from
