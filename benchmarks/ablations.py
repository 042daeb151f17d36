"""Which part of `dynamic_sam` and `noise_adaptive_sam` does what: one thing changed at a time, three seeds, resumable.

    python benchmarks/ablations.py [--workers 2] [--minutes 60] [--only dynamic_sam,noise_adaptive_sam]

The base of each is the setting that benchmarks/study.py chose on validation data (fashion_mlp_dir01); the variants are not tuned. Lines go
to benchmarks/results/ablations.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import study
import torch
from torch import nn

import fedaccord as fa

SETTING = "fashion_mlp_dir01"
MOMENTUM, ADAM = fa.Sgd(momentum=0.9), fa.Adam()
WORDS, LENGTH = 2000, 25  # hashed words, words of a tweet
TWEETS_LR = 8.0  # of 0.1, 0.5, 2, 8 on validation data: a mean of 25 small vectors has small gradients
ROUNDS, EVALUATE_EVERY = {"fashion": 80, "broken": 60, "tweets": 60}, 2


@dataclass(frozen=True)
class Variant:
    method: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)  # of the algorithm
    plan: dict[str, Any] = field(default_factory=dict)  # of LocalPlan
    task: str = "fashion"  # "broken": one client of ten has a broken sensor; "tweets": text with an embedding
    cohort: Any = study.COHORT
    run: dict[str, Any] = field(default_factory=dict)


DYNAMIC = [
    Variant("dynamic_sam", "as chosen"),
    Variant("dynamic_sam", "no warm-up", {"warmup_rounds": 0}),
    Variant("dynamic_sam", "without gamma", {"alpha": 0.0}),
    Variant("dynamic_sam", "without sigma", {"beta": 0.0}),
    Variant("dynamic_sam", "without tau", {"kappa": 0.0}),
    Variant("dynamic_sam", "constant lambda and rho", {"lambda_min": 0.3, "lambda_max": 0.3}),
    Variant("dynamic_sam", "no pull", {"pull": 0.0}),
    Variant("dynamic_sam", "rho from the raw lambda", {"rho_from": "raw"}),
    Variant("dynamic_sam", "mix 1, pull 1", {"mix": 1.0, "pull": 1.0}),
    Variant("dynamic_sam", "5 reference batches", {"reference_batches": 5}),
    Variant("dynamic_sam", "calibrated radius", {"calibration_rounds": 10}, run={"client_validation": 0.1}),
    Variant("dynamic_sam", "stability-aware cohorts", cohort=fa.StabilityAware(study.COHORT)),
    Variant("dynamic_sam", "momentum, coupled", plan={"optimizer": MOMENTUM, "lr": 0.02}),
    Variant("dynamic_sam", "momentum, decoupled", {"consistency": "decoupled"}, {"optimizer": MOMENTUM, "lr": 0.02}),
    Variant("dynamic_sam", "Adam, coupled", plan={"optimizer": ADAM, "lr": 0.001}),
    Variant("dynamic_sam", "Adam, decoupled", {"consistency": "decoupled"}, {"optimizer": ADAM, "lr": 0.001}),
    Variant("dynamic_sam", "broken sensor, trust 0", {"trust": 0.0}, task="broken"),
    Variant("dynamic_sam", "broken sensor, trust 1", {"trust": 1.0}, task="broken"),
]
NOISE = [
    Variant("noise_adaptive_sam", "as chosen"),
    Variant("noise_adaptive_sam", "fixed rho", {"b": 0.0}),
    Variant("noise_adaptive_sam", "no division by m", {"noise": "absolute"}),
    Variant("noise_adaptive_sam", "window of 5", {"statistics": "window"}),
    Variant("noise_adaptive_sam", "global norm", {"norm": "global"}),
    Variant("noise_adaptive_sam", "curvature correction", {"curvature": 0.1}),
    Variant("noise_adaptive_sam", "a fifth of the batches", {"sam_fraction": 0.2}),
    Variant("noise_adaptive_sam", "no second pass", {"sam_fraction": 0.0}),
    Variant("noise_adaptive_sam", "weights by noise", {"server_weight": "noise"}),
    Variant("noise_adaptive_sam", "text, embedding scale 0.1", plan={"lr": TWEETS_LR}, task="tweets"),
    Variant("noise_adaptive_sam", "text, embedding scale 1", {"embedding_scale": 1.0}, {"lr": TWEETS_LR}, task="tweets"),
]


def tweets() -> fa.Task:
    """Airline tweets as bags of hashed words: an embedding, its mean, a linear layer."""
    import pandas as pd

    table = pd.read_parquet(study.DATA / "airline_tweets.parquet")
    text = next(name for name in table.columns if "text" in name)
    label = next(name for name in table.columns if "sentiment" in name or name == "label")
    x = torch.zeros(len(table), LENGTH, dtype=torch.int64)
    for i, tweet in enumerate(table[text]):
        words = re.findall(r"[a-z']+", str(tweet).lower())[:LENGTH]
        x[i, : len(words)] = torch.tensor([1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words], dtype=torch.int64)
    y = torch.from_numpy(pd.factorize(table[label], sort=True)[0].astype(np.int64))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    held_out, rest = order[: len(y) // 5], order[len(y) // 5 :]

    def model() -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(WORDS, 32, mode="mean", padding_idx=0), nn.ReLU(), nn.Linear(32, 3))

    return fa.Task(
        model=model,
        loss=nn.functional.cross_entropy,
        train=(x[rest], y[rest]),
        test=(x[held_out], y[held_out]),
        metrics=("accuracy", "macro_f1"),
        validation=0.1,
        name="tweets",
        num_classes=3,
    )


def broken() -> tuple[fa.Task, fa.Partitioner]:
    """Fashion-MNIST on ten clients; the first one's inputs are 40 times too large and its labels wrong."""
    whole = study.task_of(study.SETTINGS[SETTING])
    owner = np.random.default_rng(0).permutation(np.arange(whole.num_examples) % 100)
    partition = fa.Explicit([np.flatnonzero(owner == client).tolist() for client in range(10)])
    x, y = whole.train.x.clone(), whole.train.y.clone()
    rows = torch.from_numpy(np.flatnonzero(owner == 0))
    x[rows], y[rows] = 40 * x[rows], (y[rows] + 5) % 10
    task = fa.Task(
        model=whole.model, loss=whole.loss, train=(x, y), test=(whole.test.x, whole.test.y), num_classes=10, name="broken sensor"
    )
    return task, partition


