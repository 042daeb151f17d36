"""Numbers in [-1, 1] as whole numbers of one fixed scale, so that what is encrypted shows neither magnitude nor precision.

A unit is 2^-40. Rounding moves each number by at most 2^-41, so a sum of a million of them is within 5e-7 of the exact one.
"""

from __future__ import annotations

from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import number

SCALE_BITS = 40
SCALE = 1 << SCALE_BITS  # units in 1


def to_fixed(value: float) -> int:
    """Units of the number after clipping to [-1, 1]: between -SCALE and SCALE. E203 for what is no finite number."""
    known = number(value)
    if known is None:
        raise ConfigError("E203", f"{value!r:.40} is no finite number", "a private sum", "Leave the client out where nothing was measured")
    return round(min(max(float(known), -1.0), 1.0) * SCALE)


def from_fixed(units: int) -> float:
    """The number, or the sum of numbers, of so many units."""
    return units / SCALE
