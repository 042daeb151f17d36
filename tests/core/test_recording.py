from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core import captured, recording
from fedaccord.core.captured import Captured
from fedaccord.core.vector import FlatModel


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(9, 6, generator=generator), torch.randint(3, (9,), generator=generator)


class Counting(nn.Module):
    """Its outputs change with the number of forward passes."""

    def __init__(self, keep: Callable[[Counting, int], None]) -> None:
        super().__init__()
        self.head, self.calls, self.keep = nn.Linear(6, 3), 0, keep

    def forward(self, x: Tensor) -> Tensor:
        self.keep(self, self.calls + 1)
        return self.head(x) * (1.0 + self.calls // 10)


class MovingBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(6), persistent=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.mean(0)
        return self.head(x - self.total)


class ReplacedBuffer(MovingBuffer):
    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.mean(0)
        return self.head(x - self.total)


class Branching(nn.Module):
    def __init__(self, ask: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.head, self.ask = nn.Linear(6, 3), ask

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if self.ask(x) else -self.head(x)


class Rolling(nn.Module):
    """A list of what it saw, and a generator: states that are no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.seen = nn.Linear(6, 3), []  # type: ignore[var-annotated]

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return self.head(x)


class FromNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.from_numpy(x.numpy() * 2))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[x > 0].mean().reshape(1, 1).expand(len(x), 1))


class WritesInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.clamp_(min=-10))


class Noisy(nn.Module):
    """Noise from a generator of its own that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.rng = nn.Linear(6, 3), np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.rng.normal()


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), r"random numbers \(aten::bernoulli_"),
    "batch norm": (lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), r"buffers that travel beside w \(1.running_mean\)"),
    "half precision": (lambda: nn.Sequential(nn.Linear(6, 3)).to(torch.bfloat16), "weights are torch.bfloat16"),
    "item": (lambda: Branching(lambda x: x.mean().item() > 0), "reads a number out of a tensor"),
    "branch": (lambda: Branching(lambda x: bool((x > 0).any())), "reads a number out of a tensor"),
    "hidden branch": (lambda: Branching(lambda x: x.tolist()[0][0] > x.tolist()[-1][0]), "differ at aten::"),
    "equal": (lambda: Branching(lambda x: torch.equal(x, x + 1)), "reads a number out of a tensor"),
    "counter": (lambda: Counting(lambda module, calls: setattr(module, "calls", calls)), "changes Counting.calls"),
    "list": (lambda: Rolling(), "changes Rolling.seen"),
    "own generator": (lambda: Noisy(), "differ at aten::"),
    "moving buffer": (lambda: MovingBuffer(), "writes to its inputs, a parameter or a buffer"),
    "replaced buffer": (lambda: ReplacedBuffer(), "changes ReplacedBuffer.total"),
    "numpy": (lambda: FromNumpy(), "without an operator"),
    "mask": (lambda: Masked(), "shape depends on values"),
    "written input": (lambda: WritesInput(), "writes to its inputs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_stays_eager_and_the_reason_can_be_read(name: str) -> None:
    torch.manual_seed(0)
    make, reason = REFUSED[name]
    module, (x, y) = make(), examples()
    x = x.to(next(module.parameters()).dtype)
    model = FlatModel(module)
    step, w = Captured(model, F.cross_entropy, capture_at=1), model.initial_w
    twin, torch_state = FlatModel(module), torch.get_rng_state()
    ours = [step(w, x, y) for _ in range(12)]
    after = torch.get_rng_state()
    torch.set_rng_state(torch_state)
    theirs = [captured.loss_and_gradient(twin, F.cross_entropy, w, x, y) for _ in range(12)]
    assert all(torch.equal(a, b) for mine, other in zip(ours, theirs, strict=True) for a, b in zip(mine, other, strict=True))
    assert torch.equal(after, torch.get_rng_state()), "recordings draw nothing that others would miss"
    assert step.num_programs == 0
    (given,) = step.reasons.values()
    assert re.search(reason, given), given


def test_chance_outside_torch_is_found_and_left_as_it_was() -> None:
    model, (x, y) = FlatModel(Branching(lambda x: random.random() < 0.5)), examples()
    random.seed(3)
    expected = [random.random() for _ in range(40)]
    random.seed(3)
    step = Captured(model, F.cross_entropy, capture_at=20)
    for _ in range(30):
        step(model.initial_w, x, y)
    assert random.random() == expected[30]


def test_a_step_that_fills_much_memory_stays_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_MEMORY", 1 << 20)
    model = FlatModel(nn.Sequential(nn.Linear(6, 50_000), nn.ReLU(), nn.Linear(50_000, 3)))
    step = Captured(model, F.cross_entropy, capture_at=1)
    step(model.initial_w, *examples())
    assert list(step.reasons.values()) == ["a step fills more than 1 MiB: dispatch is a small part of it"]


def test_importing_and_capturing_does_not_import_the_compiler() -> None:
    program = (
        "import sys, torch, torch.nn.functional as F\n"
        "from fedaccord.core.captured import Captured\nfrom fedaccord.core.vector import FlatModel\n"
        "model = FlatModel(torch.nn.Linear(3, 2))\nstep = Captured(model, F.cross_entropy, capture_at=1)\n"
        "step(model.initial_w, torch.ones(2, 3), torch.zeros(2, dtype=torch.long))\n"
        "assert step.num_programs == 1, step.reasons\nassert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
