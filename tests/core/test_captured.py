from __future__ import annotations

import functools
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


def why_not(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> str:
    """The only reason, after checking that the numbers are eager's all the same."""
    step, w = prepared(module, loss, x, y)
    assert step.num_programs == 0
    (reason,) = step.reasons.values()
    return reason


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
        hidden = self.one(hidden).add_(1.0)
        hidden[:, 0].mul_(2.0)
        positions = torch.arange(6, device=x.device) * torch.tensor([0.0, 1.0, 2.0, 0.5, 0.25, 1.0])
        return self.head(hidden + positions * self.scale[:2].sum())


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x).mean(1))


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
    "attention": (lambda: Attention(), lambda seed: pictures(2, 4, 8, classes=3, seed=seed)),
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


@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, smooth_l1_with_penalty, nn.HuberLoss(), F.l1_loss, functools.partial(F.mse_loss, weight=torch.tensor([[0.5], [2.0]]))],
)
def test_other_losses_return_the_bits_of_autograd(loss: Loss) -> None:
    torch.manual_seed(0)
    check_equal_bits(softmax((5,), 1), loss, [(torch.randn(2, 5), torch.randn(2, 1)) for _ in range(3)])


def test_a_weighted_loss_module_is_captured_with_the_weights_that_it_has_at_each_call() -> None:
    torch.manual_seed(0)
    loss, module, (x, y) = nn.CrossEntropyLoss(weight=torch.rand(10)), softmax((13,), 10), pictures(9, 13)
    step = check_equal_bits(module, loss, [(x, y)])
    loss.weight = torch.rand(10)
    w = FlatModel(module).initial_w
    assert torch.equal(step(w, x, y)[1], by_autograd(module, loss, w, x, y)[1])


def test_frozen_parameters_are_read_anew_in_each_call() -> None:
    torch.manual_seed(0)
    module, (x, y) = frozen_backbone(), pictures(9, 6, classes=3)
    step, w = prepared(module, F.cross_entropy, x, y)
    before = step(w, x, y)[1]
    for change in ("in place", "replaced"):
        theirs, ours = module[1], step._model.module[1]  # type: ignore[index]
        new = torch.randn_like(theirs.weight)
        for part in (theirs, ours):
            if change == "in place":
                part.weight.copy_(new)
            else:
                part.weight = nn.Parameter(new, requires_grad=False)
        after = step(w, x, y)[1]
        assert torch.equal(after, by_autograd(module, F.cross_entropy, w, x, y)[1]) and not torch.equal(after, before)
    assert step.num_programs == 1


