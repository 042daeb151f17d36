"""The learned policies: their features by hand, hysteresis, retraining, liars, and that neither order nor number of clients matters."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

import fedaccord as fa
from fedaccord.aggregation.policies.features import RELATIVE, SEVEN, jumped, relative, remembered, scaled, seven
from fedaccord.aggregation.policies.network import forward, read, untrained
from fedaccord.aggregation.policies.per_client import PerClient
from fedaccord.aggregation.policies.residual import Residual
from fedaccord.aggregation.policy import CohortView, Decision
from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import ClientReport

NAN = math.nan


def cohort(*clients: dict[str, Any], round: int = 1, seed: int = 0, size: int = 100) -> CohortView:
    """Each client: id, n, norm, direction, losses, latency."""
    reports = tuple(
        ClientReport(
            round,
            each.get("id", i),
            each.get("n", 10),
            loss=each["losses"][-1] if each.get("losses") else None,
            epoch_losses=tuple(each.get("losses", ())),
            latency=each.get("latency"),
        )
        for i, each in enumerate(clients)
    )
    column = {
        name: torch.tensor([each.get(name, NAN) for each in clients], dtype=torch.float64)
        for name in ("direction", "median_direction", "root_direction", "credit", "accuracy")
    }
    column["norm"] = torch.tensor([each.get("norm", 1.0) for each in clients], dtype=torch.float64)
    return CohortView(
        round, seed, reports, torch.tensor([float(r.num_examples) for r in reports], dtype=torch.float64), column, len(clients), size
    )


def drawn(count: int, round: int = 1, seed: int = 0) -> CohortView:
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(count, 8, generator=g).tolist()
    return cohort(
        *(
            {
                "id": i,
                "n": 1 + int(200 * a),
                "norm": 0.1 + b,
                "direction": 2 * c - 1,
                "median_direction": 2 * d - 1,
                "losses": [1 + e, f],
                "credit": h - 0.5,
            }
            for i, (a, b, c, d, e, f, _, h) in enumerate(u)
        ),
        round=round,
    )


def told(view: CohortView, memory: dict[str, Any] | None = None, **options: Any) -> dict[str, list[float]]:
    return dict(zip(SEVEN, seven(view, memory or {}, **options).values.T.tolist(), strict=True))


def test_the_seven_features_by_hand() -> None:
    view = cohort(
        {"n": 99, "norm": 3.0, "direction": 0.5, "losses": [2.0, 1.5, 1.0], "latency": 4.0},
        {"n": 9, "norm": 1.0, "direction": -0.5, "losses": [1.0, 1.25], "latency": 2.0},
        size=900,
    )
    found = told(view, {"clients": {"0": {"norms": [1.0, 2.0]}}})
    assert found["loss_change"] == pytest.approx([0.5, -0.25]), "negative: it got worse"
    assert found["norm"] == pytest.approx([0.1, 1 / 30])
    assert found["direction"] == [0.5, -0.5]
    assert found["volatility"] == pytest.approx([math.sqrt(2 / 3), 0.0]), "of the last three plain norms, 1, 2 and 3"
    assert found["samples"] == pytest.approx([2.0, 1.0])
    assert found["epochs"] == [3.0, 2.0]
    assert found["latency"] == [1.0, 0.0], "seconds above the mean of 3"
    assert told(view, relative_latency=True)["latency"] == [1.0, 0.0]


def test_the_loss_change_across_participations_is_against_the_last_one() -> None:
    view = cohort({"losses": [5.0, 1.0]}, {"losses": [5.0, 3.0]})
    memory = {"clients": {"0": {"norms": [], "loss": 2.0}}}
    assert told(view, memory, loss_change="across")["loss_change"] == pytest.approx([0.5, NAN], nan_ok=True)


def test_features_are_scaled_by_the_extremes_of_the_last_hundred_rounds_and_constant_ones_are_a_half() -> None:
    memory: dict[str, Any] = {}
    for t, direction in enumerate([0.9, *[0.1] * 99], start=1):
        view = cohort({"direction": direction, "norm": 1.0}, round=t)
        values, window = scaled(seven(view, memory), memory)
        memory = {"window": json.loads(json.dumps(window))}
    place = SEVEN.index("direction")
    assert values[0, place] == 0.0 and len(memory["window"]) == 100
    values, _ = scaled(seven(cohort({"direction": 0.5}, round=101), memory), memory)
    assert values[0, place] == 1.0, "the 0.9 of round 1 has left the window"
    assert values[0, SEVEN.index("samples")] == 0.5 and values[0, SEVEN.index("latency")] == 0.5


def test_no_more_than_three_norms_of_a_client_are_kept() -> None:
    memory: dict[str, Any] = {}
    for t in range(1, 8):
        view = cohort({"norm": float(t)}, round=t)
        memory = {"clients": remembered(view, seven(view, memory), memory)}
    assert memory["clients"]["0"]["norms"] == [5.0, 6.0, 7.0] and memory["clients"]["0"]["times"] == 7


def test_a_jump_over_five_deviations_of_its_own_history_is_a_lie() -> None:
    memory = {"clients": {"0": {"norms": [1.0, 1.2, 0.8]}, "1": {"norms": [1.0, 1.2, 0.8]}, "2": {"norms": [1.0, 1.2]}}}
    view = cohort({"norm": 1.7}, {"norm": 2.1}, {"norm": 50.0})
    assert jumped(view, seven(view, memory), memory) == [False, True, False], "0.16 is its deviation; two norms are no history"
    decision = PerClient(weights="untrained").decided(
        view,
        {"clients": {c: {**m, "weight": 0.5, "accepted": True} for c, m in memory["clients"].items()}},
        torch.full((3, 2), 0.9, dtype=torch.float64),
    )
    assert decision.actions is not None and decision.actions.tolist() == [0.9, 0.3, 0.9] and set(decision.marked) == {1}


def act(policy: PerClient, view: CohortView, memory: Any, p: Sequence[float], w: float = 0.7) -> Decision:
    return policy.decided(view, memory, torch.tensor([[w, each] for each in p], dtype=torch.float64))


def test_acceptance_has_hysteresis() -> None:
    policy, memory, told = PerClient(weights="untrained"), {}, []
    for t, p in enumerate([0.05, 0.5, 0.1, 0.5, 0.84, 0.86, 0.5, 0.16, 0.14], start=1):
        decision = act(policy, cohort({"id": 3, "norm": 1.0 + t}, round=t), memory, [p])
        memory = json.loads(json.dumps(decision.memory))
        told.append(bool(decision.weights[0] > 0))
    assert told == [True, True, False, False, False, True, True, True, False], "a new client is accepted whatever the network says"


def test_a_new_client_weighs_a_half_and_is_accepted() -> None:
    decision = act(PerClient(weights="untrained"), cohort({"n": 30}, {"n": 10}), {}, [0.0, 0.0], w=0.99)
    assert decision.weights.tolist() == [15.0, 5.0] and decision.retrain == ()


def planted(
    direction: float = 0.1, losses: Sequence[float] = (1.0, 1.2), norms: Sequence[float] = (1.0, 4.0), **more: Any
) -> tuple[CohortView, dict[str, Any]]:
    view = cohort(
        {"id": 7, "direction": direction, "losses": list(losses), "norm": 2.0}, {"id": 9, "direction": 0.9, "losses": [1.0, 0.5]}, round=6
    )
    return view, {"clients": {"7": {"norms": list(norms), "weight": 0.5, "accepted": True, **more}}}


def test_retraining_needs_all_three_conditions_and_rests_for_five_rounds() -> None:
    policy = PerClient(weights="untrained")
    view, memory = planted()
    assert act(policy, view, memory, [0.5, 0.5]).retrain == (7,)
    for change in ({"direction": 0.25}, {"losses": (1.0, 1.05)}, {"norms": (1.9, 2.1)}):
        assert act(policy, *planted(**change), [0.5, 0.5]).retrain == (), change  # type: ignore[arg-type]
    assert act(policy, *planted(retrained=2), [0.5, 0.5]).retrain == () and act(policy, *planted(retrained=1), [0.5, 0.5]).retrain == (7,)
    assert act(policy, view, memory, [0.5, 0.5]).memory["clients"]["7"]["retrained"] == 6


@pytest.mark.parametrize("policy", [PerClient(), Residual()], ids=["per_client", "residual"])
@pytest.mark.parametrize("count", [1, 2, 5, 500])
def test_any_number_of_clients_and_any_order_will_do(policy: PerClient | Residual, count: int, tmp_path: Path) -> None:
    policy = replace(policy, weights=str(trained(policy, tmp_path)))
    view, memory = drawn(count), {}
    first = policy.weigh(view, memory)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    turned = CohortView(
        1, 0, tuple(view.reports[i] for i in order), view.counts[order], {n: c[order] for n, c in view.figures.items()}, count, 100
    )
    again = policy.weigh(turned, memory)
    assert bool(first.weights.isfinite().all()) and float((again.weights - first.weights[order]).abs().max()) <= 1e-6 * float(
        first.weights.max()
    )
    assert first.memory == json.loads(json.dumps(first.memory)) or count == 500


def trained(policy: PerClient | Residual, folder: Path) -> Path:
    """Random layers: a policy that says something."""
    sizes = (len(SEVEN), 2) if isinstance(policy, PerClient) else (len(RELATIVE), 1)
    layers = untrained(*sizes)
    last = len(layers) // 2 - 1
    layers[f"{last}.weight"] = torch.randn(layers[f"{last}.weight"].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    save_file(layers, folder / "layers.safetensors")
    return folder / "layers.safetensors"


def test_memory_through_json_gives_the_same_bits_in_the_next_round(tmp_path: Path) -> None:
    for policy in (PerClient(), Residual()):
        policy = replace(policy, weights=str(trained(policy, tmp_path)))
        memory = policy.weigh(drawn(7), {}).memory
        one, two = (policy.weigh(drawn(7, round=2, seed=1), m) for m in (memory, json.loads(json.dumps(memory))))
        assert torch.equal(one.weights, two.weights) and one.memory == two.memory
        read.cache_clear()


@pytest.mark.parametrize("sizes", [(10, 10, 10), (2000, 50), (7,)])
def test_the_untrained_residual_is_fedavg_to_the_bit(sizes: tuple[int, ...]) -> None:
    view = cohort(*({"n": n, "norm": 1.0 + i} for i, n in enumerate(sizes)))
    decision = Residual(weights="untrained").weigh(view, {})
    assert torch.equal(decision.weights, view.counts) and decision.actions is None


def test_a_run_with_the_untrained_residual_has_fedavgs_bits_and_no_alert() -> None:
    task = fa.digits("softmax")
    options: dict[str, Any] = {
        "partition": fa.DirichletPerClass(alpha=0.3, clients=10),
        "cohort": 4,
        "rounds": 3,
        "local": fa.LocalPlan(lr=0.1, epochs=2, batch_size=20),
        "runtime": "sequential",
    }
    found = fa.run(task, fa.FedAvg(), policy=Residual(weights="untrained"), **options)
    assert torch.equal(found.weights(), fa.run(task, fa.FedAvg(), **options).weights())
    assert found.rounds.alerts.map(len).sum() == 0 and all("events" not in line for line in found.rounds.trust)


@settings(max_examples=100)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "n": st.one_of(st.integers(1, 10**9), st.floats(0.5, 1e12)),
                "norm": st.floats(0, 1e38),
                "direction": st.one_of(st.just(NAN), st.floats(-1, 1)),
                "median_direction": st.one_of(st.just(NAN), st.floats(-1, 1)),
                "credit": st.one_of(st.just(NAN), st.floats(-1e30, 1e30)),
                "losses": st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=4),
            }
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_clients_say_weights_are_finite(clients: list[dict[str, Any]]) -> None:
    view = cohort(*clients)
    for policy in (PerClient(weights="untrained"), Residual(weights="untrained")):
        memory: Any = {}
        for _ in range(2):
            decision = policy.weigh(view, memory)
            memory = json.loads(json.dumps(decision.memory, allow_nan=False))
            assert bool(decision.weights.isfinite().all()) and bool((decision.weights >= 0).all())
    assert bool(relative(view, seven(view, {}), {}).isfinite().all())


def test_noise_is_each_clients_own_and_the_same_again() -> None:
    view = drawn(6)
    noisy = Residual(weights="untrained", explore=0.5)
    one, two = noisy.weigh(view, {}), noisy.weigh(view, {})
    assert torch.equal(one.weights, two.weights) and len(set((one.weights / view.counts).tolist())) == 6
    fewer = CohortView(1, 0, view.reports[3:], view.counts[3:], {n: c[3:] for n, c in view.figures.items()}, 6, 100)
    assert torch.equal(noisy.weigh(fewer, {}).weights, one.weights[3:])


def test_the_network_by_hand_and_what_is_no_network() -> None:
    layers: dict[str, Tensor] = {
        "0.weight": torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        "0.bias": torch.tensor([0.5], dtype=torch.float64),
        "1.weight": torch.tensor([[3.0]], dtype=torch.float64),
        "1.bias": torch.tensor([-1.0], dtype=torch.float64),
    }
    found = forward(layers, torch.tensor([[0.1, 0.2]], dtype=torch.float64))
    assert float(found) == pytest.approx(3 * math.tanh(0.1 + 0.4 + 0.5) - 1)


def test_weights_that_are_not_there_or_another_policys_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"E301 .* fedaccord policy train"):
        read(str(tmp_path / "none"), "residual.safetensors", 3, 1)
    save_file(untrained(4, 1), tmp_path / "other")
    with pytest.raises(ConfigError, match="E110 the weights take 4 features and give 1 numbers, this policy has 3 and 1"):
        read(str(tmp_path / "other"), "residual.safetensors", 3, 1)
