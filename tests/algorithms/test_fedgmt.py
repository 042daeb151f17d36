"""FedGMT: two steps by hand on a model whose outputs are its weights, the trajectory's average, and other tasks' outputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.algorithms.fedgmt import FedGMT, Kept, Sent, log_probabilities
from fedaccord.core.algorithm import Cohort, Upload
from fedaccord.core.batch import BoundBatch
from fedaccord.core.server_optimizer import ServerOptimized, ServerSgd
from fedaccord.core.vector import FlatModel

ONE, NONE = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def weights_are_outputs() -> FlatModel:
    """w = (w_1, w_2) are the two logits for x = 1."""
    return FlatModel(nn.Linear(1, 2, bias=False).double())


def first_output(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs[:, 0].mean()


def test_two_steps_by_hand(round_of_a_model: Any, vec: Any) -> None:
    """tau = 2, gamma = 1, beta = 2, drift_i = (0.4, -0.2), w = 0, E = (2 ln 3, 0), so E says (3/4, 1/4). Task gradient (1, 0), lr 1.

    The divergence's gradient is gamma tau (p - p_E). p = (1/2, 1/2): (-0.5, 0.5). (1 - 0.5 + 0.2, 0.5 - 0.1) = (0.7, 0.4):
    w = (-0.7, -0.4). Then p_1 = 1/(1 + e^0.15): 2 (p_1 - 3/4) along (1, -1). Loss at first: 4 (3/4 ln 3/2 - 1/4 ln 2).
    """
    method = FedGMT(gamma=1.0, tau=2.0, beta=2.0)
    sent = Sent(vec(0.0, 0.0), vec(2 * math.log(3), 0.0))
    path, trained = round_of_a_model(method, weights_are_outputs(), first_output, sent, Kept(vec(0.4, -0.2)), ONE, NONE, lr=1.0)
    assert path[0] == pytest.approx([-0.7, -0.4])
    pull = 2 * (1 / (1 + math.exp(0.15)) - 0.75)
    assert path[1] == pytest.approx([-0.7 - (1 + pull + 0.2), -0.4 - (-pull - 0.1)])
    assert float(trained.losses[0]) == pytest.approx(4 * (0.75 * math.log(1.5) - 0.25 * math.log(2)))
    assert trained.gradients == 2, "one backward pass a step"
    assert trained.kept.drift.tolist() == pytest.approx([0.4 + path[1][0], -0.2 + path[1][1]])
    assert trained.upload.delta.tolist() == pytest.approx(path[1])


def test_gamma_weighs_the_divergence(round_of_a_model: Any, vec: Any) -> None:
    """gamma = 3, tau = 2 at the start: 3 * (-0.5, 0.5)."""
    sent = Sent(vec(0.0, 0.0), vec(2 * math.log(3), 0.0))
    kept = Kept(vec(0.0, 0.0))
    path, _ = round_of_a_model(FedGMT(gamma=3.0, tau=2.0), weights_are_outputs(), first_output, sent, kept, ONE, NONE, lr=1.0, steps=1)
    assert path[0] == pytest.approx([-(1 - 1.5), -1.5])


def test_two_rounds_of_the_server_by_hand(vec: Any) -> None:
    """alpha = 0.75. Two of four, weighted delta 1, plain mean 2.

    Round 1: drift = (2/4) 2 = 1, w = 0 + 1 + 1 = 2, E = 0.75 * 0 + 0.25 * 2 = 0.5.
    Round 2: drift = 2, w = 2 + 1 + 2 = 5, E = 0.75 * 0.5 + 0.25 * 5 = 1.625.
    """
    method = FedGMT(alpha=0.75)
    server, cohort = method.init_server(vec(0.0)), Cohort(Upload(vec(1.0)), Upload(vec(2.0)), 2, 4)
    seen = [method.broadcast(server)]
    for _ in range(2):
        server = method.update(server, cohort)
        seen.append(method.broadcast(server))
    assert [float(sent.w) for sent in seen] == pytest.approx([0.0, 2.0, 5.0]) and float(server.drift) == pytest.approx(2.0)
    assert [float(sent.trajectory) for sent in seen] == pytest.approx([0.0, 0.5, 1.625])


def test_at_first_the_average_is_the_model_itself(vec: Any) -> None:
    w = drawn(50)
    sent = FedGMT(alpha=0.95).broadcast(FedGMT().init_server(w))
    assert torch.equal(sent.trajectory, w) and torch.equal(sent.w, w)


def test_under_a_server_optimiser_the_average_follows_the_models_that_were_sent(vec: Any) -> None:
    """lr 1/2 halves the move 2 of round 1: w = 1, E = 0.75 * 0 + 0.25 * 1."""
    method = ServerOptimized(FedGMT(alpha=0.75), ServerSgd(lr=0.5))
    server = method.update(method.init_server(vec(0.0)), Cohort(Upload(vec(1.0)), Upload(vec(2.0)), 2, 4))
    sent = method.broadcast(server)
    assert (float(sent.w), float(sent.trajectory)) == pytest.approx((1.0, 0.25))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5, 6)], ids=["classification", "segmentation"])
def test_probabilities_are_over_the_classes_of_each_example_or_pixel(shape: tuple[int, ...]) -> None:
    outputs = drawn(*shape)
    found = log_probabilities(outputs, 2.0).exp()
    assert found.shape == shape and torch.allclose(found.sum(1), torch.ones_like(found[:, 0]))
    assert torch.allclose(found[:, 1] / found[:, 0], ((outputs[:, 1] - outputs[:, 0]) / 2).exp())


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 1, 5, 6)], ids=["logits", "column", "mask"])
def test_one_output_is_the_logit_of_two_classes(shape: tuple[int, ...]) -> None:
    logits = drawn(*shape)
    found = log_probabilities(logits, 3.0).exp()
    assert torch.allclose(found[:, 1], (logits / 3).sigmoid().reshape(4, *shape[2:]))
    assert torch.allclose(found[:, 0] + found[:, 1], torch.ones_like(found[:, 0]))


def test_the_divergence_is_the_mean_over_examples_and_pixels() -> None:
    """On a segmenting model, against KL summed by hand; its target is a constant."""
    model = FlatModel(nn.Conv2d(1, 3, 1).double())
    x, y = drawn(2, 1, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)
    w = model.initial_w.clone().requires_grad_()
    sent = Sent(model.initial_w, (2 * model.initial_w).requires_grad_())
    found = FedGMT(gamma=0.5, tau=2.0).objective(BoundBatch(model, F.cross_entropy, {}, x, y), sent, Kept(w))(w)
    p = (model(sent.trajectory, {}, x) / 2).softmax(1)
    q = (model(w, {}, x) / 2).softmax(1)
    expected = F.cross_entropy(model(w, {}, x), y) + 0.5 * 4 * (p * (p.log() - q.log())).sum(1).mean()
    assert torch.allclose(found, expected, rtol=1e-12)
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(found, sent.trajectory)


def test_only_the_live_models_pass_moves_the_statistics() -> None:
    module = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)).double()
    model, x = FlatModel(module), drawn(6, 5)
    buffers, alone = ({n: b.clone() for n, b in model.initial_buffers.items()} for _ in range(2))
    batch = BoundBatch(model, F.cross_entropy, buffers, x, torch.tensor([0, 1, 2, 0, 1, 2]))
    FedGMT().objective(batch, Sent(model.initial_w, 5 * model.initial_w), Kept(model.initial_w))(model.initial_w)
    model(model.initial_w, alone, x)
    assert all(torch.equal(buffers[name], alone[name]) for name in alone)


def test_many_clients_at_once_have_the_gradient_that_each_has_alone() -> None:
    model, x = FlatModel(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()), drawn(3, 6, 5)
    w, y = torch.stack([model.initial_w, 2 * model.initial_w, -model.initial_w]), torch.tensor([0, 1, 2, 0, 1, 2])
    sent = Sent(model.initial_w, 0.5 * model.initial_w)

    def gradient(own: Tensor, x: Tensor) -> Tensor:
        return torch.func.grad(FedGMT().objective(BoundBatch(model, F.cross_entropy, {}, x, y), sent, Kept(own)))(own)

    together = torch.vmap(gradient)(w, x)
    assert all(torch.allclose(together[i], gradient(w[i], x[i])) for i in range(3))
