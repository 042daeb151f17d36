"""Answers of clients that trained side by side, as columns: few large tensors instead of one small tree a client.

A client's own answer is taken out of them where somebody needs it, at a few microseconds each; until then what is done to all, the way
from another process first of all, is done once a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaccord.core.reports import ClientReport, finite
from fedaccord.core.state import State, map_state, num_bytes
from fedaccord.runtime.base import ClientUpload
from fedaccord.runtime.block import TrainedTogether
from fedaccord.runtime.client import Answer, Request, scalars
from fedaccord.runtime.states import ClientState


class Columns(NamedTuple):
    """What C clients send, report and keep: a tree of tensors [C, ...]."""

    client: Tensor  # [C]
    num_examples: Tensor  # [C]
    steps: Tensor  # [C]
    gradients: Tensor  # [C]
    loss: Tensor  # [C], mean over the steps
    num_epochs: Tensor  # [C], with a mean loss of their own
    epoch_losses: Tensor  # [sum of num_epochs], one client's after the other's
    signals: dict[str, Tensor]  # [C] each
    seconds: Tensor  # [], of each client: its share of the block's
    upload: State
    kept: ClientState


def columns_of(request: Request, trained: TrainedTogether, seconds: float) -> Columns:
    """The columns of a trained block."""
    assigned = [each.assigned for each in trained.members]
    signals = [scalars(request.algorithm.signals(kept)) for kept in rows_of(trained.kept, len(assigned))]
    steps = np.array([each.num_steps for each in assigned])
    losses = trained.losses.cpu().double().numpy()
    num_epochs, epoch_losses = _epoch_means(losses, steps, np.array([each.plan.epochs for each in assigned]))
    return Columns(
        torch.tensor([each.client for each in assigned]),
        torch.tensor([each.num_examples for each in assigned]),
        torch.from_numpy(steps),
        torch.tensor(trained.gradients),
        torch.from_numpy(losses.sum(1) / steps),
        torch.from_numpy(num_epochs),
        torch.from_numpy(epoch_losses),
        {name: torch.tensor([each[name] for each in signals], dtype=torch.float64) for name in signals[0]},
        torch.tensor(seconds, dtype=torch.float64),
        trained.upload,
        ClientState(trained.kept, {}, trained.moments if request.plan.keep_moments else ()),
    )


def answers_of(columns: Columns, round: int) -> Iterator[Answer]:
    """Each client's answer; its tensors are rows of the columns."""
    clients = columns.client.tolist()
    seconds, bytes_up = float(columns.seconds), num_bytes(columns.upload) // len(clients)
    epoch_losses, ends = _finite(columns.epoch_losses), np.cumsum(columns.num_epochs.numpy()).tolist()
    of_all = [_finite(column) for column in columns.signals.values()]
    signals: Iterator[tuple[float | None, ...]] = zip(*of_all, strict=True) if of_all else repeat(())
    told = zip(
        clients,
        columns.num_examples.tolist(),
        columns.steps.tolist(),
        columns.gradients.tolist(),
        _finite(columns.loss),
        [0, *ends[:-1]],
        ends,
        signals,
        rows_of(columns.upload, len(clients)),
        rows_of(columns.kept, len(clients)),
        strict=False,  # `repeat` has no end
    )
    for client, num_examples, steps, gradients, loss, first, end, values, upload, kept in told:
        report = ClientReport(
            round,
            client,
            num_examples,
            steps,
            gradients,
            loss,
            tuple(epoch_losses[first:end]),
            bytes_up=bytes_up,
            seconds=seconds,
            signals=dict(zip(columns.signals, values, strict=True)),
        )
        yield Answer(ClientUpload(client, upload, {}, report), kept)


def rows_of(columns: State, count: int) -> list[State]:
    """The trees [...] of a tree [C, ...]. What is no tensor is everybody's."""
    if isinstance(columns, Tensor):
        return list(columns.unbind(0))
    if not isinstance(columns, tuple | dict):
        return [columns] * count
    if not columns:
        return [columns] * count  # nobody writes into a tree
    parts = [rows_of(part, count) for part in (columns.values() if isinstance(columns, dict) else columns)]
    if isinstance(columns, dict):
        return [dict(zip(columns, each, strict=True)) for each in zip(*parts, strict=True)]
    make: Callable[..., State] = type(columns) if hasattr(columns, "_fields") else _tuple
    return [make(*each) for each in zip(*parts, strict=True)]


def stacked(states: Sequence[State]) -> State:
    """Trees of one shape as one tree [C, ...]."""
    return map_state(lambda *leaves: torch.stack(leaves), *states)


def _tuple(*parts: Any) -> tuple[Any, ...]:
    return parts


def _finite(column: Tensor) -> list[float | None]:
    return [finite(value) for value in column.tolist()]


def _epoch_means(
    losses: npt.NDArray[np.float64], steps: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """(how many epochs [C], their mean losses), from the losses [C, K] of all steps: `core.local.epoch_means` of many clients."""
    num_epochs = np.minimum(epochs, steps)
    size, longer = np.divmod(steps, num_epochs)  # the first `longer` epochs have one step more
    of = np.repeat(np.arange(len(steps)), num_epochs)  # whose epoch
    number = np.arange(len(of)) - (np.cumsum(num_epochs) - num_epochs)[of]
    first = (np.cumsum(steps) - steps)[of] + size[of] * number + np.minimum(number, longer[of])
    flat = losses[np.arange(losses.shape[1]) < steps[:, None]]
    return num_epochs, np.add.reduceat(flat, first) / (size[of] + (number < longer[of]))
