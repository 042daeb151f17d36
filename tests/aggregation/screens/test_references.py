"""screens/: each against a reference written anew from its paper, in float64 and for one small cohort."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState
from fedaccord.aggregation.screens import SCREENS
from fedaccord.checks.trial import SCRIPT, SIZES, run_traced
from fedaccord.core.errors import REASONS, ConfigError
from fedaccord.core.reports import ClientReport

Array = np.ndarray[Any, Any]


class Upload(NamedTuple):
    delta: Tensor
    control: Tensor


def evidence(u: Array, counts: list[float] | None = None, **more: Any) -> Evidence:
    vectors = torch.from_numpy(np.asarray(u, dtype=np.float32))
    reports = [ClientReport(1, i, (counts or [10.0] * len(u))[i]) for i in range(len(u))]
    return Evidence(1, [Upload(v, v[:4] * 0.5) for v in vectors], reports, **more)


def drawn(count: int = 9, size: int = 40, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(count, size)) + 0.5
    u[0] *= -3
    u[-1] *= 20
    return u.astype(np.float32).astype(np.float64)


def aggregate(found: Screening, seen: Evidence, equal: bool) -> Array:
    """What the round makes of it: the policy's weights times factors, on scaled updates; or the statistic in place of the mean."""
    if found.combine is not None:
        kept = [d for d, f in zip(seen.deltas, found.factors.tolist(), strict=True) if f > 0]
        return found.combine(kept).double().numpy()
    weights = found.factors * (1.0 if equal else found.counts)
    weights = weights / weights.sum()
    return np.einsum("c,cd->d", (weights * found.scales).numpy(), torch.stack(seen.deltas).double().numpy())


def krum_scores(u: Array, f: int) -> Array:
    d = ((u[:, None] - u[None]) ** 2).sum(-1)
    return np.array([np.sort(np.delete(d[i], i))[: len(u) - f - 2].sum() for i in range(len(u))])


def reference_krum(u: Array, **_: Any) -> Array:
    return u[krum_scores(u, 2).argmin()]


def reference_multi_krum(u: Array, **_: Any) -> Array:
    return u[np.argsort(krum_scores(u, 2), kind="stable")[: len(u) - 2]].mean(0)


def reference_bulyan(u: Array, f: int = 1, **_: Any) -> Array:
    left, chosen = list(range(len(u))), []
    while len(chosen) < len(u) - 2 * f:
        own = u[left]
        d = ((own[:, None] - own[None]) ** 2).sum(-1)
        nearest = max(1, len(left) - f - 2)
        scores = [np.sort(np.delete(d[i], i))[:nearest].sum() for i in range(len(left))]
        chosen.append(left.pop(int(np.argmin(scores))))
    s = u[chosen]
    kept = len(s) - 2 * f
    median = np.median(s, axis=0)
    order = np.argsort(np.abs(s - median), axis=0, kind="stable")[:kept]
    return np.take_along_axis(s, order, axis=0).mean(0)


def reference_trimmed(u: Array, **_: Any) -> Array:
    cut = int(0.2 * len(u))
    return np.sort(u, axis=0)[cut : len(u) - cut].mean(0)


def reference_rfa(u: Array, counts: Array, **_: Any) -> Array:
    p = counts / counts.sum()
    v = p @ u
    for _step in range(2000):
        beta = p / np.maximum(np.linalg.norm(u - v, axis=1), 1e-9)
        v = beta @ u / beta.sum()
    return v


def reference_fltrust(u: Array, root: Array, **_: Any) -> Array:
    cos = u @ root / np.linalg.norm(u, axis=1) / np.linalg.norm(root)
    trust = np.maximum(cos, 0)
    return sum(t * np.linalg.norm(root) / np.linalg.norm(each) * each for t, each in zip(trust, u, strict=True)) / trust.sum()


def reference_foolsgold(u: Array, **_: Any) -> Array:
    n = len(u)
    cs = np.array([[u[i] @ u[j] / np.linalg.norm(u[i]) / np.linalg.norm(u[j]) if i != j else -np.inf for j in range(n)] for i in range(n)])
    v = cs.max(1)
    for i in range(n):
        for j in range(n):
            if i != j and v[j] > v[i] and v[i] / v[j] > 0:
                cs[i, j] *= v[i] / v[j]
    rate = np.clip(1 - cs.max(1), 0, 1)
    rate = np.minimum(rate / rate.max(), 0.99)
    with np.errstate(divide="ignore"):
        rate = np.clip(np.nan_to_num(np.log(rate / (1 - rate)) + 0.5, neginf=0.0), 0, 1)
    return rate @ u / rate.sum()


def reference_clip(u: Array, counts: Array, **_: Any) -> Array:
    norms = np.linalg.norm(u, axis=1)
    return (counts / counts.sum() * np.minimum(1, np.median(norms) / norms)) @ u


