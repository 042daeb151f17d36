"""The figures of a report, as pure functions of numbers: intervals over seeds, rounds to a target with censoring, fairness over clients.

Seeds are the unit of replication: n is the number of seeds, never of rounds or clients. One seed has no interval, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ONE_SEED = "one seed: no interval"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its Student-t interval; `low` and `high` are None for one seed, all are None for none, with the reason."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    reason: str | None = None


@dataclass(frozen=True)
class Censored:
    """A median over seeds of 'first round that ...', where some seeds never got there.

    A seed that never did counts as later than its own last round, and no more is assumed: `low` takes it at that round, `high` at infinity.
    Where both agree the median is known. Otherwise it is shown as ``>low`` (`high` None), or as ``low to high``.
    """

    low: float | None  # None: no seed at all
    high: float | None  # None: infinite, or no seed
    n: int
    never: int
    reason: str | None = None

    @property
    def known(self) -> bool:
        return self.low is not None and self.low == self.high


@dataclass(frozen=True)
class Band:
    """A curve over seeds: the mean at each x, and its t interval where there are two seeds or more."""

    x: list[float]
    mean: list[float]
    low: list[float] | None
    high: list[float] | None
    n: int


def estimate(values: Sequence[float], level: float = 0.95, reason: str = "no seed has a value") -> Estimate:
    """Mean and two-sided Student-t interval: mean ± t(level, n-1)·s/√n with the sample's standard deviation s."""
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0, reason)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, None, 1, ONE_SEED)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(level, n - 1) * spread / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def t_quantile(level: float, degrees: int) -> float:
    """The factor of a two-sided interval, e.g. 4.303 for 95% and three seeds (two degrees of freedom)."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + level / 2))


def first_reached(curve: Mapping[int, float], target: float, window: int, higher_is_better: bool) -> int | None:
    """The first round t whose mean over the evaluations of the rounds t-window+1 .. t meets the target; None if there is none.

    A window must be complete (t >= window), so a lucky first round does not count. Rounds without an evaluation are left out of the mean.
    """
    for at in sorted(curve):
        if at < window:
            continue
        recent = [curve[round_] for round_ in range(at - window + 1, at + 1) if round_ in curve]
        mean = math.fsum(recent) / len(recent)
        if (mean >= target) if higher_is_better else (mean <= target):
            return at
    return None


def censored_median(reached: Sequence[float | None], last: Sequence[float], reason: str = "no target was set") -> Censored:
    """The median over seeds of `reached`; a None is censored at the same seed's `last`."""
    if not reached:
        return Censored(None, None, 0, 0, reason)
    never = sum(value is None for value in reached)
    low = _median([end if value is None else value for value, end in zip(reached, last, strict=True)])
    high = _median([math.inf if value is None else value for value in reached])
    return Censored(low, high if math.isfinite(high) else None, len(reached), never)


def tail_mean(curve: Mapping[int, float], end: int, last: int) -> float | None:
    """The mean over the evaluations of the last `last` rounds up to `end`."""
    recent = [value for at, value in curve.items() if end - last < at <= end]
    return math.fsum(recent) / len(recent) if recent else None


def best(curve: Mapping[int, float], higher_is_better: bool) -> tuple[int, float] | None:
    """The round and value of the best evaluation, the earliest of equals. Optimistic on a test set: a maximum picks up noise."""
    if not curve:
        return None
    at = min(curve, key=lambda round_: (-curve[round_] if higher_is_better else curve[round_], round_))
    return at, curve[at]


def jain(values: Sequence[float]) -> float | None:
    """Jain's fairness index (Σx)²/(n·Σx²): 1 when all clients are equal, 1/n when one has all; None for none, a negative, or all zero."""
    squares = math.fsum(value * value for value in values)
    if not values or squares == 0 or min(values) < 0:
        return None
    return math.fsum(values) ** 2 / (len(values) * squares)


def worst_tenth(values: Sequence[float], higher_is_better: bool = True) -> float | None:
    """The mean over the worst tenth of the clients (rounded down, at least one)."""
    if not values:
        return None
    count = max(1, len(values) // 10)
    worst = sorted(values, reverse=not higher_is_better)[:count]
    return math.fsum(worst) / count


def mean(values: Sequence[float], sizes: Sequence[float] | None = None) -> float | None:
    """The mean of all clients alike, or weighted by `sizes`; None where nothing carries weight."""
    weights = [1.0] * len(values) if sizes is None else sizes
    total = math.fsum(weights)
    if total <= 0:
        return None
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / total


def band(curves: Sequence[Mapping[int, float]], level: float = 0.95) -> Band | None:
    """Mean and interval at the rounds that EVERY seed has: a mean over a changing set of seeds would jump without a cause."""
    curves = [curve for curve in curves if curve]
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not shared:
        return None
    points = [estimate([curve[at] for curve in curves], level) for at in shared]
    bounded = len(curves) > 1
    return Band(
        x=[float(at) for at in shared],
        mean=_all(point.mean for point in points),
        low=_all(point.low for point in points) if bounded else None,
        high=_all(point.high for point in points) if bounded else None,
        n=len(curves),
    )


def _all(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
