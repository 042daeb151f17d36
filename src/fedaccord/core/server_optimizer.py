"""FedOpt (Reddi et al. 2021, arXiv:2003.00295, algorithm 2): an optimiser on the server, around any algorithm.

The pseudo-gradient is -(the move that the inner algorithm would make). Unlike `torch.optim.Adam`, the published FedAdam has no bias
correction. Buffers ride beside w and never come here, so batch-norm statistics see no server optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Cohort, NonNegative, Positive, Share
from fedaccord.core.around import Around
from fedaccord.core.reports import ClientReport
from fedaccord.core.state import State


class Moments(NamedTuple):
    m: Tensor  # [d], running mean of the moves
    v: Tensor  # [d], running mean of their squares; [] where the optimiser has none


class ServerOptimizer(Protocol):
    """move [d] = where the inner algorithm would go."""

    def init(self, w: Tensor) -> Moments: ...

    def step(self, w: Tensor, move: Tensor, moments: Moments) -> tuple[Tensor, Moments]: ...


@dataclass(frozen=True)
class ServerSgd:
    """m <- momentum m + move, w <- w + lr m. With momentum 0.9 around FedAvg it is FedAvgM (Hsu et al. 2019, arXiv:1909.06335)."""

    lr: Positive = 1.0
    momentum: Share = 0.0

    def init(self, w: Tensor) -> Moments:
        return Moments(torch.zeros_like(w), w.new_zeros(()))

    def step(self, w: Tensor, move: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        m = self.momentum * moments.m + move
        return w + self.lr * m, moments._replace(m=m)


@dataclass(frozen=True)
class ServerAdam:
    """v <- beta2 v + (1 - beta2) move^2."""

    lr: Positive = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3  # added to sqrt(v): how adaptive the step is
    initial_v: NonNegative = 1e-6  # tau^2 in the paper; FL-Simulator starts at 0

    def init(self, w: Tensor) -> Moments:
        return Moments(torch.zeros_like(w), torch.full_like(w, self.initial_v))

    def step(self, w: Tensor, move: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        v = self.beta2 * moments.v + (1 - self.beta2) * move**2
        return _adaptive_step(self, w, move, moments, v)


@dataclass(frozen=True)
class ServerYogi:
    """v <- v - (1 - beta2) move^2 sign(v - move^2): v grows no faster than the squares."""

    lr: Positive = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3
    initial_v: NonNegative = 1e-6

    def init(self, w: Tensor) -> Moments:
        return Moments(torch.zeros_like(w), torch.full_like(w, self.initial_v))

    def step(self, w: Tensor, move: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        v = moments.v - (1 - self.beta2) * move**2 * torch.sign(moments.v - move**2)
        return _adaptive_step(self, w, move, moments, v)


@dataclass(frozen=True)
class ServerAdagrad:
    """v <- v + move^2."""

    lr: Positive = 0.01
    beta1: Share = 0.0
    tau: Positive = 1e-3
    initial_v: NonNegative = 1e-6

    def init(self, w: Tensor) -> Moments:
        return Moments(torch.zeros_like(w), torch.full_like(w, self.initial_v))

    def step(self, w: Tensor, move: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        return _adaptive_step(self, w, move, moments, moments.v + move**2)


def _adaptive_step(
    optimizer: ServerAdam | ServerYogi | ServerAdagrad, w: Tensor, move: Tensor, moments: Moments, v: Tensor
) -> tuple[Tensor, Moments]:
    m = optimizer.beta1 * moments.m + (1 - optimizer.beta1) * move
    return w + optimizer.lr * m / (v.sqrt() + optimizer.tau), Moments(m, v)


SERVER_OPTIMIZERS: dict[str, type] = {"sgd": ServerSgd, "adam": ServerAdam, "yogi": ServerYogi, "adagrad": ServerAdagrad}


class Server(NamedTuple):
    w: Tensor  # [d]
    inner: Any
    moments: Moments


@dataclass(frozen=True)
class ServerOptimized(Around):
    """`algorithm`, its model's move replaced by an optimiser step. Client rules are its own."""

    algorithm: Algorithm = field(default_factory=Algorithm)
    optimizer: ServerOptimizer = field(default_factory=ServerSgd)

    @property
    def inner(self) -> Algorithm:
        return self.algorithm

    def init_server(self, w: Tensor) -> Server:
        return Server(w, self.inner.init_server(w), self.optimizer.init(w))

    def broadcast(self, server: Server) -> State:
        return self.inner.broadcast(server.inner)

    def update(self, server: Server, cohort: Cohort) -> Server:
        moved = self.inner.update(server.inner, cohort)
        w, moments = self.optimizer.step(server.w, moved.w - server.w, server.moments)
        return Server(w, moved._replace(w=w), moments)

    def observe(self, server: Server, reports: Sequence[ClientReport]) -> Server:
        return server._replace(inner=self.inner.observe(server.inner, reports))

    def alerts(self, before: Server, after: Server, reports: Sequence[ClientReport], absent: Sequence[int]) -> tuple[str, ...]:
        return self.inner.alerts(before.inner, after.inner, reports, absent)
