"""rule_guard.py, one rule at a time: when each acts, when it does not, and what is remembered."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import fedaccord as fa
from fedaccord.aggregation.screen import Evidence, Screening, ScreenState
from fedaccord.core.reports import ClientReport

Array = np.ndarray[Any, Any]
LARGE = 900  # numbers of a model large enough to tell noise


class Upload(NamedTuple):
    delta: Tensor
    control: Tensor


def evidence(u: Array, counts: list[float] | None = None, **more: Any) -> Evidence:
    vectors = torch.from_numpy(np.asarray(u, dtype=np.float32))
    reports = [ClientReport(1, i, (counts or [10.0] * len(u))[i]) for i in range(len(u))]
    return Evidence(1, [Upload(v, v[:4] * 0.5) for v in vectors], reports, **more)


def guarded(
    u: Array, state: ScreenState | None = None, previous: Array | None = None, counts: list[float] | None = None, **fields: Any
) -> Screening:
    more = {} if previous is None else {"previous": torch.from_numpy(previous).float()}
    return fa.RuleGuard(**fields).look(evidence(u, counts, **more), state or ScreenState())


def reasons(found: Screening) -> list[str | None]:
    return [None if why is None else why.reason for why in found.refusals]


def honest(count: int = 12, seed: int = 0, size: int = 40) -> Array:
    return np.random.default_rng(seed).normal(size=(count, size)) * 0.5 + 1


# Caps.


def test_honest_uploads_pass_shortened_to_their_median_length_and_their_counts_are_capped() -> None:
    u, counts = honest(9), [10.0, 20.0, 5.0, 8.0, 30.0, 12.0, 400.0, 9.0, 11.0]
    found = guarded(u, counts=counts)
    norms = np.linalg.norm(u, axis=1)
    assert reasons(found) == [None] * 9 and found.factors.tolist() == [1.0] * 9
    assert found.counts.tolist() == [min(c, 33.0) for c in counts]
    assert found.scales.tolist() == pytest.approx(np.minimum(1, np.median(norms) / norms), rel=1e-5)
    assert guarded(u, counts=counts, max_count=1.0).counts.max() == 11


def test_who_is_left_out_does_not_shorten_the_others() -> None:
    """Five of nine send nothing: the median of all lengths is 0, that of the others is theirs."""
    u = honest(9)
    u[:5] = 0
    found = guarded(u)
    assert reasons(found) == ["no_update"] * 5 + [None] * 4
    assert found.scales[5:].min() > 0.8


# Each reason.


def test_each_rule_has_its_reason() -> None:
    u, previous = honest(12), np.random.default_rng(9).normal(size=40) + 1
    u[0] *= -1
    u[1] *= 10
    u[2] = 0
    u[3] = previous * 1.1
    assert reasons(guarded(u, previous=previous)) == ["opposed", "norm_jump", "no_update", "replayed", *[None] * 8]


def test_a_replayed_move_is_seen_whatever_its_length_and_however_little_it_was_touched() -> None:
    u, rng = honest(12, size=LARGE), np.random.default_rng(9)
    previous = rng.normal(size=LARGE) + 1
    noise = rng.normal(size=LARGE) * np.linalg.norm(previous) / math.sqrt(LARGE)
    for touch, length in ((0.0, 1e-3), (0.01, 1.0), (1.0, 1.0), (3.0, 0.1)):
        u[5] = length * (previous + touch * noise)
        why = reasons(guarded(u, previous=previous))
        assert why[5] in ("replayed", "no_update") and why[:5] + why[6:] == [None] * 11, touch
    u[5] = honest(1, seed=5, size=LARGE)[0] + 3 * previous
    assert reasons(guarded(u, previous=previous)) == [None] * 12, "who goes on where the model went, and adds something, passes"


@pytest.mark.parametrize("length", [1e-6, 1.0, 4.0])
def test_noise_of_any_length_is_no_update(length: float) -> None:
    rng, caught = np.random.default_rng(0), 0
    for draw in range(40):
        u = honest(12, seed=draw, size=LARGE)
        u[7] = rng.normal(size=LARGE) * length
        why = reasons(guarded(u))
        caught += why[7] == "no_update"
        assert why[:7] + why[8:] == [None] * 11
    assert caught >= 35, "19 of 20 are meant to be"


def test_noise_is_not_looked_for_among_few_uploads_in_small_models_or_where_chance_is_one() -> None:
    rng = np.random.default_rng(0)
    for count, size, fields in ((9, LARGE, {}), (12, 100, {}), (12, LARGE, {"chance": 1.0})):
        u = honest(count, size=size)
        u[0] = rng.normal(size=size)
        u[0] += 2 * u[1:].mean(0) * np.linalg.norm(u[0]) / np.linalg.norm(u[1:].mean(0)) / math.sqrt(size)
        assert reasons(guarded(u, **fields))[0] is None


def test_another_vector_of_the_upload_that_is_far_too_long_is_left_out_too() -> None:
    seen = evidence(honest(9))
    uploads = list(seen.uploads)
    uploads[3] = uploads[3]._replace(control=uploads[3].control * 100)
    found = fa.RuleGuard().look(Evidence(1, uploads, seen.reports), ScreenState())
    assert reasons(found) == [None, None, None, "norm_jump", *[None] * 5]


# History.


def told(rounds: int, **fields: Any) -> ScreenState:
    state = ScreenState()
    for seed in range(rounds):
        state = guarded(honest(9, seed=seed), state, **fields).state
    return state


def test_a_jump_is_against_the_clients_own_history_of_five_lengths() -> None:
    u = honest(9, seed=7)
    u[4] *= 3
    assert reasons(guarded(u))[4] is None, "three medians are allowed"
    assert reasons(guarded(u, told(4)))[4] is None, "four lengths are too few"
    assert reasons(guarded(u, told(5))) == [None] * 4 + ["norm_jump"] + [None] * 4
    assert reasons(guarded(u, told(5), jump=100.0))[4] is None


def test_lengths_that_never_varied_leave_room_for_half_of_their_mean() -> None:
    state = ScreenState()
    for _round in range(6):
        state = guarded(honest(9), state).state
    for factor, why in ((1.4, None), (1.6, "norm_jump")):
        u = honest(9)
        u[4] *= factor
        assert reasons(guarded(u, state))[4] == why


def test_a_client_whose_data_changed_is_left_out_for_some_rounds_and_not_for_good() -> None:
    state, left = told(10), []
    for seed in range(10, 20):
        u = honest(9, seed=seed)
        u[4] *= 3
        found = guarded(u, state)
        state = found.state
        left.append(reasons(found)[4])
    assert left[0] == "norm_jump" and left[3:] == [None] * 7


def test_what_is_remembered_is_short_and_survives_json() -> None:
    state = told(15)
    facts = json.loads(json.dumps(dict(state.facts)))
    assert facts == dict(state.facts)
    assert {len(own) for own in facts["norms"].values()} == {10}
    u = honest(9, seed=99)
    u[4] *= 3
    again, straight = guarded(u, ScreenState(facts)), guarded(u, state)
    assert reasons(again) == reasons(straight) and dict(again.state.facts) == dict(straight.state.facts)


# When it does not act.


def test_one_or_two_uploads_are_not_compared() -> None:
    two = np.stack([honest(1)[0], -9 * honest(1)[0]])
    assert reasons(guarded(two, max_norm=1.5)) == [None, None] and reasons(guarded(two[:1])) == [None]


def test_where_all_are_zero_all_count() -> None:
    found = guarded(np.zeros((5, 40)))
    assert reasons(found) == [None] * 5 and found.scales.tolist() == [1.0] * 5


def test_what_hits_more_than_half_of_a_cohort_is_no_clients_doing() -> None:
    """All repeat the last move, as in a model of few numbers; all are noise, as behind a channel that adds some; all jump."""
    previous = honest(1)[0]
    u = previous * np.linspace(1, 2, 12)[:, None] + np.random.default_rng(0).normal(size=(12, 40)) * 1e-3
    assert reasons(guarded(u, previous=previous)) == [None] * 12
    rng = np.random.default_rng(1)
    behind_noise = rng.normal(size=(12, LARGE)) * 20 + np.sign(rng.normal(size=LARGE))
    assert "no_update" not in reasons(guarded(behind_noise))
    assert reasons(guarded(honest(9, seed=30) * 4, told(10))) == [None] * 9


def test_of_a_cohort_that_would_all_be_left_out_the_opposed_that_point_best_stay() -> None:
    """Three quarters of the coordinates of each point against the median of the others."""
    u = np.array([[4.0, -1.0, -1.0, -1.0], [-1.0, 4.0, -1.0, -1.0], [-1.0, -1.0, 4.0, -1.0], [-1.0, -1.0, -1.0, 4.0]])
    u += np.array([0.03, 0.02, 0.01, 0.0])[:, None]
    found = guarded(u)
    assert reasons(found).count("opposed") == 2 and found.factors.sum() == 2
    zeros = np.concatenate([u, np.zeros((2, 4))])
    assert reasons(guarded(zeros))[4:] == ["no_update"] * 2, "who sends nothing does not come back with them"
    assert float(guarded(zeros).factors.sum()) == 2
