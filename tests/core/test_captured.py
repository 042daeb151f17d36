from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core import captured
from fedaccord.core.captured import Captured
from fedaccord.core.vector import FlatModel
from fedaccord.tasks.models import lenet, mlp, softmax

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


def why_not(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> str:
    """The only reason, after checking that the numbers are eager's all the same."""
    step, w = prepared(module, loss, x, y)
    assert all(map(torch.equal, step(w, x, y), by_autograd(module, loss, w, x, y)))
    assert step.num_programs == 0
    (reason,) = step.reasons.values()
    return reason


SHAPE = (3, 16, 16)


def frozen_backbone() -> nn.Module:
    module = mlp((6,), 3, (5, 4))
    module[1].weight.requires_grad_(False)  # type: ignore[union-attr]
    return module


def test_a_weighted_loss_module_is_captured_with_the_weights_that_it_has_at_each_call() -> None:
    torch.manual_seed(0)
    loss, module, (x, y) = nn.CrossEntropyLoss(weight=torch.rand(10)), softmax((13,), 10), pictures(9, 13)
    step, w = prepared(module, loss, x, y)
    loss.weight = torch.rand(10)
    assert step.num_programs == 1 and torch.equal(step(w, x, y)[1], by_autograd(module, loss, w, x, y)[1])


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


def test_targets_that_were_the_inputs_when_captured_may_be_others_later() -> None:
    torch.manual_seed(0)
    module, x = mlp((5,), 5, (4,)), torch.randn(9, 5)
    step, w = prepared(module, F.mse_loss, x, x)
    assert step.num_programs == 1
    for y in (x, x.clone(), torch.randn(9, 5)):
        assert torch.equal(step(w, x, y)[1], by_autograd(module, F.mse_loss, w, x, y)[1])


def test_examples_that_overlap_in_memory_stay_eager() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(1, 13).expand(9, 13), pictures(9, 13)[1]
    assert "written-to tensor refers to a single memory location" in why_not(softmax((13,), 10), F.cross_entropy, x, y)


def test_targets_of_another_shape_have_a_program_of_their_own() -> None:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.flatten() - y.flatten()).square().mean()

    module, x, y = softmax((5,), 1), torch.randn(9, 5), torch.randn(9)
    step, w = prepared(module, loss, x, y)
    for _ in range(2):
        assert torch.equal(step(w, x, y[:, None])[1], by_autograd(module, loss, w, x, y)[1])
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
