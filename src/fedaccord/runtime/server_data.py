"""The server's own examples: what a model trained on them would do, and where their loss falls. Validation data, never test data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Server
from fedaccord.core.batch import Loss
from fedaccord.core.local import LocalPlan, Trained, local_training
from fedaccord.core.rng import layers_draw_from, stream, torch_stream
from fedaccord.core.vector import Buffers, FlatModel
from fedaccord.measures import PooledLoss


@dataclass(frozen=True, eq=False)
class OwnExamples:
    """The examples, and how the clients train: what the server trains, it trains as they do, by plain FedAvg."""

    model: FlatModel
    loss: Loss
    x: Tensor  # [n, ...]
    y: Tensor  # [n, ...]
    plan: LocalPlan
    seed: int
    root_examples: int = 100  # that train the root update, drawn once; the gradient and the scores take all

    def __call__(self, state: Any, round: int, lr: float) -> InRound:
        """What can be measured at `state.server.w` [d] and `state.buffers` in this round."""
        return InRound(self, state.server.w, state.buffers, round, lr)

    @cached_property
    def root(self) -> tuple[Tensor, Tensor]:
        rows = stream(self.seed, "root").choice(len(self.y), min(self.root_examples, len(self.y)), replace=False)
        index = torch.from_numpy(rows).to(self.x.device)
        return self.x.index_select(0, index), self.y.index_select(0, index)


@dataclass(frozen=True, eq=False)
class InRound:
    """One round's model; each answer is computed once."""

    own: OwnExamples
    w: Tensor
    buffers: Buffers
    round: int
    lr: float

    def root_update(self) -> Tensor:
        """w_K - w [d] after the clients' plan on the root examples."""
        return self._root_update

    def gradient(self) -> Tensor:
        """Of the mean loss on all of the server's examples, [d]."""
        return self._gradient

    @cached_property
    def _gradient(self) -> Tensor:
        own = self.own
        return PooledLoss(own.model, self.buffers, own.loss, own.x, own.y).gradient(self.w)

    @cached_property
    def _root_update(self) -> Tensor:
        own, (x, y) = self.own, self.own.root
        plan = own.plan
        rows = plan.batches(torch.arange(len(y)).numpy(), stream(own.seed, "root batches", self.round))
        batches = [(x[torch.from_numpy(each)], y[torch.from_numpy(each)]) for each in rows]
        own.model.train(True)
        with layers_draw_from(own.seed, "root layers", self.round, device=self.w.device):
            trained: Trained = local_training(
                Algorithm(),
                own.model,
                own.loss,
                plan,
                Server(self.w),
                self.buffers,
                (),
                lambda: iter(batches),
                round=self.round,
                lr=self.lr,
                num_steps=len(batches),
                validation=None,
                random_direction=lambda: _random_direction(self.w, own.seed, self.round),
            )
        delta: Tensor = trained.upload.delta
        return delta


def _random_direction(w: Tensor, seed: int, round: int) -> Tensor:
    drawn: Tensor = torch.randn(w.shape, dtype=w.dtype, generator=torch_stream(seed, "root direction", round)).to(w.device)
    return drawn.div(drawn.norm())
