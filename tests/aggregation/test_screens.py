"""screens/: each against a reference written anew from its paper, in float64 and for one small cohort."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedaccord as fa
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState
from fedaccord.aggregation.screens import SCREENS
from fedaccord.core.errors import ConfigError
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
    for step in range(4):
        beta = p / np.maximum(np.linalg.norm(u - v, axis=1), 1e-9)
        v = beta @ u / beta.sum()
        assert step < 4
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
    norms, median = np.linalg.norm(u, axis=1), np.median(u, axis=0)
    kept = (u @ median / norms / np.linalg.norm(median) > 0) & (norms <= 5 * np.median(norms))
    n = np.minimum(counts, 3 * np.median(counts)) * kept
    return (n / n.sum() * np.minimum(1, np.median(norms) / norms)) @ u


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


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([0.0, 1e-42, 1e-3, 1.0, 1e18, 3e38]))
def test_whatever_is_sent_every_screen_says_finite_things_and_gives_a_reason_for_who_is_left_out(
    seed: int, count: int, size: float
) -> None:
    rng = np.random.default_rng(seed)
    u = np.clip(rng.choice([0.0, 1.0, -1.0, size, -size], (count, 30)), -3.4e38, 3.4e38)
    if rng.random() < 0.5:
        u[rng.integers(count)] = u[0]
    for name, (screen, _) in REFERENCES.items():
        found, _, _ = looked(screen, u)
        assert bool(found.factors.isfinite().all()) and bool((found.factors >= 0).all()), name
        assert bool(found.scales.isfinite().all()) and bool((found.scales >= 0).all()), name
        left = [why is not None for why in found.refusals]
        assert all(not gone or factor == 0 for gone, factor in zip(left, found.factors.tolist(), strict=True)), name
        assert all(gone or factor > 0 for gone, factor in zip(left, found.factors.tolist(), strict=True)), name


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_cohort_that_shrank_is_no_error(size: int) -> None:
    for name, (screen, _) in REFERENCES.items():
        found, seen, _ = looked(screen, drawn(size))
        if name != "fltrust":
            assert np.isfinite(aggregate(found, seen, screen.policy is fa.Equal)).all(), name


@pytest.mark.parametrize(("screen", "size"), [(fa.Krum(4), 10), (fa.MultiKrum(4), 10), (fa.MultiKrum(1, 9), 8), (fa.Bulyan(2), 10)])
def test_a_cohort_that_can_never_do_is_refused_when_the_run_is_built(screen: Screen, size: int) -> None:
    with pytest.raises(ConfigError, match="E203"):
        fa.run(fa.digits("softmax"), fa.FedAvg(), partition=fa.IID(clients=20), cohort=size, rounds=1, screen=screen)


def test_fltrust_without_validation_data_and_a_policy_beside_the_median_are_refused() -> None:
    task = fa.digits("softmax", validation=0.0)
    options: dict[str, Any] = {"partition": fa.IID(clients=5), "cohort": 5, "rounds": 1}
    with pytest.raises(ConfigError, match="E208 FLTrust needs examples on the server"):
        fa.run(task, fa.FedAvg(), screen=fa.FLTrust(), **options)
    with pytest.raises(ConfigError, match="E208 Median knows no weights, so Equal would change nothing"):
        fa.run(task, fa.FedAvg(), screen=fa.Median(), policy=fa.Equal(), **options)


def test_foolsgold_remembers_what_clients_sent() -> None:
    """Alone in a round two clients look different; over three rounds they have sent the same."""
    rng, state = np.random.default_rng(0), ScreenState()
    common = rng.normal(size=(3, 40)) * 0.3
    for t in range(3):
        wobble = rng.normal(size=40)
        rows = np.stack(
            [
                common[t] + 1 + wobble * (1 if t < 2 else -1),
                common[t] + 1 - wobble * (1 if t < 2 else -1),
                rng.normal(size=40),
                rng.normal(size=40),
            ]
        )
        found = fa.FoolsGold().look(evidence(rows), state)
        state = found.state
    assert found.factors[:2].max() < found.factors[2:].min() and set(state.vectors) == {"0", "1", "2", "3"}


# What the rule guard does, one rule at a time.


def guarded(u: Array, state: ScreenState | None = None, previous: Array | None = None, counts: list[float] | None = None) -> Screening:
    more = {} if previous is None else {"previous": torch.from_numpy(previous).float()}
    return fa.RuleGuard().look(evidence(u, counts, **more), state or ScreenState())


def reasons(found: Screening) -> list[str | None]:
    return [None if why is None else why.reason for why in found.refusals]


def honest(count: int = 9, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 40)) * 0.5 + 1


def test_honest_uploads_pass_shortened_to_the_median_and_their_counts_are_capped() -> None:
    u = honest()
    found = guarded(u, counts=COUNTS)
    norms = np.linalg.norm(u, axis=1)
    assert reasons(found) == [None] * 9 and found.counts.tolist() == [min(c, 33.0) for c in COUNTS[:9]]
    assert found.scales.tolist() == pytest.approx(np.minimum(1, np.median(norms) / norms), rel=1e-5)


def test_each_rule_has_its_reason() -> None:
    u, previous = honest(12), np.random.default_rng(9).normal(size=40) + 1
    u[0] *= -1
    u[1] *= 10
    u[2] *= 1e-6
    u[3] = previous * 1.1
    assert reasons(guarded(u, previous=previous)) == ["opposed", "norm_jump", "no_update", "replayed", *[None] * 8]


def test_a_jump_is_against_the_clients_own_history() -> None:
    state = ScreenState()
    for seed in range(6):
        state = guarded(honest(seed=seed), state).state
    u = honest(seed=7)
    u[4] *= 3
    assert reasons(guarded(u))[4] is None, "three medians are allowed"
    assert reasons(guarded(u, state))[4] == "norm_jump", "but it never was so long"
    assert len(state.facts["norms"]["4"]) == 6


def test_another_vector_of_the_upload_that_is_far_too_long_is_left_out_too() -> None:
    seen = evidence(honest())
    uploads = list(seen.uploads)
    uploads[3] = uploads[3]._replace(control=uploads[3].control * 100)
    found = fa.RuleGuard().look(Evidence(1, uploads, seen.reports), ScreenState())
    assert reasons(found) == [None, None, None, "norm_jump", *[None] * 5]


def test_a_cohort_of_two_and_one_that_would_lose_everybody_count_all() -> None:
    two = np.stack([honest(1)[0], -honest(1)[0]])
    assert reasons(guarded(two)) == [None, None]
    assert reasons(guarded(np.zeros((5, 40)))) == [None] * 5
    assert math.isfinite(float(guarded(np.zeros((5, 40))).scales.sum()))
