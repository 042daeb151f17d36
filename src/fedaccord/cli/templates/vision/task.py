"""Your task: model, loss and data. Change anything; `experiment.toml` names `make_task`, and its keywords are keys of [task]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import fedaccord as fa


class Net(nn.Module):
    """A small convolutional network for 28x28 grey pictures. GroupNorm, since batch statistics disagree between clients."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 5 * 5, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(x)
        return outputs


def make_task(width: int = 16) -> fa.Task:
    """Clothes in 10 classes, from data that come with fedaccord. Your own: train=(x, y), arrays, a Dataset, or fa.from_npz(...)."""
    data = fa.TASKS["fashion_mnist_mini"]()
    return fa.Task(
        model=lambda: Net(width),
        loss=F.cross_entropy,
        train=data.train,
        test=data.test,
        validation=data.validation,
        class_names=data.class_names,
        name="PROJECT_NAME",
    )
