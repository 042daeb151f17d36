"""The pooled loss as a function of w: its value, gradient and Hessian-vector product, mini-batched and averaged by example.

Evaluation mode throughout: no dropout, batch norm by its running statistics. Every pass reads copies of the buffers, so that not even a
layer that writes in evaluation mode can move them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaccord.core.batch import Loss
from fedaccord.core.vector import Buffers, FlatModel


@dataclass(frozen=True, eq=False)
class PooledLoss:
    """L(w), the mean over pooled examples of a model's loss. `loss` is a mean over its batch."""

    model: FlatModel
    buffers: Buffers
    loss: Loss
    x: Tensor  # [n, ...]
    y: Tensor  # [n, ...]
    batch: int = 500  # examples; a Hessian-vector product keeps about three forward passes of a batch in memory

    @torch.no_grad()
    def value(self, w: Tensor) -> float:
        """L(w); summed in double precision, since measures are small differences of it."""
        return sum(share * float(self._loss(w, x, y)) for share, x, y in self._parts())

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient [d] at w."""
        total = torch.zeros_like(w)
        for share, x, y in self._parts():
            leaf = w.detach().requires_grad_()
            (part,) = torch.autograd.grad(self._loss(leaf, x, y), leaf)
            total = total + share * part
        return total

    def product(self, w: Tensor, v: Tensor) -> Tensor:
        """H v [d] by double backward (Pearlmutter 1994). Raises RuntimeError where an operation has no second derivative."""
        total = torch.zeros_like(w)
        with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no second derivative
            for share, x, y in self._parts():
                leaf = w.detach().requires_grad_()
                (first,) = torch.autograd.grad(self._loss(leaf, x, y), leaf, create_graph=True)
                if first.requires_grad:  # else the loss is linear in w
                    # Not autograd.grad: on its way to the leaf alone it passes by the node that says 'once differentiable'.
                    (first @ v).backward()
                    total = total if leaf.grad is None else total + share * leaf.grad
        return total

    def _parts(self) -> Iterator[tuple[float, Tensor, Tensor]]:
        """(share of the examples, x, y) of each mini-batch."""
        self.model.train(False)
        for x, y in zip(self.x.split(self.batch), self.y.split(self.batch), strict=True):
            yield len(y) / len(self.y), x, y

    def _loss(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.model(w, {name: b.clone() for name, b in self.buffers.items()}, x), y)
