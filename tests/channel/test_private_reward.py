"""private_reward.py: gains as shares of an opened sum, what is remembered, and a run whose policy sees nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedaccord as fa
from fedaccord.aggregation import figures
from fedaccord.aggregation.policy import CohortView, Decision, Memory, Policy
from fedaccord.api import experiment_of
from fedaccord.channel.key_holder import KeyHolder
from fedaccord.channel.private_reward import PrivateReward
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import Aggregation, prepare
from fedaccord.runtime.options import RuntimeOptions

FIVE = range(5)


def new_holder() -> KeyHolder:
    return KeyHolder(bits=2048)


@pytest.fixture
def rewards() -> Iterator[PrivateReward]:
    reward = PrivateReward(new_holder)
    yield reward
    reward.close()


def after(rewards: PrivateReward, metrics: list[dict[int, float]], weights: dict[int, float]) -> tuple[dict[int, float], Any]:
    """What is seen in the last of these rounds, and what is remembered then; the weights are those of every round."""
    seen, told = dict[int, float](), {}
    for t, each in enumerate(metrics, start=1):
        seen, told = rewards.gains(t, each, told)
        told = rewards.weighted(weights, told)
    return seen, told


def test_a_clients_gain_is_its_weights_share_of_the_sum(rewards: PrivateReward) -> None:
    """Changes 0.1, 0, 0, -0.3, 0.5 sum to 0.3; weights 1, 2, 3, 4, 0 of 10."""
    first, second = dict.fromkeys(FIVE, 0.4), {0: 0.5, 1: 0.4, 2: 0.4, 3: 0.1, 4: 0.9}
    seen, told = after(rewards, [first, second], {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    assert seen == pytest.approx({0: 0.03, 1: 0.06, 2: 0.09, 3: 0.12, 4: 0.0}, abs=1e-9)
    assert told["last"] == {"sum": pytest.approx(0.3, abs=1e-9), "count": 5, "reason": None, "detail": ""}


def test_gains_add_up_so_that_differences_are_gains(rewards: PrivateReward) -> None:
    metrics = [dict.fromkeys(FIVE, 0.1 * t) for t in range(4)]
    before, _ = after(rewards, metrics[:3], dict.fromkeys(FIVE, 0.2))
    rewards.close()
    seen, _ = after(rewards, metrics, dict.fromkeys(FIVE, 0.2))
    assert [seen[client] - before[client] for client in FIVE] == pytest.approx([0.1] * 5, abs=1e-9)


def test_who_is_asked_for_the_first_time_stands_at_zero_and_is_in_no_sum(rewards: PrivateReward) -> None:
    seen, told = rewards.gains(1, dict.fromkeys(range(9), 0.7), {})
    assert seen == dict.fromkeys(range(9), 0.0)
    assert (told["last"]["count"], told["last"]["reason"]) == (0, "too_few")


def test_four_who_come_back_learn_nothing_and_the_policy_neither(rewards: PrivateReward) -> None:
    first, second = dict.fromkeys(range(4), 0.4), {0: 0.5, 1: 0.4, 2: 0.4, 3: 0.1, 8: 0.2}
    seen, told = after(rewards, [first, second], dict.fromkeys(range(4), 0.25))
    assert seen == {8: 0.0}
    assert (told["last"]["sum"], told["last"]["reason"]) == (None, "too_few")


def test_a_change_counts_from_the_last_participation(rewards: PrivateReward) -> None:
    """Clients 0 to 4 are away in round 2; then each has gained 0.2."""
    rounds = [dict.fromkeys(FIVE, 0.1), {7: 0.9, 8: 0.9}, dict.fromkeys(FIVE, 0.3)]
    seen, _ = after(rewards, rounds, dict.fromkeys(FIVE, 0.2))
    assert seen == pytest.approx(dict.fromkeys(FIVE, 0.2), abs=1e-9)


def test_the_weight_is_that_of_the_last_participation_also_where_it_counted_for_nothing(rewards: PrivateReward) -> None:
    metrics = [dict.fromkeys(FIVE, 0.1 * t) for t in range(3)]
    _, told = rewards.gains(1, metrics[0], {})
    _, told = rewards.gains(2, metrics[1], rewards.weighted(dict.fromkeys(FIVE, 0.2), told))
    seen, _ = rewards.gains(3, metrics[2], rewards.weighted({0: 0.5, 1: 0.5}, told))
    assert seen == pytest.approx({0: 0.35, 1: 0.35, 2: 0.1, 3: 0.1, 4: 0.1}, abs=1e-9)


def test_where_nobody_had_a_weight_nobody_has_a_share(rewards: PrivateReward) -> None:
    seen, told = after(rewards, [dict.fromkeys(FIVE, 0.1), dict.fromkeys(FIVE, 0.3)], {})
    assert seen == {}
    assert told["last"]["sum"] == pytest.approx(1.0, abs=1e-9)


def test_a_metric_that_is_no_number_is_left_out(rewards: PrivateReward) -> None:
    odd = dict.fromkeys(FIVE, 0.2) | {5: float("nan"), 6: float("inf")}
    seen, told = after(rewards, [odd, odd], dict.fromkeys(range(7), 0.1))
    assert set(seen) == set(FIVE)
    assert told["last"]["count"] == 5


def test_what_is_remembered_survives_json(rewards: PrivateReward) -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    metrics = [dict(enumerate(rng.random(6).tolist())) for _ in range(3)]
    _, told = after(rewards, metrics[:2], dict.fromkeys(range(6), 1 / 6))
    again = json.loads(json.dumps(told, allow_nan=False))
    assert again == told
    one, _ = rewards.gains(3, metrics[2], told)
    rewards.close()
    other, _ = rewards.gains(3, metrics[2], again)
    assert one == other


def test_a_key_holder_that_dies_costs_the_round_its_sum_and_the_next_round_has_another(rewards: PrivateReward) -> None:
    _, told = after(rewards, [dict.fromkeys(FIVE, 0.1)], dict.fromkeys(FIVE, 0.2))
    assert rewards._holder is not None
    rewards._holder.process.kill()
    seen, told = rewards.gains(2, dict.fromkeys(FIVE, 0.2), told)
    assert seen == {}
    assert told["last"]["reason"] == "no_key_holder" and told["last"]["detail"].startswith("E702")
    seen, _ = rewards.gains(3, dict.fromkeys(FIVE, 0.4), rewards.weighted(dict.fromkeys(FIVE, 0.2), told))
    assert seen == pytest.approx(dict.fromkeys(FIVE, 0.2), abs=1e-9)


LOOKED: list[dict[int, float]] = []


@dataclass(frozen=True)
class Looks(Policy):
    """Weighs by size, and writes down what it is shown of clients' metrics."""

    looks_at: ClassVar[tuple[str, ...]] = (figures.ACCURACY,)
    wants_client_metrics: ClassVar[bool] = True

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        LOOKED.append(dict(zip(cohort.clients, cohort.figures[figures.ACCURACY].tolist(), strict=True)))
        return Decision(cohort.counts, memory)


