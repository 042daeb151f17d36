"""What users of other systems ran into, one test a situation, through the doors that a user has. The docstring starts with the row of the
list of field reports that is meant."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.config import read_settings, runs_of
from fedaccord.core.vector import Layout, buffers_of, load_into, vector_of
from fedaccord.experiment import Experiment, RunOptions, prepare
from fedaccord.federation import RoundResult
from fedaccord.runtime.base import ClientUpload, RuntimeAround

ONE_EPOCH = fa.LocalPlan(lr=0.05, epochs=1, batch_size=16)


class FrozenStem(nn.Module):
    """A small residual network with batch norm whose first block is frozen, as after pre-training."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        )
        self.head = nn.Linear(4, 10)
        self.stem.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.stem(x), 2)
        out: Tensor = self.head(torch.relu(x + self.block(x)).mean((2, 3)))
        return out


@pytest.fixture(scope="module")
def digits() -> fa.Task:
    return fa.digits(model="softmax", validation=0)


@pytest.fixture(scope="module")
def lenet() -> fa.Task:
    return fa.fashion_mnist_mini(model="lenet", width=4, hidden=(16,), validation=0)


@pytest.fixture(scope="module")
def resnet() -> fa.Task:
    return fa.fashion_mnist_mini(model="resnet18", width=4, norm="batch", validation=0)


@pytest.fixture(scope="module")
def frozen(lenet: fa.Task) -> fa.Task:
    return fa.Task(FrozenStem, F.cross_entropy, lenet.train, lenet.test, num_classes=10)


