"""api.py: what `fedaccord.run` takes, gives back, and refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.errors import ConfigError, DataError, NonFiniteError, PartitionError


def rows(num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 5, generator=generator)
    return x, x[:, :3].argmax(1)


@pytest.fixture(scope="module")
def task() -> fa.Task:
    return fa.Task(model=lambda: nn.Linear(5, 3), loss=F.cross_entropy, train=rows(90), test=rows(30, 1), validation=rows(30, 2))


OPTIONS: dict[str, Any] = {"partition": fa.IID(clients=6), "cohort": 3, "rounds": 4, "local": fa.LocalPlan(epochs=1, batch_size=10)}


@pytest.fixture(scope="module")
def run(task: fa.Task) -> fa.Run:
    return fa.run(task, fa.DynamicSAM(), client_validation=0.1, **OPTIONS)


def test_a_run_learns(task: fa.Task) -> None:
    run = fa.run(task, fa.FedAvg(), **(OPTIONS | {"rounds": 15, "local": fa.LocalPlan(lr=0.3, epochs=5, batch_size=10)}))
    assert run.rounds["test_accuracy"].iloc[-1] > 0.85 and run.rounds["test_loss"].iloc[-1] < 0.5 < run.rounds["test_loss"].iloc[0]


def test_rounds_are_a_frame_with_a_row_a_round(run: fa.Run) -> None:
    frame = run.rounds
    assert isinstance(frame, pd.DataFrame) and frame["round"].tolist() == [1, 2, 3, 4]
    assert {"test_accuracy", "test_loss", "validation_accuracy", "train_loss", "drift", "pairwise_cosine", "gradients", "bytes_up"} <= set(
        frame
    )
    assert all(len(cohort) == 3 for cohort in frame["cohort"])


def test_clients_are_a_frame_with_the_methods_signals(run: fa.Run) -> None:
    frame = run.clients
    assert len(frame) == 12 and {"signals_gamma", "signals_lambda", "weight", "epoch_losses", "update_norm", "cosine"} <= set(frame)
    assert frame.groupby("round")["weight"].sum().tolist() == pytest.approx([1.0] * 4)


def test_evaluations_are_a_frame_with_a_row_a_client(run: fa.Run) -> None:
    frame = run.evaluations
    assert frame["client"].tolist() == list(range(6)) and (frame["round"] == 4).all() and frame["metrics_accuracy"].between(0, 1).all()


def test_the_weights_of_any_round_and_a_module_with_them(run: fa.Run, task: fa.Task) -> None:
    assert not torch.equal(run.weights(0), run.weights(1)) and torch.equal(run.weights(), run.weights(4))
    model = run.model(2)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in model.parameters()]), run.weights(2)) and not model.training
    accuracy = float((run.model()(task.test.x).argmax(1) == task.test.y).double().mean())
    assert accuracy == pytest.approx(run.rounds["test_accuracy"].iloc[-1])
    run.weights(1).zero_()
    assert run.weights(1).any(), "a copy"
    with pytest.raises(ConfigError, match="E210"):
        run.weights(9)


def test_without_keep_weights_the_last_ones_are_there_and_the_others_are_asked_for_in_vain(task: fa.Task) -> None:
    run = fa.run(task, fa.FedAvg(), keep_weights=False, **OPTIONS)
    assert run.weights().shape == (18,)
    with pytest.raises(ConfigError, match="keep_weights=True"):
        run.weights(2)


def test_given_initial_weights_as_vector_state_dict_or_module_are_where_it_starts(task: fa.Task) -> None:
    module = nn.Linear(5, 3)
    vector = torch.cat([module.weight.detach().reshape(-1), module.bias.detach()])
    for initial in (vector, vector.numpy(), module, module.state_dict()):
        assert torch.equal(fa.run(task, fa.FedAvg(), initial=initial, **(OPTIONS | {"rounds": 1})).weights(0), vector)
    for bad, said in ((vector[:-1], "17 numbers, the model has 18"), (vector * float("nan"), "NaN or Inf")):
        with pytest.raises(ConfigError, match=said):
            fa.run(task, fa.FedAvg(), initial=bad, **OPTIONS)
    with pytest.raises(DataError, match="'weight'"):
        fa.run(task, fa.FedAvg(), initial=nn.Linear(4, 3), **OPTIONS)


@pytest.mark.parametrize(
    ("cohort", "expected"),
    [(2, {2}), (np.int64(2), {2}), (0.5, None), ([[0], [1, 2], [3, 4, 5], [0, 1]], {1, 2, 3}), (fa.Coin(1.0), {6})],
    ids=["number", "numpy", "share", "script", "sampler"],
)
def test_a_cohort_is_a_number_a_share_a_script_or_a_sampler(task: fa.Task, cohort: Any, expected: set[int] | None) -> None:
    sizes = {len(each) for each in fa.run(task, fa.FedAvg(), **(OPTIONS | {"cohort": cohort})).rounds["cohort"]}
    assert sizes == expected if expected else sizes <= {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"cohort": True}, "E202", "cohort"),
        ({"cohort": "all"}, "E202", "cohort"),
        ({"cohort": 7}, "E203", "7 out of 6"),
        ({"rounds": 0}, "E203", "rounds"),
        ({"client_test": 1.5}, "E203", "client_test"),
        ({"local_parts": "mean"}, "E20", "local_parts"),
        ({"state": "disk"}, "E20", "state"),
        ({"state": "disk"}, "E208", "folder"),
        ({"local": fa.LocalPlan(lr=-1.0)}, "E203", "lr"),
        ({"partition": "iid"}, "E202", "partition"),
        ({"policy": fa.Equal}, "E202", "policy"),
        ({"stop_at": 0.5, "stop_metric": "auc"}, "E20", "auc"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_argument_is_named(task: fa.Task, options: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{code}.*{said}"):
        fa.run(task, fa.Scaffold(), **(OPTIONS | options))


def test_a_hyper_parameter_out_of_range_is_named(task: fa.Task) -> None:
    with pytest.raises(ConfigError, match=r"E203 algorithm\.mu"):
        fa.run(task, fa.FedProx(mu=-1.0), **OPTIONS)
    with pytest.raises(ConfigError, match="E202"):
        fa.run(task, fa.FedProx, **OPTIONS)  # type: ignore[arg-type]


def test_more_clients_than_examples_is_an_error_before_anything_runs(task: fa.Task) -> None:
    with pytest.raises(PartitionError, match="E312"):
        fa.run(task, fa.FedAvg(), **(OPTIONS | {"partition": fa.IID(clients=91)}))


def test_stopping_early_needs_validation_data_and_uses_them(task: fa.Task) -> None:
    run = fa.run(task, fa.FedAvg(), stop_at=0.6, **(OPTIONS | {"rounds": 50}))
    values = run.rounds["validation_accuracy"]
    assert len(run.rounds) < 50 and values.iloc[-1] >= 0.6 and (values.iloc[:-1] < 0.6).all()
    blind = fa.Task(model=lambda: nn.Linear(5, 3), loss=F.cross_entropy, train=rows(90), test=rows(30, 1))
    with pytest.raises(ConfigError, match="E208 stopping early needs validation data"):
        fa.run(blind, fa.FedAvg(), stop_at=0.6, **OPTIONS)


def test_the_record_is_plain_data_with_every_default_written_out(run: fa.Run) -> None:
    assert json.loads(json.dumps(run.record.experiment, allow_nan=False)) == run.record.experiment
    assert run.record.experiment["algorithm"]["name"] == "dynamic_sam" and run.record.experiment["algorithm"]["kappa"] == 0.1
    assert run.record.experiment["run"]["seed"] == 0 and run.record.experiment["run"]["rounds"] == 4
    assert run.record.status == {"state": "finished", "round": 4, "rounds": 4, "error": None}
    assert sum(run.record.partition["sizes"]) == 90 and run.record.provenance["seed"] == 0
    assert json.loads(json.dumps(run.record.rounds, allow_nan=False)) == run.record.rounds


def test_telemetry_hears_of_every_round(task: fa.Task) -> None:
    heard: list[Any] = []

    class Ear:
        def emit(self, event: Any) -> None:
            heard.append(event)

    fa.run(task, fa.FedAvg(), telemetry=[Ear()], **OPTIONS)
    assert [event.kind for event in heard] == ["run_started", *["round_finished"] * 4, "run_finished"]
    assert heard[1].data["round"] == 1 and heard[-1].data["state"] == "finished"


def test_in_debug_the_first_non_finite_step_ends_the_run_by_name(task: fa.Task) -> None:
    explosive = fa.LocalPlan(lr=3e38, epochs=3, batch_size=10)
    with pytest.raises(NonFiniteError, match=r"E113 .* client \d, round 1, step \d"):
        fa.run(task, fa.FedAvg(), debug=True, **(OPTIONS | {"local": explosive}))
    run = fa.run(task, fa.FedAvg(), **(OPTIONS | {"local": explosive}))
    assert len(run.rounds) == 4 and torch.isfinite(run.weights()).all()


def test_a_server_optimiser_and_the_number_of_threads(task: fa.Task) -> None:
    plain, momentum = (fa.run(task, fa.FedAvg(), server_optimizer=o, **OPTIONS) for o in (None, fa.ServerSgd(momentum=0.9)))
    assert torch.equal(plain.weights(1), momentum.weights(1)) and not torch.equal(plain.weights(2), momentum.weights(2))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fa.run(task, fa.FedAvg(), **OPTIONS)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_method_of_ones_own_needs_no_registry(task: fa.Task) -> None:
    class SignAverage(fa.Algorithm):
        def direction(self, grad: Any, w: Tensor, sent: Any, local: Any) -> Any:
            return grad(w).sign(), local

    run = fa.run(task, SignAverage(), **OPTIONS)
    assert run.record.experiment["algorithm"]["name"].endswith("SignAverage") and len(run.rounds) == 4


def test_every_name_the_package_lends_exists() -> None:
    names = dir(fa)
    assert {"run", "Task", "FedSMOO", "DirichletPerClass", "LocalPlan", "Algorithm"} <= set(names)
    assert all(getattr(fa, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'FedMagic'"):
        _ = fa.FedMagic
