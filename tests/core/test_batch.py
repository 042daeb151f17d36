"""batch.py and precision.py: gradients in parts, in half precision, with the same masks, and products with the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.batch import BoundBatch, Numerics, ObjectiveGrad, Part, micro_batches
from fedaccord.core.precision import Scaler, first_scaler, next_scaler
from fedaccord.core.vector import FlatModel, Layout


def grad_of(module: nn.Module, x: Tensor, y: Tensor, size: int | None = None, **numerics: Any) -> tuple[ObjectiveGrad, FlatModel]:
    model = FlatModel(module)
    model.train(True)

    def objective_of(part: tuple[Tensor, Tensor]) -> Callable[..., Any]:
        def objective(buffers: Any) -> Any:
            batch = BoundBatch(model, F.cross_entropy, buffers, *part)
            return lambda w: batch.loss_of(batch.outputs(w))

        return objective

    parts = [Part(share, objective_of(part), part) for share, part in micro_batches((x, y), size)]
    buffers = {name: b.clone() for name, b in model.initial_buffers.items()}
    return ObjectiveGrad(parts, buffers, buffers, Numerics(**numerics), 0), model


@pytest.fixture()
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(10, 4, generator=generator), torch.randint(0, 3, (10,), generator=generator)


def mlp(*between: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), *between, nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("size", [1, 3, 5, 10, 99])
def test_micro_batches_add_up_to_the_whole_batch(data: tuple[Tensor, Tensor], size: int) -> None:
    (whole, model), (parts, _) = grad_of(mlp(nn.GroupNorm(2, 8)), *data), grad_of(mlp(nn.GroupNorm(2, 8)), *data, size)
    (loss, gradient), (loss_of_parts, gradient_of_parts) = whole.with_loss(model.initial_w), parts.with_loss(model.initial_w)
    assert float(loss_of_parts) == pytest.approx(float(loss), rel=1e-6) and parts.passes == 1
    assert float((gradient - gradient_of_parts).norm()) <= 1e-6 * float(gradient.norm())


@pytest.mark.parametrize(
    "algorithm", [fa.FedSAM(rho=0.2), fa.FedSMOO(rho=0.2), fa.DynamicSAM(rho_max=0.2), fa.NoiseAdaptiveSAM(rho_base=0.1)]
)
def test_accumulated_sam_equals_full_batch_sam(algorithm: fa.Algorithm) -> None:
    """All micro-gradients at w, one perturbation, all micro-gradients at w + e, one step; not one perturbation a micro-batch."""
    task = fa.digits(model="mlp", hidden=[16])
    options: dict[str, Any] = {"partition": fa.IID(clients=4), "cohort": 2, "rounds": 2}
    whole, parts = (
        fa.run(task, algorithm, local=fa.LocalPlan(epochs=1, batch_size=50, micro_batch=size), **options) for size in (None, 13)
    )
    moved = float((whole.weights() - whole.weights(0)).norm())
    assert 0 < float((whole.weights() - parts.weights()).norm()) < 1e-5 * moved
    assert whole.rounds["gradients"].tolist() == parts.rounds["gradients"].tolist()


def test_the_product_with_the_hessian_is_that_of_the_whole_hessian(data: tuple[Tensor, Tensor]) -> None:
    module = mlp().double()
    for size in (None, 4):
        grad, model = grad_of(module, data[0].double(), data[1], size)
        batch = BoundBatch(model, F.cross_entropy, {}, data[0].double(), data[1])
        hessian = torch.autograd.functional.hessian(lambda w, b=batch: b.loss_of(b.outputs(w)), model.initial_w)
        v = torch.randn(len(model.initial_w), generator=torch.Generator().manual_seed(0)).double()
        assert torch.allclose(grad.hessian_product(model.initial_w, v), hessian @ v, rtol=1e-9, atol=1e-12)
        assert grad.passes == 2, "it costs about two gradients"


def test_a_hessian_product_neither_moves_buffers_nor_takes_the_clean_passs_place(data: tuple[Tensor, Tensor]) -> None:
    grad, model = grad_of(mlp(nn.BatchNorm1d(8)), *data)
    grad.hessian_product(model.initial_w, torch.ones_like(model.initial_w))
    assert int(grad._resting["1.num_batches_tracked"]) == 0


def test_the_product_of_a_linear_objective_is_zero() -> None:
    objective = lambda buffers: lambda w: w.sum()  # noqa: E731
    grad = ObjectiveGrad([Part(1.0, objective, (torch.ones(1), torch.ones(1)))], {}, {}, Numerics(), 0)
    assert grad.hessian_product(torch.ones(3), torch.ones(3)).tolist() == [0.0, 0.0, 0.0]


# Several forward passes in one evaluation


def test_the_first_forward_pass_of_an_evaluation_moves_the_buffers_and_a_second_models_does_not(data: tuple[Tensor, Tensor]) -> None:
    model = FlatModel(mlp(nn.BatchNorm1d(8)))
    model.train(True)
    buffers = {name: b.clone() for name, b in model.initial_buffers.items()}
    batch = BoundBatch(model, F.cross_entropy, buffers, *data)
    batch.outputs(model.initial_w)
    after_one = {name: b.clone() for name, b in buffers.items()}
    batch.outputs(2 * model.initial_w)
    batch.outputs_and_features(3 * model.initial_w)
    assert int(buffers["1.num_batches_tracked"]) == 1 and all(torch.equal(b, after_one[name]) for name, b in buffers.items())


def test_features_are_what_the_last_layer_sees(data: tuple[Tensor, Tensor]) -> None:
    module = mlp()
    model = FlatModel(module)
    outputs, features = BoundBatch(model, F.cross_entropy, {}, *data).outputs_and_features(model.initial_w)
    assert torch.equal(features, module[:2](data[0])) and torch.equal(outputs, module(data[0]))
    image = FlatModel(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 1)))
    _, features = image.with_features(image.initial_w, {}, torch.ones(5, 1, 6, 6))
    assert features.shape == (5, 2 * 4 * 4)


# Dropout


def test_with_the_same_masks_both_passes_see_one_function_and_without_they_do_not(data: tuple[Tensor, Tensor]) -> None:
    for same in (True, False):
        torch.manual_seed(7)
        grad, model = grad_of(mlp(nn.Dropout(0.5)), *data, **({"same_masks": True} if same else {}))
        first, second, third = (grad(model.initial_w) for _ in range(3))
        assert torch.equal(first, second) == same and torch.equal(second, third) == same


def test_the_next_step_draws_other_masks(data: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(7)
    module = mlp(nn.Dropout(0.5))
    firsts = []
    for _ in range(2):
        grad, model = grad_of(module, *data, same_masks=True)
        firsts.append(grad(model.initial_w))
        grad(model.initial_w)
    assert not torch.equal(*firsts)


def test_products_with_the_hessian_see_the_masks_of_their_step(data: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(7)
    grad, model = grad_of(mlp(nn.Dropout(0.5)), *data, same_masks=True)
    v = torch.ones_like(model.initial_w)
    first = grad(model.initial_w)
    products = [grad.hessian_product(model.initial_w, v) for _ in range(2)]
    assert torch.equal(*products) and torch.equal(grad(model.initial_w), first)


def test_what_a_method_looks_at_beforehand_leaves_the_masks_of_its_steps_alone() -> None:
    """In warm-up the reference gradient moves nothing but a signal, so two more batches in it move no weight."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    task = fa.Task(model=mlp(nn.Dropout(0.5)), loss=F.cross_entropy, train=(x, torch.arange(60) % 3), test=(x, torch.arange(60) % 3))
    options: dict[str, Any] = {"partition": fa.IID(clients=2), "cohort": 2, "rounds": 2, "local": fa.LocalPlan(batch_size=10, epochs=1)}
    runs = [fa.run(task, fa.DynamicSAM(reference_batches=batches, trust=0.0), **options) for batches in (1, 3)]
    assert torch.equal(runs[0].weights(), runs[1].weights())
    assert not runs[0].clients["signals_gamma"].equals(runs[1].clients["signals_gamma"])


