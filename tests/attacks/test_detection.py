"""attacks/detection.py: hits, misses and false alarms, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

import fedaccord as fa
from fedaccord.runs import Record


def line(round: int, refused: dict[int, str], absent: tuple[int, ...] = (), **others: Any) -> dict[str, Any]:
    told = [{"client": client, "code": code, "reason": "", "message": ""} for client, code in refused.items()]
    return {"round": round, "cohort": [0, 1, 2, 3], "absent": list(absent), "refused": told, "model_kept": False, "reason": None, **others}


def found(*lines: dict[str, Any], bad: tuple[int, ...] = (0, 1), from_round: int = 1) -> fa.Flags:
    attack = {"attack": {"name": "sign_flip", "from_round": from_round}}
    return fa.flags(Record(attack, provenance={"bad_clients": list(bad)}, rounds=list(lines)))


def test_precision_recall_and_the_first_flag_are_counted_by_uploads() -> None:
    """Client 0: passes, then refused twice. Client 1: never. Client 2: once of two, and once absent. Client 3: never."""
    seen = found(line(1, {}), line(2, {0: "E116", 2: "E116"}), line(3, {0: "E111"}, absent=(2,)))
    assert seen.bad == (0, 1) and seen.first == {0: 2, 1: None}
    assert seen.false == {2: 0.5, 3: 0.0} and seen.most_false == (2, 0.5)
    assert seen.precision == pytest.approx(2 / 3) and seen.recall == pytest.approx(2 / 6)
    assert seen.caught(within=1) == 0 and seen.caught(within=2) == 0.5
    assert seen.mean_false == 0.25
    assert seen.record()["caught_in_five"] == 0.5 and seen.record()["most_false"] == {"client": 2, "share": 0.5}


def test_a_mark_of_the_policy_is_a_flag() -> None:
    assert found(line(1, {}, trust={"marked": {"1": "its norm jumped"}})).first == {0: None, 1: 1}


def test_who_says_itself_that_it_has_nothing_was_not_flagged() -> None:
    """E107, E108: no upload. E114: a second answer, whose first one counted."""
    seen = found(line(1, {0: "E107", 2: "E108", 3: "E114"}))
    assert seen.first == {1: None} and seen.false == {3: 0.0} and seen.precision is None and seen.recall == 0


def test_a_sum_that_overflows_tells_nobody_apart() -> None:
    everybody = dict.fromkeys(range(4), "E101")
    overflow = line(1, {**everybody, 3: "E116"}, model_kept=True, reason="the aggregate is not finite")
    assert found(overflow).recall == 0 and found(overflow).false == {2: 0.0, 3: 1.0}
    assert found(line(1, everybody, model_kept=True, reason="no usable upload")).recall == 1, "where each was refused by itself"


def test_rounds_before_the_attack_do_not_count() -> None:
    seen = found(line(1, {0: "E116", 2: "E116"}), line(2, {0: "E116"}), from_round=2)
    assert seen.first == {0: 1, 1: None} and seen.precision == 1 and seen.recall == 0.5
    assert found(line(1, {0: "E116"}), from_round=2).caught() is None


def test_without_an_attack_nobody_is_bad_and_every_flag_is_false() -> None:
    seen = fa.flags(Record({}, rounds=[line(1, {2: "E116"})]))
    assert seen.bad == () and seen.caught() is None and seen.recall is None and seen.precision == 0 and seen.false[2] == 1


def test_free_riders_are_flagged_by_the_rule_guard_at_once_and_honest_clients_hardly_ever() -> None:
    options: dict[str, Any] = {"partition": fa.IID(clients=10), "cohort": 10, "rounds": 8, "runtime": "sequential"}
    options |= {"screen": fa.RuleGuard(), "local": fa.LocalPlan(lr=0.1, epochs=1, batch_size=20)}
    for kind in ("zero", "replayed", "noised"):
        rider = fa.FreeRider(clients=(3, 7), kind=kind)  # type: ignore[arg-type]
        seen = fa.flags(fa.run(fa.digits("softmax"), fa.FedAvg(), attack=rider, **options).record)
        assert seen.caught() == 1 and seen.mean_false is not None and seen.mean_false < 0.05, kind
