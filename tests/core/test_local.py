"""local.py: the one loop over local steps, held against loops written out by hand."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.algorithms import REGISTRY
from fedaccord.core.algorithm import Algorithm, BatchGrad, RoundStart, Server
from fedaccord.core.gradient import sam
from fedaccord.core.local import LocalPlan, Trained, epoch_means, local_training, upload_template
from fedaccord.core.optimizer import Sgd
from fedaccord.core.state import to_arrays
from fedaccord.core.vector import FlatModel, Layout, buffers_of, vector_of


def data(seed: int = 0, steps: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 5, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(steps)]


@pytest.fixture()
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def train(algorithm: Algorithm, module: nn.Module, plan: LocalPlan, batches: list[tuple[Tensor, Tensor]], **options: Any) -> Trained:
    model = FlatModel(module)
    model.train(True)
    w = options.pop("w", model.initial_w)
    sent = algorithm.broadcast(algorithm.init_server(w))
    defaults: dict[str, Any] = {
        "num_steps": len(batches),
        "round": 9,
        "lr": plan.lr,
        "validation": None,
        "random_direction": lambda: torch.ones_like(w) / len(w) ** 0.5,
    }
    return local_training(
        algorithm,
        model,
        F.cross_entropy,
        plan,
        sent,
        model.initial_buffers,
        options.pop("kept", algorithm.init_client(w)),
        lambda: iter(batches),
        **(defaults | options),
    )


def test_the_default_method_is_sgd_on_the_module_itself_to_the_bit(module: nn.Module) -> None:
    trained = train(Algorithm(), module, LocalPlan(lr=0.1, optimizer=Sgd(0.9)), data())
    reference = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(reference.parameters(), 0.1, momentum=0.9)
    losses = []
    for x, y in data():
        optimizer.zero_grad()
        loss = F.cross_entropy(reference(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert torch.equal(trained.upload.delta, vector_of(reference) - vector_of(module))
    assert torch.equal(trained.losses, torch.stack(losses))
    assert all(torch.equal(b, trained.buffers[name]) for name, b in buffers_of(reference).items())
    assert trained.gradients == 6


def test_coupled_weight_decay_is_torchs(module: nn.Module) -> None:
    trained = train(Algorithm(), module, LocalPlan(lr=0.1, optimizer=Sgd(0.5), weight_decay=0.05), data())
    reference = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(reference.parameters(), 0.1, momentum=0.5, weight_decay=0.05)
    for x, y in data():
        optimizer.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        optimizer.step()
    assert torch.allclose(trained.upload.delta, vector_of(reference) - vector_of(module), rtol=1e-4, atol=1e-7)


@dataclass(frozen=True)
class TwoPasses(Algorithm):
    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Any) -> tuple[Tensor, Any]:
        return sam(grad, 0.5)(w), local


def test_batch_norm_moves_in_the_clean_pass_alone(module: nn.Module) -> None:
    """One step: the statistics are those of the clean weights, though the second pass saw others; counters count batches, not passes."""
    (batch,) = data(steps=1)
    trained = train(TwoPasses(), module, LocalPlan(lr=0.1), [batch])
    reference = copy.deepcopy(module).train()
    reference(batch[0])
    assert all(torch.equal(b, trained.buffers[name]) for name, b in buffers_of(reference).items())
    many = train(TwoPasses(), module, LocalPlan(lr=0.1), data())
    assert many.buffers["1.num_batches_tracked"] == 6 and many.gradients == 12


def test_the_buffers_that_were_given_are_not_changed(module: nn.Module) -> None:
    model = FlatModel(module)
    before = {name: b.clone() for name, b in model.initial_buffers.items()}
    local_training(
        TwoPasses(),
        model,
        F.cross_entropy,
        LocalPlan(),
        Server(model.initial_w),
        model.initial_buffers,
        (),
        lambda: iter(data()),
        round=1,
        lr=0.1,
        num_steps=1,
        validation=data(1)[0],
        random_direction=lambda: model.initial_w,
    )
    assert all(torch.equal(b, before[name]) for name, b in model.initial_buffers.items())


class Looker(Algorithm):
    """Keeps what it is shown, and evaluates every gradient it may look at."""

    num = 3

    def begin(self, start: RoundStart, sent: Server, kept: Any) -> Any:
        reference = [grad(sent.w) for grad in start.reference]
        held_out = () if start.validation is None else start.validation.with_loss(sent.w)
        return {
            "reference": torch.stack(reference),
            "held_out": held_out,
            "first": (),
            "lr": torch.tensor(start.lr),
            "round": torch.tensor(start.round),
        }

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return g, local | {"first": g} if grad.step == 0 else local

    @property
    def num_reference_batches(self) -> int:
        return self.num


def gradient_at(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    own = copy.deepcopy(module).train()
    F.cross_entropy(own(batch[0]), batch[1]).backward()
    return torch.cat([p.grad.reshape(-1) for p in own.parameters() if p.grad is not None])


def test_begin_sees_the_batches_after_the_first_the_validation_rows_and_the_decayed_rate(module: nn.Module) -> None:
    batches, held_out = data(), data(7)[0]
    trained = train(Looker(), module, LocalPlan(), batches, validation=held_out, lr=0.03, round=4)
    seen = trained.kept
    assert torch.equal(seen["first"], gradient_at(module, batches[0]))
    assert torch.equal(seen["reference"], torch.stack([gradient_at(module, batches[i]) for i in (1, 2)]))
    assert torch.equal(seen["held_out"][1], gradient_at(module, held_out))
    assert seen["lr"] == pytest.approx(0.03) and seen["round"] == 4
    assert trained.gradients == 6 + 2 + 1, "every evaluation is counted, those of `begin` too"
    assert trained.buffers["1.num_batches_tracked"] == 6, "looking moves no statistics"


def test_fewer_batches_than_reference_batches_are_no_error(module: nn.Module) -> None:
    class Greedy(Looker):
        num = 50

        def begin(self, start: RoundStart, sent: Server, kept: Any) -> Any:
            return {"seen": torch.tensor(len(start.reference))}

        def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Any) -> tuple[Tensor, Any]:
            return grad(w), local

    assert train(Greedy(), module, LocalPlan(), data()).kept["seen"] == 5


@dataclass(frozen=True)
class PlusHundred(Algorithm):
    """Adds a known vector to the gradient."""

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Any) -> tuple[Tensor, Any]:
        return 100 * torch.ones_like(w) + grad(w), local


def test_the_clip_scope_says_what_is_clipped_and_weight_decay_is_never_clipped(module: nn.Module) -> None:
    (batch,), w = data(steps=1), vector_of(module)
    g = gradient_at(module, batch)
    ones = 100 * torch.ones_like(w)
    limit = float(g.norm()) / 2

    def step(scope: str, decay: float) -> Tensor:
        plan = LocalPlan(lr=1.0, clip_norm=limit, clip_scope=scope, weight_decay=decay)  # type: ignore[arg-type]
        return -train(PlusHundred(), module, plan, [batch]).upload.delta

    total = ones + g
    assert torch.allclose(step("direction", 0.0), total * limit / total.norm(), rtol=1e-4, atol=1e-5)
    assert torch.allclose(step("data_gradient", 0.0), ones + g / 2, rtol=1e-4, atol=1e-4)
    assert torch.allclose(step("direction", 0.5), total * limit / total.norm() + 0.5 * w, rtol=1e-4, atol=1e-5)


def test_the_reference_scope_uses_the_methods_own_proximal_weight(module: nn.Module) -> None:
    (batch,), w = data(steps=1), vector_of(module)
    g, mu = gradient_at(module, batch), 0.7
    plan = LocalPlan(lr=1.0, clip_norm=0.1, clip_scope="reference")
    step = -train(REGISTRY["fedprox"](mu=mu), module, plan, [batch]).upload.delta  # type: ignore[call-arg]
    inside = g - mu * w
    assert torch.allclose(step, inside * 0.1 / inside.norm() + mu * w, rtol=1e-4, atol=1e-5)


def test_each_step_is_shown_to_the_watch_counted_from_one(module: nn.Module) -> None:
    seen: list[tuple[int, Tensor, Tensor]] = []
    trained = train(Algorithm(), module, LocalPlan(), data(), watch=lambda step, direction, w: seen.append((step, direction, w)))
    assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert torch.equal(seen[-1][2] - vector_of(module), trained.upload.delta)


def test_no_batches_is_no_work(module: nn.Module) -> None:
    trained = train(Algorithm(), module, LocalPlan(), [])
    assert not trained.upload.delta.any() and len(trained.losses) == 0 and trained.gradients == 0


@pytest.mark.parametrize("name", REGISTRY)
def test_the_template_has_the_fields_shapes_and_dtypes_of_a_real_upload(name: str, module: nn.Module) -> None:
    algorithm = REGISTRY[name]()
    real, template = train(algorithm, module, LocalPlan(), data()).upload, upload_template(algorithm, vector_of(module), Layout.of(module))
    assert type(real) is type(template) and template._fields[0] == "delta"
    for field, value in to_arrays(template).items():
        assert (value.shape, value.dtype) == (to_arrays(real)[field].shape, to_arrays(real)[field].dtype)


@dataclass(frozen=True)
class TowardsTheTeacher(Algorithm):
    """Distillation, as FedGMT: loss + kappa KL(teacher || student), the teacher being the model that was sent."""

    kappa: float = 1.0

    def objective(self, batch: Any, sent: Server, local: Any) -> Any:
        with torch.no_grad():
            teacher = batch.outputs(sent.w).softmax(1)

        def loss(w: Tensor) -> Tensor:
            outputs = batch.outputs(w)
            return batch.loss_of(outputs) + self.kappa * F.kl_div(outputs.log_softmax(1), teacher, reduction="batchmean")

        return loss


def test_a_method_can_wrap_the_objective_with_the_models_outputs() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    trained = train(TowardsTheTeacher(2.0), module, LocalPlan(lr=0.2), data())
    student, teacher = copy.deepcopy(module), copy.deepcopy(module)
    optimizer = torch.optim.SGD(student.parameters(), 0.2)
    for x, y in data():
        optimizer.zero_grad()
        outputs = student(x)
        pull = F.kl_div(outputs.log_softmax(1), teacher(x).detach().softmax(1), reduction="batchmean")
        (F.cross_entropy(outputs, y) + 2.0 * pull).backward()
        optimizer.step()
    assert torch.allclose(trained.upload.delta, vector_of(student) - vector_of(module), rtol=1e-5, atol=1e-7)
    far, near = (train(TowardsTheTeacher(k), module, LocalPlan(lr=0.2), data()).upload.delta.norm() for k in (0.0, 2.0))
    assert near < far, "the stronger the teacher, the nearer the student stays"
    assert torch.equal(
        train(TowardsTheTeacher(0.0), module, LocalPlan(lr=0.2), data()).upload.delta,
        train(Algorithm(), module, LocalPlan(lr=0.2), data()).upload.delta,
    )


# Batches


def positions(plan: LocalPlan, n: int, seed: int = 0) -> list[np.ndarray]:
    return plan.batches(np.arange(n), np.random.default_rng(seed))


@pytest.mark.parametrize("n", [1, 7, 10, 11, 30])
def test_every_epoch_covers_every_example_once_in_a_new_order(n: int) -> None:
    plan = LocalPlan(epochs=3, batch_size=10)
    steps = positions(plan, n)
    per_epoch = -(-n // 10)
    assert len(steps) == 3 * per_epoch and plan.steps_per_epoch(n) == per_epoch
    epochs = [np.concatenate(steps[e * per_epoch : (e + 1) * per_epoch]) for e in range(3)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    if n > 10:
        assert not np.array_equal(epochs[0], epochs[1])


def test_drop_last_leaves_out_the_short_batch_but_never_the_only_one() -> None:
    plan = LocalPlan(epochs=2, batch_size=10, drop_last=True)
    assert [len(step) for step in positions(plan, 25)] == [10, 10, 10, 10]
    assert [len(step) for step in positions(plan, 4)] == [4, 4]


def test_a_full_batch_is_one_step_an_epoch_in_the_order_of_the_data() -> None:
    assert [step.tolist() for step in positions(LocalPlan(epochs=2, batch_size="full"), 3)] == [[0, 1, 2], [0, 1, 2]]


def test_a_client_without_examples_has_no_batch() -> None:
    assert positions(LocalPlan(), 0) == [] and LocalPlan().steps_per_epoch(0) == 0


def test_epoch_means_split_the_steps_by_epoch() -> None:
    assert epoch_means([1.0, 3.0, 5.0, 7.0], 2) == (2.0, 6.0)
    assert epoch_means([4.0], 5) == (4.0,) and epoch_means([], 5) == ()


@dataclass(frozen=True)
class KeepsItsPath(Algorithm):
    """A method that keeps the weights of every step, as they were given to it."""

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Any) -> tuple[Tensor, Any]:
        return grad(w), (*local, w)


def test_weights_that_a_method_keeps_stay_as_they_were(module: nn.Module) -> None:
    """The loop writes the next weights over the last ones where nobody looks at them; here somebody does."""
    plain = train(Algorithm(), module, LocalPlan(lr=0.1), data())
    keeping = train(KeepsItsPath(), module, LocalPlan(lr=0.1), data())
    assert torch.equal(plain.upload.delta, keeping.upload.delta)
    path = keeping.kept
    assert torch.equal(path[0], vector_of(module)) and len(path) == 6
    assert all(not torch.equal(a, b) for a, b in pairwise(path))
    two_steps = train(Algorithm(), module, LocalPlan(lr=0.1), data()[:2])
    assert torch.equal(path[2] - path[0], two_steps.upload.delta)


def test_the_global_model_is_not_written_over(module: nn.Module) -> None:
    model = FlatModel(module)
    before = model.initial_w.clone()
    local_training(
        Algorithm(),
        model,
        F.cross_entropy,
        LocalPlan(lr=0.1),
        Server(model.initial_w),
        model.initial_buffers,
        (),
        lambda: iter(data()),
        round=1,
        lr=0.1,
        num_steps=1,
        validation=None,
        random_direction=lambda: torch.zeros_like(before),
    )
    assert torch.equal(model.initial_w, before)
