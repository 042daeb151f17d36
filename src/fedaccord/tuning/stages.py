"""A stage of tuning: how much of the data, how long, what may be moved, and who judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedaccord.core.reports import lower_is_better
from fedaccord.federation import RoundResult
from fedaccord.tuning.space import Axis, Point


@dataclass(frozen=True)
class Measured:
    """What one trial showed: the validation metric after its last round, and the figures that the stage's goal looks at."""

    metric: float | None
    reason: str | None  # why there is no metric or no figure
    figures: dict[str, float | None]
    examples: int  # that trained, over all clients
    examples_a_client: float  # the median
    gradients: int  # gradient evaluations spent


@dataclass(frozen=True)
class Judgement:
    """`score`: higher is nearer to the goal, None where nothing was measured. `moves`: what the rules propose, most promising first."""

    score: float | None
    passed: bool
    why: str
    moves: tuple[Point, ...] = ()


class Goal(Protocol):
    """What a stage wants to see before it passes."""

    def figures(self, rounds: Sequence[RoundResult]) -> dict[str, float | None]:
        """The few numbers of a trial that count; kept in the journal."""
        ...

    def judge(self, measured: Measured, point: Point) -> Judgement: ...


@dataclass(frozen=True)
class Stage:
    """With a goal, trials go on until one passes or `attempts` are made. Without one, all are made and the validation metric ranks them."""

    share: float  # of each client's training examples
    rounds: int
    space: Mapping[str, Axis] = field(default_factory=dict)  # what the optimiser may move
    attempts: int = 0  # trials at most; at least one for each point that comes in
    goal: Goal | None = None
    keep: int | None = 1  # how many points go on to the next stage; None: a third of its trials
    with_start: bool = False  # the configured values are tried too


@dataclass(frozen=True)
class Attempt:
    """One trial with its verdict: "pass", "out", "no pass", or "move NAME from A to B"; "" while the stage is still ranking."""

    stage: int  # from 1
    number: int  # from 1, within the stage
    point: Point
    origin: str  # configured | stage N | rule | grid | optimiser
    measured: Measured
    score: float | None
    verdict: str
    why: str

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"


@dataclass(frozen=True)
class StageResult:
    """A finished stage: all its trials, the points that go on (best first), and what it says."""

    stage: int
    attempts: tuple[Attempt, ...]
    chosen: tuple[Attempt, ...]
    passed: bool
    verdict: str  # "pass", or "move NAME from A to B", or "no pass"
    why: str


def halving(axes: Mapping[str, Axis], trials: int, shares: Sequence[float], rounds: Sequence[int]) -> tuple[Stage, ...]:
    """Successive halving (Jamieson & Talwalkar 2016, arXiv:1502.07943), by thirds: many trials on little data, the best on all of it."""
    last = len(shares) - 1
    return tuple(
        Stage(
            share,
            rounds[i],
            space=axes if i == 0 else {},
            attempts=trials if i == 0 else 0,
            keep=1 if i == last else None,
            with_start=i == last,
        )
        for i, share in enumerate(shares)
    )


def metric_score(value: float | None, metric: str) -> float | None:
    """The metric with its sign turned where less is better."""
    if value is None:
        return None
    return -value if lower_is_better(metric) else value


def moved(old: Point, new: Point) -> str:
    """``move algorithm.alpha from 0.4 to 0.6 and ...``; empty where nothing changes."""
    parts = [f"{key} from {figure(old[key])} to {figure(new[key])}" for key in new if new[key] != old[key]]
    return f"move {' and '.join(parts)}" if parts else ""


def figure(value: Any) -> str:
    """A value as it is read."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)
