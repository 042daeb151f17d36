"""federation.py: the round and the run of many, on clients that answer by script."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.aggregation.guard import Guard
from fedaccord.aggregation.policy import BySize, CohortView, Decision, Equal, Memory, Policy
from fedaccord.aggregation.trust import Trust
from fedaccord.algorithms import DynamicSAM, FedAvg, FedDyn
from fedaccord.checks.trial import run_traced
from fedaccord.core.algorithm import Server, Upload
from fedaccord.core.errors import ConfigError, UploadError
from fedaccord.core.local import LocalPlan, upload_template
from fedaccord.core.reports import ClientReport, Evaluation
from fedaccord.core.schedule import Exponential
from fedaccord.core.vector import Layout
from fedaccord.federation import Federation, Target
from fedaccord.runtime.base import ClientUpload
from fedaccord.sampling import Coin, Scripted, Uniform

W = torch.tensor([1.0, -1.0])
Moves = dict[int, tuple[float, float] | None]  # client -> its delta; None: it does not answer


class Clients:
    """Client i answers with its move; sizes are 10, 20, 30, ..."""

    def __init__(self, moves: Moves, change: Callable[[ClientUpload], ClientUpload] = lambda answer: answer) -> None:
        self.moves, self.change = moves, change
        self.settled: list[set[int]] = []
        self.rates: list[float] = []
        self.measured: list[list[int]] = []
        self.calls: list[tuple[str, int]] = []  # in order, with how many clients
        self.population = 5

    def expect(self, clients: Sequence[int]) -> None:
        self.calls.append(("expect", len(clients)))

    def train(
        self, algorithm: Any, sent: Any, buffers: Any, clients: Sequence[int], plan: Any, round: int, lr: float
    ) -> list[ClientUpload]:
        self.rates.append(lr)
        self.calls.append(("train", len(clients)))
        answers = []
        for client in clients:
            move = self.moves.get(client)
            if move is not None:
                report = ClientReport(round, client, 10 * (client + 1), steps=2, gradients=2, loss=float(client), bytes_up=8)
                answers.append(self.change(ClientUpload(client, Upload(torch.tensor(move)), {}, report)))
        return answers

    def settle(self, accepted: Any) -> None:
        self.settled.append(set(accepted))

    def evaluate(self, w: Tensor, buffers: Any, clients: Sequence[int]) -> list[Evaluation]:
        self.measured.append(list(clients))
        self.calls.append(("evaluate", len(clients)))
        return [Evaluation(1, {"accuracy": 1.0}) for _ in clients]

    save = committed = restore = settle


def federation(clients: Clients, **changes: Any) -> Federation:
    layout = Layout.of(nn.Linear(2, 1, bias=False))
    algorithm = changes.pop("algorithm", FedAvg())
    guard = Guard(upload_template(algorithm, W, layout), {}, layout, 1000)
    defaults: dict[str, Any] = {
        "algorithm": algorithm,
        "runtime": clients,
        "trust": Trust(guard, changes.pop("policy", BySize())),
        "plan": LocalPlan(lr=0.1),
        "rounds": 3,
        "seed": 0,
        "evaluate_test": lambda w, buffers: Evaluation(4, {"accuracy": 0.5}),
        "evaluate_validation": lambda w, buffers: Evaluation(0, None, "the task has no validation data"),
        "sampler": Scripted.of([[0, 1]] * 9),
    }
    return Federation(**(defaults | changes))


def one_round(moves: Moves, **changes: Any) -> Any:
    clients = Clients(moves, changes.pop("change", lambda answer: answer))
    built = federation(clients, **changes)
    return built.round(built.start(W, {})), clients


def test_the_model_moves_by_the_mean_weighted_by_sample_counts() -> None:
    """Sizes 10 and 20: (1/3) (3, 0) + (2/3) (0, 3) = (1, 2)."""
    result, _ = one_round({0: (3.0, 0.0), 1: (0.0, 3.0)})
    assert result.state.server.w.tolist() == pytest.approx([2.0, 1.0])
    assert [client.weight for client in result.clients] == pytest.approx([1 / 3, 2 / 3])
    assert result.report.update_norm == pytest.approx(5**0.5)


def test_equal_weights_on_request() -> None:
    result, _ = one_round({0: (3.0, 0.0), 1: (0.0, 3.0)}, policy=Equal())
    assert result.state.server.w.tolist() == pytest.approx([2.5, 0.5])


def test_a_methods_confidence_multiplies_the_policys_weights() -> None:
    """dynamic_sam with trust 1: weights 10 e^0 and 20 e^-ln 2 = 10, so one half each."""

    def change(answer: ClientUpload) -> ClientUpload:
        raw = 0.6931471805599453 if answer.client == 1 else 0.0
        return answer._replace(report=dataclasses.replace(answer.report, signals={"lambda_raw": raw}))

    result, _ = one_round({0: (3.0, 0.0), 1: (0.0, 3.0)}, algorithm=DynamicSAM(trust=1.0), change=change)
    assert [client.weight for client in result.clients] == pytest.approx([0.5, 0.5])


def test_an_absent_client_is_named_and_its_absence_is_no_refusal() -> None:
    result, clients = one_round({0: (3.0, 0.0), 1: None})
    assert (result.report.absent, result.report.accepted, result.report.refused) == ((1,), (0,), ())
    assert clients.settled == [{0}] and not result.report.model_kept


def test_a_client_that_reports_an_error_is_refused_with_it() -> None:
    error = UploadError("E108", "no_data", "the client has no examples to train on", "client 1")

    def change(answer: ClientUpload) -> ClientUpload:
        return answer._replace(upload=(), error=error) if answer.client == 1 else answer

    result, clients = one_round({0: (3.0, 0.0), 1: (0.0, 0.0)}, change=change)
    assert result.report.refused == ({"client": 1, "code": "E108", "reason": "no_data", "message": str(error)},)
    assert clients.settled == [{0}] and result.clients[1].reason == "no_data" and result.clients[1].weight == 0


@pytest.mark.parametrize("moves", [{}, {0: (float("nan"), 0.0), 1: (0.0, float("inf"))}], ids=["nobody answers", "all are refused"])
def test_a_round_without_a_usable_upload_keeps_the_model_and_says_so(moves: Moves) -> None:
    result, clients = one_round(moves)
    assert torch.equal(result.state.server.w, W) and result.state.round == 1
    assert result.report.model_kept and result.report.reason == "no usable upload" and result.report.train_loss is None
    assert result.report.update_norm == 0 and clients.settled == [set()]
    assert result.report.test == {"accuracy": 0.5}, "the old model is still measured"


def test_finite_uploads_whose_sum_is_not_keep_the_model_and_settle_nobody() -> None:
    """(1/3) 3.4e38 + (2/3) 3.4e38 fits, and the model moved by it twice does not."""
    clients = Clients({0: (3.4e38, 0.0), 1: (3.4e38, 0.0)})
    built = federation(clients)
    first = built.round(built.start(W, {}))
    assert torch.isfinite(first.state.server.w).all() and not first.report.model_kept
    second = built.round(first.state)
    assert second.report.model_kept and second.report.reason == "the aggregate is not finite"
    assert torch.equal(second.state.server.w, first.state.server.w) and clients.settled == [{0, 1}, set()]


def test_the_learning_rate_follows_the_schedule_and_a_resumed_run_goes_on_with_it() -> None:
    clients = Clients({0: (1.0, 0.0)})
    built = federation(clients, plan=LocalPlan(lr=0.1, schedule=Exponential(0.5)))
    states = [result.state for result in built.run(built.start(W, {}))]
    assert clients.rates == pytest.approx([0.1, 0.05, 0.025])
    list(built.run(states[1]))
    assert clients.rates[3:] == pytest.approx([0.025])


def test_clients_are_measured_after_the_last_round_and_as_often_as_asked() -> None:
    clients = Clients({0: (1.0, 0.0)})
    built = federation(clients, rounds=5)
    list(built.run(built.start(W, {})))
    assert clients.measured == [[0, 1, 2, 3, 4]]
    often = Clients({0: (1.0, 0.0)})
    built = federation(often, rounds=5, evaluate_clients_every=2)
    results = list(built.run(built.start(W, {})))
    assert len(often.measured) == 3 and [len(result.evaluations) for result in results] == [0, 5, 0, 5, 5]


def test_the_next_cohort_is_announced_before_this_rounds_evaluations() -> None:
    clients = Clients({0: (1.0, 0.0)})
    built = federation(clients, evaluate_clients_every=1, sampler=Scripted.of([[0, 1], [0, 1, 2], [3]]))
    list(built.run(built.start(W, {})))
    round_1, round_2 = [("train", 2), ("expect", 3), ("evaluate", 5)], [("train", 3), ("expect", 1), ("evaluate", 5)]
    assert clients.calls == [*round_1, *round_2, ("train", 1), ("evaluate", 5)]


def test_a_sampler_that_fails_for_the_next_round_does_not_cost_this_one() -> None:
    clients = Clients({0: (1.0, 0.0)})
    built = federation(clients, sampler=Scripted.of([[0, 1]]))
    rounds = built.run(built.start(W, {}))
    assert next(rounds).report.accepted == (0,)
    assert clients.calls == [("train", 2), ("expect", 0)]
    with pytest.raises(ConfigError, match="round 2 has no scripted cohort"):
        next(rounds)


def test_between_evaluations_the_metric_is_null_with_a_reason_and_the_last_round_is_measured() -> None:
    built = federation(Clients({0: (1.0, 0.0)}), rounds=5, evaluate_every=3)
    reports = [result.report for result in built.run(built.start(W, {}))]
    assert [report.test is not None for report in reports] == [False, False, True, False, True]
    assert reports[0].test_reason == "evaluated every 3 rounds"


@pytest.mark.parametrize(
    ("target", "rounds"), [(Target("accuracy", 0.5), 2), (Target("loss", 0.45, falling=True), 3), (Target("auc", 0.1), 5)]
)
def test_the_run_ends_where_the_validation_metric_reaches_the_target(target: Target, rounds: int) -> None:
    values = iter([0.3, 0.5, 0.7, 0.8, 0.9])

    def validation(w: Tensor, buffers: Any) -> Evaluation:
        value = next(values)
        return Evaluation(4, {"accuracy": value, "loss": 1.1 - value})

    clients = Clients({0: (1.0, 0.0)})
    built = federation(clients, rounds=5, evaluate_validation=validation, stop_at=target)
    assert len(list(built.run(built.start(W, {})))) == rounds
    assert clients.measured == [[0, 1, 2, 3, 4]], "the clients are measured in the round that turns out to be the last"


def test_traffic_and_gradients_are_counted_for_all_who_answered() -> None:
    def change(answer: ClientUpload) -> ClientUpload:
        return answer._replace(upload=Upload(torch.full((2,), float("nan")))) if answer.client == 1 else answer

    result, _ = one_round({0: (1.0, 0.0), 1: (1.0, 0.0)}, change=change)
    assert (result.report.gradients, result.report.bytes_up, result.report.bytes_down) == (4, 16, 2 * 8)
    assert result.report.train_loss == 0.0, "of the accepted"


def test_the_server_state_is_never_changed_in_place() -> None:
    built = federation(Clients({0: (1.0, 2.0), 1: (3.0, 4.0)}))
    start = built.start(W.clone(), {})
    built.round(start)
    assert isinstance(start.server, Server) and torch.equal(start.server.w, W)


# Samplers


def test_a_uniform_cohort_has_its_size_no_repeats_and_its_own_stream_each_round() -> None:
    draws = [Uniform(4).draw(t, 10, seed=3) for t in range(1, 40)]
    assert all(len(set(draw)) == 4 and list(draw) == sorted(draw) and set(draw) <= set(range(10)) for draw in draws)
    assert Uniform(4).draw(7, 10, seed=3) == draws[6] and len(set(draws)) > 20
    assert Uniform(10).draw(1, 10, 0) == tuple(range(10))
    with pytest.raises(ConfigError, match="a cohort of 11 out of 10 clients"):
        Uniform(11).draw(1, 10, 0)


def test_every_client_is_asked_equally_often() -> None:
    counts = torch.zeros(10)
    for t in range(2000):
        counts[list(Uniform(3).draw(t, 10, 0))] += 1
    assert float((counts / 2000 - 0.3).abs().max()) < 0.05
    coin = torch.zeros(10)
    for t in range(2000):
        coin[list(Coin(0.3).draw(t, 10, 0))] += 1
    assert float((coin / 2000 - 0.3 / (1 - 0.7**10)).abs().max()) < 0.05


def test_a_coin_gives_cohorts_of_several_sizes_and_asks_nobody_only_where_nobody_can_be() -> None:
    sizes = {len(Coin(0.3).draw(t, 10, 0)) for t in range(200)}
    assert 0 not in sizes and len(sizes) > 4
    assert Coin(0.0).draw(1, 10, 0) == () and Coin(1.0).draw(1, 3, 0) == (0, 1, 2)


def test_a_script_is_followed_and_checked() -> None:
    assert Scripted.of([[3, 1], []]).draw(1, 5, 0) == (1, 3) and Scripted.of([[3, 1], []]).draw(2, 5, 0) == ()
    for cohorts, round, said in (
        ([[1]], 2, "round 2 has no scripted cohort"),
        ([[1, 1]], 1, "names a client twice"),
        ([[5]], 1, "names client 5"),
    ):
        with pytest.raises(ConfigError, match=said):
            Scripted.of(cohorts).draw(round, 5, 0)


def test_the_default_policy_is_by_size() -> None:
    assert federation(Clients({})).trust.policy == BySize()


@dataclasses.dataclass(frozen=True)
class Says(Policy):
    """A policy that gives the weights it was made with, and is never asked about nobody."""

    weights: tuple[float, ...]

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        assert cohort.reports
        return Decision(torch.tensor(self.weights, dtype=torch.float64))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_weight_that_is_no_share_leaves_its_client_out_and_the_others_have_all(odd: float) -> None:
    result, clients = one_round({0: (3.0, 0.0), 1: (0.0, 3.0)}, policy=Says((odd, 2.0)))
    assert [client.weight for client in result.clients] == [0.0, 1.0]
    assert result.report.accepted == (1,) and clients.settled == [{1}]
    assert result.state.server.w.tolist() == [1.0, 2.0]


def test_weights_that_are_all_zero_keep_the_model() -> None:
    result, clients = one_round({0: (3.0, 0.0), 1: (0.0, 3.0)}, policy=Says((0.0, 0.0)))
    assert result.report.model_kept and clients.settled == [set()]
    assert result.state.server.w.tolist() == W.tolist()


def test_a_policy_that_weighs_other_clients_than_there_are_is_named() -> None:
    with pytest.raises(ConfigError, match=r"E215 Says gave weights of shape \(1,\) for 2 clients"):
        one_round({0: (3.0, 0.0), 1: (0.0, 3.0)}, policy=Says((1.0,)))


def test_a_policy_is_not_asked_about_a_round_in_which_nobody_answered() -> None:
    result, _ = one_round({0: None, 1: None}, policy=Says(()))
    assert result.report.model_kept


def test_buffers_become_their_weighted_mean_and_integers_are_rounded() -> None:
    """Sizes 10 and 20: (1/3) 3 + (2/3) 6 = 5, and (1/3) 1 + (2/3) 3 = 7/3."""
    first = {"mean": torch.zeros(1), "count": torch.tensor(0)}
    theirs = {0: {"mean": torch.tensor([3.0]), "count": torch.tensor(1)}, 1: {"mean": torch.tensor([6.0]), "count": torch.tensor(3)}}
    clients = Clients({0: (1.0, 0.0), 1: (1.0, 0.0)}, lambda answer: answer._replace(buffers=theirs[answer.client]))
    layout = Layout.of(nn.Linear(2, 1, bias=False))
    built = federation(clients, trust=Trust(Guard(upload_template(FedAvg(), W, layout), first, layout, 1000)))
    buffers = built.round(built.start(W, first)).state.buffers
    assert buffers["mean"].tolist() == pytest.approx([5.0]) and int(buffers["count"]) == 2


def test_where_clients_keep_their_buffers_the_servers_stay() -> None:
    clients, first = Clients({0: (1.0, 0.0), 1: (1.0, 0.0)}), {"mean": torch.ones(1)}
    built = federation(clients)
    assert built.round(built.start(W, first)).state.buffers is first


def test_a_round_whose_sum_is_not_finite_counts_as_a_round() -> None:
    big = 3e38
    result, _ = one_round({0: (big, 0.0), 1: (big, 0.0)}, policy=Equal(), algorithm=FedDyn())
    assert result.report.model_kept and result.report.reason == "the aggregate is not finite"
    assert result.state.round == 1


def test_reports_speak_of_the_clients_own_move_whatever_the_upload_is() -> None:
    """FedNova uploads the move over its steps; one client alone moves the global model by its own move, so there is no drift."""
    options: dict[str, Any] = {"partition": fa.IID(clients=1), "cohort": 1, "rounds": 2, "local": fa.LocalPlan(epochs=3)}
    run = fa.run(fa.digits(model="softmax"), fa.FedNova(), **options)
    moved = [float((run.weights(t) - run.weights(t - 1)).norm()) for t in (1, 2)]
    assert run.clients["update_norm"].tolist() == pytest.approx(moved, rel=1e-4) and run.clients["drift"].max() < 1e-8


def test_drift_counts_from_where_the_clients_started() -> None:
    """FedGloSS sends a perturbed model: from round 2 on clients start rho away from the server's own."""
    method = fa.FedGloSS(rho=0.5, rho_local=0.0)
    trace = run_traced(method)
    sent = method.broadcast(trace.results[0].state.server)
    assert float((sent.w - trace.results[0].state.server.w).norm()) == pytest.approx(0.5, rel=1e-4)
    for report in trace.results[1].clients:
        ended = sent.w + trace.uploads[1][report.client].delta
        assert report.drift == pytest.approx(float((ended - trace.results[1].state.server.w).square().sum()), rel=1e-4)


def test_a_sample_that_stays_the_same_stands_for_many_clients() -> None:
    clients = Clients({0: (1.0, 0.0)})
    clients.population = 1000
    built = federation(clients, rounds=3, evaluate_clients_every=1, evaluated_clients=5)
    results = list(built.run(built.start(W, {})))
    (measured,) = {tuple(ids) for ids in clients.measured}
    assert len(set(measured)) == 5 and list(measured) == sorted(measured) and measured != tuple(range(5))
    assert [tuple(client for client, _ in result.evaluations) for result in results] == [measured] * 3


def test_everybody_is_measured_where_the_population_is_no_larger_than_asked() -> None:
    clients = Clients({0: (1.0, 0.0)})
    built = federation(clients, rounds=1, evaluated_clients=5)
    list(built.run(built.start(W, {})))
    assert clients.measured == [[0, 1, 2, 3, 4]]
