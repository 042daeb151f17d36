"""What a refusal leaves out beside the method's own numbers. The law of refusals is in test_methods.py."""

from __future__ import annotations

from typing import Any

import torch

import fedaccord as fa
from fedaccord.checks.trial import make_task, run_traced, with_batch_norm_and_dropout
from fedaccord.experiment import Aggregation


def test_the_buffers_of_a_refused_client_are_not_averaged_in() -> None:
    def ruin(answer: Any, round: int) -> Any:
        huge = {name: b + 1000 for name, b in answer.buffers.items()}
        bad = answer.upload._replace(delta=answer.upload.delta[:-1])
        return answer._replace(upload=bad, buffers=huge) if answer.client == 2 else answer

    trace = run_traced(fa.FedAvg(), make_task(with_batch_norm_and_dropout), change=ruin, rounds=1)
    assert trace.results[0].report.accepted == (0, 3, 5)
    assert all(float(b.double().max()) < 100 for b in trace.results[0].state.buffers.values())


class WithoutTwo(fa.Policy):
    def weigh(self, cohort: fa.CohortView, memory: Any) -> fa.Decision:
        return fa.Decision(torch.tensor([0.0 if client == 2 else 1.0 for client in cohort.clients], dtype=torch.float64))


def test_a_client_that_the_policy_leaves_out_is_not_settled_either() -> None:
    """Weight 0 in the aggregate is not accepted: its new state does not count, and the records say why."""
    trace = run_traced(fa.Scaffold(), aggregation=Aggregation(policy=WithoutTwo()))
    assert all(2 not in settled for settled in trace.settled) and all(2 not in states for states in trace.states)
    line = next(each for each in trace.results[0].clients if each.client == 2)
    assert (line.accepted, line.code, line.reason) == (False, "E111", "no_weight")
