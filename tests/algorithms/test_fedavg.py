"""FedAvg: two local steps and the server's by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedaccord.algorithms import REGISTRY, FedAvg
from fedaccord.core.algorithm import Cohort, Upload


def test_two_steps_by_hand(one_round: Any, vec: Any) -> None:
    """g = w - 1, lr 1/2, w_t = 0.  g = -1: w = 0.5.  g = -0.5: w = 0.75."""
    method = FedAvg()
    done = one_round(method, method.broadcast(method.init_server(vec(0.0))), ())
    assert done.path == [[0.5], [0.75]] and done.upload.delta.tolist() == [0.75] and done.kept == ()
    assert done.points == [[0.0], [0.5]], "one gradient a step"


def test_the_server_moves_by_the_weighted_mean_and_not_by_the_plain_one(vec: Any) -> None:
    method = FedAvg()
    server = method.update(method.init_server(vec(1.0)), Cohort(Upload(vec(0.5)), Upload(vec(9.0)), 2, 5))
    assert server.w.tolist() == [1.5]


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_of_the_registry_extends_no_other_one_and_has_defaults(name: str) -> None:
    assert not set(REGISTRY[name].__mro__[1:]) & set(REGISTRY.values())
    method = REGISTRY[name]()
    assert method == REGISTRY[name]() and isinstance(hash(method), int)
    assert method.init_server(torch.zeros(3))._fields[0] == "w"
