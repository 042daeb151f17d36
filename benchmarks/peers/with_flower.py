"""Flower's simulation (flwr 1.42, Ray): DATA.npz, and who trains inside it: naive, ours, or empty POPULATION."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from flower_clients import CLIENTS as TRAIN
from flower_clients import flat_model
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from serving import serve, workload

DATA, KIND = sys.argv[1], sys.argv[2]
CLIENTS = len(workload(DATA).sizes)
POPULATION = int(sys.argv[3]) if KIND == "empty" else CLIENTS


client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    arrays, counts = TRAIN[KIND](DATA, message, int(context.node_config["partition-id"]))
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(counts)}), reply_to=message)


def summed(replies: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Everybody's counts."""
    metrics = [reply["metrics"] for reply in replies]
    return MetricRecord({name: sum(int(each[name]) for each in metrics) for name in ("steps", "examples")} | {"answers": len(metrics)})


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    work = workload(DATA)
    if KIND == "ours":
        arrays = ArrayRecord({"w": Array(flat_model(DATA).initial_w.numpy())})
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
