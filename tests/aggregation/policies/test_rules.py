"""Policies by rule: each by hand, and what holds for all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedaccord as fa
from fedaccord.aggregation.figures import ALL
from fedaccord.aggregation.policies import POLICIES
from fedaccord.aggregation.policies.bandit import ARMS, SEEN
from fedaccord.aggregation.policies.losses import on_simplex
from fedaccord.aggregation.policies.trust import check_counted_once
from fedaccord.aggregation.policy import CohortView, Outcome, Policy
from fedaccord.core.reports import ClientReport

NAN = math.nan


def view(
    losses: list[Any],
    counts: list[float],
    round: int = 1,
    clients: list[int] | None = None,
    signals: list[Any] | None = None,
    **figures: list[float],
) -> CohortView:
    ids = clients or list(range(len(counts)))
    reports = tuple(
        ClientReport(round, ids[i], counts[i], loss=losses[i], epoch_losses=(losses[i],), signals=(signals or [{}] * len(ids))[i])
        for i in range(len(ids))
    )
    unknown = torch.full((len(ids),), NAN, dtype=torch.float64)
    given = {name: torch.tensor(values, dtype=torch.float64) for name, values in figures.items()}
    columns = {name: given.get(name, unknown) for name in (*ALL, "accuracy")}
    columns["norm"] = given.get("norm", torch.ones(len(ids), dtype=torch.float64))
    return CohortView(round, 0, reports, torch.tensor(counts, dtype=torch.float64), columns, len(ids), 100)


def near(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-9)


def test_q_ffl_counts_by_the_loss_to_a_power_and_without_one_is_fedavg() -> None:
    """n F^2 = 10 * 4, 40 * 0.25, 10 * 1.25^2, over the largest loss squared, which is 4."""
    cohort = view([2.0, 0.5, None], [10.0, 40.0, 10.0])
    assert fa.QFFL(q=2.0).weigh(cohort, {}).weights.tolist() == near([10.0, 2.5, 10 * 1.25**2 / 4])
    assert torch.equal(fa.QFFL(q=0.0).weigh(cohort, {}).weights, cohort.counts)


def test_no_power_overflows_or_vanishes() -> None:
    """1e10^40 is infinite, and the round would leave out whom it has to count most; (1e-9)^40 is 0 for everybody."""
    assert fa.QFFL(q=40.0).weigh(view([1e10, 1.0], [5.0, 7.0]), {}).weights.tolist() == [5.0, 0.0]
    assert fa.QFFL(q=40.0).weigh(view([1e-9, 1e-9], [5.0, 7.0]), {}).weights.tolist() == [5.0, 7.0]
    assert fa.FedAdp(alpha=1000.0).weigh(view([1.0] * 2, [5.0, 7.0], mean_direction=[1.0, -1.0]), {}).weights.tolist() == [5.0, 0.0]


def test_afl_steps_along_the_losses_and_projects_back() -> None:
    """Two newcomers begin at 1/2; 0.5 + 0.1 * 3 and 0.5 + 0.1 * 1 sum to 1.4: 0.2 less each. Then one more makes room: a third for it."""
    first = fa.AFL(lr=0.1).weigh(view([3.0, 1.0], [10.0, 90.0]), {})
    assert first.weights.tolist() == near([0.6, 0.4])
    second = fa.AFL(lr=0.1).weigh(view([0.0], [5.0], clients=[2]), json.loads(json.dumps(first.memory)))
    assert second.memory["mixture"] == pytest.approx({"0": 0.4, "1": 0.4 * 2 / 3, "2": 1 / 3}, rel=1e-6)


def test_a_cohort_that_counts_nothing_is_weighed_by_size() -> None:
    """Steps of 1e-9 * 1e-10 are lost beside a client that has all of the mixture, and a cohort has to weigh something."""
    cohort = view([0.0, 0.0], [5.0, 15.0], clients=[1, 2])
    decision = fa.AFL(lr=1e-9).weigh(cohort, {"mixture": {"0": 1.0, "1": 0.0, "2": 0.0}})
    assert decision.weights.tolist() == [5.0, 15.0] and decision.memory["mixture"] == {"0": 1.0, "1": 0.0, "2": 0.0}


def test_the_projection_onto_the_simplex() -> None:
    assert on_simplex(torch.tensor([0.5, 0.5, 2.0], dtype=torch.float64)).tolist() == near([0.0, 0.0, 1.0])
    assert on_simplex(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)).tolist() == near([0.2, 0.3, 0.5])
    assert on_simplex(torch.tensor([1e18, 1e18, 0.0], dtype=torch.float64)).tolist() == [0.5, 0.5, 0.0]


def test_fedadp_smooths_the_angle_over_participations() -> None:
    """Client 0 first at 60 degrees, then at 0: the mean is 30 degrees. Client 1 at 90 degrees both times, the second time unknown."""

    def gompertz(theta: float) -> float:
        return math.exp(5 * (1 - math.exp(-math.exp(-5 * (theta - 1)))))

    first = fa.FedAdp().weigh(view([1.0] * 2, [10.0, 20.0], mean_direction=[0.5, 0.0]), {})
    assert first.weights.tolist() == near([10.0, 20 * gompertz(math.pi / 2) / gompertz(math.pi / 3)])
    second = fa.FedAdp().weigh(view([1.0] * 2, [10.0, 20.0], mean_direction=[1.0, NAN]), json.loads(json.dumps(first.memory)))
    assert second.weights.tolist() == near([10.0, 20 * gompertz(math.pi / 2) / gompertz(math.pi / 6)])
    assert gompertz(0.1) > gompertz(1.0) > gompertz(2.5)


def test_lambda_trust_is_what_dynamic_sam_does_by_itself() -> None:
    signals = [{"lambda_raw": 0.9}, {"lambda_raw": 0.1}, {}, {"lambda_raw": -5.0}]
    cohort = view([1.0] * 4, [10.0, 10.0, 20.0, 5.0], signals=signals)
    own = cohort.counts * fa.DynamicSAM(trust=1.0).confidence(cohort.reports)
    assert torch.equal(fa.LambdaTrust(trust=1.0).weigh(cohort, {}).weights, own) and own[0] < own[1]


def test_radius_trust_is_what_noise_adaptive_sam_does_by_itself() -> None:
    signals = [{"noise": 1.0, "rho": 0.02}, {"noise": 0.0, "rho": 0.02}, {"noise": 0.5, "rho": 0.09}, {}]
    cohort = view([1.0] * 4, [10.0] * 4, signals=signals)
    assert fa.RadiusTrust().weigh(cohort, {}).weights.tolist() == near([5.0, 10.0, 10 / 1.5 * 0.1, 1.0])
    method = fa.NoiseAdaptiveSAM(server_weight="noise")
    assert (cohort.counts * method.confidence(cohort.reports)).tolist() == near([5.0, 10.0, 10 / 1.5 * 0.1, 1.0])


def test_a_negative_radius_is_a_lie_and_makes_no_outlier_of_the_honest() -> None:
    """The median of -100 and 0.05 would be below 0, and twice that below every honest radius."""
    cohort = view([1.0] * 2, [10.0] * 2, signals=[{"rho": -100.0, "noise": 0.0}, {"rho": 0.05, "noise": 0.0}])
    assert fa.RadiusTrust().weigh(cohort, {}).weights.tolist() == near([1.0, 10.0])
    assert (cohort.counts * fa.NoiseAdaptiveSAM().confidence(cohort.reports)).tolist() == near([1.0, 10.0])


@pytest.mark.parametrize(
    ("policy", "method", "counted_twice"),
    [
        (fa.LambdaTrust(), fa.DynamicSAM(), "lambda_raw"),
        (fa.LambdaTrust(), fa.DynamicSAM(trust=0.0), None),
        (fa.RadiusTrust(), fa.NoiseAdaptiveSAM(), "rho"),
        (fa.RadiusTrust(), fa.NoiseAdaptiveSAM(outlier_weight=1.0, server_weight="noise"), "noise"),
        (fa.RadiusTrust(), fa.NoiseAdaptiveSAM(outlier_weight=1.0), None),
        (fa.LambdaTrust(), fa.NoiseAdaptiveSAM(), None),
        (fa.BySize(), fa.DynamicSAM(), None),
    ],
)
def test_a_signal_that_the_method_weighs_by_itself_is_not_counted_twice(policy: Policy, method: fa.Algorithm, counted_twice: Any) -> None:
    if counted_twice is None:
        return check_counted_once(policy, method)
    with pytest.raises(fa.ConfigError, match=f"E208 {type(method).__name__} weighs clients by {counted_twice} itself"):
        partition = fa.DirichletPerClass(alpha=0.3, clients=4)
        fa.run(fa.digits("softmax"), method, policy=policy, partition=partition, cohort=2, rounds=1, runtime="sequential")


def test_trust_from_a_policy_is_the_methods_own_in_a_run() -> None:
    """lambda_raw differs between clients from the first round on, so the weights are not FedAvg's."""
    options: dict[str, Any] = {
        "partition": fa.DirichletPerClass(alpha=0.3, clients=6),
        "cohort": 4,
        "rounds": 4,
        "local": fa.LocalPlan(lr=0.1, epochs=2, batch_size=20),
        "runtime": "sequential",
    }
    own = fa.run(fa.digits("softmax"), fa.DynamicSAM(warmup_rounds=0), **options)
    policy = fa.run(fa.digits("softmax"), fa.DynamicSAM(warmup_rounds=0, trust=0.0), policy=fa.LambdaTrust(), **options)
    none = fa.run(fa.digits("softmax"), fa.DynamicSAM(warmup_rounds=0, trust=0.0), **options)
    assert own.clients.weight.tolist() == near(policy.clients.weight.tolist())
    assert none.clients.weight.tolist() != near(policy.clients.weight.tolist())


