"""sampling/favor.py: the double DQN's targets by hand, whose slot is whose, and runs that are resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedaccord as fa
from fedaccord.core.errors import ConfigError
from fedaccord.sampling import Experience, SamplerState
from fedaccord.sampling.favor import double_dqn_targets, network

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


def seen(t: int, deltas: dict[int, list[float]], accuracy: float | None = 0.5, population: int = 4) -> Experience:
    moved = {client: torch.tensor(delta) for client, delta in deltas.items()}
    metrics = None if accuracy is None else {"accuracy": accuracy}
    return Experience(t, population, tuple(deltas), torch.zeros(6), moved, torch.full((6,), 0.1), metrics)


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
    assert SMALL.learned(first, seen(2, {}), 0) is first


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


def test_a_run_that_is_killed_and_resumed_chooses_the_same(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    class Kill:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 4:
                raise Killed

    task, options = fa.digits("softmax"), {**OPTIONS, "cohort": SMALL, "checkpoint_every": 1}
    whole = fa.run(task, fa.FedAvg(), **options)
    with pytest.raises(Killed):
        fa.run(task, fa.FedAvg(), folder=tmp_path / "run", telemetry=[Kill()], **options)
    again = fa.run(task, fa.FedAvg(), folder=tmp_path / "run", resume=True, **options)
    assert torch.equal(again.weights(), whole.weights()) and again.rounds.cohort.tolist() == whole.rounds.cohort.tolist()
    assert all(torch.equal(again.final.sampling.vectors[name], vector) for name, vector in whole.final.sampling.vectors.items())


def test_without_validation_data_or_with_too_few_clients_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="E208 Favor is rewarded on validation data, and the task has none"):
        fa.run(fa.digits("softmax", validation=0.0), fa.FedAvg(), cohort=SMALL, **OPTIONS)
    with pytest.raises(ConfigError, match="E203 a cohort of 9 out of 8 clients"):
        fa.run(fa.digits("softmax"), fa.FedAvg(), cohort=fa.Favor(size=9), **OPTIONS)
