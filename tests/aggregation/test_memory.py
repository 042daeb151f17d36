"""memory.py: replays, copies, and quarantine."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from fedaccord.aggregation.memory import FEWEST, Digests, Quarantine, counted, quarantined, released, repeated

RULE = Quarantine(refusals=3, window=20, rounds=10)


def vector(seed: int, size: int = 5000) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_equal_uploads_have_one_digest_and_others_another() -> None:
    digests = Digests(5000)
    assert digests.of(vector(1)) == digests.of(vector(1).clone()) and digests.of(vector(1)) != digests.of(vector(2))
    assert Digests(40).of(vector(1, 40)) != Digests(40).of(vector(2, 40))


def test_nearly_empty_uploads_say_nothing_about_where_they_come_from() -> None:
    digests, sparse = Digests(5000), torch.zeros(5000)
    assert digests.of(sparse) is None
    sparse[: FEWEST - 1] = 1.0
    assert digests.of(sparse) is None
    sparse[:FEWEST] = torch.arange(1.0, FEWEST + 1)
    assert digests.of(sparse) is not None, "a sparse update is hashed whole, though the sample holds next to none of it"


def test_a_replay_and_a_copy_are_told_apart_and_one_of_two_equal_uploads_counts() -> None:
    digests = Digests(5000)
    first, other = digests.of(vector(1)), digests.of(vector(2))
    assert first is not None and other is not None
    known = digests.kept({}, {first: 7}, 3)
    replay, copy, twin = repeated(first, 7, known, {}), repeated(first, 8, known, {}), repeated(other, 9, known, {other: 4})
    assert replay is not None and (replay.code, replay.reason) == ("E115", "replayed") and "round 3" in str(replay)
    assert copy is not None and copy.reason == "copied" and "client 7" in str(copy)
    assert twin is not None and twin.reason == "copied" and "client 4 sent the same" in str(twin)
    assert repeated(other, 4, known, {}) is None and repeated(None, 4, known, {}) is None


@pytest.mark.parametrize(("later", "is_known"), [(1, True), (10, True), (19, True), (20, False)])
def test_twenty_rounds_are_remembered_and_no_more(later: int, is_known: bool) -> None:
    digests = Digests(5000)
    digest = digests.of(vector(1))
    assert digest is not None
    known: dict[str, Any] = digests.kept({}, {digest: 7}, 3)
    for t in range(4, 3 + later + 1):
        known = digests.kept(json.loads(json.dumps(known)), {}, t)
    assert (digest in known) is is_known


def test_three_refusals_lead_into_quarantine_for_ten_rounds_and_then_for_twenty() -> None:
    facts: dict[str, Any] = {}
    for t in (1, 2):
        facts, new = counted(RULE, facts, [(7, "non_finite")], t)
        assert new == [] and quarantined(facts, t + 1) == ()
    facts, new = counted(RULE, json.loads(json.dumps(facts)), [(7, "wrong_shape")], 3)
    assert new == [7] and quarantined(facts, 4) == (7,) and quarantined(facts, 13) == (7,) and quarantined(facts, 14) == ()
    for t in (14, 15, 16):
        facts, new = counted(RULE, facts, [(7, "replayed")], t)
    assert new == [7] and quarantined(facts, 36) == (7,) and quarantined(facts, 37) == ()


def test_refusals_far_apart_and_those_an_honest_client_meets_do_not_count() -> None:
    facts: dict[str, Any] = {}
    for t in (1, 15, 30, 45):
        facts, new = counted(RULE, facts, [(7, "stale"), (8, "no_data"), (8, "client_error"), (9, "opposed"), (9, "no_weight")], t)
        assert new == []
    assert set(facts["refused"]) == {"7"}


def test_an_operator_lets_a_client_back_in_with_a_clean_sheet() -> None:
    facts: dict[str, Any] = {}
    for t in (1, 2, 3):
        facts, _ = counted(RULE, facts, [(7, "copied"), (8, "copied")], t)
    assert quarantined(facts, 4) == (7, 8)
    facts = released(facts, [7])
    assert quarantined(facts, 4) == (8,)
    for t in (4, 5):
        facts, new = counted(RULE, facts, [(7, "copied")], t)
    assert new == []