def test_the_linear_policy_leans_towards_what_its_coefficients_say() -> None:
    cohort = view([1.0] * 3, [10.0] * 3, median_direction=[0.9, 0.5, -0.7], norm=[1.0, 1.0, 8.0])
    weights = fa.Linear().weigh(cohort, {}).weights
    assert weights[0] > weights[1] > weights[2] and float(weights.max() / weights.min()) <= math.e**2
    nothing = fa.Linear(norm_ratio=0, median_direction=0, root_direction=0, credit=0)
    assert torch.equal(nothing.weigh(cohort, {}).weights, cohort.counts) and nothing.weigh(cohort, {}).actions is None


def test_the_bandit_learns_from_rewards_which_way_to_lean() -> None:
    """Clients that point the others' way are worth more: leaning towards them is rewarded, leaning away is punished."""
    policy, memory = fa.Bandit(alpha=0.3), fa.Bandit().start()
    rng = torch.Generator().manual_seed(0)
    for t in range(1, 60):
        directions = (2 * torch.rand(6, generator=rng) - 1).tolist()
        cohort = view([1.0] * 6, [10.0] * 6, round=t, median_direction=directions)
        decision = policy.weigh(cohort, memory)
        gain = float((decision.notes["tilt"] * torch.tensor(directions, dtype=torch.float64)).mean()) * 0.05
        memory = json.loads(json.dumps(policy.observe(cohort, decision, Outcome(gain, True, None))))
    decision = replace(policy, alpha=0.0).weigh(view([1.0] * 2, [10.0] * 2, round=99, median_direction=[0.9, -0.9]), memory)
    assert decision.notes["tilt"].tolist() == [1.0, -1.0] and set(ARMS) == {-1.0, 0.0, 1.0} and "median_direction" in SEEN


