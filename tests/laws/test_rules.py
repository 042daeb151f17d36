"""Rules of every method are pure: no in-place write, no branch on tensor values, the same for one client and for many at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedaccord.algorithms import REGISTRY
from fedaccord.core.algorithm import Cohort, RoundStart, Work
from fedaccord.core.state import map_state, to_arrays
from fedaccord.core.vector import Layout

LAYOUT = Layout.of(nn.Linear(4, 1))

D = 5


class Bowl:
    """Gradient of a_j w_j^2 / 2 + sum sin(w): works under vmap."""

    def __init__(self, a: Tensor, step: int) -> None:
        self.a, self.step = a, step

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return (self.a * w * w).sum() / 2 + w.sin().sum(), self.a * w + w.cos()

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]


def client(method: Any, sent: Any, kept: Any, a: Tensor, random: Tensor, round: int) -> tuple[Any, Any, dict[str, Tensor]]:
    local = method.begin(RoundStart(round, 0.1, (Bowl(a + 1, 0),), Bowl(a * 2, 0), lambda: random, LAYOUT, 1, 1.0), sent, kept)
    w = sent.w
    for step in range(3):
        direction, local = method.direction(Bowl(a, step), w, sent, local)
        w = w - 0.1 * direction
    upload, kept = method.upload(w, sent, local, Work(3, 0.1, 3.0))
    return upload, kept, method.signals(kept)


def inputs(method: Any, seed: int = 0, clients: int = 3) -> tuple[Any, Any, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def noise(leaf: Tensor) -> Tensor:
        return torch.rand(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)

    server = map_state(noise, method.init_server(torch.zeros(D)))
    like = map_state(lambda leaf: leaf.expand(clients, *leaf.shape).clone(), method.init_client(server.w))
    return server, map_state(noise, like), torch.rand(clients, D, generator=generator), torch.rand(clients, D, generator=generator)


@pytest.mark.parametrize("round", [1, 9])
@pytest.mark.parametrize("name", REGISTRY)
def test_many_clients_at_once_give_what_each_gives_alone(name: str, round: int) -> None:
    method = REGISTRY[name]()
    server, kept, a, random = inputs(method)
    sent = method.broadcast(server)

    def rules(kept: Any, a: Tensor, random: Tensor) -> Any:
        upload, new, signals = client(method, sent, kept, a, random, round)
        return to_arrays(upload), to_arrays(new), signals

    together = torch.vmap(rules)(kept, a, random) if to_arrays(kept) else torch.vmap(lambda a, random: rules((), a, random))(a, random)
    for i in range(3):
        alone = rules(map_state(lambda leaf, i=i: leaf[i], kept), a[i], random[i])
        for mine, theirs in zip(together, alone, strict=True):
            for field, value in theirs.items():
                assert torch.allclose(mine[field][i], value, rtol=1e-5, atol=1e-6), field


@pytest.mark.parametrize("round", [1, 9])
@pytest.mark.parametrize("name", REGISTRY)
def test_no_rule_writes_into_what_it_was_given(name: str, round: int) -> None:
    method = REGISTRY[name]()
    server, kept, a, random = inputs(method)
    mine = map_state(lambda leaf: leaf[0].clone(), kept)
    before = {**to_arrays((server, mine, a, random))}
    copies = {path: value.clone() for path, value in before.items()}
    upload, _, _ = client(method, method.broadcast(server), mine, a[0], random[0], round)
    sent_before = {path: value.clone() for path, value in to_arrays(upload).items()}
    method.update(server, Cohort(upload, upload, 1, 3))
    assert all(torch.equal(value, copies[path]) for path, value in before.items())
    assert all(torch.equal(value, sent_before[path]) for path, value in to_arrays(upload).items())


@pytest.mark.parametrize("name", REGISTRY)
def test_state_keeps_its_shapes_and_dtypes_from_round_to_round(name: str) -> None:
    method = REGISTRY[name]()
    server = method.init_server(torch.zeros(D))
    kept = method.init_client(server.w)
    for round in range(1, 9):
        upload, new, signals = client(method, method.broadcast(server), kept, torch.ones(D), torch.ones(D) / D**0.5, round)
        after = method.update(server, Cohort(upload, upload, 1, 2))
        for old_state, new_state in ((kept, new), (server, after)):
            old, fresh = to_arrays(old_state), to_arrays(new_state)
            assert [(p, v.shape, v.dtype) for p, v in old.items()] == [(p, v.shape, v.dtype) for p, v in fresh.items()]
        assert all(value.shape == () for value in signals.values())
        server, kept = after, new
