"""Plans at their edges: a batch of exactly all examples, a schedule over two rounds."""

from __future__ import annotations

import numpy as np
import pytest

import fedaccord as fa
from fedaccord.core.rng import stream


def test_a_batch_as_large_as_the_data_is_a_full_batch_in_the_order_of_the_data() -> None:
    plans = fa.LocalPlan(epochs=2, batch_size=7), fa.LocalPlan(epochs=2, batch_size="full")
    exact, full = (plan.batches(np.arange(7), stream(0, "batches")) for plan in plans)
    assert [batch.tolist() for batch in exact] == [batch.tolist() for batch in full] == [list(range(7))] * 2


def test_one_example_fewer_than_the_data_makes_two_steps_an_epoch() -> None:
    first, second = fa.LocalPlan(epochs=1, batch_size=6).batches(np.arange(7), stream(0, "batches"))
    assert (len(first), len(second)) == (6, 1)
    assert sorted(np.concatenate([first, second]).tolist()) == list(range(7))


@pytest.mark.parametrize("final", [0.0, 0.25])
def test_half_a_cosine_over_two_rounds_is_halfway_to_the_end_in_the_second(final: float) -> None:
    assert [fa.Cosine(final).factor(round, 2) for round in (1, 2)] == pytest.approx([1.0, (1 + final) / 2])


def test_half_a_cosine_over_one_round_is_one() -> None:
    assert fa.Cosine().factor(1, 1) == 1.0
