"""Who trains inside Flower's simulation. A module of its own, so that Ray's processes import it and keep their models and data."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import Array, ArrayRecord, Message
from naive import train_client
from serving import part, workload


def naive_client(data: str, message: Message, client: int) -> tuple[ArrayRecord, dict[str, int | float]]:
    """The usual client: a model from the state dict, a DataLoader, an optimiser."""
    work = workload(data)
    model = work.module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    found = train_client(model, *part(work, client), work.batch_size, work.lr, work.rho)
    return ArrayRecord(found.state), {"num-examples": found.size, "steps": found.steps, "examples": found.examples}


@cache
def flat_model(data: str) -> Any:
    from fedaccord.core.vector import FlatModel

    return FlatModel(workload(data).module())


def our_client(data: str, message: Message, client: int) -> tuple[ArrayRecord, dict[str, int | float]]:
    """Our local training inside Flower's client: the model travels as one vector."""
    from fedaccord.algorithms import FedAvg as Plain
    from fedaccord.algorithms import FedSAM
    from fedaccord.core.algorithm import Server
    from fedaccord.core.local import LocalPlan, local_training
    from fedaccord.core.rng import stream

    work, model = workload(data), flat_model(data)
    x, y = part(work, client)
    plan = LocalPlan(lr=work.lr, epochs=1, batch_size=work.batch_size)
    rows = plan.batches(np.arange(len(x)), stream(0, "batches", int(message.content["config"]["server-round"]), client))
    sent, seen = Server(torch.from_numpy(message.content["arrays"]["w"].numpy().copy())), 0

    def batches() -> Any:
        nonlocal seen
        for chosen in map(torch.from_numpy, rows):
            seen += len(chosen)
            yield x[chosen], y[chosen]

    model.train(True)
    method = FedSAM(rho=work.rho) if work.rho else Plain()
    found = local_training(
        method,
        model,
        F.cross_entropy,
        plan,
        sent,
        {},
        (),
        batches,
        round=1,
        lr=work.lr,
        num_steps=len(rows),
        validation=None,
        random_direction=lambda: torch.zeros_like(sent.w),
    )
    w = sent.w + found.upload.delta
    counts = {"num-examples": len(x), "steps": len(found.losses), "examples": seen * found.gradients // len(found.losses)}
    return ArrayRecord({"w": Array(w.numpy())}), counts


def no_client(data: str, message: Message, client: int) -> tuple[ArrayRecord, dict[str, int | float]]:
    """Answers at once with what it was sent."""
    return message.content["arrays"], {"num-examples": 1, "steps": 0, "examples": 0}


CLIENTS = {"naive": naive_client, "ours": our_client, "empty": no_client}
