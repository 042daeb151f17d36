"""`fedaccord.tune`, its journal, and taking a tuning up again."""

from __future__ import annotations

import csv
import inspect
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import fedaccord as fa
from fedaccord.api import experiment_of
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import Aggregation
from fedaccord.federation import RoundResult
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.tuning import Range, Request, Tuned, tune_experiment
from fedaccord.tuning.door import Watcher
from fedaccord.tuning.space import Point
from fedaccord.tuning.stages import Stage

SEARCH = {"local.lr": (0.005, 2.0)}


def test_the_best_step_size_of_a_parabola_is_found(line: fa.Task, options: dict[str, Any]) -> None:
    tuned = fa.tune(line, fa.FedAvg(), search=SEARCH, trials=25, **options)
    assert tuned.metric == "loss" and tuned.passed and tuned.state == "finished"
    assert tuned.local.lr == tuned.values["local.lr"] == pytest.approx(0.5, rel=0.15)
    losses = tuned.stages[-1].attempts
    assert losses[0].measured.metric < 0.01 * losses[-1].measured.metric and losses[-1].origin == "configured"  # type: ignore[operator]
    assert tuned.sources["local.lr"].startswith("tuned in stage 1 (optimiser), was 0.02: validation loss")


def test_of_a_list_the_best_is_taken_and_the_configured_value_competes(line: fa.Task, options: dict[str, Any]) -> None:
    tuned = fa.tune(line, fa.FedAvg(), search={"local.lr": [0.1, 0.5, 0.9]}, **options)
    assert tuned.values == {"local.lr": 0.5} and len(tuned.stages[0].attempts) == 3
    worse = fa.tune(line, fa.FedAvg(), search={"local.lr": [0.001, 0.002]}, **options)
    assert worse.values == {"local.lr": 0.02} and worse.sources == {"local.lr": "kept by tuning"}
    assert worse.stages[-1].verdict == "move local.lr from 0.002 to 0.02"


