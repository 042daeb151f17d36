"""projection.py: the caps on a policy's weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedaccord.aggregation.projection import Projection, effective_number


def shares(*values: float) -> Tensor:
    weights = torch.tensor(values, dtype=torch.float64)
    return weights / weights.sum()


def test_weights_that_fit_come_back_to_the_bit() -> None:
    by_size, weights = shares(2, 1, 1, 1), shares(2, 1, 1.2, 0.9)
    assert Projection()(weights, by_size) is weights


@pytest.mark.parametrize("sizes", [(1,), (2000, 50), (1, 1, 1), (500_000, 2000, 2000, 50)])
def test_fedavgs_own_weights_always_fit(sizes: tuple[float, ...]) -> None:
    by_size = shares(*sizes)
    assert torch.equal(Projection(max_factor=1.0, min_effective=1.0, max_divergence=1e-9)(by_size, by_size), by_size)


def test_nobody_gets_more_than_three_times_its_share_and_the_rest_goes_to_the_others_in_their_proportions() -> None:
    by_size, weights = shares(*[1] * 10), shares(91, *[1] * 9)
    capped = Projection(min_effective=0.0, max_divergence=10.0)(weights, by_size)
    assert capped[0] == pytest.approx(0.3) and capped[1:].tolist() == pytest.approx([0.7 / 9] * 9)


def test_the_effective_number_is_at_least_half_of_fedavgs_own() -> None:
    by_size, weights = shares(*[1] * 12), shares(*[1] * 2, *[0.01] * 10)
    assert effective_number(Projection(max_factor=100, min_effective=0.0, max_divergence=10)(weights, by_size)) == pytest.approx(
        2.2, abs=0.1
    )
    found = Projection(max_factor=100, max_divergence=10)(weights, by_size)
    assert effective_number(found) == pytest.approx(6.0, rel=1e-6)


def test_the_divergence_from_fedavg_has_a_bound() -> None:
    by_size, weights = shares(*[1] * 20), shares(*[3] * 5, *[0.05] * 15)
    found = Projection(max_factor=100, min_effective=0.0, max_divergence=0.2)(weights, by_size)
    assert float((found * (found / by_size).log()).sum()) == pytest.approx(0.2, rel=1e-6)


def test_who_is_left_out_stays_out_and_the_caps_are_those_of_the_others() -> None:
    by_size, weights = shares(1, 1, 1, 1), shares(0, 1, 1, 100)
    found = Projection(max_factor=1.5, min_effective=0.0, max_divergence=10)(weights, by_size)
    assert found[0] == 0 and found[3] == pytest.approx(0.5)  # 1.5 times a third


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 1e6)), min_size=1, max_size=30))
def test_any_weights_come_back_as_shares_within_the_caps(pairs: list[tuple[float, float]]) -> None:
    weights = torch.tensor([weight for weight, _ in pairs], dtype=torch.float64)
    if float(weights.sum()) <= 0:
        return
    by_size, weights = shares(*(size for _, size in pairs)), weights / weights.sum()
    found = Projection()(weights, by_size)
    reference = torch.where(weights > 0, by_size, 0.0)
    reference = reference / reference.sum()
    assert float(found.sum()) == pytest.approx(1) and bool((found >= 0).all())
    assert bool((found <= 3 * reference * (1 + 1e-6)).all())
    assert effective_number(found) >= 0.5 * effective_number(reference) * (1 - 1e-6)