def reference_rule_guard(u: Array, counts: Array, **_: Any) -> Array:
    norms = np.linalg.norm(u, axis=1)
    short = norms <= 5 * np.median(norms)
    median = np.median(u[short], axis=0)
    kept = short & (u @ median / norms / np.linalg.norm(median) > -0.05)
    n = np.minimum(counts, 3 * np.median(counts[kept])) * kept
    return (n / n.sum() * np.minimum(1, np.median(norms[kept]) / norms)) @ u


REFERENCES: dict[str, tuple[Screen, Callable[..., Array]]] = {
    "none": (fa.Unscreened(), lambda u, counts, **_: counts / counts.sum() @ u),
    "median": (fa.Median(), lambda u, **_: np.median(u, axis=0)),
    "trimmed_mean": (fa.TrimmedMean(0.2), reference_trimmed),
    "krum": (fa.Krum(2), reference_krum),
    "multi_krum": (fa.MultiKrum(2), reference_multi_krum),
    "bulyan": (fa.Bulyan(1), reference_bulyan),
    "geometric_median": (fa.GeometricMedian(), reference_rfa),
    "fltrust": (fa.FLTrust(), reference_fltrust),
    "foolsgold": (fa.FoolsGold(), reference_foolsgold),
    "norm_clipping": (fa.NormClipping(), reference_clip),
    "rule_guard": (fa.RuleGuard(), reference_rule_guard),
}
COUNTS = [10.0, 20.0, 5.0, 8.0, 30.0, 12.0, 400.0, 9.0, 11.0, 10.0]


def looked(screen: Screen, u: Array, seed: int = 5) -> tuple[Screening, Evidence, Array]:
    root = np.random.default_rng(seed).normal(size=u.shape[1]) * 0.3 + 0.5
    seen = evidence(u, COUNTS[: len(u)], root=lambda: torch.from_numpy(root).float())
    return screen.look(seen, ScreenState()), seen, root


def test_there_is_a_reference_for_every_screen() -> None:
    assert REFERENCES.keys() == SCREENS.keys() and all(SCREENS[name] is type(screen) for name, (screen, _) in REFERENCES.items())


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("count", [9, 10])
def test_it_is_what_its_paper_says(name: str, count: int) -> None:
    screen, reference = REFERENCES[name]
    u = drawn(count)
    found, seen, root = looked(screen, u)
    expected = reference(u, counts=np.array(COUNTS[:count]), root=root)
    assert aggregate(found, seen, screen.policy is fa.Equal) == pytest.approx(expected, rel=2e-4, abs=2e-5)


@pytest.mark.parametrize("name", REFERENCES)
def test_the_order_of_the_clients_does_not_matter(name: str) -> None:
    screen, _ = REFERENCES[name]
    u, order = drawn(), np.random.default_rng(1).permutation(9)
    found, seen, root = looked(screen, u)
    reports = [ClientReport(1, int(i), COUNTS[i]) for i in order]
    turned = Evidence(1, [seen.uploads[i] for i in order], reports, root=seen.root)
    again = screen.look(turned, ScreenState())
    assert again.factors.tolist() == pytest.approx(found.factors[order].tolist(), rel=1e-5, abs=1e-9)
    equal = screen.policy is fa.Equal
    assert aggregate(again, turned, equal) == pytest.approx(aggregate(found, seen, equal), rel=1e-4, abs=1e-6)
    assert root is not None


HOSTILE = st.sampled_from([0.0, 1.0, -1.0, 1e-45, 1e-30, -1e-3, 1e18, -1e30, 3e38, -3e38])


