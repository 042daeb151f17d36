"""The work that all contestants do: W1 to W4, the same data, first weights and batch sizes for everybody, and what a round must count.

Imports torch and numpy only, so that peers in environments of their own read the same file (`save`, `load`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

SEED = 0
LR = 0.05


def mlp() -> nn.Module:
    """784-200-10."""
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def lenet() -> nn.Module:
    """LeNet-5 for pictures 3x32x32 (LeCun et al. 1998, with ReLU and max-pooling)."""
    convolutions = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    return nn.Sequential(convolutions, nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def resnet() -> nn.Module:
    """ResNet-18 with GroupNorm, 11.2 million parameters."""
    from fedaccord.tasks.models import model_factory  # not where another framework reads this file

    return model_factory("resnet18", (3, 32, 32), 10)()


def softmax() -> nn.Module:
    """Logistic regression of two classes on 30 features."""
    return nn.Linear(30, 2)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {  # model, shape of one input, classes
    "mlp": (mlp, (784,), 10),
    "lenet": (lenet, (3, 32, 32), 10),
    "softmax": (softmax, (30,), 2),
    "resnet": (resnet, (3, 32, 32), 10),
}


class Miscounted(AssertionError):
    """A contestant did not do the work that it is timed for."""


@dataclass(frozen=True)
class Outcome:
    """What a contestant says that it did in one round."""

    examples: int  # sample passes: an example counts once for each forward and backward pass that saw it
    steps: int | None = None  # local steps of all clients; None of a bound that takes no such steps (floor)
    moved: float | None = None  # |w_{t+1} - w_t|; None where it has no global model


@dataclass(frozen=True, eq=False)
class Workload:
    """One round's work: every client trains one epoch of its own rows, in mini-batches, reshuffled."""

    name: str
    model: str  # of MODELS
    x: npt.NDArray[np.float32]  # [n, ...]
    y: npt.NDArray[np.int64]  # [n]
    sizes: npt.NDArray[np.int64]  # [clients] rows of each, one client's after the other's
    start: dict[str, npt.NDArray[np.float32]]  # first weights, by parameter
    batch_size: int
    rho: float = 0.0  # radius of SAM; 0: plain SGD
    lr: float = LR

    @property
    def passes(self) -> int:
        """Gradient evaluations a step."""
        return 2 if self.rho else 1

    @property
    def num_examples(self) -> int:
        return int(self.sizes.sum())

    @property
    def steps(self) -> int:
        """Local steps of a round."""
        return sum(math.ceil(size / self.batch_size) for size in self.sizes.tolist())

    @property
    def sample_passes(self) -> int:
        """Examples that a round passes through the model, forward and backward."""
        return self.num_examples * self.passes

    def bounds(self) -> list[tuple[int, int]]:
        """First row and end of each client."""
        ends = np.cumsum(self.sizes).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def tensors(self) -> tuple[Tensor, Tensor]:
        """(x, y) without a copy."""
        return torch.from_numpy(self.x), torch.from_numpy(self.y)

    def module(self) -> nn.Module:
        """The model with the first weights."""
        module = MODELS[self.model][0]()
        module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in self.start.items()})
        return module

    def check(self, who: str, outcome: Outcome, moved: float | None = None) -> None:
        """Miscounted where the contestant did other work than this round's.

        moved: how far another contestant's model went in the same round; batches are shuffled differently, so a tenth is allowed.
        """
        if outcome.examples != self.sample_passes:
            raise Miscounted(f"{self.name}: {who} saw {outcome.examples} examples in a round, not {self.sample_passes}")
        if outcome.steps is not None and outcome.steps != self.steps:
            raise Miscounted(f"{self.name}: {who} did {outcome.steps} steps in a round, not {self.steps}")
        if moved and outcome.moved is not None and not 0.9 < outcome.moved / moved < 1.1:
            raise Miscounted(f"{self.name}: {who} moved the model by {outcome.moved:.4g}, others by {moved:.4g}")


def made(name: str, model: str, sizes: npt.NDArray[np.int64], batch_size: int, rho: float = 0.0) -> Workload:
    """Data without structure, since nobody looks at accuracy: inputs standard normal, labels uniform."""
    factory, shape, classes = MODELS[model]
    rng, n = np.random.default_rng(SEED), int(sizes.sum())
    x = rng.standard_normal((n, *shape), dtype=np.float32)
    y = rng.integers(classes, size=n)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        start = {key: value.numpy().copy() for key, value in factory().state_dict().items()}
    return Workload(name, model, x, y, sizes.astype(np.int64), start, batch_size, rho)


def ragged(clients: int) -> npt.NDArray[np.int64]:
    """5 to 500 rows each."""
    return np.random.default_rng(SEED + 1).integers(5, 501, clients)


WORKLOADS: dict[str, Callable[[float], Workload]] = {  # name -> of a share of the clients, at least two
    "W1": lambda share: made("W1", "mlp", np.full(_of(100, share), 600), 50),
    "W1b20": lambda share: made("W1b20", "mlp", np.full(_of(100, share), 600), 20),
    "W2": lambda share: made("W2", "lenet", np.full(_of(20, share), 500), 50),
    "W3": lambda share: made("W3", "lenet", np.full(_of(20, share), 500), 50, rho=0.05),
    "resnet": lambda share: made("resnet", "resnet", np.full(_of(10, share), 100), 16),
    "W4": lambda share: made("W4", "softmax", ragged(_of(1000, share)), 50),
}


def _of(clients: int, share: float) -> int:
    return max(2, round(clients * share))


def save(workload: Workload, path: Path) -> None:
    """One .npz file, without pickles."""
    numbers = {"batch_size": workload.batch_size, "rho": workload.rho, "lr": workload.lr}
    start = {f"start.{name}": value for name, value in workload.start.items()}
    names = {"name": np.array(workload.name), "model": np.array(workload.model)}
    np.savez(path, x=workload.x, y=workload.y, sizes=workload.sizes, **names, **start, **{key: np.array(v) for key, v in numbers.items()})


def load(path: Path) -> Workload:
    """What `save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    start = {name.removeprefix("start."): value for name, value in found.items() if name.startswith("start.")}
    batch_size, rho, lr = int(found["batch_size"]), float(found["rho"]), float(found["lr"])
    return Workload(str(found["name"]), str(found["model"]), found["x"], found["y"], found["sizes"], start, batch_size, rho, lr)
