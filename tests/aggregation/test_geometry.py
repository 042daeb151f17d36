"""geometry.py: norms, cosines and drift by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedaccord.aggregation.chunks import CHUNK
from fedaccord.aggregation.geometry import geometry


def test_figures_by_hand() -> None:
    """deltas (3, 4), (3, -4), (0, 0); mean (2, 0); the server moves by (1, 0).

    drift: |(2, 4)|^2 = 20, |(2, -4)|^2 = 20, |(-1, 0)|^2 = 1. The pair of the two that moved has cosine (9 - 16)/25.
    """
    deltas = [torch.tensor([3.0, 4.0]), torch.tensor([3.0, -4.0]), torch.zeros(2)]
    shape = geometry(deltas, torch.tensor([2.0, 0.0]), torch.tensor([10.0, 1.0]), torch.tensor([11.0, 1.0]))
    assert shape.norms == [5.0, 5.0, 0.0]
    assert shape.cosines == pytest.approx([0.6, 0.6, 0.0])
    assert shape.drifts == pytest.approx([20.0, 20.0, 1.0])
    assert shape.pairwise_cosine == pytest.approx(-7 / 25)


def test_the_pairwise_cosine_is_the_mean_over_all_pairs() -> None:
    deltas = list(torch.randn(6, 10, generator=torch.Generator().manual_seed(0)))
    shape = geometry(deltas, torch.stack(deltas).mean(0), torch.zeros(10), torch.ones(10))
    pairs = [float(torch.cosine_similarity(a, b, dim=0)) for i, a in enumerate(deltas) for b in deltas[:i]]
    assert shape.pairwise_cosine == pytest.approx(sum(pairs) / len(pairs), abs=1e-5)


@pytest.mark.parametrize("deltas", [[], [torch.ones(2)], [torch.zeros(2), torch.ones(2)]])
def test_fewer_than_two_moves_have_no_pairwise_cosine(deltas: list[torch.Tensor]) -> None:
    assert geometry(deltas, torch.zeros(2), torch.zeros(2), torch.zeros(2)).pairwise_cosine is None


def test_finite_vectors_that_are_longer_than_their_dtype_can_say_stand_aside() -> None:
    huge = torch.full((4,), 3e38)
    shape = geometry([huge, torch.ones(4), torch.ones(4)], torch.ones(4), torch.zeros(4), torch.ones(4))
    assert shape.pairwise_cosine == pytest.approx(1.0) and math.isinf(shape.norms[0])


def test_vectors_of_several_chunks_are_measured_whole() -> None:
    size = 2 * CHUNK + 77
    generator = torch.Generator().manual_seed(4)
    deltas, sent, new = list(torch.randn(3, size, generator=generator)), torch.zeros(size), torch.randn(size, generator=generator)
    mean = torch.stack(deltas).mean(0)
    shape = geometry(deltas, mean, sent, new)
    assert shape.norms == pytest.approx([float(delta.norm()) for delta in deltas], rel=1e-5)
    assert shape.cosines == pytest.approx([float(torch.cosine_similarity(delta, mean, dim=0)) for delta in deltas], abs=1e-5)
    assert shape.drifts == pytest.approx([float((delta - new).square().sum()) for delta in deltas], rel=1e-5)
    pairs = [float(torch.cosine_similarity(deltas[i], deltas[j], dim=0)) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert shape.pairwise_cosine == pytest.approx(sum(pairs) / 3, abs=1e-5)