# Half precision


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("algorithm", [fa.FedAvg(), fa.FedSMOO(), fa.Scaffold(), fa.DynamicSAM()], ids=lambda a: type(a).__name__)
def test_forward_passes_in_half_precision_and_everything_that_is_kept_in_float32(precision: Any, algorithm: fa.Algorithm) -> None:
    task = fa.digits(model="mlp", hidden=[16])
    options: dict[str, Any] = {"partition": fa.IID(clients=4), "cohort": 2, "rounds": 3}
    half, full = (fa.run(task, algorithm, local=fa.LocalPlan(epochs=1, precision=kind), **options) for kind in (precision, "float32"))
    moved = float((full.weights() - full.weights(0)).norm())
    assert half.weights().dtype == torch.float32 and 0 < float((half.weights() - full.weights()).norm()) < 0.1 * moved


def test_a_scale_of_float16_is_out_of_the_gradient_before_anyone_sees_it(data: tuple[Tensor, Tensor]) -> None:
    grad, model = grad_of(mlp(), *data)
    scaled = ObjectiveGrad(grad._parts, {}, {}, Numerics(), 0, torch.tensor(2.0**16))
    assert torch.allclose(scaled(model.initial_w), grad(model.initial_w), rtol=1e-5) and float(scaled.first_loss or 0) < 10


