"""columns.py: what many clients answer at once is, client by client, what each would have answered alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedaccord as fa
from fedaccord.algorithms import REGISTRY
from fedaccord.checks.trial import PLAN, prepare_trial
from fedaccord.core.local import epoch_means
from fedaccord.core.state import to_arrays
from fedaccord.runtime.client import Request
from fedaccord.runtime.columns import _epoch_means, answers_of, rows_of, stacked
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.runtime.side_by_side import SideBySide, blocks_of


class Pair(NamedTuple):
    one: Tensor
    others: Any


def test_rows_of_what_was_stacked_are_what_it_was() -> None:
    trees = [Pair(torch.full((2,), float(i)), {"a": torch.tensor(i), "b": ((), (torch.ones(1) * i,))}) for i in range(3)]
    back = rows_of(stacked(trees), 3)
    assert [type(each) for each in back] == [Pair] * 3 and back[2].others["b"][0] == ()
    for tree, again in zip(trees, back, strict=True):
        ours, theirs = to_arrays(tree), to_arrays(again)
        assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert rows_of((), 2) == [(), ()] and rows_of(Pair(torch.zeros(2), 7), 2)[1].others == 7


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=6))
def test_epoch_means_are_those_of_each_client(shapes: list[tuple[int, int]]) -> None:
    steps, epochs = (np.array(each) for each in zip(*shapes, strict=True))
    losses = np.random.default_rng(0).normal(size=(len(shapes), steps.max()))
    num_epochs, means = _epoch_means(losses, steps, epochs)
    expected = [epoch_means(own[:taken].tolist(), of) for own, taken, of in zip(losses, steps.tolist(), epochs.tolist(), strict=True)]
    assert num_epochs.tolist() == [len(each) for each in expected]
    assert means.tolist() == pytest.approx([mean for each in expected for mean in each])


def test_a_loss_that_is_not_finite_spoils_no_other_epoch_or_client() -> None:
    losses = np.array([[np.inf, 1.0, 2.0, 4.0], [np.nan, 3.0, 0.0, 0.0]])
    _, means = _epoch_means(losses, np.array([4, 2]), np.array([2, 2]))
    assert means[[1, 3]].tolist() == [3.0, 3.0] and not np.isfinite(means[[0, 2]]).any()


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "noise_adaptive_sam"])
def test_reports_uploads_and_states_are_those_of_clients_alone(method: str) -> None:
    plan = fa.LocalPlan(lr=0.1, epochs=3, batch_size=7, optimizer=fa.Sgd(momentum=0.9), keep_moments=True)
    made = prepare_trial(REGISTRY[method](), runtime=RuntimeOptions("vectorized", workers=1), local=plan)
    runtime: Any = made.federation.runtime
    clients, algorithm = runtime._clients, made.federation.algorithm
    request = Request(algorithm, algorithm.broadcast(made.start.server), made.start.buffers, plan, 1, 0.1)
    groups = SideBySide(clients, runtime._side_by_side._per_example).columns(request, range(5), [None] * 5) or []
    answers = {answer.upload.client: answer for columns in groups for answer in answers_of(columns, 1)}
    assert sorted(answers) == list(range(5))
    for client, together in answers.items():
        alone = clients.train(request, client, None)
        mine, other = alone.upload.report, together.upload.report
        for name in ("round", "client", "num_examples", "steps", "gradients", "bytes_up"):
            assert getattr(mine, name) == getattr(other, name) and type(getattr(mine, name)) is type(getattr(other, name))
        assert other.loss == pytest.approx(mine.loss, rel=1e-4) and other.epoch_losses == pytest.approx(mine.epoch_losses, rel=1e-4)
        assert mine.signals.keys() == other.signals.keys()
        for one, two in ((alone.upload.upload, together.upload.upload), (alone.kept, together.kept)):
            ours, theirs = to_arrays(one), to_arrays(two)
            assert list(ours) == list(theirs) and type(one) is type(two)
            assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)


def test_without_moments_that_are_kept_none_are_in_the_columns() -> None:
    made = prepare_trial(fa.FedAvg(), runtime=RuntimeOptions("vectorized", workers=1))
    runtime: Any = made.federation.runtime
    request = Request(fa.FedAvg(), fa.FedAvg().broadcast(made.start.server), {}, PLAN, 1, 0.1)
    (columns,) = runtime._side_by_side.columns(request, [0, 1], [None, None])
    assert columns.kept.moments == () and columns.kept.buffers == {}


@given(st.lists(st.integers(1, 20), max_size=30), st.integers(1, 12))
def test_blocks_hold_everyone_once_and_about_the_same_work(steps: list[int], size: int) -> None:
    blocks = blocks_of(steps, list(range(100, 100 + len(steps))), size)
    assert sorted(position for block in blocks for position in block) == list(range(len(steps)))
    if blocks:
        assert max(map(len, blocks)) <= size and max(map(len, blocks)) - min(map(len, blocks)) <= 1
        assert all(steps[block[i]] >= steps[block[i + 1]] for block in blocks for i in range(len(block) - 1))
        work = [sum(steps[position] for position in block) for block in blocks]
        assert max(work) - min(work) <= 20, "no more than one client's"


def test_the_order_in_which_a_cohort_was_drawn_does_not_matter_to_its_blocks() -> None:
    steps = {4: 2, 9: 2, 1: 3, 7: 1, 3: 2}
    for order in ([4, 9, 1, 7, 3], [7, 3, 9, 4, 1]):
        blocks = blocks_of([steps[client] for client in order], order, 2)
        assert [[order[position] for position in block] for block in blocks] == [[1, 9], [3, 7], [4]]
