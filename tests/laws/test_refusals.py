"""A refused client leaves no trace, in every method."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedaccord as fa
from fedaccord.algorithms import REGISTRY


def never_asked(cohorts: Any, client: int, round: int) -> list[list[int]]:
    return [[c for c in cohort if (c, t) != (client, round)] for t, cohort in enumerate(cohorts, start=1)]


@pytest.mark.parametrize("name", REGISTRY)
def test_the_run_is_the_one_in_which_it_was_never_asked(name: str, trace: Any, poisoned: Any, bn_task: fa.Task, script: Any) -> None:
    """Models, buffers and every client's state, in that round and in all later ones, client 2's own included."""
    method = REGISTRY[name]()
    refused = trace(method, bn_task, change=poisoned(2, 2))
    absent = trace(method, bn_task, cohorts=never_asked(script, 2, 2))
    for a, b in zip(refused.bits(), absent.bits(), strict=True):
        assert a[0] == b[0], "the server's state and the buffers"
        assert a[1] == b[1], "what the clients keep"


@pytest.mark.parametrize("name", REGISTRY)
def test_it_is_recorded_with_a_reason_and_keeps_its_old_state(name: str, trace: Any, poisoned: Any) -> None:
    traced = trace(REGISTRY[name](), change=poisoned(2, 2))
    report = traced.results[1].report
    assert report.accepted == (1, 4, 6) and [each["client"] for each in report.refused] == [2]
    assert (
        report.refused[0]["code"] == "E101" and report.refused[0]["reason"] == "non_finite" and "0.weight" in report.refused[0]["message"]
    )
    assert all(torch.equal(traced.kept[0][2][field], value) for field, value in traced.kept[1][2].items())
    assert traced.settled[1] == {1, 4, 6}


@pytest.mark.parametrize("name", REGISTRY)
def test_a_round_in_which_all_are_refused_keeps_everything(name: str, trace: Any, bn_task: fa.Task) -> None:
    def ruin(answer: Any, round: int) -> Any:
        return answer._replace(upload=answer.upload._replace(delta=answer.upload.delta * float("inf"))) if round == 2 else answer

    traced = trace(REGISTRY[name](), bn_task, change=ruin)
    (before, kept_before, _), (after, kept_after, _) = traced.bits()[:2]
    assert before == after and kept_before == kept_after
    report = traced.results[1].report
    assert report.model_kept and report.reason == "no usable upload" and len(report.refused) == 4
    assert (report.test is not None) == (REGISTRY[name]().local_parts == "none"), "the old model is measured, where there is one"
    assert traced.results[2].report.accepted == (0, 1, 2, 3), "the run goes on"


def test_its_buffers_are_not_averaged_in(trace: Any, bn_task: fa.Task) -> None:
    def ruin(answer: Any, round: int) -> Any:
        huge = {name: b + 1000 for name, b in answer.buffers.items()}
        bad = answer.upload._replace(delta=answer.upload.delta[:-1])
        return answer._replace(upload=bad, buffers=huge) if answer.client == 2 else answer

    traced = trace(fa.FedAvg(), bn_task, change=ruin, rounds=1)
    assert all(float(b.double().max()) < 100 for b in traced.results[0].state.buffers.values())


def test_a_client_that_the_policy_leaves_out_is_not_settled_either(trace: Any) -> None:
    """Weight 0 in the aggregate is not accepted: its new state does not count, and the records say why."""

    class WithoutTwo:
        def weigh(self, reports: Any) -> torch.Tensor:
            return torch.tensor([0.0 if report.client == 2 else 1.0 for report in reports], dtype=torch.float64)

    from fedaccord.experiment import Aggregation

    traced = trace(fa.Scaffold(), aggregation=Aggregation(policy=WithoutTwo()))
    assert all(2 not in settled for settled in traced.settled) and all(2 not in kept for kept in traced.kept)
    line = next(each for each in traced.results[0].clients if each.client == 2)
    assert (line.accepted, line.code, line.reason) == (False, "E111", "no_weight")


@pytest.mark.parametrize("name", REGISTRY)
def test_answers_nobody_asked_for_and_second_answers_change_nothing(name: str, trace: Any) -> None:
    """A stranger's answer and a second, different one of client 2 arrive behind the others."""
    method = REGISTRY[name]()

    def with_surplus(answers: Any) -> list[Any]:
        if isinstance(answers[0], int):  # the clients to train, not their answers
            return list(answers)
        second = answers[1]._replace(upload=answers[1].upload._replace(delta=answers[1].upload.delta * 5))
        return [*answers, second, answers[0]._replace(client=6)]

    script = [(0, 2, 3, 5), (1, 2, 4, 5)]
    plain = trace(method, cohorts=script, rounds=2)
    crowded = trace(method, cohorts=script, rounds=2, arrange=with_surplus)
    assert [a[:2] for a in plain.bits()] == [b[:2] for b in crowded.bits()]
    refused = [(each["client"], each["code"], each["reason"]) for each in crowded.results[0].report.refused]
    assert refused == [(2, "E114", "duplicate"), (6, "E114", "not_asked")]
    assert crowded.results[0].report.accepted == (0, 2, 3, 5)
