"""sampling/favor.py: the double DQN's targets by hand, whose slot is whose, whatever clients send, and runs that are resumed."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedaccord as fa
from fedaccord.core.arrays import load_arrays, save_arrays
from fedaccord.core.errors import ConfigError
from fedaccord.sampling import Experience, Learner, SamplerState
from fedaccord.sampling.favor import FARTHEST, VECTORS, double_dqn_targets, earlier, network

OPTIONS: dict[str, Any] = {
    "partition": fa.DirichletPerClass(alpha=0.3, clients=8),
    "rounds": 7,
    "local": fa.LocalPlan(lr=0.1, epochs=1, batch_size=20),
    "runtime": "sequential",
}
SMALL = fa.Favor(size=3, components=4, hidden=16, memory=10, batch=4)


def linear(name: str, rows: list[list[float]]) -> dict[str, Tensor]:
    """A network whose hidden layer copies two positive inputs, so that Q(s, a) is a row's product with s."""
    eye, out = torch.eye(2, dtype=torch.float64), torch.tensor(rows, dtype=torch.float64)
    return {
        f"{name}.0.weight": eye,
        f"{name}.0.bias": torch.zeros(2).double(),
        f"{name}.1.weight": out,
        f"{name}.1.bias": torch.zeros(len(rows)).double(),
    }


def test_one_network_chooses_and_the_other_judges() -> None:
    """s' = (1, 2): Q says 1, 4, 3, so client 1 is best; Q' judges it 0.5, although it has a larger value elsewhere."""
    vectors = linear("q", [[1, 0], [0, 2], [1, 1]]) | linear("target", [[9, 0], [0.1, 0.2], [5, 5]])
    after = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    assert network(vectors, "q", after, 3).tolist() == [[1.0, 4.0, 3.0]]
    assert double_dqn_targets(vectors, after, torch.tensor([-0.25]).double(), 0.9, 3).tolist() == pytest.approx([-0.25 + 0.9 * 0.5])


def seen(t: int, deltas: dict[int, list[float]], accuracy: float | None = 0.5, cohort: tuple[int, ...] | None = None) -> Experience:
    """Of four clients and a model of six numbers; asked were those who answered, unless a cohort is named."""
    moved = {client: torch.tensor(delta) for client, delta in deltas.items()}
    metrics = None if accuracy is None else {"accuracy": accuracy}
    return Experience(t, 4, tuple(deltas) if cohort is None else cohort, torch.zeros(6), moved, torch.full((6,), 0.1), metrics)


ROUND_ONE = {i: [float(i == j) + 0.1 * i for j in range(6)] for i in range(4)}


def test_the_basis_is_fitted_once_and_the_global_model_is_no_client() -> None:
    """A replica writes client i into slot i, although slot 0 is the global model's. Here the state is the global model, then clients."""
    first = SMALL.learned(SamplerState(), seen(1, ROUND_ONE), 0)
    basis, mean = first.vectors["basis"], first.vectors["mean"]
    assert basis.shape == (4, 6) and torch.allclose(basis @ basis.T, torch.eye(4).double(), atol=1e-9)
    assert torch.allclose(first.vectors["clients"][2], basis @ (torch.tensor(ROUND_ONE[2]).double() - mean))
    assert torch.allclose(first.vectors["global"], basis @ (torch.full((6,), 0.1).double() - mean), atol=1e-7)
    second = SMALL.learned(first, seen(2, {1: [9.0] * 6}), 0)
    assert torch.equal(second.vectors["basis"], basis)
    moved = [not torch.equal(second.vectors["clients"][i], first.vectors["clients"][i]) for i in range(4)]
    assert moved == [False, True, False, False], "clients that were not asked stay where they were seen last"
    before = torch.cat([first.vectors["global"], first.vectors["clients"].flatten()])
    assert torch.equal(second.vectors["memory.before"][0], before.float()) and int(second.vectors["memory.action"][0]) == 1