def blocks(*sizes: int) -> fa.Explicit:
    """Clients that hold consecutive rows, as many as said."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return fa.Explicit([list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)])


def run(task: fa.Task, method: fa.Algorithm, partition: Any, **options: Any) -> fa.Run:
    return fa.run(task, method, partition=partition, **({"cohort": 4, "rounds": 2, "local": ONE_EPOCH, "client_test": 0.0} | options))


def tampered(
    task: fa.Task, method: fa.Algorithm, partition: Any, change: Callable[[ClientUpload], ClientUpload], cohorts: Sequence[Sequence[int]]
) -> list[RoundResult]:
    """A run whose answers pass through `change`."""
    options = RunOptions(rounds=len(cohorts), cohort=fa.Scripted.of(cohorts), client_test=0.0)
    prepared = prepare(Experiment(partition=partition, algorithm=method, local=ONE_EPOCH, run=options), task)

    class Changed(RuntimeAround):
        inner = prepared.federation.runtime

        def train(self, *arguments: Any) -> list[ClientUpload]:
            return [change(answer) for answer in self.inner.train(*arguments)]

    federation = dataclasses.replace(prepared.federation, runtime=Changed())
    return list(federation.run(prepared.start))


def with_report(**changes: Any) -> Callable[[ClientUpload], ClientUpload]:
    return lambda answer: answer._replace(report=dataclasses.replace(answer.report, **changes))


def test_all_replies_report_no_examples(digits: fa.Task) -> None:
    """Row 1: the old model is kept, the round says so, and NaN is never broadcast."""
    results = tampered(digits, fa.FedAvg(), fa.IID(clients=3), with_report(num_examples=0), [[0, 1, 2]] * 2)
    for result in results:
        assert result.report.model_kept and result.report.reason == "no usable upload"
        assert [each["reason"] for each in result.report.refused] == ["bad_count"] * 3
        assert torch.equal(result.state.server.w, results[0].state.server.w) and torch.isfinite(result.state.server.w).all()
        assert result.report.test is not None


def test_every_clients_data_are_empty_after_filtering(digits: fa.Task) -> None:
    """Row 2: no training and nothing to measure is no error: the model is kept, the metrics are null with a reason."""
    ended = run(digits, fa.Scaffold(), fa.Explicit([[], [], []]), cohort=3, rounds=3)
    assert ended.rounds["model_kept"].all() and torch.equal(ended.weights(0), ended.weights(3))
    assert (ended.clients["reason"] == "no_data").all() and len(ended.clients) == 9
    assert all(line["metrics"] is None for line in ended.record.clients if line["kind"] == "evaluate")
    assert set(ended.evaluations["reason"]) == {"no held-out examples"}


def test_only_the_evaluation_split_is_empty(digits: fa.Task) -> None:
    """Row 2: training goes on."""
    ended = run(digits, fa.FedAvg(), fa.IID(clients=4), client_test=0.0)
    assert not ended.rounds["model_kept"].any() and set(ended.evaluations["reason"]) == {"no held-out examples"}


def test_a_hundred_dirichlet_clients_of_whom_some_have_no_batch(digits: fa.Task) -> None:
    """Row 3: a client without data is skipped and reported; the others train."""
    partition = fa.DirichletPerClass(alpha=0.05, clients=100)
    sizes = run(digits, fa.FedAvg(), partition, cohort=[[]], rounds=1).record.partition["sizes"]
    empty, full = int(np.argmin(sizes)), int(np.argmax(sizes))
    assert sizes[empty] == 0 and len(sizes) == 100
    ended = run(digits, fa.FedAvg(), partition, cohort=[sorted([empty, full])] * 2)
    assert ended.rounds["accepted"].tolist() == [[full]] * 2 and not ended.rounds["model_kept"].any()
    refused = ended.rounds["refused"][0]
    assert [(each["client"], each["code"], each["reason"]) for each in refused] == [(empty, "E108", "no_data")]


def test_many_classes_many_clients_and_a_tiny_concentration() -> None:
    """Row 5: class totals are conserved and the run works."""
    x, y = torch.randn(600, 4, generator=torch.Generator().manual_seed(0)), torch.arange(600) % 60
    task = fa.Task(lambda: nn.Linear(4, 60), F.cross_entropy, (x, y), (x, y), num_classes=60)
    ended = run(task, fa.FedAvg(), fa.DirichletPerClass(alpha=0.001, clients=150), cohort=20, rounds=1)
    counts = np.array(ended.record.partition["label_counts"])
    assert counts.shape == (150, 60) and (counts.sum(0) == 10).all() and counts.sum() == 600
    assert torch.isfinite(ended.weights()).all()


def test_some_clients_have_no_test_data(digits: fa.Task) -> None:
    """Row 8: their metric is null with a reason, and a mean is over those that have one."""
    ended = run(digits, fa.FedAvg(), blocks(100, 100, 1, 2), client_test=0.2)
    frame = ended.evaluations.set_index("client")
    assert frame["num_examples"].tolist() == [20, 20, 0, 0]
    assert frame["metrics_accuracy"].notna().tolist() == [True, True, False, False]
    assert frame.loc[[2, 3], "reason"].tolist() == ["no held-out examples"] * 2
    assert 0 < frame["metrics_accuracy"].mean() <= 1


def test_a_clients_test_set_holds_one_class() -> None:
    """Row 9: its AUC is null and never NaN; where a client has both classes, both are held out (stratified)."""
    task = fa.breast_cancer(model="softmax", validation=0)
    by_class = [torch.nonzero(task.train.y == c).flatten().tolist() for c in (0, 1)]
    shards = fa.Explicit([by_class[0][:40], by_class[1][:40], by_class[0][40:44] + by_class[1][40:90]])
    ended = run(task, fa.FedAvg(), shards, client_test=0.1, cohort=3)
    lines = [line for line in ended.record.clients if line["kind"] == "evaluate"]
    assert ["auc" in line["metrics"] for line in lines] == [False, False, True]
    assert lines[0]["reason"] == "not defined on these examples: auc" and "NaN" not in json.dumps(ended.record.clients)
    assert 0 <= lines[2]["metrics"]["auc"] <= 1


def test_scaffold_on_a_convolutional_network_starts_as_fedavg(lenet: fa.Task) -> None:
    """Row 10: control variates start at zero, so the first round is FedAvg's to the bit, and nothing becomes NaN."""
    partition = fa.DirichletPerClass(alpha=0.5, clients=20)
    scaffold, fedavg = (run(lenet, method, partition, rounds=3) for method in (fa.Scaffold(), fa.FedAvg()))
    assert torch.equal(scaffold.weights(1), fedavg.weights(1)) and not torch.equal(scaffold.weights(2), fedavg.weights(2))
    assert torch.isfinite(scaffold.weights()).all() and scaffold.rounds["train_loss"].iloc[-1] < scaffold.rounds["train_loss"].iloc[0] + 0.5


