"""Our own models, small and without batch norm: softmax regression, MLP, LeNet, ResNet-18 and U-Net (both with GroupNorm).

Each is a function (in_shape, num_classes, **hyper-parameters) -> nn.Module; in_shape is the shape of one input. GroupNorm is the default
because batch statistics of clients that see different classes disagree (Hsieh et al. 2020, arXiv:1910.00189).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedaccord.core.errors import ConfigError
from fedaccord.tasks.nearest import did_you_mean

Shape = tuple[int, ...]
NormName = Literal["group", "batch"]
ModelName = Literal["softmax", "mlp", "lenet", "resnet18", "unet"]


def softmax(in_shape: Shape, num_classes: int) -> nn.Module:
    """Softmax regression: one linear layer. With num_classes=1 and a squared error it is linear regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(in_shape), num_classes))


def mlp(in_shape: Shape, num_classes: int, hidden: tuple[int, ...] = (200,)) -> nn.Module:
    """Fully connected layers with ReLU between them; `hidden` holds their widths."""
    return nn.Sequential(nn.Flatten(), *_dense(math.prod(in_shape), hidden, num_classes))


def lenet(in_shape: Shape, num_classes: int, width: int = 16, hidden: tuple[int, ...] = (128,)) -> nn.Module:
    """Two 5x5 convolutions with max-pooling, then fully connected layers, after LeCun et al. 1998.

    `width` is the number of channels of the first convolution, the second has twice as many. Any picture of at least 16x16. ReLU comes
    after the pooling: max(relu(x)) = relu(max(x)), to the bit and in the gradient, on a quarter of the numbers.
    """
    channels, height, side = _picture(in_shape, "lenet", smallest=16)
    after = [((size - 4) // 2 - 4) // 2 for size in (height, side)]
    return nn.Sequential(
        nn.Conv2d(channels, width, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        *_dense(2 * width * after[0] * after[1], hidden, num_classes),
    )


def resnet18(in_shape: Shape, num_classes: int, width: int = 64, norm: NormName = "group") -> nn.Module:
    """ResNet-18 (He et al. 2016, arXiv:1512.03385) with the 3x3 first layer used for small pictures, and GroupNorm by default.

    `width` is the number of channels of the first stage, doubled in each of the four.
    """
    channels, _, _ = _picture(in_shape, "resnet18", smallest=8)
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), NORMS[norm](width), nn.ReLU()]
    for stage in range(4):
        out = width * 2**stage
        layers += [ResidualBlock(out if stage == 0 else out // 2, out, 1 if stage == 0 else 2, norm), ResidualBlock(out, out, 1, norm)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, num_classes))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int, norm: NormName) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
            NORMS[norm](out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            NORMS[norm](out),
        )
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), NORMS[norm](out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def unet(in_shape: Shape, num_classes: int, width: int = 16, depth: int = 3, norm: NormName = "group") -> nn.Module:
    """A small U-Net (Ronneberger et al. 2015, arXiv:1505.04597): logits [B, num_classes, H, W]; num_classes=1 for a binary mask.

    `depth` levels of `width`, 2 width, ... channels. Height and width must be multiples of 2^(depth - 1).
    """
    channels, height, side = _picture(in_shape, "unet", smallest=2 ** (depth - 1))
    if height % 2 ** (depth - 1) or side % 2 ** (depth - 1):
        raise ConfigError(
            "E203",
            f"a U-Net of depth {depth} cannot halve {height}x{side} pixels",
            "task.model",
            f"Crop or pad to multiples of {2 ** (depth - 1)}",
        )
    return UNet(channels, num_classes, width, depth, norm)


class UNet(nn.Module):
    """Down by max-pooling, up by transposed convolution, with a concatenation across at each level."""

    def __init__(self, channels: int, num_classes: int, width: int, depth: int, norm: NormName) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(_double(a, b, norm) for a, b in zip([channels, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(_double(2 * w, w, norm) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        for level, down in enumerate(self.down):
            x = down(x if level == 0 else nn.functional.max_pool2d(x, 2))
            seen.append(x)
        for up, merge, across in zip(self.up, self.merge, reversed(seen[:-1]), strict=True):
            x = merge(torch.cat([across, up(x)], dim=1))
        head: Tensor = self.head(x)
        return head


MODELS: dict[str, Callable[..., nn.Module]] = {"softmax": softmax, "mlp": mlp, "lenet": lenet, "resnet18": resnet18, "unet": unet}


def model_factory(name: str, in_shape: Shape, num_classes: int, **options: Any) -> Callable[[], nn.Module]:
    """A function without arguments that makes model `name` with fresh weights. Options that are None keep the model's default.

    Raises E205 (no such model), E208 (an option that this model does not have), E203 (the inputs do not suit the model).
    """
    if name not in MODELS:
        raise ConfigError("E205", f"unknown model '{name}'", "task.model", did_you_mean(name, MODELS))
    model = MODELS[name]
    given = {key: value for key, value in options.items() if value is not None}
    known = [key for key in inspect.signature(model).parameters if key not in ("in_shape", "num_classes")]
    for key in given:
        if key not in known:
            raise ConfigError(
                "E208",
                f"model '{name}' has no '{key}'",
                f"task.{key}",
                f"It has {', '.join(known)}" if known else f"Leave '{key}' out: it has no options",
            )
    make = partial(model, tuple(in_shape), num_classes, **given)
    with torch.device("meta"):  # finds what does not fit now, without memory or random numbers
        make()
    return make


def _group_norm(channels: int) -> nn.Module:
    groups = math.gcd(32, channels)
    # one channel a group on one pixel would be a mean over a single number
    return nn.GroupNorm(groups if groups < channels else max(1, channels // 2), channels)


def _batch_norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels)


NORMS: dict[str, Callable[[int], nn.Module]] = {"group": _group_norm, "batch": _batch_norm}


def _dense(inputs: int, hidden: tuple[int, ...], outputs: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return [*layers, nn.Linear(inputs, outputs)]


def _double(channels: int, out: int, norm: NormName) -> nn.Module:
    first = [nn.Conv2d(channels, out, 3, padding=1, bias=False), NORMS[norm](out), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(out, out, 3, padding=1, bias=False), NORMS[norm](out), nn.ReLU())


def _picture(in_shape: Shape, model: str, smallest: int) -> tuple[int, int, int]:
    """(channels, height, width), or E203 where an input is no picture or too small."""
    if len(in_shape) != 3 or min(in_shape[1:]) < smallest:
        raise ConfigError(
            "E203",
            f"inputs of shape {list(in_shape)} for model '{model}'",
            "task.model",
            f"It needs pictures [channels, height, width] of at least {smallest}x{smallest} pixels; 'mlp' and 'softmax' take any shape",
        )
    return in_shape[0], in_shape[1], in_shape[2]