def test_the_reward_is_on_validation_accuracy_and_without_one_nothing_is_learned() -> None:
    first = SMALL.learned(SamplerState(), seen(1, ROUND_ONE), 0)
    second = SMALL.learned(first, seen(2, {0: [1.0] * 6, 3: [2.0] * 6}, accuracy=0.4), 0)
    assert second.vectors["memory.reward"][:2].tolist() == pytest.approx([64.0 ** (0.4 - 0.9) - 1] * 2) and second.facts["held"] == 2
    assert not torch.equal(second.vectors["q.0.weight"], first.vectors["q.0.weight"])
    assert torch.equal(second.vectors["target.0.weight"], first.vectors["target.0.weight"]), "copied every ten rounds"
    blind = SMALL.learned(first, seen(2, {0: [1.0] * 6}, accuracy=None), 0)
    assert blind.facts["held"] == 0 and torch.equal(blind.vectors["q.0.weight"], first.vectors["q.0.weight"])
    assert blind.vectors["clients"][0].tolist() != first.vectors["clients"][0].tolist(), "where everybody stands is known without one"
    assert SMALL.learned(first, seen(2, {0: [1.0] * 6}, accuracy=math.nan), 0).facts == blind.facts, "no number is no reward"
    nobody = SMALL.learned(first, seen(2, {}), 0)
    assert nobody.facts["held"] == 0 and torch.equal(nobody.vectors["q.0.weight"], first.vectors["q.0.weight"])


def test_the_networks_are_taught_what_the_targets_say() -> None:
    """One transition, discount 0: Q(s, a) goes to the reward 64^(0.65 - 0.9) - 1 = -0.6464 for the client that was asked, by hand."""
    favor = fa.Favor(size=1, components=3, hidden=32, epsilon=0.0, memory=1, batch=8, steps=400, gamma=0.0)
    first = favor.learned(SamplerState(), seen(1, ROUND_ONE), 0)
    state = favor.learned(first, seen(2, {2: ROUND_ONE[2]}, accuracy=0.65), 0)
    before = torch.cat([first.vectors["global"], first.vectors["clients"].flatten()])
    assert float(network(state.vectors, "q", before, 4)[2]) == pytest.approx(-0.6464, abs=1e-3)


def test_a_step_of_learning_is_that_of_torch() -> None:
    """One step on a memory of one transition, against autograd on Huber's loss and torch's own Adam, from the target written out."""
    favor = fa.Favor(size=1, components=3, hidden=5, memory=1, batch=2, steps=1, gamma=0.5, target=0.75, lr=0.01)
    first = favor.learned(SamplerState(), seen(1, ROUND_ONE), 3)
    second = favor.learned(first, seen(2, {1: [0.3] * 6}, accuracy=0.25), 3)
    before = torch.cat([first.vectors["global"], first.vectors["clients"].flatten()]).float().double()
    after = torch.cat([second.vectors["global"], second.vectors["clients"].flatten()]).float().double()
    layers = torch.nn.Sequential(torch.nn.Linear(15, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4)).double()
    layers.load_state_dict(
        {f"{place}.{part}": first.vectors[f"q.{i}.{part}"] for place, i in ((0, 0), (2, 1)) for part in ("weight", "bias")}
    )
    target = (
        64.0**-0.5 - 1 + 0.5 * float(layers(after).detach().max())
    )  # both networks are still the same, so the largest is judged by itself
    loss = torch.nn.functional.smooth_l1_loss(layers(before)[1], torch.tensor(target).double())
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
    loss.backward()
    optimizer.step()
    for place, i in ((0, 0), (2, 1)):
        assert torch.allclose(second.vectors[f"q.{i}.weight"], layers[place].weight, atol=1e-12)
        assert torch.allclose(second.vectors[f"q.{i}.bias"], layers[place].bias, atol=1e-12)