@st.composite
def cohorts(draw: st.DrawFn) -> Array:
    """One to nine uploads of 12 or 900 numbers: a few values that repeat, whole rows of zeros, copies of one another, one far too long."""
    count, size = draw(st.integers(1, 9)), draw(st.sampled_from([12, 900]))
    values = np.array(draw(st.lists(HOSTILE, min_size=1, max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    u = rng.choice(values, (count, size)) if draw(st.booleans()) else rng.normal(size=(count, size))
    u[rng.random(count) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = draw(st.sampled_from([0.0, 1e-44, -2.0]))
    u[rng.integers(count)] *= draw(st.sampled_from([1.0, -1.0, 1e-42, 1e6]))
    if draw(st.booleans()):
        u[rng.integers(count)] = u[0]
    return np.clip(u, -3e38, 3e38)


@settings(max_examples=150, deadline=None)
@given(cohorts(), st.booleans())
def test_whatever_is_sent_the_aggregate_is_finite_and_who_is_left_out_has_a_reason(u: Array, follows: bool) -> None:
    previous = torch.from_numpy(u[-1].astype(np.float32)) if follows else None
    for name, (screen, _) in REFERENCES.items():
        seen = replace(looked(screen, u)[1], previous=previous)
        found = screen.look(seen, ScreenState())
        again = screen.look(seen, found.state)
        for each in (found, again):
            assert bool(each.factors.isfinite().all()) and bool((each.factors >= 0).all()), name
            assert bool(each.scales.isfinite().all()) and bool((each.scales >= 0).all()), name
            assert bool(each.counts.isfinite().all()) and bool((each.counts > 0).all()), name
            for why, factor in zip(each.refusals, each.factors.tolist(), strict=True):
                assert (why is not None) == (factor == 0), name
                assert why is None or why.reason in REASONS
            if name != "fltrust":  # where nobody points the server's way, the model stays
                assert float(each.factors.sum()) > 0, name
            if float(each.factors.sum()) > 0:
                assert np.isfinite(aggregate(each, seen, screen.policy is fa.Equal)).all(), name
        assert json.loads(json.dumps(dict(found.state.facts))) == dict(found.state.facts)
        assert all(bool(vector.isfinite().all()) for vector in again.state.vectors.values()), name


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_cohort_that_shrank_is_no_error(size: int) -> None:
    for name, (screen, _) in REFERENCES.items():
        found, seen, _ = looked(screen, drawn(size))
        if float(found.factors.sum()) > 0 or name != "fltrust":
            assert np.isfinite(aggregate(found, seen, screen.policy is fa.Equal)).all(), name


def test_a_cohort_too_small_for_one_byzantine_client_stands_none() -> None:
    """Of four uploads Multi-Krum takes all, and of five, where f = 1 can be stood, four; Bulyan of six all, of seven five."""
    kept = {size: int((looked(fa.MultiKrum(3), drawn(size))[0].factors > 0).sum()) for size in (1, 2, 4, 5)}
    assert kept == {1: 1, 2: 2, 4: 4, 5: 4}
    picked = {size: int((looked(fa.Bulyan(3), drawn(size))[0].factors > 0).sum()) for size in (1, 6, 7)}
    assert picked == {1: 1, 6: 6, 7: 5}
    u = drawn(6)
    found, seen, _ = looked(fa.Bulyan(3), u)
    assert aggregate(found, seen, False) == pytest.approx(u.mean(0), rel=1e-5)


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize("length", [1.0, 1e30])
def test_the_geometric_median_is_exact_whatever_the_length_of_a_bad_upload(place: int, length: float) -> None:
    """Equal counts, another upload twenty times as long as most. Without a bad one it is far from the mean."""
    u = np.random.default_rng(3).normal(size=(10, 40)) + 1
    u[2] *= 20
    u[place] *= length
    v = np.median(u, axis=0)
    for _step in range(3000):
        pull = 1 / np.linalg.norm(u - v, axis=1)
        v = pull @ u / pull.sum()
    seen = evidence(u)
    assert aggregate(fa.GeometricMedian().look(seen, ScreenState()), seen, False) == pytest.approx(v, rel=1e-3, abs=1e-3)


def test_a_statistic_in_place_of_the_mean_is_taken_of_every_vector_and_for_both_sums() -> None:
    """SCAFFOLD's control variate moves by the median of the clients' too, times the share of the population that was asked."""
    trace = run_traced(fa.Scaffold(), aggregation=fa.Aggregation(screen=fa.Median()), rounds=1)
    sent = [trace.uploads[0][client] for client in SCRIPT[0]]
    before, after = trace.server(0), trace.server(1)
    for name, moved, share in (("delta", after.w - before.w, 1.0), ("control_delta", after.control - before.control, 4 / len(SIZES))):
        expected = np.median(np.stack([getattr(upload, name).numpy() for upload in sent]), axis=0)
        assert np.abs(expected).max() > 1e-3
        assert moved.numpy() == pytest.approx(expected * share, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(
    ("screen", "size"),
    [(fa.Krum(4), 10), (fa.MultiKrum(4), 10), (fa.MultiKrum(1, 9), 8), (fa.Bulyan(2), 10), (fa.Median(), 2), (fa.TrimmedMean(0.1), 9)],
)
def test_a_cohort_that_can_never_do_is_refused_when_the_run_is_built(screen: Screen, size: int) -> None:
    with pytest.raises(ConfigError, match="E203"):
        fa.run(fa.digits("softmax"), fa.FedAvg(), partition=fa.IID(clients=20), cohort=size, rounds=1, screen=screen)


def test_fltrust_without_validation_data_and_a_policy_beside_the_median_are_refused() -> None:
    task = fa.digits("softmax", validation=0.0)
    options: dict[str, Any] = {"partition": fa.IID(clients=5), "cohort": 5, "rounds": 1}
    with pytest.raises(ConfigError, match="E208 FLTrust needs examples on the server"):
        fa.run(task, fa.FedAvg(), screen=fa.FLTrust(), **options)
    own = replace(fa.digits("softmax"), model=lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)))
    with pytest.raises(ConfigError, match="E208 FLTrust needs examples on the server"):
        fa.run(own, fa.SiloBN(), screen=fa.FLTrust(), **options)
    with pytest.raises(ConfigError, match="E208 Median knows no weights, so Equal would change nothing"):
        fa.run(task, fa.FedAvg(), screen=fa.Median(), policy=fa.Equal(), **options)
