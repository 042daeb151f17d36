"""A line fitted to points with |x| = 1: the loss is (w - 3)^2, so a full-batch step of size 1/2 is the best one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa

SLOPE = 3.0


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def points(count: int) -> tuple[Tensor, Tensor]:
    x = torch.tensor([1.0, -1.0]).repeat(count // 2)
    return x, SLOPE * x


@pytest.fixture(scope="session")
def line() -> fa.Task:
    return fa.Task(model=Line, loss=F.mse_loss, train=points(200), validation=points(20), test=points(20), name="line")


OPTIONS: dict[str, Any] = {
    "partition": fa.IID(clients=4),
    "cohort": 2,
    "rounds": 3,
    "local": fa.LocalPlan(lr=0.02, epochs=1, batch_size="full"),
    "stage_rounds": (2, 3, 3),
}


@pytest.fixture
def options() -> dict[str, Any]:
    return dict(OPTIONS)
