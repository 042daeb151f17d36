"""server_optimizer.py: each rule by hand for two rounds, and around a method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedaccord.algorithms import FedAvg, FedSMOO, Scaffold
from fedaccord.core.algorithm import Cohort, Upload
from fedaccord.core.server_optimizer import SERVER_OPTIMIZERS, ServerAdagrad, ServerAdam, ServerOptimized, ServerSgd, ServerYogi

MOVES = (2.0, -1.0)  # what FedAvg would do in rounds 1 and 2


def path(optimizer: Any) -> list[float]:
    w = torch.zeros(1, dtype=torch.float64)
    moments, seen = optimizer.init(w), []
    for move in MOVES:
        w, moments = optimizer.step(w, torch.tensor([move], dtype=torch.float64), moments)
        seen.append(float(w))
    return seen


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (ServerSgd(), [2.0, 1.0]),
        # m = 2, then 0.9*2 - 1 = 0.8: w = 0.5*2 = 1, then 1 + 0.5*0.8 = 1.4
        (ServerSgd(lr=0.5, momentum=0.9), [1.0, 1.4]),
        # m = 0.5*2 = 1; v = 0.75*0 + 0.25*4 = 1; w = 1/(1+1) = 0.5.  m = 0.5 - 0.5 = 0; w stays 0.5
        (ServerAdam(lr=1.0, beta1=0.5, beta2=0.75, tau=1.0, initial_v=0.0), [0.5, 0.5]),
        # beta1 = 0. v = 8 - 0.5*4*sign(8-4) = 6; w = 2/(sqrt 6 + 1).  v = 6 - 0.5*1*sign(6-1) = 5.5; w -= 1/(sqrt 5.5 + 1)
        (ServerYogi(lr=1.0, beta1=0.0, beta2=0.5, tau=1.0, initial_v=8.0), [2 / (6**0.5 + 1), 2 / (6**0.5 + 1) - 1 / (5.5**0.5 + 1)]),
        # v = 0 - 0.5*4*sign(0-4) = 2: where v is below the square it grows
        (ServerYogi(lr=1.0, beta1=0.0, beta2=0.5, tau=1.0, initial_v=0.0), [2 / (2**0.5 + 1), 2 / (2**0.5 + 1) - 1 / (1.5**0.5 + 1)]),
        # v = 4, then 5
        (ServerAdagrad(lr=1.0, tau=1.0, initial_v=0.0), [2 / 3, 2 / 3 - 1 / (5**0.5 + 1)]),
    ],
    ids=["sgd", "momentum", "adam", "yogi_shrinks", "yogi_grows", "adagrad"],
)
def test_two_rounds_by_hand(optimizer: Any, expected: list[float]) -> None:
    assert path(optimizer) == pytest.approx(expected, rel=1e-12)


def cohort(delta: Tensor) -> Cohort:
    return Cohort(Upload(delta), Upload(delta), 1, 1)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_around_fedavg_the_move_is_the_optimisers(name: str) -> None:
    optimizer = SERVER_OPTIMIZERS[name]()
    wrapped = ServerOptimized(FedAvg(), optimizer)
    w = torch.tensor([1.0, -2.0])
    server, moments = wrapped.init_server(w), optimizer.init(w)
    for move in (torch.tensor([0.5, 0.0]), torch.tensor([-0.25, 3.0])):
        server = wrapped.update(server, cohort(move))
        w, moments = optimizer.step(w, move, moments)
        assert torch.allclose(server.w, w, rtol=1e-6) and torch.equal(wrapped.broadcast(server).w, server.w)


def test_the_inner_methods_other_state_moves_as_without_the_optimiser() -> None:
    inner = Scaffold()
    wrapped = ServerOptimized(inner, ServerSgd(lr=0.5))
    w, ones = torch.zeros(2), torch.ones(2)
    template, _ = inner.upload(ones, inner.init_server(w), inner.begin(None, inner.init_server(w), inner.init_client(w)), _work())  # type: ignore[arg-type]
    upload = template._replace(delta=ones, control_delta=3 * ones)
    server = wrapped.update(wrapped.init_server(w), Cohort(upload, upload, 2, 4))
    assert torch.equal(server.w, 0.5 * ones) and torch.equal(server.inner.control, 1.5 * ones)
    assert torch.equal(wrapped.broadcast(server).w, server.w)


def _work() -> Any:
    from fedaccord.core.algorithm import Work

    return Work(1, 1.0, 1.0)


def test_the_client_rules_are_the_inner_ones() -> None:
    inner = FedSMOO(rho=0.3, beta=5.0)
    wrapped = ServerOptimized(inner, ServerSgd())
    assert wrapped.proximal_weight == inner.proximal_weight == 0.2
    assert wrapped.num_reference_batches == inner.num_reference_batches
    w = torch.ones(3)
    assert type(wrapped.init_client(w)) is type(inner.init_client(w))
    assert type(wrapped.broadcast(wrapped.init_server(w))) is type(inner.broadcast(inner.init_server(w)))
