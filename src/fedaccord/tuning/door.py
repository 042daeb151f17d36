"""The Python door: `tune` takes what `run` takes, and what may be moved. The command line goes through `tune_experiment` as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaccord.aggregation.policy import BySize, Policy
from fedaccord.algorithms import DynamicSAM
from fedaccord.api import CohortLike, experiment_of
from fedaccord.core.algorithm import Algorithm
from fedaccord.core.errors import ConfigError
from fedaccord.core.local import LocalPlan
from fedaccord.core.server_optimizer import ServerOptimizer
from fedaccord.experiment import Aggregation, Devices, Experiment, plain
from fedaccord.federation import RoundResult
from fedaccord.partition import Partitioner
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.tasks import Task
from fedaccord.tasks.nearest import did_you_mean
from fedaccord.tuning import dynamic_sam
from fedaccord.tuning.journal import Journal, rows
from fedaccord.tuning.proposals import require_optuna
from fedaccord.tuning.search import Search
from fedaccord.tuning.space import Point, checked_axes, value_of, with_values
from fedaccord.tuning.stages import Attempt, Measured, Stage, StageResult, figure, halving
from fedaccord.tuning.trial import Interrupted, measure

if TYPE_CHECKING:
    import pandas as pd

SHARES = (0.01, 0.1, 1.0)  # of the training data, a stage each
ROUNDS = (6, 20)  # of the first stage, of the further ones; the last has the experiment's own
TRIALS = 12  # of the first stage
OWN_STAGES = {DynamicSAM: dynamic_sam.stages}  # methods that say themselves what a stage wants to see


@dataclass(frozen=True)
class Request:
    """What is asked of a tuning. search: dotted key -> (low, high), a list, or either as text; empty: the method's own stages."""

    search: Mapping[str, Any] = field(default_factory=dict)
    trials: int | None = None  # of the first stage; with the method's own stages, of each stage that has a goal
    shares: tuple[float, ...] = SHARES
    rounds: tuple[int, ...] | None = None  # of each stage
    metric: str | None = None  # of the validation data; default: the task's first


@dataclass(frozen=True, repr=False)
class Tuned:
    """What a tuning found: `experiment` is the one that was given, with the values of `values`."""

    experiment: Experiment
    values: Point  # dotted key -> value; as configured where nothing better was found
    start: Point  # the configured ones
    sources: dict[str, str]  # dotted key -> how the value was found, for those that changed or were confirmed
    metric: str
    state: str  # finished, or interrupted
    plan: tuple[Stage, ...]
    stages: tuple[StageResult, ...]  # those that ended
    attempts: tuple[Attempt, ...]  # all trials, also those of a stage that did not end

    def __repr__(self) -> str:
        found = ", ".join(f"{key} {figure(value)}" for key, value in self.values.items())
        return f"Tuned({found}; {len(self.attempts)} trials, {self.state})"

    @property
    def algorithm(self) -> Algorithm:
        """The method with the values found."""
        return self.experiment.algorithm

    @property
    def local(self) -> LocalPlan:
        """The local plan with the values found."""
        return self.experiment.local

    @property
    def passed(self) -> bool:
        """Whether every stage of the plan ended and passed."""
        return len(self.stages) == len(self.plan) and all(each.passed for each in self.stages)

    @property
    def trials(self) -> pd.DataFrame:
        """One row a trial."""
        import pandas as pd

        return pd.DataFrame(rows(self.plan, self.attempts, self.metric))


class Watcher:
    """Told how a tuning goes on; this one does nothing."""

    def planned(self, stages: tuple[Stage, ...]) -> None: ...

    def begin(self, number: int, stage: Stage, point: Point) -> None: ...

    def round(self, result: RoundResult) -> None: ...

    def found(self, found: Attempt | StageResult) -> None: ...


def tune(
    task: Task,
    algorithm: Algorithm,
    *,
    search: Mapping[str, Any] | None = None,
    trials: int | None = None,
    shares: Sequence[float] = SHARES,
    stage_rounds: Sequence[int] | None = None,
    metric: str | None = None,
    partition: Partitioner,
    cohort: CohortLike = 10,
    rounds: int = 100,
    seed: int = 0,
    local: LocalPlan | None = None,
    server_optimizer: ServerOptimizer | None = None,
    policy: Policy | None = None,
    local_parts: str = "method",
    devices: Devices | None = None,
    client_test: float = 0.1,
    client_validation: float = 0.0,
    folder: str | Path | None = None,
    resume: bool = False,
) -> Tuned:
    """Tune in stages of data: ``fa.tune(task, fa.FedSAM(), search={"algorithm.rho": (0.01, 0.5), "local.lr": [0.03, 0.1]}, ...)``.

    search: field of the experiment -> (low, high) for a range in the logarithm, or a list. Without it DynamicSAM is tuned by its own rules.
    trials: of the first stage (default 12; 6 a stage by DynamicSAM's rules); a third of them goes on to each further stage.
    shares, stage_rounds: training data and rounds of each stage. metric: of the validation data; default the task's first.
    folder: where trials.jsonl and tuning.csv go; resume: take up the trials of the folder. The other options are those of `fa.run`.

    Raises E208 without validation data, E201-E206 for what cannot be searched, E204 where nothing is, E602 where no trial can be measured.
    """
    experiment = experiment_of(
        task,
        algorithm,
        partition=partition,
        local=local,
        server_optimizer=server_optimizer,
        aggregation=Aggregation(policy or BySize(), local_parts=local_parts),  # type: ignore[arg-type]
        devices=devices,
        runtime=RuntimeOptions(),
        cohort=cohort,
        rounds=rounds,
        seed=seed,
        client_test=client_test,
        client_validation=client_validation,
        where="fedaccord.tune",
    )
    request = Request(search or {}, trials, tuple(shares), None if stage_rounds is None else tuple(stage_rounds), metric)
    return tune_experiment(experiment, task, request, folder=None if folder is None else Path(folder), resume=resume)