def test_who_does_not_answer_is_credited_too_and_a_favourite_that_never_does_is_given_up() -> None:
    """Without that no transition would ever tell that to ask this client is no use, and the greedy choice would be the same for ever."""
    favor = fa.Favor(mode="one", components=3, hidden=16, memory=50, batch=16, epsilon=0.0, gamma=0.0)
    state = favor.learned(SamplerState(), seen(1, ROUND_ONE), 0)
    (favourite,) = favor.choose(2, 4, 0, state)
    silent = favor.learned(state, seen(2, {}, 0.2, cohort=(favourite,)), 0)
    assert silent.facts["held"] == 1 and int(silent.vectors["memory.action"][0]) == favourite
    asked = set()
    for t in range(2, 60):
        (client,) = favor.choose(t, 4, 0, state)
        asked.add(client)
        state = favor.learned(state, seen(t, {} if client == favourite else {client: ROUND_ONE[client]}, 0.2, cohort=(client,)), 0)
    assert len(asked) > 1


def test_who_is_kept_out_makes_room_for_the_next_best() -> None:
    favor = fa.Favor(size=2, components=3, hidden=8, epsilon=0.0)
    state = favor.learned(SamplerState(), seen(1, ROUND_ONE), 0)
    order = favor.scores(4, state)["q_value"].argsort(descending=True).tolist()
    assert favor.choose(2, 4, 0, state) == tuple(sorted(order[:2]))
    assert favor.choose(2, 4, 0, state, kept_out=(order[0],)) == tuple(sorted(order[1:3]))
    assert favor.choose(2, 4, 0, state, kept_out=(0, 1, 2)) == (3,) and favor.choose(2, 4, 0, state, kept_out=range(4)) == ()
    assert favor.choose(2, 4, 0, SamplerState(), kept_out=(2,)) == (0, 1, 3), "round 1 came to nothing: everybody is asked again"


def test_exploration_draws_each_client_alike_and_only_so_often_as_asked() -> None:
    """One of four, epsilon 0.4: the best has 0.6 + 0.4 / 4 of the rounds, each other one 0.1. Bounds of five standard errors."""
    favor = fa.Favor(mode="one", components=3, hidden=8, epsilon=0.4)
    state = favor.learned(SamplerState(), seen(1, ROUND_ONE), 0)
    best, rounds = int(favor.scores(4, state)["q_value"].argmax()), 2000
    drawn = [favor.choose(t, 4, 0, state)[0] for t in range(rounds)]
    for client in range(4):
        share = 0.7 if client == best else 0.1
        assert drawn.count(client) / rounds == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / rounds))
    assert drawn == [favor.choose(t, 4, 0, state)[0] for t in range(rounds)]
    assert drawn != [favor.choose(t, 4, 1, state)[0] for t in range(rounds)], "the seed decides"


EXTREME = st.sampled_from([0.0, 1e-38, 1.0, -1.0, 1e19, -1e30, 3.4e38, -3.4e38])
ROUND = st.tuples(
    st.dictionaries(st.integers(0, 3), st.lists(EXTREME, min_size=6, max_size=6), max_size=4),
    st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf, 1e9, -1e9, 0.5])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROUND, min_size=3, max_size=6), st.sampled_from([0.0, 3e38]))
def test_whatever_uploads_hold_it_stays_finite_and_goes_on(rounds: list[Any], weight: float) -> None:
    """A model and a change that are finite in float32 may have a sum that is not."""
    state = SamplerState()
    for t, (deltas, accuracy) in enumerate(rounds, start=1):
        cohort = SMALL.choose(t, 4, 0, state)
        state = SMALL.learned(state, seen(t, deltas, accuracy, cohort)._replace(w=torch.full((6,), weight)), 0)
        assert all(bool(vector.isfinite().all()) for vector in state.vectors.values())
        assert json.loads(json.dumps(dict(state.facts), allow_nan=False)) == state.facts
    if state.vectors:
        assert float(state.vectors["clients"].abs().max()) <= FARTHEST and len(SMALL.choose(9, 4, 0, state)) == 3


def test_the_target_follows_every_tenth_round_and_the_memory_is_a_ring() -> None:
    state = SMALL.learned(SamplerState(), seen(1, ROUND_ONE), 0)
    for t in range(2, 16):
        state = SMALL.learned(state, seen(t, {t % 4: [0.1 * t] * 6}), 0)
        same = torch.equal(state.vectors["q.1.weight"], state.vectors["target.1.weight"])
        assert same == (state.facts["rounds"] % 10 == 0)
    assert state.facts["held"] == 10 and state.facts["next"] == 4


