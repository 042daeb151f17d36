"""Small models whose Hessians are known: a quadratic in w, softmax regression, and a network with dropout and batch norm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core.vector import FlatModel, buffers_of
from fedaccord.measures import PooledLoss


class Weights(nn.Module):
    """Gives back its own weights, whatever the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), -1)


@pytest.fixture
def quadratic() -> Callable[..., PooledLoss]:
    """``quadratic(H)``: L(w) = 1/2 w^T H w + g^T w on seven examples that all say the same, in mini-batches of three."""

    def make(hessian: Tensor, slope: Tensor | None = None) -> PooledLoss:
        def loss(outputs: Tensor, y: Tensor) -> Tensor:
            w = outputs.mean(0)
            return 0.5 * w @ hessian @ w + (0 if slope is None else slope @ w)

        model = FlatModel(Weights(len(hessian)))
        return PooledLoss(model, {}, loss, torch.zeros(7, 1), torch.zeros(7), batch=3)

    return make


@pytest.fixture
def softmax() -> PooledLoss:
    """Softmax regression, 5 features and 4 classes (24 weights), on 37 examples, in mini-batches of 10."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(37, 5, generator=draw, dtype=torch.float64)
    y = torch.randint(4, (37,), generator=draw)
    return PooledLoss(FlatModel(nn.Linear(5, 4, dtype=torch.float64)), {}, F.cross_entropy, x, y, batch=10)


@pytest.fixture
def network() -> PooledLoss:
    """A convolution, batch norm with statistics that no batch has, dropout, and a linear layer."""
    draw = torch.Generator().manual_seed(2)
    torch.manual_seed(3)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(27, 4)
    )
    module[1].running_mean += 0.5
    module[1].running_var *= 2
    x, y = torch.randn(12, 1, 8, 8, generator=draw), torch.randint(4, (12,), generator=draw)
    return PooledLoss(FlatModel(module.train()), buffers_of(module), F.cross_entropy, x, y, batch=5)
