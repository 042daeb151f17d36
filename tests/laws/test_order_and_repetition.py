"""Seeds and generators: what names a run, and what it leaves alone. The laws of order and repetition are in test_methods.py."""

from __future__ import annotations

import torch

import fedaccord as fa
from fedaccord.aggregation.sums import weighted_sum
from fedaccord.algorithms import REGISTRY
from fedaccord.checks.run_laws import shuffled
from fedaccord.checks.trial import make_task, run_traced, with_batch_norm_and_dropout


def test_the_order_of_the_sum_is_felt_where_it_is_not_fixed() -> None:
    """The law of order is alive: the same uploads added in another order give other bits."""
    trace = run_traced(fa.FedAvg(), make_task(with_batch_norm_and_dropout), rounds=1)
    uploads = [upload.delta for upload in trace.uploads[0].values()] * 3
    sums = {weighted_sum(shuffled(seed)(uploads), [0.1] * 12).numpy().tobytes() for seed in range(8)}
    assert len(sums) > 1


def test_another_seed_is_another_run() -> None:
    task = make_task(with_batch_norm_and_dropout)
    a, b = (run_traced(fa.FedAvg(), task, cohorts=None, seed=seed) for seed in (1, 2))
    assert [r.report.cohort for r in a.results] != [r.report.cohort for r in b.results]
    assert not torch.equal(a.prepared.start.server.w, b.prepared.start.server.w)


def test_a_run_leaves_the_global_generators_as_they_were() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    run_traced(fa.DynamicSAM(), make_task(with_batch_norm_and_dropout))
    assert torch.equal(before, torch.get_rng_state())


def test_all_methods_of_one_seed_see_the_same_cohorts_and_start() -> None:
    runs = [run_traced(REGISTRY[name](), cohorts=None) for name in REGISTRY]
    assert len({tuple(result.report.cohort for result in run.results) for run in runs}) == 1
    assert all(torch.equal(run.prepared.start.server.w, runs[0].prepared.start.server.w) for run in runs)
