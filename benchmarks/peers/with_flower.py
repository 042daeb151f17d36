"""Flower's simulation (flwr 1.42, Ray): DATA.npz, and who trains inside it: naive, ours, or empty POPULATION."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from naive import train_client
from serving import part, serve, workload

DATA, KIND = sys.argv[1], sys.argv[2]
CLIENTS = len(workload(DATA).sizes)
POPULATION = int(sys.argv[3]) if KIND == "empty" else CLIENTS


def naive_client(message: Message, client: int) -> tuple[ArrayRecord, dict[str, int | float]]:
    """The usual client: a model from the state dict, a DataLoader, an optimiser."""
    work = workload(DATA)
    model = work.module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    found = train_client(model, *part(work, client), work.batch_size, work.lr, work.rho)
    return ArrayRecord(found.state), {"num-examples": found.size, "steps": found.steps, "examples": found.examples}


@cache
def flat_model() -> Any:
    from fedaccord.core.vector import FlatModel

    return FlatModel(workload(DATA).module())


def our_client(message: Message, client: int) -> tuple[ArrayRecord, dict[str, int | float]]:
    """Our local training inside Flower's client: the model travels as one vector."""
    from fedaccord.algorithms import FedAvg as Plain
    from fedaccord.algorithms import FedSAM
    from fedaccord.core.algorithm import Server
    from fedaccord.core.local import LocalPlan, local_training
    from fedaccord.core.rng import stream

    work, model = workload(DATA), flat_model()
    x, y = part(work, client)
    plan = LocalPlan(lr=work.lr, epochs=1, batch_size=work.batch_size)
    rows = plan.batches(len(x), stream(0, "batches", int(message.content["config"]["server-round"]), client))
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


def no_client(message: Message, client: int) -> tuple[ArrayRecord, dict[str, int | float]]:
    """Answers at once with what it was sent."""
    return message.content["arrays"], {"num-examples": 1, "steps": 0, "examples": 0}


CLIENT = {"naive": naive_client, "ours": our_client, "empty": no_client}[KIND]
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    arrays, counts = CLIENT(message, int(context.node_config["partition-id"]))
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(counts)}), reply_to=message)


def summed(replies: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Everybody's counts."""
    metrics = [reply["metrics"] for reply in replies]
    return MetricRecord({name: sum(int(each[name]) for each in metrics) for name in ("steps", "examples")} | {"answers": len(metrics)})


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    work = workload(DATA)
    if KIND == "ours":
        arrays = ArrayRecord({"w": Array(flat_model().initial_w.numpy())})
    elif KIND == "empty":
        arrays = ArrayRecord({"w": Array(np.zeros(62, dtype=np.float32))})
    else:
        arrays = ArrayRecord(work.module().state_dict())
    asked = min(CLIENTS, 100)
    strategy = FedAvg(
        fraction_train=asked / POPULATION,
        fraction_evaluate=0.0,
        min_train_nodes=asked,
        min_available_nodes=POPULATION,
        train_metrics_aggr_fn=summed,
    )

    def round() -> dict[str, Any]:
        nonlocal arrays
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
        before, arrays = arrays, result.arrays
        moved = np.sqrt(sum(np.sum((arrays[name].numpy() - before[name].numpy()) ** 2) for name in before))
        metrics = result.train_metrics_clientapp[1]
        return {"steps": metrics["steps"], "examples": metrics["examples"], "answers": metrics["answers"], "moved": float(moved)}

    serve(round)


if __name__ == "__main__":
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=POPULATION,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
