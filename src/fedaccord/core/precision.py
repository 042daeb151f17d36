"""Forward passes in half precision: autocast, and for float16 a scale that keeps small gradients from vanishing.

The order (Micikevicius et al. 2018, arXiv:1710.03740, §3.2): scale the loss, differentiate, divide the scale out in float32, and only then
let a method add its terms, clip and step. An ascent direction is unscaled like every other gradient. bfloat16 needs no scale.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Precision = Literal["float32", "bfloat16", "float16"]

FIRST_SCALE, GROWTH_INTERVAL = 2.0**16, 2000  # as torch's GradScaler
_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def computing_in(precision: Precision, w: Tensor) -> AbstractContextManager[Any]:
    """Autocast on the device of w; nothing for float32."""
    return nullcontext() if precision == "float32" else torch.autocast(w.device.type, dtype=_TYPES[precision])


class Scaler(NamedTuple):
    scale: Tensor  # []
    good_steps: Tensor  # [], since the last overflow or growth


def first_scaler(w: Tensor) -> Scaler:
    """The scale of a round's first step."""
    return Scaler(w.new_tensor(FIRST_SCALE), w.new_zeros(()))


def next_scaler(scaler: Scaler, is_finite: Tensor) -> Scaler:
    """Half the scale after an overflow, twice after `GROWTH_INTERVAL` steps without one."""
    good = torch.where(is_finite, scaler.good_steps + 1, torch.zeros_like(scaler.good_steps))
    is_due = good >= GROWTH_INTERVAL
    scale = torch.where(is_finite, torch.where(is_due, 2 * scaler.scale, scaler.scale), scaler.scale / 2)
    return Scaler(scale, torch.where(is_due, torch.zeros_like(good), good))
