"""Around a method, a server optimiser changes where the model goes and nothing that a client does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedaccord as fa
from fedaccord.core.server_optimizer import ServerOptimized

CLIENT_RULES = {"init_client": 1, "begin": 3, "objective": 3, "direction": 4, "upload": 4, "signals": 1, "confidence": 1}  # arguments


class Spoken(fa.Algorithm):
    """Each rule answers with its own name and what it was given."""


for rule in CLIENT_RULES:
    setattr(Spoken, rule, lambda self, *given, rule=rule: (rule, given))


@pytest.mark.parametrize(("rule", "num_arguments"), CLIENT_RULES.items())
def test_every_rule_of_the_client_is_the_inner_methods(rule: str, num_arguments: int) -> None:
    given = tuple(object() for _ in range(num_arguments))
    assert getattr(ServerOptimized(Spoken()), rule)(*given) == (rule, given)


METHODS = [
    fa.FedAvg(),
    fa.FedProx(0.5),
    fa.Scaffold(),
    fa.FedDyn(0.5),
    fa.FedSAM(0.1),
    fa.FedSMOO(0.1, 2.0),
    fa.DynamicSAM(warmup_rounds=1),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_an_optimiser_that_takes_the_whole_move_changes_nothing(method: fa.Algorithm) -> None:
    """Server SGD at rate 1 without momentum, to the rounding of w + (w' - w)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > x[:, 1]).long()
    torch.manual_seed(0)
    task = fa.Task(model=nn.Linear(4, 2).double(), loss=F.cross_entropy, train=(x, y), test=(x, y))
    options: dict[str, Any] = {"partition": fa.QuantityDirichlet(alpha=1.0, clients=5), "cohort": 3, "rounds": 5, "client_test": 0.0}
    options["local"] = fa.LocalPlan(lr=0.5, epochs=2, batch_size=5)
    bare, wrapped = fa.run(task, method, **options), fa.run(task, method, server_optimizer=fa.ServerSgd(), **options)
    for round in range(1, 6):
        assert torch.allclose(bare.weights(round), wrapped.weights(round), rtol=0.0, atol=1e-12)
    trained = ([line for line in run.record.clients if line["kind"] == "train"] for run in (bare, wrapped))
    for mine, theirs in zip(*trained, strict=True):
        assert mine["signals"].keys() == theirs["signals"].keys()
        assert mine["weight"] == pytest.approx(theirs["weight"], rel=1e-9)
