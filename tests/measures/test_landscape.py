from __future__ import annotations

import pytest
import torch

from fedaccord.core.rng import stream
from fedaccord.measures import PooledLoss
from fedaccord.measures.landscape import filter_normalised, slice_across, slice_along


def test_every_filter_of_the_direction_is_as_long_as_the_filter_of_the_model(network: PooledLoss) -> None:
    layout, w = network.model.layout, network.model.initial_w
    direction = filter_normalised(layout, w, stream(0, "direction"))
    own, drawn = layout.unflatten(w), layout.unflatten(direction)
    assert own["0.weight"].shape == (3, 1, 3, 3) and own["6.weight"].shape == (4, 27)
    for name in ("0.weight", "6.weight"):
        lengths = [tensors[name].flatten(1).norm(dim=1) for tensors in (own, drawn)]
        torch.testing.assert_close(lengths[0], lengths[1], rtol=1e-5, atol=0)
        assert not torch.allclose(own[name], drawn[name])
    for name in ("0.bias", "1.weight", "1.bias", "6.bias"):  # biases, and batch norm's scale and shift
        assert not drawn[name].any()


def test_a_filter_of_zeros_stays_and_another_stream_draws_another_direction(network: PooledLoss) -> None:
    layout, w = network.model.layout, network.model.initial_w.clone()
    w[:9] = 0
    direction = filter_normalised(layout, w, stream(0, "direction"))
    assert not direction[:9].any() and torch.isfinite(direction).all()
    other = filter_normalised(layout, w, stream(0, "another"))
    assert torch.nn.functional.cosine_similarity(direction, other, dim=0).abs() < 0.5


def test_a_slice_is_the_loss_at_the_model_in_its_middle_and_exact_beside_it(network: PooledLoss) -> None:
    w = network.model.initial_w
    first, second = (filter_normalised(network.model.layout, w, stream(0, "direction", i)) for i in range(2))
    line = slice_along(network.value, w, first, [-1.0, 0.0, 0.5])
    grid = slice_across(network.value, w, first, second, [-1.0, 0.0, 0.5])
    assert line[1] == grid[1][1] == network.value(w)
    assert line == grid[1]
    assert line[2] == network.value(w + 0.5 * first)
    assert grid[0][2] == pytest.approx(network.value(w - second + 0.5 * first), rel=1e-6)
