"""A test that may be looked at after every round: evidence that the mean of a bounded sequence is above a value (Ville's inequality).

Wealth starts at 1 and is bet on the next difference; if the mean is not above the value, the chance that wealth ever reaches 1/level is at
most `level`, however often one looks (Waudby-Smith and Ramdas 2024, arXiv:2010.09686, section 4: a mixture over fixed bets).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BETS = (0.05, 0.1, 0.2, 0.4, 0.8)


def bet(wealth: Sequence[float], difference: float, value: float = 0.0) -> tuple[float, ...]:
    """The logarithm of each bet's wealth after one more difference in [-1, 1]; start with `()`.

    The hypothesis bet against: given the past, the mean of the differences is at most `value`.
    """
    gain = max(-1.0, min(1.0, difference)) - value
    most = 1 + value  # the largest loss; bets below its reciprocal never ruin
    before = wealth or (0.0,) * len(BETS)
    return tuple(old + math.log1p(share / most * gain) for old, share in zip(before, BETS, strict=True))


def evidence(wealth: Sequence[float]) -> float:
    """The mixture's wealth: 1/level is enough to reject at `level`."""
    return sum(math.exp(min(each, 700.0)) for each in wealth) / len(wealth) if wealth else 1.0
