"""FedBN and SiloBN: what stays with each client, is trained there, and is evaluated with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.state import to_arrays
from fedaccord.core.vector import load_into
from fedaccord.experiment import Experiment, Prepared, RunOptions, prepare

NORM = ("1.weight", "1.bias")  # the parameters of the batch-norm layer
STATISTICS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
PLAN = fa.LocalPlan(lr=0.1, epochs=2, batch_size=7)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def task() -> fa.Task:
    """Client i's inputs lie around i, so the clients need statistics of their own."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(90, 4, generator=generator) + torch.arange(90)[:, None] // 30
    examples = x, (x - x.mean(1, keepdim=True))[:, :3].argmax(1)
    return fa.Task(model=network, loss=F.cross_entropy, train=examples, test=examples)


def prepared(method: fa.Algorithm, local: fa.LocalPlan = PLAN, rounds: int = 2) -> Prepared:
    experiment = Experiment(
        partition=fa.Explicit([list(range(30 * i, 30 * (i + 1))) for i in range(3)]),
        algorithm=method,
        local=local,
        run=RunOptions(rounds=rounds, cohort=fa.Uniform(3), client_test=0.3),
    )
    return prepare(experiment, task())


def states(federation: Prepared) -> list[dict[str, Tensor]]:
    """The buffers that each client keeps."""
    kept = federation.federation.runtime._states  # type: ignore[attr-defined]
    return [kept.load(client).buffers for client in range(3)]


def ran(method: fa.Algorithm, **options: Any) -> tuple[Prepared, Any]:
    found = prepared(method, **options)
    *_, last = found.federation.run(found.start)
    return found, last


def test_batch_norm_parameters_are_no_part_of_the_vector_and_of_no_upload() -> None:
    found = prepared(fa.FedBN())
    layout, runtime = found.model.layout, found.federation.runtime
    assert layout.names == ("0.weight", "0.bias", "3.weight", "3.bias") and found.start.server.w.shape == (24 + 6 + 18 + 3,)
    for answer in runtime.train(fa.FedBN(), found.start.server, found.start.buffers, [0, 1, 2], PLAN, 1, 0.1):
        sent = to_arrays(answer.upload)
        assert answer.buffers == {} and {name: value.shape for name, value in sent.items()} == {"delta": (51,)}
        assert answer.report.bytes_up == 4 * 51


def test_they_are_trained_and_differ_between_clients() -> None:
    found, _ = ran(fa.FedBN())
    own, first = states(found), found.start.buffers
    for name in (*NORM, *STATISTICS[:2]):
        for client in range(3):
            assert not torch.equal(own[client][name], first[name]), f"{name} is trained"
            assert not torch.equal(own[client][name], own[client - 1][name]), f"{name} differs"
    assert [int(each[STATISTICS[2]]) for each in own] == [12] * 3, "two rounds of two epochs of three batches"


def test_a_clients_own_parameters_go_on_from_where_they_were() -> None:
    """After the second round they are not one round's work from the initial ones."""
    one, _ = ran(fa.FedBN(), rounds=1)
    two, _ = ran(fa.FedBN(), rounds=2)
    assert all(not torch.equal(a["1.weight"], b["1.weight"]) for a, b in zip(states(one), states(two), strict=True))


def test_the_clip_does_not_reach_them_and_the_shared_weights_it_does() -> None:
    """One full-batch step: the own parameters move by the whole gradient, however short the clip makes the shared one."""
    free, short = (ran(fa.FedBN(), local=fa.LocalPlan(lr=0.1, epochs=1, batch_size="full", clip_norm=c), rounds=1) for c in (None, 1e-3))
    for a, b in zip(states(free[0]), states(short[0]), strict=True):
        assert all(torch.equal(a[name], b[name]) for name in NORM)
    moves = [float((last.state.server.w - found.start.server.w).norm()) for found, last in (free, short)]
    assert moves[1] <= 1.001e-4 < moves[0]


@pytest.mark.parametrize("method", [fa.FedBN(), fa.SiloBN()], ids=["fedbn", "silobn"])
def test_each_client_is_evaluated_with_its_own(method: fa.Algorithm) -> None:
    found, last = ran(method)
    assert last.report.test is None and last.report.test_reason
    own = states(found)
    losses = []
    for client, evaluation in last.evaluations:
        module = load_into(copy.deepcopy(network()), last.state.server.w, own[client]).eval()
        examples = found.data.examples(found.data.held_out, client)
        assert examples is not None
        with torch.no_grad():
            losses.append(float(F.cross_entropy(module(examples[0]), examples[1])))
        assert evaluation.metrics is not None and evaluation.metrics["loss"] == pytest.approx(losses[-1], rel=1e-5)
    assert len(set(losses)) == 3


def test_silobn_keeps_statistics_alone_and_shares_weights_and_biases() -> None:
    found, last = ran(fa.SiloBN())
    assert set(NORM) <= set(found.model.layout.names) and last.state.server.w.shape == (51 + 12,)
    own = states(found)
    assert all(set(each) == set(STATISTICS) for each in own)
    assert not torch.equal(own[0]["1.running_mean"], own[1]["1.running_mean"])
    for answer in found.federation.runtime.train(fa.SiloBN(), last.state.server, last.state.buffers, [0], PLAN, 3, 0.1):
        assert answer.buffers == {} and answer.upload.delta.shape == (63,)


def test_two_steps_of_the_shared_and_the_own_part_by_hand() -> None:
    """Outputs a b x with the shared a and batch norm's own b (weight), x = (1, -1) normalised to itself but for 1e-5, y = (1, -1).

    Shared a follows batch norm: loss mean (a b x - y)^2 / 2 = (a b - 1)^2 / 2. From a = 0.5, b = 1, lr 1/2:
    da = (a b - 1) b = -0.5: a = 0.75; db = (a b - 1) a = -0.25: b = 1.125.
    Then a b - 1 = -0.15625: a = 0.75 + 0.15625 * 1.125/2 = 0.837890625; b = 1.125 + 0.15625 * 0.75/2 = 1.18359375.
    """
    module = nn.Sequential(nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        module[1].weight.fill_(0.5)
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    half = fa.Task(model=module, loss=lambda outputs, y: (outputs - y).square().mean() / 2, train=(x, x), test=(x, x))
    experiment = Experiment(
        partition=fa.Explicit([[0, 1]]),
        algorithm=fa.FedBN(),
        local=fa.LocalPlan(lr=0.5, epochs=2, batch_size="full"),
        run=RunOptions(rounds=1, cohort=fa.Uniform(1), client_test=0.0),
    )
    found = prepare(experiment, half)
    *_, last = found.federation.run(found.start)
    kept = found.federation.runtime._states.load(0).buffers  # type: ignore[attr-defined]
    assert float(last.state.server.w) == pytest.approx(0.837890625) and float(kept["0.weight"]) == pytest.approx(1.18359375)
    assert float(kept["0.bias"]) == pytest.approx(0.0, abs=1e-12)
