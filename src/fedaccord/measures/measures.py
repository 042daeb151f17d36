"""All measures of one model, as the plain record that a run keeps: every number finite, or None with a reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaccord.core.algorithm import Positive, PositiveCount
from fedaccord.core.reports import finite
from fedaccord.core.rng import stream
from fedaccord.measures.hessian import top_eigenvalues, trace
from fedaccord.measures.landscape import filter_normalised, slice_across, slice_along
from fedaccord.measures.pooled import PooledLoss
from fedaccord.measures.sharpness import random_rise, sam_gap

NUM_EIGENVALUES = 5  # the ratio of the first to the fifth is reported beside the first
NUM_DIRECTIONS = 10  # of the random rise
NAMES = ("loss", "eigenvalue", "eigenvalue_ratio", "trace", "trace_error", "sam_gap", "random_rise", "random_rise_error")
LISTS = ("eigenvalues", "slice", "grid")


@dataclass(frozen=True)
class Measures:
    """What the flatness of the global model is measured with. Compare runs only where these agree."""

    examples: PositiveCount = 1000  # pooled training examples, drawn from the seed; time grows with them
    rho: Positive = 0.1  # radius of the SAM gap and of the random rise, an absolute length in weight space
    probes: PositiveCount = 20  # vectors of Hutchinson's trace
    points_1d: PositiveCount = 21  # of the slice along one direction, from -1 to 1 times the weights' own scale
    points_2d: PositiveCount = 11  # a side of the slice across two directions


class Undefined(ValueError):
    """A measure that does not exist here; the text is the reason."""


def unmeasured(plan: Measures, seed: int, reason: str) -> dict[str, Any]:
    """The record of a model of which nothing can be measured."""
    head: dict[str, Any] = {"seed": seed, "examples": 0, "asked": plan.examples, "rho": plan.rho}
    return {**head, **dict.fromkeys((*NAMES, *LISTS)), "reasons": {"all": reason}, "seconds": 0.0}


def measure(plan: Measures, pooled: PooledLoss, w: Tensor, seed: int) -> dict[str, Any]:
    """Hessian, SAM gap and slices of L at w [d]. Never raises for what the model or its weights lack: the reason is in the record."""
    started = time.perf_counter()
    here = pooled.value(w) if torch.isfinite(w).all() else None
    if finite(here) is None:
        reason = "the weights are not finite" if here is None else "the loss at the global model is not finite"
        return unmeasured(plan, seed, reason)
    record: dict[str, Any] = {"seed": seed, "examples": len(pooled.y), "asked": plan.examples, "rho": plan.rho, "loss": here}
    reasons: dict[str, str] = {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "eigenvalues": lambda: _eigenvalues(pooled, w, seed),
        "trace": lambda: _named("trace", *trace(lambda v: pooled.product(w, v), w, plan.probes, stream(seed, "measures", "trace"))),
        "sam_gap": lambda: _sam_gap(pooled, w, plan.rho),
        "random_rise": lambda: _named(
            "random_rise", *random_rise(pooled.value, w, plan.rho, NUM_DIRECTIONS, stream(seed, "measures", "random-rise"))
        ),
        "slice": lambda: _slices(plan, pooled, w, seed),
    }
    for name, part in parts.items():
        try:
            record |= part()
        except (Undefined, ArithmeticError) as problem:
            reasons[name] = str(problem)
        except RuntimeError as problem:  # of torch (an operation without a second derivative) or of ARPACK (no convergence)
            reasons[name] = f"{type(problem).__name__}: {str(problem).strip().splitlines()[0]}"
    for name in (*NAMES, *LISTS):
        record.setdefault(name, None)
    for name in NAMES:
        if record[name] is not None and finite(record[name]) is None:
            record[name] = None
            reasons.setdefault(name, "it is not finite")
    if record["eigenvalue_ratio"] is None and record["eigenvalue"] is not None:
        reasons.setdefault("eigenvalue_ratio", "the fifth eigenvalue is not positive, or there is none")
    return {**record, "reasons": reasons, "seconds": time.perf_counter() - started}


def _eigenvalues(pooled: PooledLoss, w: Tensor, seed: int) -> dict[str, Any]:
    rng = stream(seed, "measures", "lanczos")
    found = top_eigenvalues(lambda v: pooled.product(w, v), w, NUM_EIGENVALUES, rng)
    has_ratio = len(found) == NUM_EIGENVALUES and found[-1] > 0
    return {"eigenvalues": list(found), "eigenvalue": found[0], "eigenvalue_ratio": found[0] / found[-1] if has_ratio else None}


def _sam_gap(pooled: PooledLoss, w: Tensor, rho: float) -> dict[str, Any]:
    gap = sam_gap(pooled.value, pooled.gradient(w), w, rho)
    if gap is None:
        raise Undefined("the gradient is zero or not finite, so there is no direction of ascent")
    return {"sam_gap": gap}


def _named(name: str, mean: float, error: float | None) -> dict[str, Any]:
    return {name: mean, f"{name}_error": error}


def _slices(plan: Measures, pooled: PooledLoss, w: Tensor, seed: int) -> dict[str, Any]:
    first, second = (filter_normalised(pooled.model.layout, w, stream(seed, "measures", "direction", i)) for i in range(2))
    if not first.any():
        raise Undefined("no weight has a filter, so there is no direction")
    along, across = _places(plan.points_1d), _places(plan.points_2d)
    line = slice_along(pooled.value, w, first, along)
    grid = slice_across(pooled.value, w, first, second, across)
    return {
        "slice": {"at": along, "loss": [finite(value) for value in line]},
        "grid": {"at": across, "loss": [[finite(value) for value in row] for row in grid]},
    }


def _places(points: int) -> list[float]:
    """So many places from -1 to 1, the model itself (0) among them where they are odd."""
    return [2 * i / (points - 1) - 1 for i in range(points)] if points > 1 else [0.0]
