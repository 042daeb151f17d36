"""MOON: two steps by hand on a model whose features are its weights, two rounds, and the objective against the paper's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.algorithms.moon import Kept, Moon
from fedaccord.core.algorithm import Server
from fedaccord.core.batch import BoundBatch
from fedaccord.core.vector import FlatModel

ONE, NONE = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1)


def weights_are_features() -> FlatModel:
    """w = (u, v) is z for x = 1; the head is frozen at (1, 2), so that outputs are u + 2 v."""
    module = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)).double()
    module[1].weight.requires_grad_(False).copy_(torch.tensor([[1.0, 2.0]]))
    return FlatModel(module)


def mean(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.mean()


def by_hand(w: tuple[float, float], tau: float) -> tuple[float, float]:
    """Gradient of softplus((sin t - cos t)/tau) at w = r (cos t, sin t), where z_g = (1, 0) and z_p = (0, 1), plus the task's (1, 2).

    d/dt = sigmoid((sin t - cos t)/tau) (cos t + sin t)/tau, and dt/d(u, v) = (-sin t, cos t)/r.
    """
    r = math.hypot(*w)
    cos, sin = w[0] / r, w[1] / r
    turn = (cos + sin) / tau / (1 + math.exp(-(sin - cos) / tau))
    return 1 - turn * sin / r, 2 + turn * cos / r


def test_two_steps_by_hand(round_of_a_model: Any, vec: Any) -> None:
    """mu = 1, tau = 1/2, lr 1/2, w = (1, 0). Step 1: the task's (1, 2), and 2/(1 + e^2) = 0.2384058 along v: w = (0.5, -1.1192029)."""
    path, trained = round_of_a_model(Moon(), weights_are_features(), mean, Server(vec(1.0, 0.0)), Kept(vec(0.0, 1.0)), ONE, NONE)
    assert path[0] == pytest.approx([0.5, -1.1192029], abs=1e-7)
    g = by_hand((path[0][0], path[0][1]), 0.5)
    assert path[1] == pytest.approx([path[0][0] - g[0] / 2, path[0][1] - g[1] / 2], rel=1e-12)
    assert trained.gradients == 2, "one backward pass a step"
    assert float(trained.losses[0]) == pytest.approx(1 + math.log(1 + math.exp(-2)))
    assert trained.kept.previous.tolist() == path[1] and trained.upload.delta.tolist() == [path[1][0] - 1, path[1][1]]


def test_mu_weighs_the_term_and_tau_sharpens_it(round_of_a_model: Any, vec: Any) -> None:
    """mu = 3, tau = 1 at w = (1, 0): 3/(1 + e)."""
    path, _ = round_of_a_model(Moon(3.0, 1.0), weights_are_features(), mean, Server(vec(1.0, 0.0)), Kept(vec(0.0, 1.0)), ONE, NONE, steps=1)
    assert path[0] == pytest.approx([0.5, -(2 + 3 / (1 + math.e)) / 2])


def test_in_its_first_round_a_client_trains_as_fedavgs_and_then_its_own_model_is_the_previous_one(round_of_a_model: Any, vec: Any) -> None:
    method, model = Moon(), weights_are_features()
    first, trained = round_of_a_model(method, model, mean, Server(vec(1.0, 0.0)), method.init_client(vec(1.0, 0.0)), ONE, NONE)
    assert first == [[0.5, -1.0], [0.0, -2.0]]
    second, _ = round_of_a_model(method, model, mean, Server(vec(1.0, 0.0)), trained.kept, ONE, NONE, steps=1)
    turn = 1 / (1 + math.exp(2)) * 2 * -1  # z_p = (0, -2): the other way round
    assert second[0] == pytest.approx([0.5, -1.0 - turn / 2])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)).double()


def random_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])


def test_the_objective_is_the_papers_and_the_other_models_are_constants() -> None:
    model, (x, y) = FlatModel(network()), random_batch()
    w, sent, previous = model.initial_w, 0.5 * model.initial_w, model.initial_w.flip(0)
    leaf = w.clone().requires_grad_()
    batch = BoundBatch(model, F.cross_entropy, {n: b.clone() for n, b in model.initial_buffers.items()}, x, y)
    found = Moon(2.0, 0.7).objective(batch, Server(sent), Kept(previous))(leaf)

    def features(v: Tensor) -> tuple[Tensor, Tensor]:
        return model.with_features(v, {n: b.clone() for n, b in model.initial_buffers.items()}, x)

    other = w.clone().requires_grad_()
    (outputs, z), (_, z_g), (_, z_p) = features(other), features(sent), features(previous)
    near, far = ((F.cosine_similarity(z, each.detach()) / 0.7).exp() for each in (z_g, z_p))
    expected = F.cross_entropy(outputs, y) + 2.0 * -(near / (near + far)).log().mean()
    assert torch.allclose(found, expected, rtol=1e-12)
    for mine, theirs in zip(torch.autograd.grad(found, leaf), torch.autograd.grad(expected, other), strict=True):
        assert torch.allclose(mine, theirs)


def test_only_the_live_models_pass_moves_the_statistics() -> None:
    model, (x, y) = FlatModel(network()), random_batch()
    buffers = {n: b.clone() for n, b in model.initial_buffers.items()}
    Moon().objective(BoundBatch(model, F.cross_entropy, buffers, x, y), Server(3 * model.initial_w), Kept(-model.initial_w))(
        model.initial_w
    )
    alone = {n: b.clone() for n, b in model.initial_buffers.items()}
    model(model.initial_w, alone, x)
    assert all(torch.equal(buffers[name], alone[name]) for name in alone) and int(buffers["1.num_batches_tracked"]) == 1


def test_many_clients_at_once_have_the_gradient_that_each_has_alone() -> None:
    model, (x, y) = FlatModel(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()), random_batch()
    w, sent = torch.stack([model.initial_w, 2 * model.initial_w, -model.initial_w]), Server(0.5 * model.initial_w)

    def gradient(own: Tensor, previous: Tensor, x: Tensor) -> Tensor:
        return torch.func.grad(Moon().objective(BoundBatch(model, F.cross_entropy, {}, x, y), sent, Kept(previous)))(own)

    together = torch.vmap(gradient)(w, w.flip(1), torch.stack([x, x + 1, 2 * x]))
    for i, each in enumerate([x, x + 1, 2 * x]):
        assert torch.allclose(together[i], gradient(w[i], w[i].flip(0), each))


def test_features_of_zero_give_finite_gradients() -> None:
    model, (x, y) = FlatModel(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()), random_batch()
    leaf = torch.zeros_like(model.initial_w).requires_grad_()
    loss = Moon().objective(BoundBatch(model, F.cross_entropy, {}, x, y), Server(torch.zeros_like(leaf)), Kept(torch.zeros_like(leaf)))(
        leaf
    )
    assert torch.isfinite(torch.autograd.grad(loss, leaf)[0]).all()