def test_without_a_reward_the_bandit_learns_nothing() -> None:
    policy = fa.Bandit()
    cohort = view([1.0] * 3, [10.0] * 3)
    decision = policy.weigh(cohort, policy.start())
    assert policy.observe(cohort, decision, Outcome(None, False, None)) == decision.memory


RULES: dict[str, Policy] = {
    name: kind(weights="untrained") if "weights" in kind.__dataclass_fields__ else kind() for name, kind in POLICIES.items()
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("count", [1, 2, 5, 500])
def test_any_number_and_any_order_of_clients(name: str, count: int) -> None:
    rng = torch.Generator().manual_seed(count)
    values = torch.rand(count, 8, generator=rng, dtype=torch.float64)
    losses, counts = (values[:, 0] * 3).tolist(), (1 + (values[:, 1] * 200).round()).tolist()
    figures = {n: (2 * values[:, 2 + i] - 1).tolist() for i, n in enumerate(ALL[1:])}
    cohort = view(losses, counts, norm=(0.1 + values[:, 7]).tolist(), **figures)
    policy = RULES[name]
    first = policy.weigh(cohort, policy.start())
    order = torch.randperm(count, generator=rng)
    turned = replace(
        cohort,
        reports=tuple(cohort.reports[i] for i in order),
        counts=cohort.counts[order],
        figures={n: c[order] for n, c in cohort.figures.items()},
    )
    again = policy.weigh(turned, policy.start())
    assert bool(first.weights.isfinite().all()) and float(first.weights.sum()) > 0
    assert again.weights.tolist() == pytest.approx(first.weights[order].tolist(), rel=1e-6)


HOSTILE = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.just(10**400), st.text(max_size=3))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(HOSTILE, st.floats(0.5, 1e12), HOSTILE, st.one_of(st.just(NAN), st.floats(-1, 1)), st.floats(0, 1e38)),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_clients_say_weights_are_finite_and_memory_is_plain(rows: list[Any]) -> None:
    losses, counts, said, cosines, norms = (list(column) for column in zip(*rows, strict=True))
    signals = [{"lambda_raw": value, "noise": value, "rho": value} for value in said]
    cohort = view(losses, counts, signals=signals, norm=norms, **dict.fromkeys(ALL[1:], cosines))
    for name, policy in RULES.items():
        memory: Any = policy.start()
        for _ in range(2):
            decision = policy.weigh(cohort, memory)
            memory = json.loads(json.dumps(dict(policy.observe(cohort, decision, Outcome(0.1, True, None))), allow_nan=False))
            assert bool(decision.weights.isfinite().all()) and bool((decision.weights >= 0).all()), name


@pytest.mark.parametrize("name", RULES)
def test_a_run_with_it_that_is_resumed_is_the_unbroken_one(
    name: str, tmp_path: Path, killed_after: Callable[[int, Callable[..., Any]], None]
) -> None:
    task = fa.digits("softmax")
    options: dict[str, Any] = {
        "partition": fa.DirichletPerClass(alpha=0.3, clients=10),
        "cohort": 4,
        "rounds": 6,
        "local": fa.LocalPlan(lr=0.1, epochs=2, batch_size=20),
        "runtime": "sequential",
        "policy": RULES[name],
        "checkpoint_every": 1,
    }

    whole = fa.run(task, fa.FedAvg(), **options)
    killed_after(3, partial(fa.run, task, fa.FedAvg(), folder=tmp_path / "run", **options))
    again = fa.run(task, fa.FedAvg(), folder=tmp_path / "run", resume=True, **options)
    assert torch.equal(again.weights(), whole.weights()) and again.final.trust.facts == whole.final.trust.facts
