"""Where the next trial's values come from: the whole grid where it is small, else Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from typing import Any

from fedaccord.core.errors import ConfigError
from fedaccord.core.rng import torch_seed
from fedaccord.tuning.space import Axis, Choices, Point

STARTUP = 4  # trials before the estimator has something to go by; until then it draws at random
TRIES = 20  # proposals that repeat a trial before the optimiser is taken to have nothing new

Scored = tuple[Point, float | None]


def require_optuna() -> None:
    """E209 where it is not installed."""
    if find_spec("optuna") is None:
        raise ConfigError("E209", "optuna is not installed", "fedaccord tune", "pip install 'fedaccord[learning]'")


def grid(space: Mapping[str, Axis], attempts: int) -> list[Point]:
    """All combinations, where every axis is a list and they are few enough; else none."""
    lists = [axis.values for axis in space.values() if isinstance(axis, Choices)]
    if not space or len(lists) < len(space) or math.prod(len(values) for values in lists) > attempts:
        return []
    return [dict(zip(space, values, strict=True)) for values in product(*lists)]


def propose(space: Mapping[str, Axis], history: Sequence[Scored], seed: int, stage: int) -> Point | None:
    """Values for `space` that no trial had, from what the trials showed (score: higher is better, None: nothing measured). None: no new.

    The study is rebuilt from the history and its sampler seeded by the number of trials, so an interrupted tuning proposes what the
    unbroken one would have.
    """
    if not space:
        return None
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        distributions = {key: _distribution(optuna, axis) for key, axis in space.items()}
        tried = [{key: point[key] for key in space} for point, _ in history]
        inside = [scored for scored in history if all(scored[0][key] in axis for key, axis in space.items())]
        for attempt in range(TRIES):
            sampler = optuna.samplers.TPESampler(
                seed=torch_seed(seed, "tune", stage, len(history), attempt) % 2**32, n_startup_trials=STARTUP
            )
            study = optuna.create_study(direction="maximize", sampler=sampler)
            study.add_trials([_trial(optuna, space, distributions, *scored) for scored in inside])
            drawn = study.ask(distributions).params
            point = {key: axis.rounded(drawn[key]) for key, axis in space.items()}
            if point not in tried:
                return point
        return None
    finally:
        optuna.logging.set_verbosity(level)


def _distribution(optuna: Any, axis: Axis) -> Any:
    if isinstance(axis, Choices):
        return optuna.distributions.CategoricalDistribution(axis.values)
    kind = optuna.distributions.IntDistribution if axis.is_whole else optuna.distributions.FloatDistribution
    return kind(axis.low, axis.high, log=True)


def _trial(optuna: Any, space: Mapping[str, Axis], distributions: Mapping[str, Any], point: Point, score: float | None) -> Any:
    """A finished trial; one that measured nothing counts as pruned, which the estimator ranks last."""
    state = optuna.trial.TrialState.PRUNED if score is None else optuna.trial.TrialState.COMPLETE
    return optuna.trial.create_trial(state=state, value=score, params={key: point[key] for key in space}, distributions=dict(distributions))