def tune_experiment(
    experiment: Experiment,
    task: Task,
    request: Request,
    *,
    folder: Path | None = None,
    resume: bool = False,
    more: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Tuned:
    """Tune an experiment until its stages end or `should_stop()`. more: what the journal keeps beside the request."""
    require_optuna()
    metric, stages = _metric(task, request.metric), plan(experiment, task, request)
    start = {key: value_of(experiment, key) for stage in stages for key in stage.space}
    asked = {"experiment": plain(experiment), "task": task.name, "data": task.data_hash(), "request": asdict(request), **(more or {})}
    watcher, stop = watcher or Watcher(), should_stop or (lambda: False)
    journal = Journal(folder, asked, resume)

    def measured(number: int, stage: Stage, point: Point) -> Measured:
        known = journal.find(number, point)
        if known is None:
            watcher.begin(number, stage, point)
            known = measure(experiment, task, stage, point, metric, watcher.round, stop)
            journal.add(number, point, known)
        return known

    watcher.planned(stages)
    results: list[StageResult] = []
    attempts: list[Attempt] = []
    state = "finished"
    try:
        for found in Search(stages, start, metric, experiment.run.seed, measured).run():
            if isinstance(found, Attempt):
                attempts.append(found)
            else:
                results.append(found)
                attempts[len(attempts) - len(found.attempts) :] = found.attempts
            journal.table(stages, attempts, metric)
            watcher.found(found)
    except (Interrupted, KeyboardInterrupt) as interrupt:
        if should_stop is None and isinstance(interrupt, KeyboardInterrupt):
            raise
        state = "interrupted"
    finally:
        journal.close()
    values = _best(results, attempts, start)
    sources = _sources(values, start, results, attempts)
    return Tuned(with_values(experiment, values), values, start, sources, metric, state, stages, tuple(results), tuple(attempts))


def plan(experiment: Experiment, task: Task, request: Request) -> tuple[Stage, ...]:
    """The stages. E204 where nothing is to be tuned, E203 for shares, rounds and trials that are none."""
    _check(request)
    if request.search:
        axes, total = checked_axes(experiment, request.search), experiment.run.rounds
        count = len(request.shares)
        lengths = request.rounds or [total if i == count - 1 else min(ROUNDS[min(i, 1)], total) for i in range(count)]
        return halving(axes, TRIALS if request.trials is None else request.trials, request.shares, lengths)
    for kind, stages in OWN_STAGES.items():
        if isinstance(experiment.algorithm, kind):
            return stages(experiment, task, request.trials, request.shares, request.rounds)
    name = type(experiment.algorithm).__name__
    raise ConfigError("E204", f"{name} has no stages of its own", "--set", "Name what to move, e.g. --set local.lr=0.01..0.5")


def _check(request: Request) -> None:
    if request.trials is not None and request.trials < 1:
        raise ConfigError("E203", f"{request.trials} trials", "--trials", "Ask for 1 or more")
    if not request.shares or not all(0 < share <= 1 for share in request.shares):
        raise ConfigError("E203", f"shares of {list(request.shares)}", "--shares", "Give numbers above 0, at most 1, e.g. 0.01,0.1,1")
    if request.rounds is not None and (len(request.rounds) != len(request.shares) or min(request.rounds) < 1):
        raise ConfigError("E203", f"rounds of {list(request.rounds)}", "--rounds", f"Give {len(request.shares)} numbers of 1 or more")


def _metric(task: Task, wanted: str | None) -> str:
    """The metric that decides. E208 where the task has no validation data, E205 where it is not measured."""
    if task.validation is None:
        remedy = "Give the task validation data (validation = 0.1 carves a tenth of the training data)"
        raise ConfigError("E208", "tuning needs validation data, since the test set makes no choices", "task", remedy)
    known = [*task.metrics, "loss"]
    if wanted is not None and wanted not in known:
        raise ConfigError("E205", f"unknown metric {wanted!r}", "--metric", did_you_mean(wanted, known))
    return wanted or known[0]


def _best(results: Sequence[StageResult], attempts: Sequence[Attempt], start: Point) -> Point:
    """The values of the last stage that ended; before that, of the best trial so far; before any, the configured ones."""
    if results:
        return results[-1].chosen[0].point
    scored = [each for each in attempts if each.score is not None]
    return max(scored, key=lambda each: (each.passed, each.score)).point if scored else start


def _sources(values: Point, start: Point, results: Sequence[StageResult], attempts: Sequence[Attempt]) -> dict[str, str]:
    """How each value was found."""
    if not attempts:
        return {}
    found = {}
    for key, value in values.items():
        if value == start[key]:
            found[key] = "kept by tuning"
            continue
        first = next(each for each in attempts if each.point[key] == value)
        ended = next((each for each in results if each.stage == first.stage), None)
        why = first.why if ended is None else (ended if ended.verdict.startswith("move") else results[-1]).why
        found[key] = f"tuned in stage {first.stage} ({first.origin}), was {figure(start[key])}: {why}"
    return found
