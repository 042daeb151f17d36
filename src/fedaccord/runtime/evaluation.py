"""Metrics of one model on one set of examples. Nothing here is ever NaN: what is not defined is absent, with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from fedaccord.core.batch import Loss
from fedaccord.core.reports import Evaluation
from fedaccord.core.vector import Buffers, FlatModel

Metric = Callable[[Tensor, Tensor], float | None]  # (outputs [n, ...], y [n, ...]) -> value; None where it is not defined

BATCH = 500  # examples
TOGETHER = 10_000  # examples of clients that are copied beside one another at a time
NO_EXAMPLES = Evaluation(0, None, "no held-out examples")


@torch.no_grad()
def outputs_of(model: FlatModel, w: Tensor, buffers: Buffers, x: Tensor) -> Tensor:
    """The model's outputs [n, ...] in evaluation mode."""
    model.train(False)
    return torch.cat([model(w, buffers, part) for part in x.split(BATCH)])


@torch.no_grad()
def measured(outputs: Tensor, y: Tensor, loss: Loss, metrics: Mapping[str, Metric]) -> Evaluation:
    """Loss and metrics of outputs [n, ...] against y [n, ...]."""
    if len(y) == 0:
        return NO_EXAMPLES
    values: dict[str, float | None] = {"loss": float(loss(outputs, y))}
    outputs, y = outputs.cpu(), y.cpu()  # metrics are numpy's and scikit-learn's
    values.update({name: metric(outputs, y) for name, metric in metrics.items()})
    known = {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
    missing = sorted(values.keys() - known.keys())
    reason = f"not defined on these examples: {', '.join(missing)}" if missing else None
    return Evaluation(len(y), known or None, reason)


def evaluate(model: FlatModel, w: Tensor, buffers: Buffers, x: Tensor, y: Tensor, loss: Loss, metrics: Mapping[str, Metric]) -> Evaluation:
    """One model on one set of examples."""
    if len(y) == 0:
        return Evaluation(0, None, "no examples")
    return measured(outputs_of(model, w, buffers, x), y, loss, metrics)


def evaluate_parts(
    model: FlatModel, w: Tensor, buffers: Buffers, parts: Iterable[tuple[Tensor, Tensor] | None], loss: Loss, metrics: Mapping[str, Metric]
) -> list[Evaluation]:
    """One model on many small sets: a pass over many of them at once, then the metrics of each."""
    found = []
    for group in _grouped(parts):
        full = [part for part in group if part is not None]
        outputs = outputs_of(model, w, buffers, torch.cat([x for x, _ in full])).split([len(y) for _, y in full]) if full else ()
        own = iter(outputs)
        found += [NO_EXAMPLES if part is None else measured(next(own), part[1], loss, metrics) for part in group]
    return found


def _grouped(parts: Iterable[tuple[Tensor, Tensor] | None]) -> Iterator[list[tuple[Tensor, Tensor] | None]]:
    """Parts in order, as many together as `TOGETHER` examples take; the last one may go beyond."""
    group, size = [], 0
    for part in parts:
        group.append(part)
        size += 0 if part is None else len(part[1])
        if size >= TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group