def test_what_earns_more_is_chosen() -> None:
    """Whenever client 2 takes part the model is good: after some rounds it is in every cohort that is not drawn at random."""
    favor = fa.Favor(size=1, components=3, hidden=32, epsilon=0.0, memory=100, batch=32, steps=20, lr=3e-3, gamma=0.0)
    state = favor.learned(SamplerState(), seen(1, ROUND_ONE), 0)
    for t in range(2, 42):
        client = t % 4
        state = favor.learned(state, seen(t, {client: ROUND_ONE[client]}, accuracy=0.9 if client == 2 else 0.2), 0)
    assert favor.choose(50, 4, 0, state) == (2,)


def test_cohorts_are_of_the_asked_size_and_the_first_round_asks_everybody() -> None:
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=SMALL, **OPTIONS)
    assert [len(cohort) for cohort in run.rounds.cohort] == [8, *[3] * 6] and all(len(set(c)) == len(c) for c in run.rounds.cohort)
    one = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=fa.Favor(mode="one", components=4, hidden=8), **OPTIONS)
    assert [len(cohort) for cohort in one.rounds.cohort] == [8, *[1] * 6]
    again = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=SMALL, **OPTIONS)
    assert again.rounds.cohort.tolist() == run.rounds.cohort.tolist()
    other = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=SMALL, seed=1, **OPTIONS)
    assert other.rounds.cohort.tolist() != run.rounds.cohort.tolist()


class Watching:
    """A sampler that learns nothing and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Experience] = []

    def draw(self, round: int, population: int, seed: int, history: Any = None) -> tuple[int, ...]:
        return (0, 2, 5)

    def choose(self, round: int, population: int, seed: int, state: SamplerState, kept_out: Any = ()) -> tuple[int, ...]:
        return (1, 4)

    def learned(self, state: SamplerState, seen: Experience, seed: int) -> SamplerState:
        self.told.append(seen)
        return state

    def scores(self, population: int, state: SamplerState) -> dict[str, Tensor]:
        return {}


def test_a_sampler_that_learns_is_told_what_the_round_was() -> None:
    """Client 4 is asked, and refused for its sample count: it is in the cohort, and its change is nobody's to look at."""
    watching, attack = Watching(), fa.InflatedCounts(clients=(4,), factor=1e6)
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=watching, attack=attack, **{**OPTIONS, "rounds": 3})
    assert [told.round for told in watching.told] == [1, 2, 3] and isinstance(watching, Learner)
    for told, line in zip(watching.told, run.record.rounds, strict=True):
        assert list(told.cohort) == line["cohort"] == [1, 4] and list(told.deltas) == [1]
        assert told.population == 8 and told.validation == line["validation"]
        assert torch.equal(told.w, run.weights(told.round - 1)) and torch.equal(told.new_w, run.weights(told.round))
        shares = {c["client"]: c["weight"] for c in run.record.clients if c["kind"] == "train" and c["round"] == told.round}
        moved = sum(shares[client] * delta for client, delta in told.deltas.items())
        assert torch.allclose(told.w + moved, told.new_w, atol=1e-6)


def test_the_seed_draws_the_first_network() -> None:
    first, again, other = (SMALL.learned(SamplerState(), seen(1, ROUND_ONE), seed).vectors["q.0.weight"] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_its_scores_are_in_the_records_of_whom_it_asked() -> None:
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=SMALL, **OPTIONS)
    lines = [line for line in run.record.clients if line["kind"] == "train"]
    assert all(("q_value" in line["judged"]) == (line["round"] > 1) for line in lines)
    # What stands in the record of round 2 is what its cohort was chosen by: the values after round 1.
    known = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=SMALL, **{**OPTIONS, "rounds": 1}).final.sampling
    values = SMALL.scores(8, known)["q_value"].tolist()
    found = {line["client"]: line["judged"]["q_value"] for line in lines if line["round"] == 2}
    assert found == {client: values[client] for client in SMALL.choose(2, 8, 0, known)}
    plain = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=3, **OPTIONS)
    assert all(line["judged"] == {} for line in plain.record.clients if line["kind"] == "train")
    assert plain.final.sampling == SamplerState() and not isinstance(fa.Uniform(3), Learner)


