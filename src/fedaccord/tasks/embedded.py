"""Tasks on data that come with the package or with scikit-learn, so that everything runs without a network.

Digits and breast cancer are scikit-learn's; Fashion-MNIST-mini lies beside this file (MIT, see embedded_data/LICENSE); the segmentation
task is generated. Splits are fixed; inputs are shifted and scaled by the statistics of the training rows.
"""

from __future__ import annotations

from importlib import resources
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from fedaccord.core.errors import ConfigError
from fedaccord.core.rng import stream
from fedaccord.tasks.examples import Examples
from fedaccord.tasks.losses import overlap_and_cross_entropy
from fedaccord.tasks.models import NormName, model_factory
from fedaccord.tasks.scaling import normalised
from fedaccord.tasks.splits import carve
from fedaccord.tasks.task import Task

FASHION_CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def digits(model: Literal["softmax", "mlp"] = "mlp", hidden: tuple[int, ...] | None = None, validation: float = 0.2) -> Task:
    """1797 handwritten digits of 8x8 pixels, 10 classes: 20% test, and `validation` of the rest (0: none)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    everything = Examples.of((data.images / 16).astype(np.float32)[:, None], data.target)
    train, test = carve(everything, 0.2, "digits test")
    train, test, held_out = _prepared(train, test, validation, "digits validation")
    return Task(
        model=model_factory(model, (1, 8, 8), 10, hidden=hidden),
        loss=F.cross_entropy,
        train=train,
        test=test,
        validation=held_out,
        num_classes=10,
        class_names=[str(c) for c in range(10)],
        name="digits",
    )


def fashion_mnist_mini(
    model: Literal["softmax", "mlp", "lenet", "resnet18"] = "lenet",
    hidden: tuple[int, ...] | None = None,
    width: int | None = None,
    norm: NormName | None = None,
    validation: float = 0.2,
) -> Task:
    """2000 training and 500 test pictures of clothes, 28x28 grey, 10 classes, balanced; `validation` of the 2000 are held out (0: none).

    hidden (mlp, lenet), width (lenet, resnet18) and norm (resnet18) are the model's; left out, its defaults hold.
    """
    source = resources.files("fedaccord.tasks").joinpath("embedded_data").joinpath("fashion_mnist_mini.npz")
    with source.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        train = Examples.of(arrays["x_train"][:, None], arrays["y_train"])
        test = Examples.of(arrays["x_test"][:, None], arrays["y_test"], split="test")
    train, test, held_out = _prepared(train, test, validation, "fashion_mnist_mini validation")
    return Task(
        model=model_factory(model, (1, 28, 28), 10, hidden=hidden, width=width, norm=norm),
        loss=F.cross_entropy,
        train=train,
        test=test,
        validation=held_out,
        num_classes=10,
        class_names=FASHION_CLASSES,
        name="fashion_mnist_mini",
    )


def breast_cancer(model: Literal["softmax", "mlp"] = "mlp", hidden: tuple[int, ...] | None = None, validation: float = 0.2) -> Task:
    """569 tumours, 30 measurements each, malignant or benign (Street et al. 1993): 20% test, and `validation` of the rest (0: none)."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    everything = Examples.of(data.data.astype(np.float32), data.target)
    train, test = carve(everything, 0.2, "breast_cancer test")
    train, test, held_out = _prepared(train, test, validation, "breast_cancer validation")
    return Task(
        model=model_factory(model, (30,), 2, hidden=hidden),
        loss=F.cross_entropy,
        train=train,
        test=test,
        validation=held_out,
        metrics=("accuracy", "balanced_accuracy", "auc"),
        num_classes=2,
        class_names=[str(name) for name in data.target_names],
        name="breast_cancer",
    )


def synthetic_segmentation(
    model: Literal["unet"] = "unet",
    width: int | None = None,
    depth: int | None = None,
    norm: NormName | None = None,
    num_train: int = 240,
    num_test: int = 80,
    num_sites: int = 4,
    validation: float = 0.2,
) -> Task:
    """Generated 32x32 pictures: find the bright discs among stripes. Each site has its own brightness, contrast, noise and stripe width.

    `site` holds where a picture comes from, in equal numbers, and serves as the natural client too. The mask is y, [n, 1, 32, 32].
    """
    if min(num_train, num_test, num_sites) < 1:
        raise ConfigError(
            "E203", f"{num_train} training and {num_test} test pictures of {num_sites} sites", "task", "Give at least 1 of each"
        )
    train = _drawn_pictures(num_train, num_sites, "train")
    test = _drawn_pictures(num_test, num_sites, "test")
    train, test, held_out = _prepared(train, test, validation, "synthetic_segmentation validation")
    return Task(
        model=model_factory(model, (1, 32, 32), 1, width=width, depth=depth, norm=norm),
        loss=overlap_and_cross_entropy,
        train=train,
        test=test,
        validation=held_out,
        metrics=("dice",),
        name="synthetic_segmentation",
    )


def _prepared(train: Examples, test: Examples, validation: float, stream_name: str) -> tuple[Examples, Examples, Examples | None]:
    """(train, test, validation), the last carved off train before the statistics are taken."""
    if not validation:
        train, test = normalised(train, test)
        return train, test, None
    train, held_out = carve(train, validation, stream_name)
    train, test, held_out = normalised(train, test, held_out)
    return train, test, held_out


def _drawn_pictures(num_pictures: int, num_sites: int, split: str) -> Examples:
    size = 32
    rows, columns = np.mgrid[:size, :size]
    site_of = np.arange(num_pictures) % num_sites
    x = np.empty((num_pictures, 1, size, size), dtype=np.float32)
    y = np.zeros((num_pictures, 1, size, size), dtype=np.float32)
    for picture, site in enumerate(site_of):
        look = stream(0, "synthetic_segmentation", "site", int(site))
        brightness, contrast, noise = look.uniform(-0.5, 0.5), look.uniform(0.5, 1.5), look.uniform(0.05, 0.3)
        stripe_pixels = look.uniform(3, 9)
        rng = stream(0, "synthetic_segmentation", split, picture)
        angle, phase = rng.uniform(0, np.pi), rng.uniform(0, 2 * np.pi)
        across = rows * np.sin(angle) + columns * np.cos(angle)
        stripes = 0.4 * np.sin(2 * np.pi * across / stripe_pixels + phase)
        for _ in range(int(rng.integers(1, 4))):
            row, column, radius = rng.uniform(4, size - 4), rng.uniform(4, size - 4), rng.uniform(3, 6)
            y[picture, 0][(rows - row) ** 2 + (columns - column) ** 2 <= radius**2] = 1
        x[picture, 0] = brightness + contrast * (stripes + 0.6 * y[picture, 0]) + rng.normal(0, noise, (size, size))
    names = np.array([f"site-{site}" for site in site_of])
    return Examples(torch.from_numpy(x), torch.from_numpy(y), ids=names, site=names)
