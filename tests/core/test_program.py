from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core.captured import Captured
from fedaccord.core.vector import FlatModel
from fedaccord.tasks.models import lenet, mlp, resnet18, softmax, unet

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


def pictures(size: int, *shape: int, classes: int = 10, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, *shape, generator=generator), torch.randint(classes, (size,), generator=generator)


def by_autograd(module: nn.Module, loss: Loss, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Written anew here, on a model of its own, so that nothing of the captured one takes part."""
    model = FlatModel(module)
    model.train(True)
    leaf = w.clone().requires_grad_()
    value = loss(model(leaf, {}, x), y)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


def prepared(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> tuple[Captured, Tensor]:
    """Captured on this batch, if it can be."""
    model = FlatModel(module)
    model.train(True)
    step = Captured(model, loss, capture_at=1)
    step(model.initial_w, x, y)
    return step, model.initial_w


def check_equal_bits(module: nn.Module, loss: Loss, batches: list[Batch]) -> Captured:
    """The first batch is captured; all are of its shape, and the rest are met by the program alone."""
    step, w = prepared(module, loss, *batches[0])
    assert step.num_programs == 1, step.reasons
    for number, (x, y) in enumerate(batches):
        moved = w + 0.01 * number * torch.randn(len(w), generator=torch.Generator().manual_seed(number), dtype=w.dtype)
        value, gradient = step(moved, x, y)
        expected, expected_gradient = by_autograd(module, loss, moved, x, y)
        assert torch.equal(value, expected) and torch.equal(gradient, expected_gradient)
        assert gradient.shape == w.shape and gradient.count_nonzero() > 0
    assert step.num_programs == 1 and not step.reasons
    return step


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.EmbeddingBag(30, 6, mode="mean", padding_idx=0), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


class Tied(nn.Module):
    """One matrix embeds and predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle, self.head = nn.Embedding(12, 5), nn.Linear(5, 5), nn.Linear(5, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.embedding(x).mean(1))))


class InPlace(nn.Module):
    """Writes into its own intermediate tensors, and uses one parameter twice, one in part and one not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head, self.scale, self.unused = nn.Linear(6, 6), nn.Linear(6, 4), nn.Parameter(torch.ones(3)), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.one(x), inplace=True)
        hidden = torch.ones_like(hidden).add_(self.one(hidden))
        hidden[:, 0].mul_(2.0)
        positions = torch.arange(6, device=x.device) * torch.tensor([0.0, 1.0, 2.0, 0.5, 0.25, 1.0])
        return self.head(hidden + positions * self.scale[:2].sum())


class Summed(nn.Module):
    """Two parameters with the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.one + self.other)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def frozen_backbone() -> nn.Module:
    module = mlp((6,), 3, (5, 4))
    module[1].weight.requires_grad_(False)  # type: ignore[union-attr]
    return module


SHAPE = (3, 16, 16)
MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]] = {
    "mlp": (lambda: mlp((13,), 10, (7, 5)), lambda seed: pictures(9, 13, seed=seed)),
    "softmax": (lambda: softmax((13,), 10), lambda seed: pictures(9, 13, seed=seed)),
    "one example": (lambda: mlp((13,), 10, (7,)), lambda seed: pictures(1, 13, seed=seed)),
    "no bias": (lambda: nn.Linear(13, 10, bias=False), lambda seed: pictures(9, 13, seed=seed)),
    "lenet": (lambda: lenet(SHAPE, 10, width=3, hidden=(6,)), lambda seed: pictures(4, *SHAPE, seed=seed)),
    "lenet channels last": (
        lambda: lenet(SHAPE, 10, width=3, hidden=(6,)),
        lambda seed: (pictures(4, *SHAPE, seed=seed)[0].to(memory_format=torch.channels_last), pictures(4, *SHAPE, seed=seed)[1]),
    ),
    "group-norm resnet": (lambda: resnet18(SHAPE, 10, width=4), lambda seed: pictures(3, *SHAPE, seed=seed)),
    "embedding bag": (
        lambda: Text(),
        lambda seed: (torch.randint(30, (5, 7), generator=torch.Generator().manual_seed(seed)), torch.arange(5) % 3),
    ),
    "shared weights": (
        lambda: Tied(),
        lambda seed: (torch.randint(12, (5, 7), generator=torch.Generator().manual_seed(seed)), torch.arange(5)),
    ),
    "frozen layer": (frozen_backbone, lambda seed: pictures(9, 6, classes=3, seed=seed)),
    "in place": (lambda: InPlace(), lambda seed: pictures(9, 6, classes=4, seed=seed)),
    "the same gradient twice": (lambda: Summed(), lambda seed: pictures(9, 6, classes=3, seed=seed)),
    "attention": (lambda: Attention(), lambda seed: pictures(2, 4, 8, classes=3, seed=seed)),
    "recurrent": (lambda: Recurrent(), lambda seed: pictures(4, 3, 4, classes=3, seed=seed)),
    "gelu and layer norm": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)),
        lambda seed: pictures(9, 6, classes=3, seed=seed),
    ),
    "dropout of nothing": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.0)), lambda seed: pictures(9, 6, classes=3, seed=seed)),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        lambda seed: pictures(9, 6, classes=3, seed=seed),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_program_returns_the_bits_of_autograd(name: str) -> None:
    make, batch = MODULES[name]
    torch.manual_seed(0)
    check_equal_bits(make(), F.cross_entropy, [batch(seed) for seed in range(3)])


def test_a_program_for_segmentation_returns_the_bits_of_autograd() -> None:
    torch.manual_seed(0)
    batches = [(pictures(2, 3, 8, 8, seed=seed)[0], torch.randint(4, (2, 8, 8))) for seed in range(3)]
    check_equal_bits(unet((3, 8, 8), 4, width=2, depth=2), F.cross_entropy, batches)


def test_a_program_in_double_precision_returns_the_bits_of_autograd() -> None:
    torch.manual_seed(0)
    batches = [(x.double(), y) for x, y in (pictures(9, 13, seed=seed) for seed in range(3))]
    check_equal_bits(mlp((13,), 10, (7,)).double(), F.cross_entropy, batches)


def smooth_l1_with_penalty(outputs: Tensor, y: Tensor) -> Tensor:
    wrong = (outputs - y).abs()
    return torch.where(wrong < 1, 0.5 * wrong**2, wrong - 0.5).mean() + 0.1 * outputs.square().sum().sqrt()


class Tempered(nn.Module):
    """A loss with a parameter of its own, which is not in w."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return ((outputs - y) / self.temperature).square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss,
        smooth_l1_with_penalty,
        nn.HuberLoss(),
        Tempered(),
        F.l1_loss,
        functools.partial(F.mse_loss, weight=torch.tensor([[0.5], [2.0]])),
    ],
)
def test_other_losses_return_the_bits_of_autograd(loss: Loss) -> None:
    torch.manual_seed(0)
    check_equal_bits(softmax((5,), 1), loss, [(torch.randn(2, 5), torch.randn(2, 1)) for _ in range(3)])
