"""robust.py: every kernel against its definition, whatever the offsets, ties and outliers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedaccord.aggregation import robust
from fedaccord.aggregation.robust import (
    central,
    coordinate_median,
    gram,
    krum_scores,
    nearest_sums,
    nearest_to_median,
    squared_distances,
    trimmed_mean,
)
from fedaccord.core.errors import ConfigError

Rule = Callable[[list[Tensor]], Tensor]
RULES: dict[str, Rule] = {
    "median": coordinate_median,
    "trimmed": lambda vectors: trimmed_mean(vectors, 0.2),
    "nearest": lambda vectors: nearest_to_median(vectors, 3),
}


def rows(count: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return list(torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=dtype))


def pair_loop(vectors: list[Tensor]) -> Tensor:
    """|v_i - v_j|^2, by definition."""
    exact = torch.stack(vectors).double()
    return (exact[:, None] - exact).square().sum(dim=2)


def close_to(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-30)


# A few values that repeat, in vectors that repeat: ties of coordinates and equal vectors are the rule.
CLIENTS = st.integers(1, 9).flatmap(
    lambda size: st.lists(
        st.lists(st.sampled_from([-2.0, -0.0, 0.0, 0.5, 0.5, 1e-3, 3.0, 700.0]), min_size=size, max_size=size), min_size=3
    )
)


@given(CLIENTS)
def test_distances_are_those_of_the_pair_loop(values: list[list[float]]) -> None:
    vectors = [torch.tensor(each) for each in values]
    found, expected = squared_distances(vectors), pair_loop(vectors)
    assert close_to(found, expected)
    assert (found[expected == 0] == 0).all() and (found >= 0).all() and torch.equal(found, found.T)


@given(CLIENTS, st.integers(0, 3))
def test_krums_scores_are_those_of_the_paper(values: list[list[float]], f: int) -> None:
    vectors, count = [torch.tensor(each) for each in values], len(values)
    if count < 2 * f + 3:
        with pytest.raises(ConfigError, match=r"E203 .* 2f \+ 3"):
            krum_scores(vectors, f)
        return
    expected = [
        sum(sorted(float((own - other).double().square().sum()) for j, other in enumerate(vectors) if j != i)[: count - f - 2])
        for i, own in enumerate(vectors)
    ]
    assert close_to(krum_scores(vectors, f), torch.tensor(expected, dtype=torch.float64))


@given(CLIENTS)
def test_the_median_is_numpys(values: list[list[float]]) -> None:
    expected = np.median(np.array(values, dtype=np.float32), axis=0)
    assert np.array_equal(coordinate_median([torch.tensor(each) for each in values]).numpy(), expected)


@given(CLIENTS, st.sampled_from([0.0, 0.1, 0.25, 0.49]))
def test_the_trimmed_mean_is_that_of_the_definition(values: list[list[float]], share: float) -> None:
    cut = int(share * len(values))
    ordered = np.sort(np.array(values), axis=0)[cut : len(values) - cut]
    assert np.allclose(trimmed_mean([torch.tensor(each) for each in values], share), ordered.mean(axis=0), rtol=1e-5, atol=1e-5)


@given(CLIENTS, st.data())
def test_the_mean_of_the_nearest_to_the_median_is_one_of_those_of_the_definition(values: list[list[float]], data: st.DataObject) -> None:
    """Where two values are equally far from the median, either may count."""
    kept, table = data.draw(st.integers(1, len(values))), np.array(values, dtype=np.float64)
    found = nearest_to_median([torch.tensor(each) for each in values], kept).numpy()
    for column, mean in zip(table.T, found, strict=True):
        far = np.sort(np.abs(column - np.median(column)))[:kept]
        windows = np.lib.stride_tricks.sliding_window_view(np.sort(column), kept)
        fit = [w.mean() for w in windows if np.allclose(np.sort(np.abs(w - np.median(column)))[-1], far[-1])]
        assert any(math.isclose(mean, each, rel_tol=1e-5, abs_tol=1e-5) for each in fit)


def test_the_sum_of_the_nearest_is_over_others_and_over_one_at_least() -> None:
    distances = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 9.0], [4.0, 9.0, 0.0]], dtype=torch.float64)
    assert nearest_sums(distances, 2).tolist() == [5.0, 10.0, 13.0]
    assert nearest_sums(distances, 1).tolist() == nearest_sums(distances, -1).tolist() == [1.0, 1.0, 4.0]
    assert nearest_sums(distances, 7).tolist() == [5.0, 10.0, 13.0]
    assert nearest_sums(torch.zeros(1, 1), 3).tolist() == [0.0]


def test_means_of_numbers_whose_sum_overflows_are_finite() -> None:
    huge = [torch.full((5,), sign * 3e38) for sign in (1, 1, 1, 1, -1)]
    assert trimmed_mean(huge, 0.2).tolist() == pytest.approx([3e38] * 5)
    assert nearest_to_median(huge, 4).tolist() == pytest.approx([3e38] * 5)


def test_an_outlier_is_no_centre() -> None:
    for place in range(6):
        vectors = rows(5, 300)
        vectors.insert(place, torch.full((300,), 1e30))
        assert central(vectors) != place


def test_two_clients_that_differ_by_a_thousandth_far_from_zero_are_told_apart() -> None:
    """Around a centre of norm 1e4, whose square is 1e14 times that of the difference."""
    size = 1000
    centre = torch.full((size,), 1e4 / math.sqrt(size), dtype=torch.float64)
    step = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step *= 1e-3 / step.norm()
    for dtype in (torch.float32, torch.float64):
        vectors = [(centre + factor * step).to(dtype) for factor in (0, 1, 2, 5, 9)]
        assert close_to(squared_distances(vectors), pair_loop(vectors))
    assert squared_distances(vectors)[0, 1] == pytest.approx(1e-6, rel=1e-4)


@pytest.mark.parametrize("scale", [1e2, 1e6, 1e30])
@pytest.mark.parametrize("place", [0, 5])
def test_outliers_do_not_blur_the_distances_between_the_others(scale: float, place: int) -> None:
    """Two tight groups far apart, and one vector that is farther than float32 can square."""
    groups = [10 * float(i % 2) + 1e-4 * own for i, own in enumerate(rows(9, 300))]
    vectors = [*groups[:place], torch.full((300,), scale), *groups[place:]]
    assert close_to(squared_distances(vectors), pair_loop(vectors))
    assert int(krum_scores(vectors, 1).argmin()) != place


def test_distances_that_no_number_holds_are_infinite() -> None:
    huge = torch.full((4,), 1e300, dtype=torch.float64)
    found = squared_distances([torch.zeros(4, dtype=torch.float64), huge, -huge])
    assert found.tolist() == [[0, math.inf, math.inf], [math.inf, 0, math.inf], [math.inf, math.inf, 0]]


def test_products_are_those_of_the_vectors_less_the_centre() -> None:
    vectors, centre = rows(5, 70), torch.randn(70, generator=torch.Generator().manual_seed(9))
    exact = torch.stack(vectors).double()
    assert torch.allclose(gram(vectors), exact @ exact.T, atol=1e-4) and gram(vectors).dtype == torch.float64
    assert torch.allclose(gram(vectors, centre), (exact - centre) @ (exact - centre).T, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_results_keep_the_vectors_dtype_and_leave_them_as_they_were(dtype: torch.dtype) -> None:
    vectors = rows(6, 50, dtype=torch.float64)
    vectors = [each.to(dtype) for each in vectors]
    before = torch.stack(vectors)
    expected = torch.stack(vectors).double().sort(dim=0).values
    for found, exact in (
        (coordinate_median(vectors), expected[2:4].mean(0)),
        (trimmed_mean(vectors, 0.2), expected[1:5].mean(0)),
    ):
        assert found.dtype == dtype and torch.allclose(
            found.double(), exact, atol=2 * torch.finfo(dtype).eps, rtol=2 * torch.finfo(dtype).eps
        )
    assert close_to(squared_distances(vectors), pair_loop(vectors))
    assert torch.equal(torch.stack(vectors), before)


@pytest.mark.parametrize("name", RULES)
def test_the_width_of_a_block_moves_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, found = rows(13, 3000), set()
    for width in (1, 7, 1000, 1024, 3000):
        monkeypatch.setattr(robust, "_width", lambda num_vectors, width=width: width)
        found.add(RULES[name](vectors).numpy().tobytes())
    assert len(found) == 1


def test_distances_do_not_depend_on_blocks_beyond_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = rows(13, 3000)
    for width in (7, 1000):
        monkeypatch.setattr(robust, "_width", lambda num_vectors, width=width: width)
        assert close_to(squared_distances(vectors), pair_loop(vectors))


@given(st.permutations(range(8)))
def test_whoever_comes_first_nothing_changes(order: list[int]) -> None:
    vectors = [*rows(6, 40), torch.zeros(40), torch.zeros(40)]
    shuffled = [vectors[i] for i in order]
    for rule in RULES.values():
        assert torch.equal(rule(shuffled), rule(vectors))
    assert torch.allclose(squared_distances(shuffled), squared_distances(vectors)[order][:, order], rtol=1e-4)
    assert torch.allclose(krum_scores(shuffled, 2), krum_scores(vectors, 2)[order], rtol=1e-4)


def test_shares_are_counted_as_people_count() -> None:
    """0.29 of 100 is 29, although the product of the floats is a little less."""
    vectors = [torch.tensor([float(i**2)]) for i in range(100)]
    assert float(trimmed_mean(vectors, 0.29)) == pytest.approx(sum(i**2 for i in range(29, 71)) / 42)


def test_one_vector_is_its_own_median_and_trimmed_mean() -> None:
    (own,) = rows(1, 30)
    assert torch.equal(coordinate_median([own]), own) and torch.equal(trimmed_mean([own], 0.4), own)


@pytest.mark.parametrize("share", [-0.1, 0.5, math.nan])
def test_a_share_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="E203"):
        trimmed_mean(rows(3, 2), share)


def test_a_negative_number_of_byzantine_clients_is_refused() -> None:
    with pytest.raises(ConfigError, match="E203"):
        krum_scores(rows(3, 2), -1)