def test_it_is_rewarded_in_every_round_whenever_the_model_is_measured() -> None:
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=SMALL, evaluate_every=3, **OPTIONS)
    assert run.final.sampling.facts["rounds"] == 7 and run.final.sampling.facts["held"] == 10
    assert run.rounds.validation_accuracy.notna().all()
    assert sum(line["test"] is not None for line in run.record.rounds) == 3, "rounds 3, 6 and 7"


def test_who_is_in_quarantine_is_not_asked_and_leaves_no_place_empty() -> None:
    """Clients 0 and 1 say that they hold more examples than there are: refused three times, they are out. Six of eight are asked."""
    options = {**OPTIONS, "rounds": 12, "attack": fa.InflatedCounts(clients=(0, 1), factor=1e6)}
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=dataclasses.replace(SMALL, size=6, epsilon=0.3), **options)
    opened = [(line["round"], event["client"]) for line in run.record.rounds for event in line["trust"].get("events", [])]
    assert {client for _, client in opened} == {0, 1}
    cohorts = run.rounds.cohort.tolist()
    assert [len(cohort) for cohort in cohorts] == [8, *[6] * 11]
    assert not any(client in cohort for t, client in opened for cohort in cohorts[t:])


def test_a_run_that_is_killed_and_resumed_chooses_the_same(tmp_path: Path, killed_after: Callable[[int, Callable[..., Any]], None]) -> None:
    task, options = fa.digits("softmax"), {**OPTIONS, "cohort": SMALL, "checkpoint_every": 1}
    whole = fa.run(task, fa.FedAvg(), **options)
    killed_after(4, partial(fa.run, task, fa.FedAvg(), folder=tmp_path / "run", **options))
    again = fa.run(task, fa.FedAvg(), folder=tmp_path / "run", resume=True, **options)
    assert torch.equal(again.weights(), whole.weights()) and again.rounds.cohort.tolist() == whole.rounds.cohort.tolist()
    assert again.final.sampling.facts == whole.final.sampling.facts
    assert again.final.sampling.vectors.keys() == whole.final.sampling.vectors.keys() == VECTORS
    assert all(torch.equal(again.final.sampling.vectors[name], vector) for name, vector in whole.final.sampling.vectors.items())


def test_an_episode_begins_with_what_an_earlier_one_learned_and_the_deployed_learns_no_more(tmp_path: Path) -> None:
    task, small = fa.digits("softmax"), {"components": 4, "hidden": 16, "memory": 10, "batch": 4}
    first = fa.run(task, fa.FedAvg(), folder=tmp_path / "one", cohort=fa.Favor(mode="one", **small), **OPTIONS).final.sampling
    checkpoint = str(tmp_path / "one" / "checkpoints" / "000007")
    assert all(torch.equal(earlier(checkpoint).vectors[name], first.vectors[name]) for name in VECTORS)

    second = fa.run(task, fa.FedAvg(), cohort=fa.Favor(mode="one", trained=checkpoint, **small), **OPTIONS).final.sampling
    assert second.facts["updates"] == 2 * first.facts["updates"] and second.facts["held"] == 10
    assert torch.equal(second.vectors["basis"], first.vectors["basis"]), "fitted once"
    assert not torch.equal(second.vectors["q.0.weight"], first.vectors["q.0.weight"])

    favor = fa.Favor(mode="one", trained=checkpoint, **small)
    w = torch.zeros(first.vectors["basis"].shape[1])
    begun = favor.learned(SamplerState(), Experience(1, 8, tuple(range(8)), w, {3: w + 1.0}, w, {"accuracy": 0.5}), 0)
    assert begun.vectors["clients"].any(dim=1).tolist() == [client == 3 for client in range(8)], (
        "who has not answered in this run is not known"
    )

    favor = fa.Favor(size=3, mode="deployed", trained=checkpoint, epsilon=1.0, **small)
    run = fa.run(task, fa.FedAvg(), cohort=favor, seed=5, **OPTIONS)
    for name in VECTORS - {"clients", "global"}:
        assert torch.equal(run.final.sampling.vectors[name], first.vectors[name]), name
    assert run.final.sampling.facts == first.facts and [len(cohort) for cohort in run.rounds.cohort] == [8, *[3] * 6]
    order = favor.scores(8, run.final.sampling)["q_value"].argsort(descending=True).tolist()
    assert favor.choose(8, 8, 5, run.final.sampling) == tuple(sorted(order[:3])), "nobody at random"