def test_scaffold_where_one_client_holds_ten_times_the_data_of_another(lenet: fa.Task) -> None:
    """Row 11: each control variate is over the client's own number of steps, so the loss falls although steps are 13:2 a round."""
    ended = run(lenet, fa.Scaffold(), blocks(200, 20, 200, 20), rounds=6, local=fa.LocalPlan(lr=0.05, epochs=1, batch_size=16))
    steps = ended.clients.groupby("client")["steps"].first().tolist()
    assert steps == [13, 2, 13, 2]
    losses = ended.rounds["train_loss"].tolist()
    assert losses[-1] < losses[0] and torch.isfinite(ended.weights()).all()


@pytest.mark.parametrize("epochs", [1, 4])
def test_a_control_variate_is_divided_by_batches_times_epochs(digits: fa.Task, epochs: int) -> None:
    """Row 12: c_i+ - c_i + c = (x - y_i) / (K_i lr) with K_i = batches x epochs, in later rounds as well."""
    plan = fa.LocalPlan(lr=0.1, epochs=epochs, batch_size=16, schedule=fa.Exponential(0.9))
    options = RunOptions(rounds=3, cohort=fa.Scripted.of([[0, 1]] * 3), client_test=0.0)
    prepared = prepare(Experiment(partition=blocks(60, 20), algorithm=fa.Scaffold(), local=plan, run=options), digits)
    federation, state = prepared.federation, prepared.start
    for t in range(1, 4):
        lr = 0.1 * 0.9 ** (t - 1)
        sent = federation.algorithm.broadcast(state.server)
        for answer in federation.runtime.train(federation.algorithm, sent, state.buffers, (0, 1), plan, t, lr):
            num_steps = (4, 2)[answer.client] * epochs
            assert answer.report.steps == num_steps
            expected = -answer.upload.delta / (num_steps * lr)
            assert torch.allclose(answer.upload.control_delta + sent.control, expected, rtol=1e-4, atol=1e-6)
        state = federation.round(state).state


def test_scaffold_with_batch_norm_counters_and_frozen_layers(frozen: fa.Task) -> None:
    """Row 14: there are control variates for what is trained, and for nothing else."""
    ended = run(frozen, fa.Scaffold(), fa.DirichletPerClass(alpha=0.5, clients=8), rounds=3)
    before, after = frozen.build_model(0).state_dict(), ended.model().state_dict()
    assert ended.final.server.control.shape == ended.weights().shape == (Layout.of(frozen.build_model(0)).size,)
    assert not any(name.startswith("stem") for name in Layout.of(frozen.build_model(0)).names)
    assert torch.equal(before["stem.0.weight"], after["stem.0.weight"]) and not torch.equal(
        before["block.0.weight"], after["block.0.weight"]
    )
    assert after["block.1.num_batches_tracked"].dtype == torch.int64 and torch.isfinite(ended.weights()).all()
    assert len(ended.rounds["refused"].explode().dropna()) == 0


@pytest.mark.parametrize("name", ["lenet", "resnet", "frozen"])
def test_each_layer_gets_its_own_slice_of_the_vector(name: str, request: pytest.FixtureRequest) -> None:
    """Row 15: vector -> tensors -> vector is the identity on models of many tensors, and FedSMOO's perturbation reaches every layer."""
    task = request.getfixturevalue(name)
    module = task.build_model(0)
    w = torch.arange(Layout.of(module).size, dtype=torch.float32)
    assert torch.equal(vector_of(load_into(module, w, buffers_of(module))), w)
    parts = Layout.of(module).unflatten(w)
    assert torch.equal(torch.cat([part.reshape(-1) for part in parts.values()]), w)
    ended = run(task, fa.FedSMOO(rho=0.05), blocks(32, 32), cohort=2, rounds=1)
    pieces = [ended.final.server.s[part] for part in Layout.of(module).slices().values()]
    assert all(piece.any() for piece in pieces) and float(ended.final.server.s.norm()) == pytest.approx(0.05, rel=1e-4)
    if name == "lenet":
        assert not torch.equal(pieces[0].flatten()[:10], pieces[2].flatten()[:10])