class Positions(nn.Module):
    """Adds a buffer that is not persistent: FlatModel gives the module a fresh copy of it before each client."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.linspace(0, 1, 6), persistent=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.positions)


def test_buffers_that_are_not_persistent_are_read_anew_in_each_call() -> None:
    module, (x, y) = Positions(), pictures(9, 6, classes=3)
    step, w = prepared(module, F.cross_entropy, x, y)
    assert step.num_programs == 1
    step._model.train(True)
    step._model.module.positions.fill_(3.0)
    module.positions.fill_(3.0)
    assert torch.equal(step(w, x, y)[1], by_autograd(module, F.cross_entropy, w, x, y)[1])


def test_each_call_returns_fresh_tensors_and_leaves_its_inputs_alone() -> None:
    x, y = pictures(9, 13)
    step, w = prepared(mlp((13,), 10, (7,)), F.cross_entropy, x, y)
    kept = [t.clone() for t in (w, x, y)]
    loss, gradient = step(w, x, y)
    first = loss.clone(), gradient.clone()
    other_loss, other_gradient = step(2 * w, x, y)
    assert torch.equal(loss, first[0]) and torch.equal(gradient, first[1]) and not torch.equal(other_gradient, gradient)
    storages = {t.untyped_storage().data_ptr() for t in (w, x, y, loss, gradient, other_loss, other_gradient)}
    assert len(storages) == 7
    assert all(map(torch.equal, (w, x, y), kept))
    assert not loss.requires_grad and not gradient.requires_grad and gradient.is_contiguous()


def test_what_a_program_returns_can_be_computed_with_and_differentiated() -> None:
    x, y = pictures(9, 13)
    step, w = prepared(mlp((13,), 10, (7,)), F.cross_entropy, x, y)
    _, gradient = step(w, x, y)
    factor = torch.ones((), requires_grad=True)
    (factor * gradient).sum().backward()
    assert torch.equal(factor.grad, gradient.sum())  # type: ignore[arg-type]
    assert torch.ones((), requires_grad=True).mul(2.0).requires_grad, "autograd records again after a program has run"


def test_w_may_change_in_place_between_calls_and_lie_inside_a_matrix() -> None:
    torch.manual_seed(0)
    module, (x, y) = mlp((13,), 10, (7,)), pictures(9, 13)
    step, w = prepared(module, F.cross_entropy, x, y)
    rows = torch.stack([w, w + 0.1, w - 0.1])
    for row in rows:
        row.add_(0.05)
        assert torch.equal(step(row, x, y)[1], by_autograd(module, F.cross_entropy, row.clone(), x, y)[1])


def test_shapes_that_take_turns_have_a_program_each() -> None:
    torch.manual_seed(0)
    module = mlp((13,), 10, (7,))
    model = FlatModel(module)
    step, w = Captured(model, F.cross_entropy, capture_at=2), model.initial_w
    for turn in range(4):
        for size in (9, 4, 1):
            x, y = pictures(size, 13, seed=turn)
            assert torch.equal(step(w, x, y)[1], by_autograd(module, F.cross_entropy, w, x, y)[1])
    assert step.num_programs == 3


def test_a_layout_of_the_same_shape_has_a_program_of_its_own() -> None:
    torch.manual_seed(0)
    module, (x, y) = lenet(SHAPE, 10, width=3, hidden=(6,)), pictures(4, *SHAPE)
    step, w = prepared(module, F.cross_entropy, x, y)
    last = x.to(memory_format=torch.channels_last)
    for _ in range(2):
        assert torch.equal(step(w, last, y)[1], by_autograd(module, F.cross_entropy, w, last, y)[1])
    assert step.num_programs == 2


def test_a_shape_is_captured_from_its_nth_occurrence_on_and_only_then() -> None:
    model = FlatModel(softmax((13,), 10))
    step, w, (x, y) = Captured(model, F.cross_entropy, capture_at=3), model.initial_w, pictures(9, 13)
    seen = []
    for _ in range(4):
        step(w, x, y)
        step(w, *pictures(2, 13)) if not seen else None
        seen.append(step.num_programs)
    assert seen == [0, 0, 1, 1] and step.seconds > 0


def test_no_more_than_the_allowed_number_of_programs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_PROGRAMS", 2)
    module = softmax((13,), 10)
    step, w = prepared(module, F.cross_entropy, *pictures(1, 13))
    for size in (2, 3, 3):
        x, y = pictures(size, 13)
        assert torch.equal(step(w, x, y)[1], by_autograd(module, F.cross_entropy, w, x, y)[1])
    assert step.num_programs == 2
    assert step.reasons == {"x [3, 13] torch.float32, y [3] torch.int64": "2 other shapes are captured already"}


def test_a_gradient_that_is_not_finite_is_the_same_in_a_program() -> None:
    module, (x, y) = softmax((13,), 10), pictures(9, 13)
    x[0, 0] = torch.inf
    step, w = prepared(module, F.cross_entropy, x, y)
    assert step.num_programs == 1
    value, gradient = step(w, x, y)
    expected, expected_gradient = by_autograd(module, F.cross_entropy, w, x, y)
    assert value.isnan() and expected.isnan()
    assert gradient.isnan().any() and torch.equal(gradient.isnan(), expected_gradient.isnan())


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
    module, (x, y) = make(), pictures(9, 6, classes=3)
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
    model, (x, y) = FlatModel(Branching(lambda x: random.random() < 0.5)), pictures(9, 6, classes=3)
    random.seed(3)
    expected = [random.random() for _ in range(40)]
    random.seed(3)
    step = Captured(model, F.cross_entropy, capture_at=20)
    for _ in range(30):
        step(model.initial_w, x, y)
    assert random.random() == expected[30]


def test_a_models_own_parameters_keep_it_eager() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3))
    model, (x, y) = FlatModel(module, own=("1.weight", "1.bias")), pictures(9, 6, classes=3)
    step = Captured(model, F.cross_entropy, capture_at=1)
    assert step.reasons == {"every batch": "some parameters stay with each client: they come with the buffers"}
    assert step(model.initial_w, x, y)[1].shape == (21,) and step.num_programs == 0


def test_a_model_with_dropout_is_captured_in_evaluation_mode_and_not_in_training() -> None:
    model, (x, y) = FlatModel(nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))), pictures(9, 6, classes=3)
    step, w = Captured(model, F.cross_entropy, capture_at=1), model.initial_w
    model.train(False)
    step(w, x, y)
    model.train(True)
    step(w, x, y)
    assert step.num_programs == 1 and list(step.reasons) == ["every batch in training"]
    torch.manual_seed(0)
    dropped = step(w, x, y)[1]
    model.train(False)
    assert not torch.equal(dropped, step(w, x, y)[1])


def test_a_program_that_differs_from_eager_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = captured.captured_program

    def wrong(*given: object) -> object:
        step = right(*given)  # type: ignore[arg-type]
        return lambda w, x, y: (step(w, x, y)[0], step(w, x, y)[1] * (1 + 2e-7))

    monkeypatch.setattr(captured, "captured_program", wrong)
    assert why_not(softmax((13,), 10), F.cross_entropy, *pictures(9, 13)) == "the captured step differs from the eager one"


def test_a_failure_of_capturing_itself_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> object:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(captured, "captured_program", broken)
    reason = why_not(softmax((13,), 10), F.cross_entropy, *pictures(9, 13))
    assert reason == "capturing failed: ZeroDivisionError: nothing to divide by"


def test_a_step_that_fills_much_memory_stays_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_MEMORY", 1 << 20)
    assert "fills more than 1 MiB" in why_not(mlp((300,), 10, (500,)), F.cross_entropy, *pictures(50, 300))


def test_errors_of_the_step_are_those_of_eager() -> None:
    x, y = pictures(9, 13)
    step, w = prepared(softmax((13,), 10), F.cross_entropy, x, y)
    with pytest.raises(IndexError, match="Target 99 is out of bounds"):
        step(w, x, torch.full_like(y, 99))
    assert torch.ones((), requires_grad=True).mul(2.0).requires_grad
    assert step(w, x, y)[1].isfinite().all()


def test_within_autocast_the_step_is_eager() -> None:
    x, y = pictures(9, 13)
    module = softmax((13,), 10)
    step, w = prepared(module, F.cross_entropy, x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = step(w, x, y)[1]
        assert torch.equal(inside, by_autograd(module, F.cross_entropy, w, x, y)[1])
    assert not torch.equal(inside, step(w, x, y)[1])


def test_importing_and_capturing_does_not_import_the_compiler() -> None:
    program = (
        "import sys, torch, torch.nn.functional as F\n"
        "from fedaccord.core.captured import Captured\nfrom fedaccord.core.vector import FlatModel\n"
        "model = FlatModel(torch.nn.Linear(3, 2))\nstep = Captured(model, F.cross_entropy, capture_at=1)\n"
        "step(model.initial_w, torch.ones(2, 3), torch.zeros(2, dtype=torch.long))\n"
        "assert step.num_programs == 1, step.reasons\nassert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