def test_what_cannot_be_taken_up_is_said_before_the_run(tmp_path: Path) -> None:
    task, small = fa.digits("softmax"), {"components": 4, "hidden": 16, "memory": 10, "batch": 4}
    fa.run(task, fa.FedAvg(), folder=tmp_path / "one", cohort=fa.Favor(mode="one", **small), **OPTIONS)
    checkpoint = tmp_path / "one" / "checkpoints" / "000007"

    def refused(said: str, **changes: Any) -> None:
        with pytest.raises(ConfigError, match=said):
            fa.run(task, fa.FedAvg(), **{**OPTIONS, "cohort": fa.Favor(size=3, mode="deployed", **small), **changes})

    refused("E208 nothing is trained")
    refused("E301 no trained Favor", cohort=fa.Favor(size=3, trained=str(tmp_path)))
    fewer = {"partition": fa.DirichletPerClass(alpha=0.3, clients=7)}
    refused("E110 .*8 clients, here 7", cohort=fa.Favor(size=3, trained=str(checkpoint), **small), **fewer)
    refused("E110 .*16 hidden units, here 9", cohort=fa.Favor(size=3, trained=str(checkpoint), **{**small, "hidden": 9}))
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    arrays = load_arrays(damaged / "trust.safetensors")
    save_arrays({name: each for name, each in arrays.items() if name != "sampling.v.q.1.bias"}, damaged / "trust.safetensors")
    refused("E301 no trained Favor.*v.q.1.bias", cohort=fa.Favor(size=3, trained=str(damaged), **small))


def test_without_a_reward_or_with_too_few_clients_it_is_refused() -> None:
    def refused(said: str, favor: fa.Favor, validation: float = 0.1, method: fa.Algorithm | None = None, model: str = "softmax") -> None:
        with pytest.raises(ConfigError, match=said):
            fa.run(fa.digits(model, validation=validation), method or fa.FedAvg(), cohort=favor, **OPTIONS)

    refused("E208 Favor is rewarded on validation data, and the task has none", SMALL, validation=0.0)
    refused("E203 a cohort of 9 out of 8 clients", fa.Favor(size=9))
    refused("E205 no metric 'score'.*accuracy", dataclasses.replace(SMALL, metric="score"))
    refused("E205 no metric 'loss' of which more is better", dataclasses.replace(SMALL, metric="loss"))


def test_where_clients_keep_parts_of_the_model_no_global_one_is_rewarded() -> None:
    x, y = torch.randn(80, 4, generator=torch.Generator().manual_seed(1)), torch.arange(80) % 2
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
    loss = torch.nn.functional.cross_entropy
    task = fa.Task(model=lambda: module, loss=loss, train=(x[:40], y[:40]), validation=(x[40:60], y[40:60]), test=(x[60:], y[60:]))
    with pytest.raises(ConfigError, match="E208 Favor is rewarded on validation data"):
        fa.run(task, fa.SiloBN(), partition=fa.IID(clients=4), cohort=fa.Favor(size=2), rounds=2)


def test_rules_that_want_many_clients_are_told_how_many_it_asks() -> None:
    assert (fa.Favor(size=6).asks, fa.Favor(size=6, mode="one").asks) == (6, 1)
    with pytest.raises(ConfigError, match=r"E203 Krum needs .* the cohort has 1\."):
        fa.run(fa.digits("softmax"), fa.FedAvg(), screen=fa.Krum(num_byzantine=1), cohort=fa.Favor(size=6, mode="one"), **OPTIONS)