def test_a_method_that_does_not_win_is_reported_with_intervals_and_every_setting(digits: fa.Task, tmp_path: Path) -> None:
    """Row 16: FedSMOO against FedAvg: an interval at each figure and at the difference; the record names every setting."""
    options: dict[str, Any] = {"partition": fa.IID(clients=5), "cohort": 2, "rounds": 3, "local": ONE_EPOCH}
    records = [run(digits, method, seed=seed, **options).record for method in (fa.FedAvg(), fa.FedSMOO()) for seed in range(3)]
    fa.write_report(records, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "minus FedAvg" in page and "95%" in page
    used = records[-1].experiment
    assert used["algorithm"] == {"name": "fedsmoo", **{field.name: field.default for field in dataclasses.fields(fa.FedSMOO)}}
    assert used["local"]["schedule"] == {"name": "constant"} and {field.name for field in dataclasses.fields(fa.LocalPlan)} - used[
        "local"
    ].keys() <= {
        "clip_norm",
        "micro_batch",
    }, "what is left out is off"


def test_duals_are_a_mean_over_all_clients_though_one_in_ten_takes_part(digits: fa.Task) -> None:
    """Row 17: one client of ten: w1 - w0 = delta + drift with drift = delta / 10, so drift = (w1 - w0) / 11; active only, it is delta."""
    options: dict[str, Any] = {"cohort": [[4]], "rounds": 1}
    dyn = run(digits, fa.FedDyn(alpha=0.1), fa.IID(clients=10), **options)
    moved = dyn.weights(1) - dyn.weights(0)
    assert torch.allclose(dyn.final.server.drift, moved / 11, rtol=1e-4, atol=1e-7)
    smoo = run(digits, fa.FedSMOO(rho=0.05, beta=10.0), fa.IID(clients=10), **options)
    moved = smoo.weights(1) - smoo.weights(0)
    assert torch.allclose(-10.0 * smoo.final.server.dual, moved / 11, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_feddyn_on_a_residual_network_with_a_hundred_clients(norm: Any) -> None:
    """Row 18: the loss stays finite with batch norm, and group norm and clipping are there to be chosen."""
    task = fa.fashion_mnist_mini(model="resnet18", width=4, norm=norm, validation=0)
    plan = fa.LocalPlan(lr=0.1, epochs=1, batch_size=10, clip_norm=10.0 if norm == "group" else None)
    ended = run(task, fa.FedDyn(alpha=0.1), fa.DirichletPerClass(alpha=0.6, clients=100), cohort=5, rounds=3, local=plan)
    assert ended.rounds["test_loss"].notna().all() and ended.rounds["train_loss"].notna().all()
    assert torch.isfinite(ended.weights()).all() and not ended.rounds["refused"].map(len).any()


@pytest.mark.parametrize("optimizer", [fa.ServerYogi(), fa.ServerAdam()], ids=["yogi", "adam"])
def test_a_server_optimiser_leaves_batch_norm_statistics_alone(frozen: fa.Task, optimizer: Any) -> None:
    """Row 19: buffers are averaged as without it, variances stay positive, and everything is finite beyond the second round."""
    partition = fa.IID(clients=8)
    plain, optimised = (run(frozen, fa.FedAvg(), partition, rounds=1, server_optimizer=o) for o in (None, optimizer))
    assert not torch.equal(plain.weights(), optimised.weights())
    assert all(torch.equal(b, optimised.final.buffers[name]) for name, b in plain.final.buffers.items())
    long = run(frozen, fa.FedAvg(), partition, rounds=4, server_optimizer=optimizer)
    assert torch.isfinite(long.weights()).all() and long.rounds["test_loss"].notna().all()
    assert all((b >= 0).all() for name, b in long.final.buffers.items() if name.endswith("running_var"))


def test_what_happens_to_buffers_is_chosen_and_said(frozen: fa.Task) -> None:
    """Row 20: averaged, FedAvg's global statistics move and integer counters stay integers; local, they are each client's own."""
    averaged, local = (run(frozen, fa.FedAvg(), blocks(64, 32), cohort=2, rounds=1, local_parts=how) for how in ("none", "buffers"))
    start, after = buffers_of(frozen.build_model(0)), averaged.final.buffers
    assert not torch.equal(start["block.1.running_mean"], after["block.1.running_mean"])
    assert after["block.1.num_batches_tracked"].dtype == torch.int64
    assert after["block.1.num_batches_tracked"] == 3, "4 and 2 batches, weighted 2:1: 3.33, rounded"
    assert all(torch.equal(b, local.final.buffers[name]) for name, b in start.items())
    assert averaged.record.experiment["aggregation"]["local_parts"] == "none", "and it is in the records"
    assert local.record.rounds[0]["test"] is None and "buffers are local" in local.record.rounds[0]["test_reason"]


def test_a_residual_networks_state_dict_comes_back_with_its_shapes_and_dtypes(resnet: fa.Task, tmp_path: Path) -> None:
    """Row 21: 0-d integer counters survive training, a checkpoint and a resume."""
    options: dict[str, Any] = {"partition": blocks(32, 32), "cohort": 2, "local": ONE_EPOCH, "client_test": 0.0}
    fa.run(resnet, fa.FedAvg(), folder=tmp_path / "run", rounds=2, **options)
    resumed = fa.run(resnet, fa.FedAvg(), folder=tmp_path / "run", rounds=2, resume=True, **options)
    before, after = resnet.build_model(0).state_dict(), resumed.model().state_dict()
    assert {name: (t.shape, t.dtype) for name, t in before.items()} == {name: (t.shape, t.dtype) for name, t in after.items()}
    counters = [t for name, t in after.items() if name.endswith("num_batches_tracked")]
    assert counters and all(t.shape == () and t == 4 for t in counters)


@pytest.mark.parametrize(("method", "kept", "state"), [("FedSMOO", 2, "disk"), ("FedAvg", 0, "memory")])
def test_memory_does_not_fill_as_more_clients_have_ever_joined(method: str, kept: int, state: str, tmp_path: Path) -> None:
    """Row 25: after 500 clients it is what it was after 100. Duals of 400 clients would be 400 MB; models of clients are never kept."""
    command = [sys.executable, str(Path(__file__).with_name("ever_joined.py")), method, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, where = done.stdout.split()
    weights = 121_330 * 4
    assert where == state and int(grown) < 0.1 * 400 * max(kept, 1) * weights
    on_disk = sum(path.stat().st_size for path in (tmp_path / "run").glob("clients/*"))
    assert 500 * kept * weights <= on_disk <= 1.01 * 500 * kept * weights


def test_a_client_that_says_it_took_no_step_is_refused_loudly(digits: fa.Task) -> None:
    """Row 34: no silent weight of 1.0 for an update without a step."""

    def change(answer: ClientUpload) -> ClientUpload:
        return with_report(steps=0)(answer) if answer.client == 1 and answer.report.round > 1 else answer

    results = tampered(digits, fa.Scaffold(), blocks(300, 30), change, [[0, 1]] * 3)
    assert [result.report.accepted for result in results] == [(0, 1), (0,), (0,)]
    line = results[1].clients[1]
    assert (line.code, line.reason, line.weight) == ("E109", "no_steps", 0.0) and results[1].clients[0].weight == 1.0


def test_figures_per_client_round_and_epoch_are_there_without_user_code(digits: fa.Task) -> None:
    """Row 35."""
    ended = run(digits, fa.FedAvg(), fa.IID(clients=6), rounds=3, local=fa.LocalPlan(epochs=4, batch_size=32), client_test=0.2)
    clients = ended.clients
    assert len(clients) == 12 and clients["epoch_losses"].map(len).eq(4).all() and clients["loss"].notna().all()
    assert all(epochs[-1] < epochs[0] for epochs in clients["epoch_losses"])
    assert ended.evaluations["metrics_accuracy"].notna().all() and len(ended.rounds) == 3


def test_the_mean_over_clients_and_the_mean_over_examples_are_both_shown_and_recomputable(digits: fa.Task, tmp_path: Path) -> None:
    """Row 36: with test sets of 60 and 2 examples the two differ."""
    ended = run(digits, fa.FedAvg(), blocks(300, 10, 10, 10), client_test=0.2)
    scores, sizes = ended.evaluations["metrics_accuracy"], ended.evaluations["num_examples"]
    plain, by_size = float(scores.mean()), float((scores * sizes).sum() / sizes.sum())
    assert abs(plain - by_size) > 1e-3
    ended.report(tmp_path / "report.html")
    shown: list[dict[str, str]] = []
    for path in tmp_path.glob("*.csv"):
        with path.open() as file:
            shown += [row for row in csv.DictReader(file) if row.get("clients_mean")]
    assert shown, "no table of the report holds the mean over clients"
    assert float(shown[0]["clients_mean"]) == pytest.approx(plain, abs=1e-6)
    assert float(shown[0]["clients_mean_by_size"]) == pytest.approx(by_size, abs=1e-6)


def test_the_report_shows_the_partition_and_the_training(digits: fa.Task, tmp_path: Path) -> None:
    """Row 38: non-IID analysis and curves in one file that needs nothing else."""
    page = (
        run(digits, fa.FedAvg(), fa.DirichletPerClass(alpha=0.1, clients=10), client_test=0.2).report(tmp_path / "report.html").read_text()
    )
    assert page.lstrip().lower().startswith("<!doctype html>") and page.count("<svg") >= 3
    assert "DirichletPerClass" in page and 'src="http' not in page and 'href="http' not in page.replace('href="https://arxiv', "")


TOML = """
[task]
name = "digits"
[partition]
name = "dirichlet_per_class"
clients = 10
alpha = 0.3
[algorithm]
name = "fedprox"
mu = 0.1
[run]
rounds = 2
seed = 1
cohort = { name = "uniform", size = 3 }
"""


def test_a_seed_or_a_concentration_that_is_changed_changes_the_run(digits: fa.Task) -> None:
    """Row 39, from Python: every value that can be set is used."""
    partition = fa.DirichletPerClass(alpha=0.3, clients=10)
    base = run(digits, fa.FedAvg(), partition, seed=1)
    assert torch.equal(base.weights(), run(digits, fa.FedAvg(), partition, seed=1).weights())
    assert not torch.equal(base.weights(), run(digits, fa.FedAvg(), partition, seed=2).weights())
    assert (
        base.record.partition["sizes"]
        != run(digits, fa.FedAvg(), fa.DirichletPerClass(alpha=0.4, clients=10), seed=1).record.partition["sizes"]
    )
    with pytest.raises(TypeError, match="sede"):
        run(digits, fa.FedAvg(), partition, sede=2)


def test_an_unknown_key_in_a_file_is_an_error_and_an_override_is_felt(tmp_path: Path) -> None:
    """Row 39, from a file."""
    path = tmp_path / "experiment.toml"
    path.write_text(TOML)
    (plain,) = runs_of(read_settings(path))
    (changed,) = runs_of(read_settings(path, ["run.seed=7", "partition.alpha=0.05"]))
    assert (plain.experiment.run.seed, changed.experiment.run.seed) == (1, 7)
    assert (plain.experiment.partition.alpha, changed.experiment.partition.alpha) == (0.3, 0.05)  # type: ignore[attr-defined]
    path.write_text(TOML.replace("seed = 1", "sede = 1"))
    with pytest.raises(fa.FedaccordError, match=r"E201.*sede.*seed"):
        runs_of(read_settings(path))


def test_the_agent_that_weighs_clients_is_seeded_logged_and_can_be_taken_apart(tmp_path: Path) -> None:
    """Row 40: the training of such agents is never published. Here one seed gives one network, a run's records hold what the policy saw,
    did and earned, and each of its parts can be left out."""
    from fedaccord.learning.learners import Training
    from fedaccord.learning.pretraining import Pretraining, pretrain
    from fedaccord.learning.scenes import Scenes

    plan = Pretraining("residual", Training(minutes=5, episodes=30, rounds=4, batch=32), Scenes(sources=("generated",), rounds=(3, 3)))
    cards = [pretrain(plan, tmp_path / f"{i}.safetensors") for i in range(2)]
    assert cards[0] == cards[1] and (tmp_path / "0.safetensors").read_bytes() == (tmp_path / "1.safetensors").read_bytes()
    weights = str(tmp_path / "0.safetensors")

    def weighed(policy: fa.Policy, **options: Any) -> fa.Run:
        partition, local = fa.DirichletPerClass(alpha=0.3, clients=8), fa.LocalPlan(lr=0.1, epochs=1, batch_size=20)
        return fa.run(fa.digits("softmax"), fa.FedAvg(), policy=policy, partition=partition, cohort=5, rounds=3, local=local, **options)

    run = weighed(fa.Residual(weights=weights))
    line = run.record.clients[0]["judged"]
    assert {"norm", "median_direction", "credit", "feature_norm_ratio", "tilt", "action"} <= line.keys()
    assert all(isinstance(each["loss_policy"], float) and isinstance(each["loss_by_size"], float) for each in run.rounds.trust)
    plain = weighed(fa.BySize())
    assert torch.equal(weighed(fa.Residual(weights="untrained")).weights(), plain.weights()), "without its training"
    assert torch.equal(weighed(fa.Residual(weights=weights), rollout=fa.Rollout("shadow")).weights(), plain.weights()), "without its use"
    assert not torch.equal(run.weights(), plain.weights())
    assert not torch.equal(weighed(fa.Residual(weights=weights, beta=0.1)).weights(), run.weights()), "with less of it"
