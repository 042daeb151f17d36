"""learning/: the environment, the episodes' rewards, slots, learners, and what is learned from a run's journal."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from safetensors.torch import load_file
from stable_baselines3.common.env_checker import check_env as check_with_sb3

import fedaccord as fa
from fedaccord.aggregation.policies.features import RELATIVE, SEVEN
from fedaccord.aggregation.policies.network import forward, untrained
from fedaccord.core.errors import ConfigError
from fedaccord.learning.environment import FederationEnv
from fedaccord.learning.episode import DenseReward, Episode
from fedaccord.learning.evaluation import Contestant, evaluated, paired
from fedaccord.learning.journal import Journal, journal_of, refined
from fedaccord.learning.learners import Training, train
from fedaccord.learning.linear import fit, layers_from
from fedaccord.learning.pretraining import Pretraining, pretrain
from fedaccord.learning.scenes import Scenes, built
from fedaccord.learning.slots import Slots

SMALL = Scenes(sources=("generated",), cohorts=(4, 8), rounds=(3, 4))
RESIDUAL, PER_CLIENT = fa.Residual(weights="untrained"), fa.PerClient(weights="untrained")


@pytest.mark.parametrize("policy", [RESIDUAL, PER_CLIENT], ids=["residual", "per_client"])
def test_the_environment_is_one_for_gymnasium_and_for_stable_baselines(policy: Any) -> None:
    env = FederationEnv(SMALL, policy, most=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on spaces, which is not for us
        check_env(env, skip_render_check=True)
        check_with_sb3(env)


def test_the_same_seed_gives_the_same_episode_and_another_one_another() -> None:
    def played(seed: int) -> list[Any]:
        env = FederationEnv(SMALL, most=10)
        first, info = env.reset(seed=seed)
        seen = [first]
        done = False
        while not done:
            observation, reward, done, _, _ = env.step(np.full((10, 1), 0.3, np.float32))
            seen += [observation, reward]
        return [info["scene"]["seed"], *seen]

    one, again, other = played(3), played(3), played(4)
    assert one[0] == again[0] != other[0]
    assert all(np.array_equal(a, b) for a, b in zip(one[1:], again[1:], strict=True))


def test_scenes_are_of_all_kinds_and_the_same_again() -> None:
    scenes = [Scenes().draw(0, n) for n in range(200)]
    assert scenes == [Scenes().draw(0, n) for n in range(200)]
    attacks = {type(scene.attack).__name__ for scene in scenes}
    assert len(attacks) == 9 and {scene.source for scene in scenes} == {"generated", "digits", "fashion_mnist_mini"}
    sizes, alphas = [scene.cohort for scene in scenes], [scene.alpha for scene in scenes]
    assert min(sizes) < 8 and max(sizes) > 150 and min(alphas) < 0.08 and max(alphas) > 5
    assert all(scene.cohort <= scene.clients for scene in scenes)
    assert any(scene.absent > 0.1 for scene in scenes) and any(scene.blind for scene in scenes)
    assert 0.25 < sum(scene.attack is None for scene in scenes) / 200 < 0.45


def test_an_episode_steps_a_real_federation_and_fedavgs_weights_gain_nothing() -> None:
    scene = SMALL.draw(0, 0)._replace(attack=None, absent=0.0)
    episode, gains = Episode(scene, RESIDUAL), []
    while not episode.is_over:
        assert episode.features.shape == (len(episode.view.clients), len(RELATIVE))
        stepped = episode.step(torch.zeros(len(episode.view.clients), 1))
        gains.append(stepped.gain)
        assert stepped.rewards.abs().max() == 0
    prepared = built(scene, fa.BySize())
    state = prepared.start
    for result in prepared.federation.run(state):
        state = result.state
    assert gains == [0.0] * scene.rounds and torch.equal(stepped.result.state.server.w, state.server.w)


def test_leaning_away_from_attackers_earns_and_leaning_towards_them_costs() -> None:
    scene = SMALL.draw(0, 1)._replace(attack=fa.SignFlip(clients=(0, 1)), absent=0.0, cohort=8, clients=8, blind=False, alpha=5.0)

    def rewards(sign: float) -> tuple[float, float]:
        episode, found, own = Episode(scene, RESIDUAL), [], []
        while not episode.is_over:
            bad = torch.tensor([client in (0, 1) for client in episode.view.clients])
            stepped = episode.step(sign * torch.where(bad, -0.9, 0.3)[:, None])
            found.append(float(stepped.rewards.mean()))
            own.append(float(stepped.rewards[bad].mean()))
        return sum(found), sum(own)

    away, towards = rewards(1.0), rewards(-1.0)
    assert away[0] > 0 > towards[0] and away[1] > 0 > towards[1]


def test_own_rewards_sum_to_the_gain_to_first_order() -> None:
    """Without the shared part and the penalties the mean of the rewards is scale times the relative gain, for small steps."""
    scene = SMALL.draw(0, 2)._replace(attack=None, absent=0.0, lr=0.02, epochs=1)
    episode = Episode(scene, RESIDUAL, DenseReward(own=1.0, distance=0.0, most=100.0, scale=1.0))
    rng = torch.Generator().manual_seed(0)
    while not episode.is_over:
        stepped = episode.step(0.5 * torch.randn(len(episode.view.clients), 1, generator=rng).tanh())
        assert float(stepped.rewards.mean()) == pytest.approx(stepped.gain, rel=0.1, abs=1e-5)


def test_a_blind_policy_does_not_see_what_server_data_would_tell() -> None:
    scene = SMALL.draw(0, 3)._replace(blind=True)
    seen = Episode(scene, RESIDUAL).features
    columns = {name: seen[:, RELATIVE.index(name)] for name in ("root_direction", "credit", "has_data")}
    assert all(bool((column == 0).all()) for column in columns.values())
    assert bool((Episode(scene._replace(blind=False), RESIDUAL).features[:, RELATIVE.index("has_data")] == 1).all())


def test_slots_are_clients_of_several_episodes() -> None:
    slots = Slots(RESIDUAL, SMALL, 0, cohorts=(4, 6))
    first = slots.reset()
    assert first.shape == (10, len(RELATIVE)) and slots.num_envs == 10
    dones = 0
    for _ in range(9):
        observations, rewards, done, infos = slots.step(np.zeros((10, 1), np.float32))
        assert observations.shape == first.shape and rewards.shape == (10,) and len(infos) == 10
        assert len(set(done[:4])) == 1 and len(set(done[4:])) == 1
        dones += int(done[0]) + int(done[4])
    assert dones == slots.episodes_done >= 4 and slots.gains == [0.0] * dones


@pytest.mark.parametrize(
    ("policy", "learner"), [(RESIDUAL, "ppo"), (RESIDUAL, "a2c_delayed"), (RESIDUAL, "dqn"), (PER_CLIENT, "ppo"), (PER_CLIENT, "dqn")]
)
def test_every_learner_leaves_layers_and_the_same_ones_again(policy: Any, learner: Any) -> None:
    def layers() -> dict[str, torch.Tensor]:
        slots = Slots(policy, SMALL, 0, cohorts=(4, 4), discrete=learner == "dqn")
        return train(slots, Training(learner, minutes=5, episodes=6, rounds=4, batch=32))

    one, two = layers(), layers()
    assert one["0.weight"].shape == (32, len(RELATIVE if policy is RESIDUAL else SEVEN))
    assert one["2.weight"].shape[0] == (10 if learner == "dqn" else 1 if policy is RESIDUAL else 2)
    assert all(torch.equal(one[name], two[name]) for name in one) and all(bool(layer.isfinite().all()) for layer in one.values())


def test_pretraining_writes_weights_a_curve_and_the_figures_of_a_card(tmp_path: Path) -> None:
    plan = Pretraining("residual", Training(minutes=5, episodes=60, rounds=4, batch=32), replace(SMALL, rounds=(3, 3)))
    card = pretrain(plan, tmp_path / "policy.safetensors")
    assert card["episodes"] >= 60 and card["scenes"]["attacks"] and card["training"]["seed"] == 0
    lines = (tmp_path / "policy.csv").read_text().splitlines()
    assert lines[0] == "episodes,gain,minutes" and len(lines) > 1
    found = fa.run(
        fa.digits("softmax"),
        fa.FedAvg(),
        partition=fa.DirichletPerClass(alpha=0.3, clients=8),
        cohort=4,
        rounds=2,
        policy=fa.Residual(weights=str(tmp_path / "policy.safetensors")),
    )
    assert set(found.rounds.trust.map(lambda line: line["used"])) == {"policy"}


def test_the_linear_policy_is_one_layer_that_cma_es_finds() -> None:
    layers = fit(SMALL, 0, minutes=5, evaluations=24, per_point=1)
    assert layers["0.weight"].shape == (1, len(RELATIVE)) and layers["0.bias"].shape == (1,)
    given = layers_from(np.arange(len(RELATIVE) + 1.0))
    x = torch.ones(2, len(RELATIVE), dtype=torch.float64)
    assert forward(given, x).flatten().tolist() == [sum(range(len(RELATIVE))) + len(RELATIVE)] * 2


def test_from_a_journal_a_policy_learns_what_was_rewarded() -> None:
    """Tilting with the first feature was worth 1 times both."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(3000, len(RELATIVE))).astype(np.float32)
    tilts = rng.uniform(-1, 1, size=(3000, 1)).astype(np.float32)
    rewards = (tilts[:, 0] * np.sign(features[:, 0])).astype(np.float32)
    begun = untrained(len(RELATIVE), 1)
    layers = refined(begun, Journal(features, tilts, rewards), steps=1500)
    x = torch.zeros(2, len(RELATIVE), dtype=torch.float64)
    x[0, 0], x[1, 0] = 1.5, -1.5
    found = forward(layers, x).tanh().flatten()
    assert found[0] > 0.3 and found[1] < -0.3 and forward(begun, x).abs().max() == 0