def test_trials_are_a_frame(line: fa.Task, options: dict[str, Any]) -> None:
    frame = fa.tune(line, fa.FedAvg(), search={"local.lr": [0.1, 0.5]}, **options).trials
    assert isinstance(frame, pd.DataFrame) and frame["stage"].tolist() == [1, 1, 2, 3, 3]
    assert frame["local.lr"].tolist() == [0.1, 0.5, 0.5, 0.5, 0.02] and frame["verdict"].tolist() == ["out", "pass", "pass", "pass", "out"]
    assert frame["examples"].tolist() == [4, 4, 16, 180, 180]  # of 45 each: 1, 4, all
    assert frame["validation_loss"].notna().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search": {}}, "E204 FedAvg has no stages of its own. --set. Name what to move, e.g. --set local.lr=0.01..0.5"),
        ({"search": {"local.rl": (0.1, 1)}}, "E201 unknown key 'rl' of LocalPlan. --set local.rl. Did you mean 'lr'?"),
        ({"trials": 0}, "E203 0 trials. --trials"),
        ({"shares": (0.0, 1.0), "stage_rounds": (1, 1)}, "E203 shares of [0.0, 1.0]. --shares"),
        ({"stage_rounds": (1, 1)}, "E203 rounds of [1, 1]. --rounds. Give 3 numbers"),
        ({"metric": "accuracy"}, "E205 unknown metric 'accuracy'. --metric"),
        ({"resume": True, "folder": "nowhere"}, "E210 no tuning is here"),
    ],
)
def test_what_cannot_be_asked_is_an_error_before_the_first_trial(
    line: fa.Task, options: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        fa.tune(line, fa.FedAvg(), **{"search": SEARCH, **options, **change})
    assert message in str(caught.value)


def test_without_validation_data_nothing_is_tuned(options: dict[str, Any]) -> None:
    x = torch.randn(40, 1)
    blind = fa.Task(model=lambda: torch.nn.Linear(1, 1), loss=F.mse_loss, train=(x, x), test=(x, x))
    with pytest.raises(ConfigError, match="E208 tuning needs validation data, since the test set makes no choices"):
        fa.tune(blind, fa.FedAvg(), search=SEARCH, **options)


def test_a_missing_optuna_is_said_before_the_first_trial(line: fa.Task, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaccord.tuning.proposals.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"E209 optuna is not installed.*fedaccord\[learning\]"):
        fa.tune(line, fa.FedAvg(), search=SEARCH, **options)


def test_tune_takes_what_run_takes_with_the_same_defaults() -> None:
    ours, runs = inspect.signature(fa.tune).parameters, inspect.signature(fa.run).parameters
    own = {"search", "trials", "shares", "stage_rounds", "metric"}
    assert {name: each.default for name, each in ours.items() if name not in own} == {
        name: runs[name].default for name in ours if name not in own
    }


class Counting(Watcher):
    """Counts the trials that are really made, and asks to stop in the middle of one."""

    def __init__(self, until: int = 1000) -> None:
        self.begun: list[Point] = []
        self._until = until

    def begin(self, number: int, stage: Stage, point: Point) -> None:
        self.begun.append(point)

    def round(self, result: RoundResult) -> None: ...

    def asked(self) -> bool:
        return len(self.begun) >= self._until


def tune_line(line: fa.Task, folder: Path | None, watcher: Counting, resume: bool = False, trials: int = 7) -> Tuned:
    experiment = experiment_of(
        line,
        fa.FedAvg(),
        partition=fa.IID(clients=4),
        local=fa.LocalPlan(lr=0.02, epochs=1, batch_size="full"),
        server_optimizer=None,
        aggregation=Aggregation(),
        runtime=RuntimeOptions(),
        cohort=2,
        seed=0,
        rounds=3,
    )
    request = Request({"local.lr": Range(0.005, 2.0)}, trials, rounds=(2, 3, 3))
    return tune_experiment(experiment, line, request, folder=folder, resume=resume, watcher=watcher, should_stop=watcher.asked)


def seen(tuned: Tuned) -> list[tuple[Any, ...]]:
    return [(each.stage, each.number, each.point, each.origin, each.measured, each.verdict, each.why) for each in tuned.attempts]


@pytest.mark.parametrize("until", [1, 6, 9], ids=["in the first trial", "in stage 1", "in stage 2"])
def test_an_interrupted_tuning_goes_on_with_the_same_trials(line: fa.Task, tmp_path: Path, until: int) -> None:
    unbroken = tune_line(line, None, Counting())
    broken = tune_line(line, tmp_path / "a", Counting(until))
    assert broken.state == "interrupted" and not broken.passed and len(broken.attempts) == until - 1
    assert [each[:5] for each in seen(broken)] == [each[:5] for each in seen(unbroken)[: until - 1]]
    with (tmp_path / "a" / "trials.jsonl").open("a") as file:
        file.write('{"stage": 1, "poi')  # killed while it wrote
    counting = Counting()
    resumed = tune_line(line, tmp_path / "a", counting, resume=True)
    assert seen(resumed) == seen(unbroken) and resumed.values == unbroken.values
    assert len(counting.begun) == len(unbroken.attempts) - (until - 1), "no trial is made twice"
    lines = (tmp_path / "a" / "trials.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == len(unbroken.attempts)


def test_an_interruption_leaves_the_best_so_far_and_the_table(line: fa.Task, tmp_path: Path) -> None:
    broken = tune_line(line, tmp_path / "a", Counting(6))
    best = min(broken.attempts, key=lambda each: each.measured.metric or 0)
    assert broken.values == best.point
    with (tmp_path / "a" / "tuning.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["local.lr"]) for row in table] == [each.point["local.lr"] for each in broken.attempts]
    assert {row["verdict"] for row in table} == {"open"}
    nothing = tune_line(line, tmp_path / "b", Counting(1))
    assert nothing.values == {"local.lr": 0.02} and nothing.sources == {}


def test_the_table_holds_every_trial_with_its_verdict(line: fa.Task, tmp_path: Path) -> None:
    tuned = tune_line(line, tmp_path / "a", Counting())
    with (tmp_path / "a" / "tuning.csv").open() as file:
        table = list(csv.DictReader(file))
    columns = {"stage", "share", "rounds", "trial", "origin", "local.lr", "validation_loss", "verdict", "why", "examples", "gradients"}
    assert columns == set(table[0]) and len(table) == len(tuned.attempts)
    assert [row["verdict"] for row in table] == [each.verdict for each in tuned.attempts] and "open" not in {
        row["verdict"] for row in table
    }


def test_another_question_is_not_taken_up(line: fa.Task, tmp_path: Path) -> None:
    tune_line(line, tmp_path / "a", Counting(3))
    with pytest.raises(ConfigError, match="E212 the tuning in this folder was asked something else: request differ"):
        tune_line(line, tmp_path / "a", Counting(), resume=True, trials=9)
    with pytest.raises(ConfigError, match="E211"):
        tune_line(line, tmp_path / "a", Counting())


def test_a_keyboard_interrupt_reaches_whoever_called_from_python(line: fa.Task, options: dict[str, Any], tmp_path: Path) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fedaccord.tuning.door.measure", stop)
        fa.tune(line, fa.FedAvg(), search=SEARCH, folder=tmp_path / "a", **options)
    done = fa.tune(line, fa.FedAvg(), search=SEARCH, trials=None, folder=tmp_path / "a", resume=True, **options)
    assert done.state == "finished"
