"""Federated averaging as research code has it: a DataLoader a client, a deep copy of the model, state dicts, torch's own threads.

Committed as the measure that CI holds our runtimes against; peers run its client as well. Imports torch only.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Client(NamedTuple):
    """What one client did."""

    state: dict[str, Tensor]  # its model
    size: int
    steps: int
    examples: int  # sample passes


def train_client(model: nn.Module, x: Tensor, y: Tensor, batch_size: int, lr: float, rho: float = 0.0) -> Client:
    """One epoch of SGD, or of SAM where rho > 0, on a model that is this client's own."""
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    steps, examples, losses = 0, 0, []
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        examples += len(inputs)
        if rho:
            ascents = _climb(model, rho)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            examples += len(inputs)
            _back(model, ascents)
        optimizer.step()
        losses.append(loss.item())
        steps += 1
    return Client(model.state_dict(), len(x), steps, examples)


def train_round(model: nn.Module, parts: list[tuple[Tensor, Tensor]], batch_size: int, lr: float, rho: float = 0.0) -> tuple[int, int]:
    """All clients, one after another; loads the mean of their models into `model`. (steps, examples)"""
    clients = [train_client(copy.deepcopy(model), x, y, batch_size, lr, rho) for x, y in parts]
    total = sum(client.size for client in clients)
    mean = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    for client in clients:
        for name, value in client.state.items():
            mean[name] += value * (client.size / total)
    model.load_state_dict(mean)
    return sum(client.steps for client in clients), sum(client.examples for client in clients)


@torch.no_grad()
def _climb(model: nn.Module, rho: float) -> list[Tensor]:
    """Each parameter goes to the worst point of the ball; returns how far."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.norm(torch.stack([gradient.norm() for gradient in gradients]))
    ascents = [gradient * (rho / (norm + 1e-12)) for gradient in gradients]
    for parameter, ascent in zip(model.parameters(), ascents, strict=True):
        parameter.add_(ascent)
    return ascents


@torch.no_grad()
def _back(model: nn.Module, ascents: list[Tensor]) -> None:
    for parameter, ascent in zip(model.parameters(), ascents, strict=True):
        parameter.sub_(ascent)
