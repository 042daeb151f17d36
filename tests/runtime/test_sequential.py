"""sequential.py: clients one after another; what they keep, what they draw, and what is said where a value is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.algorithms import REGISTRY
from fedaccord.core.errors import NonFiniteError, UploadError
from fedaccord.experiment import Aggregation, Experiment, Prepared, RunOptions, prepare
from fedaccord.runtime.options import RuntimeOptions

PLAN = fa.LocalPlan(lr=0.1, epochs=2, batch_size=5)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))


def rows(num: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(num, 4, generator=generator), torch.arange(num) % 3


def prepared(algorithm: fa.Algorithm, model: Any = net, x: Tensor | None = None, folder: Path | None = None, **sections: Any) -> Prepared:
    inputs, labels = rows()
    task = fa.Task(model=model, loss=sections.pop("loss", F.cross_entropy), train=(inputs, labels), test=(inputs, labels))
    if x is not None:  # after the task has looked: values that arise later, in a client's own storage
        task.train.x.copy_(x)
    options = RunOptions(rounds=3, seed=1, cohort=fa.Uniform(4), client_test=sections.pop("client_test", 0.0))
    experiment = Experiment(partition=fa.IID(clients=4), algorithm=algorithm, local=PLAN, run=options, **sections)
    return prepare(experiment, task, state_folder=folder)


def train(made: Prepared, clients: Sequence[int], round: int = 1) -> dict[int, Any]:
    federation = made.federation
    sent = federation.algorithm.broadcast(made.start.server)
    answers = federation.runtime.train(federation.algorithm, sent, made.start.buffers, clients, PLAN, round, PLAN.lr)
    return {answer.client: answer for answer in answers}


def test_dropout_and_random_directions_do_not_depend_on_who_trained_before() -> None:
    made = prepared(fa.DynamicSAM())
    forwards, alone = train(made, [0, 1, 2, 3]), train(made, [2])
    backwards = train(made, [3, 2, 1, 0])
    for other in (alone, backwards):
        for client, answer in other.items():
            assert torch.equal(answer.upload.delta, forwards[client].upload.delta)
    assert not torch.equal(train(made, [2], round=2)[2].upload.delta, alone[2].upload.delta)


def test_each_client_and_each_round_drops_out_anew() -> None:
    """All rows are equal, so that dropout alone can tell two clients, or two rounds, apart."""
    made = prepared(fa.FedAvg(), model=lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), x=torch.ones(40, 4))
    made.data.y.fill_(1)
    first, second = train(made, [0, 1]), train(made, [0], round=2)
    assert not torch.equal(first[0].upload.delta, first[1].upload.delta)
    assert not torch.equal(first[0].upload.delta, second[0].upload.delta)


def test_a_report_says_what_the_client_did() -> None:
    report = train(prepared(fa.Scaffold()), [1])[1].report
    assert (report.num_examples, report.steps, report.gradients, len(report.epoch_losses)) == (10, 4, 4, 2)
    assert report.loss == pytest.approx(sum(report.epoch_losses) / 2)
    d, buffers = 4 * 6 + 6 + 12 + 6 * 3 + 3, 6 * 4 * 2 + 8
    assert report.bytes_up == 2 * d * 4 + buffers


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("buffers", ["none", "buffers"])
def test_state_in_memory_and_on_disk_give_the_same_bits(name: str, buffers: Any, tmp_path: Path) -> None:
    ends = []
    for state in ("memory", "disk"):
        made = prepared(
            REGISTRY[name](),
            folder=tmp_path,
            runtime=RuntimeOptions(state=state),  # type: ignore[arg-type]
            aggregation=Aggregation(local_parts=buffers),
        )
        results = list(made.federation.run(made.start))
        ends.append([(result.state.server.w, result.clients[0].loss) for result in results])
        for client in range(4):
            ends[-1].append(repr(made.federation.runtime._states.load(client)))  # type: ignore[attr-defined]
    for a, b in zip(*ends, strict=True):
        assert a == b if isinstance(a, str) else torch.equal(a[0], b[0]) and a[1] == b[1]


def test_local_buffers_stay_with_the_client_and_are_not_sent() -> None:
    made = prepared(fa.FedAvg(), aggregation=Aggregation(local_parts="buffers"))
    results = list(made.federation.run(made.start))
    states = made.federation.runtime._states  # type: ignore[attr-defined]
    means = [states.load(client)[1]["1.running_mean"] for client in range(4)]
    assert not any(torch.equal(means[0], other) for other in means[1:])
    assert all(states.load(client)[1]["1.num_batches_tracked"] == 3 * 4 for client in range(4)), "from round to round"
    assert torch.equal(results[-1].state.buffers["1.running_mean"], made.start.buffers["1.running_mean"])
    assert results[-1].report.test is None and "local to the clients" in (results[-1].report.test_reason or "")


def test_new_state_does_not_count_before_it_is_settled() -> None:
    made = prepared(fa.Scaffold())
    first = train(made, [0, 1])
    again = train(made, [0, 1])
    assert torch.equal(first[0].upload.control_delta, again[0].upload.control_delta)
    made.federation.runtime.settle({0})
    states = made.federation.runtime._states  # type: ignore[attr-defined]
    assert torch.equal(states.load(0)[0].control, again[0].upload.control_delta) and states.load(1) is None
    made.federation.runtime.settle({1})
    assert states.load(1) is None, "what was not settled in its round is forgotten"


def test_debug_names_the_first_client_round_step_and_tensor_that_is_not_finite() -> None:
    made = prepared(fa.FedAvg(), model=lambda: nn.Linear(4, 3), runtime=RuntimeOptions(debug=True))
    third = made.data.train[2]
    made.data.x[third[3]] = float("nan")
    batches = [y for _, y in made.data.batches(2, 1, PLAN)]
    first = next(i for i, (x, _) in enumerate(made.data.batches(2, 1, PLAN), start=1) if x.isnan().any())
    assert len(batches) == 4
    with pytest.raises(NonFiniteError, match=rf"E113 .* in the direction, first in 'weight'\. client 2, round 1, step {first}\."):
        train(made, [0, 1, 2, 3])


def test_without_debug_the_same_client_is_refused_and_the_round_goes_on() -> None:
    made = prepared(fa.FedAvg(), model=lambda: nn.Linear(4, 3))
    made.data.x[made.data.train[2][3]] = float("nan")
    report = made.federation.round(made.start).report
    assert report.accepted == (0, 1, 3) and [each["client"] for each in report.refused] == [2]


def failing(outputs: Tensor, y: Tensor) -> Tensor:
    if outputs.requires_grad and (y == 0).sum() > 2:
        raise RuntimeError("the loss does not like this batch")
    return F.cross_entropy(outputs, y)


def test_a_client_whose_training_raises_is_refused_with_what_it_said() -> None:
    made = prepared(fa.Scaffold(), loss=failing)
    report = made.federation.round(made.start).report
    assert report.refused and report.accepted
    assert all(each["code"] == "E107" and "the loss does not like this batch" in each["message"] for each in report.refused)


def test_in_debug_what_a_client_raised_ends_the_run_with_its_cause() -> None:
    made = prepared(fa.FedAvg(), loss=failing, runtime=RuntimeOptions(debug=True))
    with pytest.raises(UploadError, match="E107") as caught:
        made.federation.round(made.start)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_evaluation_follows_the_order_asked_and_says_where_there_is_nothing_to_measure() -> None:
    made = prepared(fa.FedAvg(), client_test=0.2)
    runtime, w, buffers = made.federation.runtime, made.start.server.w, made.start.buffers
    forwards, backwards = runtime.evaluate(w, buffers, [0, 1, 2]), runtime.evaluate(w, buffers, [2, 1, 0])
    assert forwards == backwards[::-1] and all(each.num_examples == 2 for each in forwards)
    none = prepared(fa.FedAvg())
    (empty,) = none.federation.runtime.evaluate(w, buffers, [0])
    assert empty.metrics is None and empty.reason == "no held-out examples"
