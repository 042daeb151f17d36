"""One trial: its share of the data, and what it must never look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.errors import ConfigError, FedaccordError
from fedaccord.experiment import Experiment, RunOptions, share_out
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.runtime.sequential import Sequential
from fedaccord.tuning.stages import Stage
from fedaccord.tuning.trial import Interrupted, experiment_of, measure

DIGITS = fa.digits(model="softmax")
SECRET = 2  # the class of every test example, and of no other


def shards(share: float, **options: Any) -> Any:
    experiment = Experiment(partition=fa.DirichletPerClass(alpha=0.3, clients=10), run=RunOptions(train_share=share, **options))
    return share_out(experiment, DIGITS)[0]


def test_a_share_is_a_part_of_each_clients_training_examples() -> None:
    whole, part = shards(1.0, client_validation=0.1), shards(0.1, client_validation=0.1)
    for client in range(10):
        assert set(part.train[client]) < set(whole.train[client])
        assert len(part.train[client]) == pytest.approx(0.1 * len(whole.train[client]), abs=0.51)
        assert np.array_equal(part.held_out[client], whole.held_out[client])
        assert np.array_equal(part.validation[client], whole.validation[client])


def test_a_share_keeps_the_classes_in_proportion() -> None:
    experiment = Experiment(partition=fa.IID(clients=1), run=RunOptions(train_share=0.2))
    labels = DIGITS.labels
    assert labels is not None
    rows = share_out(experiment, DIGITS)[0].train[0]
    counts = np.bincount(labels[rows], minlength=10)
    assert counts.min() >= 17 and counts.max() <= 25  # of about 104 each, a fifth


def test_everyone_keeps_at_least_one_example_and_the_draw_follows_the_seed() -> None:
    assert all(len(shards(0.001).train[client]) == 1 for client in range(10))
    first, again, other = shards(0.1), shards(0.1), shards(0.1, seed=1)
    assert np.array_equal(first.train.indices, again.train.indices) and not np.array_equal(first.train.indices, other.train.indices)


def test_the_seed_draws_other_examples_of_the_same_client() -> None:
    def rows_of(seed: int) -> set[int]:
        experiment = Experiment(partition=fa.IID(clients=1), run=RunOptions(train_share=0.1, client_test=0.0, seed=seed))
        return set(share_out(experiment, DIGITS)[0].train[0])

    assert len(rows_of(0)) == len(rows_of(1)) and len(rows_of(0) & rows_of(1)) < 0.5 * len(rows_of(0))


def test_all_of_the_data_is_exactly_what_a_run_trains_on() -> None:
    assert np.array_equal(
        shards(1.0).train.indices, share_out(Experiment(fa.DirichletPerClass(alpha=0.3, clients=10)), DIGITS)[0].train.indices
    )


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"E203 run.train_share = 0.0 is out of range"):
        from fedaccord.config import check

        check(Experiment(run=RunOptions(train_share=0.0)))


def test_a_trial_changes_what_the_stage_says_and_nothing_else() -> None:
    own = Experiment(run=RunOptions(rounds=50, train_share=0.5, stop_at=0.9, seed=3), runtime=RuntimeOptions(debug=True))
    trial = experiment_of(own, Stage(0.1, 7), {"local.lr": 0.2})
    assert (trial.run.train_share, trial.run.rounds, trial.run.stop_at, trial.run.seed) == (0.05, 7, None, 3)
    assert trial.local.lr == 0.2 and not trial.runtime.debug and trial.partition == own.partition


def secret_task() -> fa.Task:
    """Its loss and its metric raise as soon as they see a test example."""

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        assert not (y == SECRET).any(), "the test set was looked at"
        return F.cross_entropy(outputs, y)

    def share_right(outputs: Tensor, y: Tensor) -> float:
        assert not (y == SECRET).any(), "the test set was looked at"
        return float((outputs.argmax(1) == y).float().mean())

    x, y = torch.randn(80, 4, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 2
    test = (x[:20], torch.full((20,), SECRET))
    model = lambda: nn.Linear(4, 3)  # noqa: E731
    return fa.Task(
        model=model, loss=loss, train=(x, y), validation=(x[:20], y[:20]), test=test, metrics={"right": share_right}, num_classes=3
    )


SECRET_OPTIONS: dict[str, Any] = {"partition": fa.IID(clients=4), "cohort": 2, "rounds": 2}


def test_tuning_never_touches_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedaccordError, match="the test set was looked at"):
        fa.run(secret_task(), fa.FedAvg(), **SECRET_OPTIONS)

    def peeked(*_: Any) -> None:
        raise AssertionError("clients' held-out examples were looked at")

    monkeypatch.setattr(Sequential, "evaluate", peeked)
    for algorithm, search in ((fa.FedAvg(), {"local.lr": [0.1, 0.3]}), (fa.DynamicSAM(warmup_rounds=0), {})):
        tuned = fa.tune(secret_task(), algorithm, search=search, trials=2, stage_rounds=(2, 2, 2), **SECRET_OPTIONS)
        assert tuned.state == "finished" and tuned.metric == "right" and all(each.measured.metric is not None for each in tuned.attempts)


def test_a_trial_stops_after_the_round_in_which_it_is_asked_to() -> None:
    seen: list[int] = []
    with pytest.raises(Interrupted):
        measure(
            Experiment(partition=fa.IID(clients=10)),
            DIGITS,
            Stage(0.05, 9),
            {},
            "accuracy",
            lambda each: seen.append(each.report.round),
            lambda: len(seen) == 2,
        )
    assert seen == [1, 2]


def test_a_trial_in_which_every_upload_is_refused_says_why() -> None:
    experiment = Experiment(partition=fa.IID(clients=10), local=fa.LocalPlan(lr=1e38, batch_size=1))
    found = measure(experiment, DIGITS, Stage(0.1, 2), {}, "accuracy", lambda _: None, lambda: False)
    assert found.reason is not None and found.reason.startswith("2 of 2 rounds changed nothing: E101")
