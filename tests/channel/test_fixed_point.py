"""fixed_point.py: numbers in [-1, 1] as whole numbers of one scale."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.channel.fixed_point import SCALE, from_fixed, to_fixed
from fedaccord.core.errors import ConfigError

Inside = st.floats(-1, 1)


@given(Inside)
def test_a_number_comes_back_within_half_a_unit(value: float) -> None:
    assert abs(from_fixed(to_fixed(value)) - value) <= 0.5 / SCALE


@given(st.lists(Inside, max_size=200))
def test_the_sum_of_the_units_is_the_sum_of_the_numbers(values: list[float]) -> None:
    assert from_fixed(sum(to_fixed(value) for value in values)) == pytest.approx(math.fsum(values), abs=1e-9)


@given(Inside)
def test_the_opposite_number_has_the_opposite_units(value: float) -> None:
    assert to_fixed(-value) == -to_fixed(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_lies_outside_is_clipped_to_the_ends(value: float) -> None:
    assert from_fixed(to_fixed(value)) == pytest.approx(min(max(value, -1), 1), abs=0.5 / SCALE)
    assert abs(to_fixed(value)) <= SCALE


@pytest.mark.parametrize(
    ("value", "units"), [(1.0, SCALE), (-1.0, -SCALE), (5, SCALE), (-1e300, -SCALE), (0.5, SCALE // 2), (-0.0, 0), (1e-300, 0)]
)
def test_the_ends_are_exact(value: float, units: int) -> None:
    assert to_fixed(value) == units


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, "0.5", None, True])
def test_what_is_no_finite_number_is_an_error(value: Any) -> None:
    with pytest.raises(ConfigError, match="E203"):
        to_fixed(value)
