"""figures.py: what the server computes about each upload."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaccord.aggregation.figures import FIGURES, figures, median_directions


def vectors(count: int, size: int = 300, seed: int = 0) -> list[Tensor]:
    return list(torch.randn(count, size, generator=torch.Generator().manual_seed(seed)))


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10, 11])
def test_each_is_held_against_the_median_of_all_the_others(count: int) -> None:
    own = [vector.round(decimals=1) for vector in vectors(count)]  # with ties
    expected = []
    for i in range(count):
        others = np.stack([vector.double().numpy() for j, vector in enumerate(own) if j != i])
        expected.append(cosine(own[i], torch.from_numpy(np.median(others, axis=0))))
    assert median_directions(own).tolist() == pytest.approx(expected, abs=1e-6)


def test_every_figure_is_what_it_says() -> None:
    own, (previous, root, gradient) = vectors(4), vectors(3, seed=1)
    found = figures(FIGURES, own, previous, lambda: root, lambda: gradient)
    assert found["norm"].tolist() == pytest.approx([float(v.double().norm()) for v in own])
    assert found["direction"].tolist() == pytest.approx([cosine(v, previous) for v in own])
    assert found["root_direction"].tolist() == pytest.approx([cosine(v, root) for v in own])
    assert found["credit"].tolist() == pytest.approx([-float(v.double() @ gradient.double()) for v in own])
    assert set(found) == set(FIGURES)


def test_only_what_is_wanted_is_computed() -> None:
    def never() -> Tensor:
        raise AssertionError("nobody looks at it")

    assert set(figures(["norm"], vectors(3), None, never, never)) == {"norm"}
    assert figures([], vectors(3)) == {}


def test_what_cannot_be_known_is_nan_and_a_zero_vector_has_no_direction() -> None:
    found = figures(FIGURES, vectors(1))
    assert all(bool(found[name].isnan().all()) for name in FIGURES if name != "norm")
    own = [torch.zeros(300), *vectors(2)]
    found = figures(FIGURES, own, vectors(1, seed=2)[0])
    assert found["direction"][0] == 0 and found["median_direction"][0] == 0 and found["norm"][0] == 0


def test_lengths_beyond_float32_are_no_infinity() -> None:
    own = [torch.full((300,), 3e38), torch.full((300,), 1e-38)]
    found = figures(("norm", "median_direction"), own)
    assert found["norm"].tolist() == pytest.approx([3e38 * 300**0.5, 1e-38 * 300**0.5], rel=1e-4)
    assert found["median_direction"].tolist() == pytest.approx([1.0, 1.0])