def test_the_scale_halves_after_an_overflow_and_doubles_after_two_thousand_good_steps() -> None:
    scaler, good, bad = first_scaler(torch.zeros(1)), torch.tensor(True), torch.tensor(False)
    assert float(scaler.scale) == 65536
    scaler = next_scaler(scaler._replace(good_steps=torch.tensor(1500.0)), bad)
    assert (float(scaler.scale), float(scaler.good_steps)) == (32768, 0)
    scaler = next_scaler(Scaler(torch.tensor(8.0), torch.tensor(1998.0)), good)
    assert (float(scaler.scale), float(scaler.good_steps)) == (8, 1999)
    scaler = next_scaler(scaler, good)
    assert (float(scaler.scale), float(scaler.good_steps)) == (16, 0)


def test_a_step_that_overflows_does_not_count_and_the_next_ones_do() -> None:
    """One output, gradient 10 x: scaled by 2^16 it is no float16 number (at most 65504) until the scale has halved four times."""
    task = fa.Task(
        model=nn.Linear(1, 1, bias=False),
        loss=lambda outputs, y: (10.0 * outputs.float()).mean(),
        train=(torch.ones(2, 1), torch.zeros(2)),
        test=(torch.ones(1, 1), torch.zeros(1)),
    )
    options: dict[str, Any] = {"partition": fa.IID(clients=1), "cohort": 1, "rounds": 1, "client_test": 0.0, "initial": torch.tensor([1.0])}
    plan = fa.LocalPlan(lr=0.01, epochs=10, batch_size="full", precision="float16", optimizer=fa.Sgd(momentum=0.5))
    half = fa.run(task, fa.FedAvg(), local=plan, **options)
    assert torch.isfinite(half.weights()).all()
    rest = fa.LocalPlan(lr=0.01, epochs=10 - 4, batch_size="full", optimizer=fa.Sgd(momentum=0.5))
    full = fa.run(task, fa.FedAvg(), local=rest, **options)
    assert float(half.weights()) == pytest.approx(float(full.weights()), rel=1e-3) and float(half.weights()) < 0.9


def test_kinds_and_layers_of_a_layout_are_the_models() -> None:
    layout = Layout.of(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(nn.Embedding(3, 2), nn.BatchNorm1d(2))))
    assert layout.kinds == ("Conv2d", "Conv2d", "Embedding", "BatchNorm1d", "BatchNorm1d")
    assert layout.layers() == ("0", "0", "1.0", "1.1", "1.1")
    assert layout.where(lambda name, kind: kind == "Embedding").nonzero().flatten().tolist() == list(range(4, 10))
