from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core.vector import FlatModel
from fedaccord.measures import Measures, PooledLoss, measure


def by_hand(network: PooledLoss) -> float:
    """The loss of torch's own modules in evaluation mode, on all examples at once."""
    module = network.model.module
    module.eval()
    return float(F.cross_entropy(network.model(network.model.initial_w, network.buffers, network.x), network.y))


def test_dropout_is_off_and_batch_norm_reads_its_running_statistics(network: PooledLoss) -> None:
    w = network.model.initial_w
    found = network.value(w)
    assert found == network.value(w) == pytest.approx(by_hand(network), rel=1e-6)
    network.model.train(True)
    assert found == network.value(w)  # a mode that training left behind does not matter


def test_mini_batches_of_unequal_size_weigh_by_their_examples(network: PooledLoss) -> None:
    w, whole = network.model.initial_w, replace(network, batch=100)
    v = torch.randn(len(w), generator=torch.Generator().manual_seed(0))
    assert network.value(w) == pytest.approx(whole.value(w), rel=1e-6)
    torch.testing.assert_close(network.gradient(w), whole.gradient(w), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(network.product(w, v), whole.product(w, v), rtol=1e-4, atol=1e-5)


def test_the_product_is_the_difference_of_gradients(network: PooledLoss) -> None:
    double = replace(network, model=FlatModel(network.model.module.double()), x=network.x.double())
    double = replace(double, buffers={name: b.double() if b.is_floating_point() else b for name, b in network.buffers.items()})
    w = double.model.initial_w
    v = torch.randn(len(w), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    difference = (double.gradient(w + 1e-5 * v) - double.gradient(w - 1e-5 * v)) / 2e-5
    torch.testing.assert_close(double.product(w, v), difference, rtol=1e-4, atol=1e-6)


class Restless(nn.Module):
    """Moves a buffer whenever it is called, in evaluation mode as well."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) + self.calls


def test_no_buffer_moves_and_the_weights_stay(network: PooledLoss) -> None:
    restless = PooledLoss(FlatModel(Restless()), {"calls": torch.zeros(1)}, F.cross_entropy, torch.randn(6, 3), torch.zeros(6).long())
    for pooled in (network, restless):
        w, before = pooled.model.initial_w.clone(), {name: b.clone() for name, b in pooled.buffers.items()}
        assert measure(Measures(points_1d=3, points_2d=3, probes=2), pooled, w, 0)["reasons"].keys() <= {"eigenvalue_ratio"}
        assert before.keys() == pooled.buffers.keys() and all(torch.equal(before[name], b) for name, b in pooled.buffers.items())
        assert torch.equal(w, pooled.model.initial_w)


def test_attention_has_a_hessian() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.inside(x, x, x, need_weights=False)[0]
            return found.mean(1)

    x, y = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    pooled = PooledLoss(FlatModel(Attention()), {}, F.cross_entropy, x, y)
    w = pooled.model.initial_w
    assert torch.isfinite(pooled.product(w, torch.ones_like(w))).all()