_TASKS: dict[str, tuple[fa.Task, fa.Partitioner]] = {}


def task_of(name: str) -> tuple[fa.Task, fa.Partitioner]:
    if name not in _TASKS:
        setting = study.SETTINGS[SETTING]
        if name == "broken":
            _TASKS[name] = broken()
        elif name == "tweets":
            _TASKS[name] = tweets(), fa.DirichletPerClass(alpha=1.0, clients=50)
        else:
            _TASKS[name] = study.task_of(setting), setting.partition
    return _TASKS[name]


def run_variant(variant: Variant, base_lr: float, base: dict[str, Any], seed: int) -> dict[str, Any]:
    """One run, as one line of the results."""
    torch.set_num_threads(1)
    setting, started = study.SETTINGS[SETTING], time.process_time()
    task, partition = task_of(variant.task)
    algorithm = fa.REGISTRY[variant.method](**{**base, **variant.options})
    local = {"lr": base_lr, "epochs": setting.epochs, "batch_size": study.BATCH, "clip_norm": 10.0, **variant.plan}
    run = fa.run(
        task,
        algorithm,
        partition=partition,
        cohort=variant.cohort,
        rounds=ROUNDS[variant.task],
        seed=seed,
        local=fa.LocalPlan(schedule=fa.Exponential(study.DECAY), **local),
        evaluate_every=EVALUATE_EVERY,
        keep_weights=False,
        runtime=study.RUNTIME,
        **{"client_test": 0.0, **variant.run},
    )
    lines = [line for line in run.record.rounds if line["test"] is not None]
    accuracy = [line["test"].get("accuracy") for line in lines]
    clients = [line for line in run.record.clients if line["kind"] == "train" and line["accepted"]]
    first = [line for line in clients if line["round"] <= 20]
    signals = sorted({name for line in clients for name in line["signals"]})
    return {
        "key": f"{variant.method}|{variant.name}|{seed}",
        "method": variant.method,
        "variant": variant.name,
        "seed": seed,
        "lr": local["lr"],
        "options": {**base, **variant.options},
        "gradients": sum(line["gradients"] for line in run.record.rounds),
        "final": accuracy[-1],
        "macro_f1": study._mean([line["test"].get("macro_f1") for line in lines[-max(1, len(lines) // 10) :]]),
        "last_tenth": study._mean(accuracy[-max(1, len(accuracy) // 10) :]),
        "rounds_to_target": next((line["round"] for line, a in zip(lines, accuracy, strict=True) if a and a >= setting.target), None),
        "drift": study._mean([line["drift"] for line in run.record.rounds]),
        "signals": {name: study._mean([line["signals"].get(name) for line in clients]) for name in signals},
        "signals_of_round_1": {
            name: study._mean([line["signals"].get(name) for line in clients if line["round"] == 1]) for name in signals
        },
        "clipped_in_first_20_rounds": study._mean([line["signals"].get("clipped") for line in first]),
        "rho_deviation": _deviation(clients, "rho"),
        "pairwise_cosine": [None if (c := line["pairwise_cosine"]) is None else round(c, 4) for line in run.record.rounds[::5]],
        "seconds": time.process_time() - started,
    }


def _deviation(clients: list[dict[str, Any]], signal: str) -> float | None:
    """How far a signal moves from one round of a client to its next: the deviation within a client, meant over those seen three times."""
    of_client: dict[int, list[float]] = {}
    for line in clients:
        if (value := line["signals"].get(signal)) is not None:
            of_client.setdefault(line["client"], []).append(value)
    return study._mean([statistics.stdev(values) for values in of_client.values() if len(values) >= 3])


def main() -> None:
    import multiprocessing

    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--minutes", type=float, default=60.0, help="no run begins after so many minutes")
    arguments.add_argument("--only", default="dynamic_sam,noise_adaptive_sam")
    asked = arguments.parse_args()
    path = Path(study.RESULTS) / "ablations.jsonl"
    done = {json.loads(line)["key"] for line in path.read_text().splitlines()} if path.exists() else set()
    studied, jobs = study.results(SETTING), []
    for variant in (each for each in [*DYNAMIC, *NOISE] if each.method in asked.only.split(",")):
        best = study.chosen(SETTING, variant.method, studied)
        assert best is not None, f"run benchmarks/study.py {SETTING} --only {variant.method} first"
        jobs += [(variant, *best, seed) for seed in study.SEEDS if f"{variant.method}|{variant.name}|{seed}" not in done]
    deadline = time.monotonic() + 60 * asked.minutes
    with multiprocessing.get_context("spawn").Pool(asked.workers) as pool:
        running: list[Any] = []
        while jobs or running:
            while jobs and len(running) < asked.workers and time.monotonic() < deadline:
                running.append(pool.apply_async(run_variant, jobs.pop(0)))
            if not running:
                break
            for pending in [each for each in running if each.ready()]:
                running.remove(pending)
                line = pending.get()
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{line['key']}  {line['last_tenth']}  {line['seconds']:.0f} s", flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    main()
