"""Neither the order of clients, nor the order of arrival, nor what ran before moves a bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import fedaccord as fa
from fedaccord.algorithms import REGISTRY


def shuffled(seed: int) -> Any:
    rng = random.Random(seed)

    def arrange(items: Any) -> list[Any]:
        out = list(items)
        rng.shuffle(out)
        return out

    return arrange


@pytest.mark.parametrize("name", REGISTRY)
def test_the_order_in_which_clients_train_and_answer_changes_nothing(name: str, trace: Any, bn_task: fa.Task) -> None:
    method = REGISTRY[name]()
    straight = trace(method, bn_task)
    for seed in (1, 2):
        assert trace(method, bn_task, arrange=shuffled(seed)).bits() == straight.bits()


def test_the_order_of_the_sum_is_felt_where_it_is_not_fixed(bn_task: fa.Task, trace: Any) -> None:
    """The law above is alive: the same uploads added in another order give other bits."""
    from fedaccord.aggregation.sums import weighted_sum

    uploads = [upload.delta for upload in trace(fa.FedAvg(), bn_task, rounds=1).uploads[0].values()] * 3
    sums = {weighted_sum(shuffled(seed)(uploads), [0.1] * 12).numpy().tobytes() for seed in range(8)}
    assert len(sums) > 1


@pytest.mark.parametrize("name", REGISTRY)
def test_a_run_alone_is_the_run_after_another_in_the_same_process(name: str, trace: Any, bn_task: fa.Task) -> None:
    """With dropout, a model drawn anew, and every global generator disturbed in between."""
    method = REGISTRY[name]()
    alone = trace(method, bn_task, cohorts=None, client_validation=0.2).bits()
    trace(REGISTRY["fedsmoo"](), bn_task, seed=11)
    torch.manual_seed(123)
    torch.randn(17)
    np.random.seed(5)
    random.seed(9)
    assert trace(method, bn_task, cohorts=None, client_validation=0.2).bits() == alone


def test_another_seed_is_another_run(trace: Any, bn_task: fa.Task) -> None:
    a, b = (trace(fa.FedAvg(), bn_task, cohorts=None, seed=seed) for seed in (1, 2))
    assert [r.report.cohort for r in a.results] != [r.report.cohort for r in b.results]
    assert not torch.equal(a.prepared.start.server.w, b.prepared.start.server.w)


def test_a_run_leaves_the_global_generators_as_they_were(trace: Any, bn_task: fa.Task) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    trace(fa.DynamicSAM(), bn_task)
    assert torch.equal(before, torch.get_rng_state())


def test_all_methods_of_one_seed_see_the_same_cohorts_and_start(trace: Any) -> None:
    runs = [trace(REGISTRY[name](), cohorts=None) for name in REGISTRY]
    assert len({tuple(result.report.cohort for result in run.results) for run in runs}) == 1
    assert all(torch.equal(run.prepared.start.server.w, runs[0].prepared.start.server.w) for run in runs)


@pytest.mark.parametrize("name", REGISTRY)
def test_clients_of_one_sample_one_class_and_no_sample_stop_no_method(name: str, trace: Any, mlp_task: fa.Task) -> None:
    partition = fa.Explicit([[], [0], list(range(1, 20)), [40, 41]])
    traced = trace(REGISTRY[name](), mlp_task, partition=partition, cohorts=[[0, 1, 2, 3], [0], [1, 3], [0, 1]])
    assert [result.report.accepted for result in traced.results] == [(1, 2, 3), (), (1, 3), (1,)]
    assert [each["reason"] for each in traced.results[0].report.refused] == ["no_data"]
    assert traced.results[1].report.model_kept and torch.isfinite(traced.w).all()
