"""Learning-rate schedules over rounds: the factor on the local learning rate in round t, counted from 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from fedaccord.core.algorithm import Positive, Share


class Schedule(Protocol):
    def factor(self, round: int, rounds: int) -> float:
        """Factor in `round` of a run of `rounds`; 1 in round 1."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same rate in every round."""

    def factor(self, round: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Exponential:
    """decay^(t - 1): FL-Simulator's schedule, whose default is 0.998."""

    decay: Positive = 0.998

    def factor(self, round: int, rounds: int) -> float:
        return float(self.decay ** (round - 1))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 in the first round towards `final`, which would be round T + 1's: no round trains at a rate of 0.

    Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, without restarts.
    """

    final: Share = 0.0

    def factor(self, round: int, rounds: int) -> float:
        done = (round - 1) / rounds
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done))


SCHEDULES: dict[str, type] = {"constant": Constant, "exponential": Exponential, "cosine": Cosine}