def prepared(aggregation: Aggregation, cohort: int = 6) -> Any:
    x = torch.from_numpy(np.random.Generator(np.random.PCG64(0)).standard_normal((240, 4), dtype=np.float32))
    y = (x[:, 0] > 0).long()
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    task = fa.Task(model=model, loss=nn.functional.cross_entropy, train=(x, y), test=(x, y))
    experiment = experiment_of(
        task,
        fa.FedAvg(),
        partition=fa.IID(clients=8),
        aggregation=aggregation,
        cohort=cohort,
        rounds=3,
        seed=0,
        local=fa.LocalPlan(lr=0.5),
        server_optimizer=None,
        client_test=0.3,
        runtime=RuntimeOptions(name="sequential"),
    )
    return prepare(experiment, task)


def run_of(built: Any) -> tuple[list[Any], list[dict[int, float]]]:
    """The results of three rounds, and what the policy looked at."""
    LOOKED.clear()
    state, results = built.start, []
    try:
        for _ in range(3):
            results.append(built.federation.round(state))
            state = results[-1].state
    finally:
        built.federation.close()
    return results, list(LOOKED)


def test_a_policy_is_shown_shares_and_no_clients_metric() -> None:
    """All of the cohort come back: six shares by weight, which differ by weight alone."""
    clear, metrics = run_of(prepared(Aggregation(Looks()), cohort=8))
    results, looked = run_of(prepared(Aggregation(Looks(), private_reward=True), cohort=8))
    assert all(torch.equal(one.state.server.w, other.state.server.w) for one, other in zip(clear, results, strict=True))
    assert looked[0] == dict.fromkeys(range(8), 0.0)
    for t in (1, 2):
        change = sum(metrics[t][client] - metrics[t - 1][client] for client in range(8))
        weights = {report.client: report.weight for report in results[t - 1].clients}
        gains = {client: looked[t][client] - looked[t - 1][client] for client in range(8)}
        assert gains == pytest.approx({client: change * weights[client] for client in range(8)}, abs=1e-6)
        assert results[t].report.trust["private_reward"] == {
            "sum": pytest.approx(change, abs=1e-6),
            "count": 8,
            "reason": None,
            "detail": "",
        }
    assert any(abs(value) > 0 for value in looked[2].values())


def test_the_run_can_be_taken_up_from_what_is_remembered() -> None:
    """As from a checkpoint: another key holder, the same shares to the bit."""
    built = prepared(Aggregation(Looks(), private_reward=True), cohort=8)
    results, looked = run_of(built)
    trust = results[1].state.trust
    state = results[1].state._replace(trust=trust._replace(facts=json.loads(json.dumps(dict(trust.facts)))))
    LOOKED.clear()
    resumed = built.federation.round(state)
    built.federation.close()
    assert looked[2:] == LOOKED
    assert resumed.state.trust.facts == results[2].state.trust.facts


def test_the_policys_memory_holds_none_of_it() -> None:
    results, _ = run_of(prepared(Aggregation(Looks(), private_reward=True)))
    assert results[-1].state.trust.facts["policy"] == {}


@pytest.mark.parametrize(
    ("aggregation", "cohort", "what"),
    [
        (Aggregation(Looks(), private_reward=True), 4, "a cohort has 4"),
        (Aggregation(private_reward=True), 6, "BySize looks at no client's metric"),
    ],
)
def test_a_private_reward_that_could_not_be_is_an_error_when_the_run_is_built(aggregation: Aggregation, cohort: int, what: str) -> None:
    with pytest.raises(ConfigError, match=f"E208 .*{what}"):
        prepared(aggregation, cohort)


def test_without_the_extra_the_error_comes_when_the_run_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaccord.channel.paillier.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="E209"):
        prepared(Aggregation(Looks(), private_reward=True))
