"""The code path of accelerators, on torch's meta device: shapes without numbers, so what lies elsewhere is an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import fedaccord as fa
from fedaccord.algorithms import REGISTRY
from fedaccord.checks.trial import PLAN, examples, make_task, mlp, prepare_trial, with_batch_norm_and_dropout
from fedaccord.core.errors import ConfigError
from fedaccord.core.state import to_arrays
from fedaccord.core.vector import FlatModel
from fedaccord.runtime.block import Block
from fedaccord.runtime.choice import _padding
from fedaccord.runtime.client import Clients, Request
from fedaccord.runtime.options import RuntimeOptions

PLANS = {"sgd": PLAN, "adam": fa.LocalPlan(lr=0.01, epochs=2, batch_size=4, optimizer=fa.Adam(), clip_norm=1.0, weight_decay=0.1)}


def on_meta(algorithm: fa.Algorithm, model: Any, plan: fa.LocalPlan) -> tuple[Clients, Request]:
    """The trial's federation, moved to where nothing has a value."""
    own: Any = prepare_trial(algorithm, make_task(model), client_validation=0.2, local=plan)
    x, y = examples()
    data = replace(own.data, x=x.to("meta"), y=y.to("meta"))
    clients = replace(own.federation.runtime._clients, model=FlatModel(model().to("meta")), data=data)
    sent = algorithm.broadcast(algorithm.init_server(clients.model.initial_w))
    return clients, Request(algorithm, sent, clients.model.initial_buffers, plan, 1, plan.lr)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("method", REGISTRY)
def test_local_training_stays_on_its_device(method: str, plan: str) -> None:
    clients, request = on_meta(REGISTRY[method](), with_batch_norm_and_dropout, PLANS[plan])
    trained = clients.attempt(request, clients.assignment(request, 0, None))
    if isinstance(trained, Exception):
        raise trained
    leaves = to_arrays((trained.upload, trained.kept, trained.moments)) | {"losses": trained.losses}
    assert {leaf.device.type for leaf in leaves.values()} == {"meta"}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("method", REGISTRY)
def test_a_block_of_clients_stays_on_its_device(method: str, plan: str) -> None:
    clients, request = on_meta(REGISTRY[method](), mlp, PLANS[plan])
    block = sorted((clients.assignment(request, client, None) for client in (0, 1, 2)), key=lambda each: -each.num_steps)
    for trained in Block(request, clients, _per_example(clients), draws_directions=True).trained(block):
        leaves = to_arrays((trained.upload, trained.kept, trained.moments)) | {"losses": trained.losses}
        assert {leaf.device.type for leaf in leaves.values()} == {"meta"}


def _per_example(clients: Clients) -> Any:
    own: Any = prepare_trial(fa.FedAvg())
    real = own.federation.runtime._clients
    return _padding(real, Request(fa.FedAvg(), None, {}, PLAN, 1, 0.1))


def test_what_lies_elsewhere_by_mistake_is_an_error_there() -> None:
    clients, request = on_meta(fa.FedAvg(), mlp, PLAN)
    clients = replace(clients, data=replace(clients.data, x=torch.zeros(83, 6)))
    assert isinstance(clients.attempt(request, clients.assignment(request, 0, None)), RuntimeError)


def test_a_device_that_is_not_there_is_named() -> None:
    for name in ("cuda:7", "no such thing"):
        with pytest.raises(ConfigError, match=name) as caught:
            prepare_trial(fa.FedAvg(), runtime=RuntimeOptions("sequential", device=name))
        assert caught.value.code == "E208"
