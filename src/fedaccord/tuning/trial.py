"""One trial: the experiment with other values, on a share of the data, for a few rounds. The test set is out of reach."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from fedaccord.api import one_thread
from fedaccord.core.reports import Evaluation
from fedaccord.core.vector import Buffers
from fedaccord.experiment import Experiment, prepare
from fedaccord.federation import RoundResult
from fedaccord.runtime.base import Runtime, RuntimeAround
from fedaccord.tasks import Task
from fedaccord.tuning.space import Point, with_values
from fedaccord.tuning.stages import Measured, Stage

OnRound = Callable[[RoundResult], None]


class Interrupted(Exception):
    """The user asked to stop; the trial that was going on is dropped."""


def experiment_of(experiment: Experiment, stage: Stage, point: Point) -> Experiment:
    """What this trial trains: anyone can repeat it with `fedaccord run` and the same values."""
    changed = with_values(experiment, point)
    run = replace(
        changed.run,
        train_share=changed.run.train_share * stage.share,
        rounds=stage.rounds,
        evaluate_every=stage.rounds,
        evaluate_clients_every=0,
        stop_at=None,
    )
    return replace(changed, run=run, runtime=replace(changed.runtime, debug=False))


def measure(
    experiment: Experiment, task: Task, stage: Stage, point: Point, metric: str, on_round: OnRound, should_stop: Callable[[], bool]
) -> Measured:
    """Train and measure on validation data. Raises Interrupted after the round in which `should_stop()` became true."""
    with one_thread(), tempfile.TemporaryDirectory(prefix="fedaccord-tune-") as folder:
        prepared = prepare(experiment_of(experiment, stage, point), task, None, Path(folder))
        own = prepared.federation
        federation = replace(own, evaluate_test=_unseen, runtime=TrainingOnly(own.runtime))
        rounds: list[RoundResult] = []
        for result in federation.run(prepared.start):
            rounds.append(result)
            on_round(result)
            if should_stop():
                raise Interrupted
    last, sizes = rounds[-1].report, prepared.data.train.sizes
    return Measured(
        metric=(last.validation or {}).get(metric),
        reason=_reason(rounds) or last.validation_reason,
        figures=stage.goal.figures(rounds) if stage.goal else {},
        examples=int(sizes.sum()),
        examples_a_client=float(np.median(sizes)),
        gradients=sum(each.report.gradients for each in rounds),
    )


def _reason(rounds: Sequence[RoundResult]) -> str | None:
    """Why rounds changed nothing, where some did not."""
    idle = [each.report for each in rounds if each.report.model_kept]
    if not idle:
        return None
    first = next((str(refusal["message"]) for report in idle for refusal in report.refused), str(idle[0].reason))
    return f"{len(idle)} of {len(rounds)} rounds changed nothing: {first}"


def _unseen(w: Tensor, buffers: Buffers) -> Evaluation:
    return Evaluation(0, None, "tuning never looks at the test set")


@dataclass(frozen=True)
class TrainingOnly(RuntimeAround):
    """A runtime that leaves the clients' held-out examples alone: they measure, so they choose nothing."""

    inner: Runtime

    def evaluate(self, w: Tensor, buffers: Buffers, clients: Sequence[int]) -> list[Evaluation]:
        return [_unseen(w, buffers) for _ in clients]
