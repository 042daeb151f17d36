"""Mini-batches of unequal length side by side: padded to one length, each example with its share of its own batch's mean."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedaccord.core.batch import Loss
from fedaccord.core.vector import FlatModel

PerExample = Callable[[Tensor, Tensor], Tensor]  # (outputs [B, ...], y [B, ...]) -> loss of each [B]

PROBED = 5  # examples
TOLERANCE = 1e-4  # relative, in the model's own dtype: another formula is far outside


class Padded:
    """A mini-batch [B, ...] of which some examples are only there to fill it: a `Batch` of the default objective alone.

    share: [B], 1/n for the n examples that count, 0 for the others.
    """

    def __init__(self, model: FlatModel, per_example: PerExample, x: Tensor, y: Tensor, share: Tensor) -> None:
        self._model, self._per_example, self._x, self._y, self._share = model, per_example, x, y, share

    def outputs(self, w: Tensor) -> Tensor:
        return self._model(w, {}, self._x)

    def outputs_and_features(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return self._model.with_features(w, {}, self._x)

    def loss_of(self, outputs: Tensor) -> Tensor:
        return self._per_example(outputs, self._y) @ self._share


def per_example_loss(model: FlatModel, loss: Loss, x: Tensor, y: Tensor) -> PerExample | None:
    """The loss of each example, of a loss that is their plain mean and a model that sees each alone; None where that does not hold.

    Held against the loss itself on a few examples x [n, ...], y [n, ...]: what is a mean there, over one, two and all of them, with others
    beside them or without, is taken to be one.
    """
    x, y = x[:PROBED], y[:PROBED]
    if len(x) < 2:
        return None
    for candidate in _candidates(loss):
        try:
            if all(_is_mean(candidate, model, loss, x, y, count) for count in (1, 2, len(x))):
                return candidate
        except Exception:  # a loss of the user's that takes no single example, or another shape
            continue
    return None


def _candidates(loss: Loss) -> list[PerExample]:
    found: list[PerExample] = []
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", None) == "mean":
        single: Any = copy.copy(loss)
        single.reduction = "none"
        found.append(partial(_flat, single))
    elif not isinstance(loss, nn.Module) and "reduction" in _parameters(loss):
        unreduced: Any = loss
        found.append(partial(_flat, partial(unreduced, reduction="none")))
    return [*found, partial(_one_by_one, loss)]


def _parameters(loss: Loss) -> set[str]:
    try:
        return set(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        return set()


def _flat(unreduced: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """An unreduced loss may have a number for each pixel or output: their mean is the example's."""
    values = unreduced(outputs, y)
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def _one_by_one(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    each: Tensor = torch.func.vmap(lambda one, label: loss(one[None], label[None]))(outputs, y)
    return each


@torch.no_grad()
def _is_mean(candidate: PerExample, model: FlatModel, loss: Loss, x: Tensor, y: Tensor, count: int) -> bool:
    model.train(True)
    w = model.initial_w
    expected = loss(model(w, {}, x[:count]), y[:count])
    found = candidate(model(w, {}, x), y)
    if found.shape != y.shape[:1]:
        return False
    return bool((found[:count].mean() - expected).abs() <= TOLERANCE * (1e-3 + expected.abs()))