def test_a_runs_own_records_are_a_journal(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "partition": fa.DirichletPerClass(alpha=0.3, clients=20),
        "cohort": 20,
        "rounds": 12,
        "local": fa.LocalPlan(lr=0.1, epochs=1, batch_size=20),
    }
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), policy=fa.Residual(weights="untrained", explore=0.5), **options)
    journal = journal_of(run.record.rounds, run.record.clients)
    assert journal.features.shape == (240, len(RELATIVE)) and journal.tilts.std() > 0.1 and len(set(journal.rewards.tolist())) == 12
    still = fa.run(fa.digits("softmax"), fa.FedAvg(), policy=fa.Residual(weights="untrained"), **options)
    with pytest.raises(ConfigError, match=r"E208 the run has 240 scored decisions that differ in nothing.* explore"):
        journal_of(still.record.rounds, still.record.clients)
    with pytest.raises(ConfigError, match="E208 the run has no scored decisions"):
        journal_of([], [])


def test_evaluations_are_whole_runs_on_scenes_of_their_own() -> None:
    rows = list(evaluated({"fedavg": Contestant(), "same": Contestant(RESIDUAL)}, SMALL, 0, 3))
    assert [row["accuracy"] for row in rows[::2]] == [row["accuracy"] for row in rows[1::2]]
    found = paired(rows, "same", "fedavg")
    assert found == {"mean": 0.0, "low": 0.0, "high": 0.0, "scenes": 3}
    rows[1]["accuracy"] += 0.3
    moved = paired(rows, "same", "fedavg")
    assert moved["mean"] == pytest.approx(0.1) and moved["high"] - moved["mean"] == pytest.approx(
        4.302653 * 0.3 / 3**0.5 / 3**0.5, rel=1e-4
    )


def test_weights_on_disk_are_safetensors(tmp_path: Path) -> None:
    pretrain(Pretraining("linear", Training(minutes=5, episodes=12), SMALL), tmp_path / "linear.safetensors")
    assert set(load_file(tmp_path / "linear.safetensors")) == {"0.weight", "0.bias"}
