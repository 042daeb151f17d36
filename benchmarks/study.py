"""The study behind docs/results.md: every method under the same budget of gradient evaluations, resumable, one process a core.

    python benchmarks/study.py SETTING [--workers 2] [--minutes 60] [--only fedavg,fedsmoo]

Each method's few settings are chosen on VALIDATION data with a seed of their own, at half the budget; the chosen one is run anew on three
other seeds, and only these runs' test figures are reported. Every finished run is one line of benchmarks/results/study_SETTING.jsonl; a
run that is there is not done again, so that the study may be stopped and taken up at any time.
"""

from __future__ import annotations

import argparse
import io
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from resumable import do_all, lines

import fedaccord as fa
from fedaccord.measures import Measures

DATA = Path(os.environ.get("FEDACCORD_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESULTS = Path(__file__).parent / "results"
RUNTIME = fa.RuntimeOptions("sequential", memory_format="contiguous")  # one process a run; the same bits on every machine of one kind
ON_PICTURES = fa.RuntimeOptions("sequential", memory_format="channels_last")  # two thirds of the time
TUNING_SEED, SEEDS = 100, (0, 1, 2)
CLIENTS, COHORT, BATCH, DECAY = 100, 10, 50, 0.998


class Setting(NamedTuple):
    data: str
    model: str
    partition: fa.Partitioner
    rounds: int  # of a method with one gradient a step; one with two does half as many
    epochs: int
    lrs: tuple[float, ...]
    target: float  # accuracy
    measures: Measures = Measures()
    evaluate_every: tuple[int, int] = (5, 5)  # rounds, of methods with one and with two gradients a step
    tuned_on: str | None = None  # the setting whose choices are taken, None for its own


DIRICHLET_01, DIRICHLET_06 = (fa.DirichletPerClass(alpha=alpha, clients=CLIENTS) for alpha in (0.1, 0.6))
PATHOLOGICAL_3 = fa.PathologicalLabels(clients=CLIENTS, labels_per_client=3)
SMALL = Measures(examples=300, probes=10, points_1d=2, points_2d=2)  # the default takes a third of a run here
SETTINGS = {
    "fashion_mlp_dir01": Setting("fashion", "mlp", DIRICHLET_01, 300, 2, (0.05, 0.1), 0.80),
    "fashion_mlp_dir06": Setting("fashion", "mlp", DIRICHLET_06, 300, 2, (0.05, 0.1), 0.83),
    "fashion_mlp_path3": Setting("fashion", "mlp", PATHOLOGICAL_3, 300, 2, (0.05, 0.1), 0.80),
    "cifar_lenet_dir01": Setting("cifar", "lenet", DIRICHLET_01, 100, 1, (0.05, 0.1), 0.40, SMALL, evaluate_every=(4, 2)),
    "cifar_lenet_path3": Setting(
        "cifar", "lenet", PATHOLOGICAL_3, 100, 1, (0.05, 0.1), 0.40, SMALL, evaluate_every=(4, 2), tuned_on="cifar_lenet_dir01"
    ),
}
# At most four points a method, learning rates included
GRID: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}],
    "fedavgm": [{"beta": 0.5}, {"beta": 0.9}],
    "fedprox": [{"mu": 0.01}, {"mu": 0.1}],
    "fednova": [{}],
    "scaffold": [{}],
    "feddyn": [{"alpha": 0.01}, {"alpha": 0.1}],
    "fedcm": [{"alpha": 0.1}, {"alpha": 0.3}],
    "moon": [{"mu": 0.1}, {"mu": 1.0}],
    "fedsam": [{"rho": 0.02}, {"rho": 0.1}],
    "fedasam": [{"rho": 0.2}, {"rho": 0.7}],
    "mofedsam": [{"rho": 0.02}, {"rho": 0.1}],
    "fedgamma": [{"rho": 0.01}, {"rho": 0.1}],
    "fedspeed": [{"rho": 0.02}, {"rho": 0.1}],
    "fedsmoo": [{"rho": 0.02}, {"rho": 0.1}],
    "fedlesam": [{"rho": 0.02}, {"rho": 0.1}],
    "fedlesam_s": [{"rho": 0.02}, {"rho": 0.1}],
    "fedlesam_d": [{"rho": 0.02}, {"rho": 0.1}],
    "fedgmt": [{"gamma": 0.5}, {"gamma": 1.0}],
    "fedgloss": [{"rho": 0.02, "rho_local": 0.02}, {"rho": 0.1, "rho_local": 0.1}],
    "fedwmsam": [{"rho": 0.01}, {"rho": 0.1}],
    "dynamic_sam": [{"rho_max": 0.05}, {"rho_max": 0.2}],
    "noise_adaptive_sam": [{"rho_base": 0.02}, {"rho_base": 0.1}],
}
SERVER: dict[str, tuple[Any, tuple[float, ...]]] = {  # around FedAvg
    "fedadam": (fa.ServerAdam, (0.003, 0.01)),
    "fedyogi": (fa.ServerYogi, (0.003, 0.01)),
    "fedadagrad": (fa.ServerAdagrad, (0.01, 0.03)),
}
TWO_GRADIENTS = {"fedsam", "fedasam", "mofedsam", "fedgamma", "fedspeed", "fedsmoo", "fedgloss", "dynamic_sam", "noise_adaptive_sam"}
METHODS = (*GRID, *SERVER)


class Job(NamedTuple):
    setting: str
    method: str
    lr: float
    options: dict[str, Any]
    role: str  # "tune" or "final"
    seed: int

    @property
    def key(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"{self.method}|lr={self.lr}|{options}|{self.role}|{self.seed}"


def candidates(setting: str, method: str) -> list[tuple[float, dict[str, Any]]]:
    """The grid of one method: learning rate and options."""
    lrs = SETTINGS[setting].lrs
    if method in SERVER:
        return [(lr, {"server_lr": server_lr}) for lr in lrs for server_lr in SERVER[method][1]]
    points = [(lr, options) for lr in lrs for options in GRID[method]]
    return points if len(GRID[method]) > 1 else [*points, (lrs[0] / 2, {}), (2 * lrs[-1], {})]


def task_of(setting: Setting) -> fa.Task:
    """The task, its model and a tenth of the training data as validation data."""
    if setting.data == "fashion":
        with np.load(DATA / "fashion_mnist.npz") as file:
            arrays = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
        x, x_test = (torch.from_numpy(arrays[name]).float().div(255).sub(0.286).div(0.353).unsqueeze(1) for name in ("x_train", "x_test"))
    else:
        arrays = cifar()
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)))
        x, x_test = (
            torch.from_numpy(arrays[name]).permute(0, 3, 1, 2).float().div(255).sub(mean).div(std) for name in ("x_train", "x_test")
        )
    from fedaccord.tasks.models import model_factory

    y, y_test = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("y_train", "y_test"))
    return fa.Task(
        model=model_factory(setting.model, tuple(x.shape[1:]), 10),
        loss=torch.nn.functional.cross_entropy,
        train=(x, y),
        test=(x_test, y_test),
        validation=0.1,
        name=f"{setting.data} {setting.model}",
        num_classes=10,
    )


def cifar() -> dict[str, np.ndarray]:
    """CIFAR-10 decoded once into a file of the temporary folder."""
    import tempfile

    cache = Path(tempfile.gettempdir()) / "fedaccord_cifar10.npz"
    if not cache.exists():
        from PIL import Image

        with np.load(DATA / "cifar10_jpeg.npz") as file:
            header, arrays = bytes(file["jpeg_header"]), {}
            for split in ("train", "test"):
                scan, offset = bytes(file[f"scan_{split}"]), file[f"offset_{split}"]
                pictures = [Image.open(io.BytesIO(header + scan[a:b])) for a, b in itertools.pairwise(offset)]
                arrays |= {f"x_{split}": np.stack([np.asarray(picture) for picture in pictures]), f"y_{split}": file[f"y_{split}"]}
        aside = cache.with_name(f"{os.getpid()}.npz")
        np.savez(aside, **arrays)
        aside.rename(cache)
    with np.load(cache) as file:
        return dict(file)


_TASKS: dict[str, fa.Task] = {}


def run_job(job: Job) -> dict[str, Any]:
    """One run, as one line of the results."""
    torch.set_num_threads(1)
    setting = SETTINGS[job.setting]
    if job.setting not in _TASKS:
        _TASKS[job.setting] = task_of(setting)
    rounds = setting.rounds // (2 if job.method in TWO_GRADIENTS else 1) // (2 if job.role == "tune" else 1)
    options = dict(job.options)
    server = SERVER[job.method][0](lr=options.pop("server_lr")) if job.method in SERVER else None
    algorithm = fa.FedAvg() if server else fa.REGISTRY[job.method](**options)
    plan = fa.LocalPlan(lr=job.lr, epochs=setting.epochs, batch_size=BATCH, schedule=fa.Exponential(DECAY), clip_norm=10.0)
    started = time.process_time()
    run = fa.run(
        _TASKS[job.setting],
        algorithm,
        partition=setting.partition,
        cohort=COHORT,
        rounds=rounds,
        seed=job.seed,
        local=plan,
        server_optimizer=server,
        client_test=0.0,
        evaluate_every=setting.evaluate_every[job.method in TWO_GRADIENTS],
        keep_weights=False,
        runtime=RUNTIME if setting.data == "fashion" else ON_PICTURES,
        **({"measures": setting.measures} if job.role == "final" else {}),
    )
    return {"key": job.key, **job._asdict(), "seconds": time.process_time() - started, **figures(run, setting, job)}


def figures(run: fa.Run, setting: Setting, job: Job) -> dict[str, Any]:
    """What is reported of a run. Test figures are looked at for final runs alone."""
    lines = [line for line in run.record.rounds if line["validation"] is not None]
    validation = [line["validation"].get("accuracy") for line in lines]
    tail = max(3, len(lines) // 10)  # evaluations
    found: dict[str, Any] = {
        "rounds": len(run.record.rounds),
        "gradients": sum(line["gradients"] for line in run.record.rounds),
        "validation": _mean(validation[-tail:]),
        "refused": sum(len(line["refused"]) for line in run.record.rounds),
    }
    if job.role == "tune":
        return found
    test = [line["test"].get("accuracy") for line in lines]
    spent = np.cumsum([line["gradients"] for line in run.record.rounds])
    reached = next((line["round"] for line, accuracy in zip(lines, test, strict=True) if accuracy and accuracy >= setting.target), None)
    tenth = run.record.rounds[-max(1, len(run.record.rounds) // 10) :]
    kept = ("eigenvalue", "eigenvalue_ratio", "trace", "sam_gap", "random_rise", "loss")
    measured = run.record.measures or {}
    return found | {
        "final": test[-1],
        "last_tenth": _mean(test[-tail:]),
        "best": max((accuracy for accuracy in test if accuracy is not None), default=None),
        "fifth_ago": _mean(test[-len(test) // 5 - tail : -len(test) // 5]),
        "rounds_to_target": reached,
        "gradients_to_target": None if reached is None else int(spent[reached - 1]),
        "drift": _mean([line["drift"] for line in tenth]),
        "pairwise_cosine": _mean([line["pairwise_cosine"] for line in tenth]),
        "measures": {name: measured.get(name) for name in kept},
        "curve": [None if accuracy is None else round(accuracy, 4) for accuracy in test],
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def file_of(setting: str) -> Path:
    return RESULTS / f"study_{setting}.jsonl"


def results(setting: str) -> dict[str, dict[str, Any]]:
    """The lines that are there, by key."""
    return lines(file_of(setting))


def chosen(setting: str, method: str, done: dict[str, dict[str, Any]]) -> tuple[float, dict[str, Any]] | None:
    """The candidate with the best validation accuracy; None before all were tried."""
    elsewhere = SETTINGS[setting].tuned_on
    if elsewhere is not None:
        return chosen(elsewhere, method, results(elsewhere))
    tried = [(done.get(Job(setting, method, *point, "tune", TUNING_SEED).key), point) for point in candidates(setting, method)]
    if any(line is None for line, _ in tried):
        return None
    return max(tried, key=lambda pair: pair[0]["validation"] or 0.0)[1]  # type: ignore[index]


def ready(setting: str, methods: list[str], done: dict[str, dict[str, Any]]) -> Iterator[Job]:
    """Jobs that can be done now: all tuning, and the final runs of methods whose tuning is over."""
    for method in methods:
        best = chosen(setting, method, done)
        if best is None:
            yield from (Job(setting, method, *point, "tune", TUNING_SEED) for point in candidates(setting, method))
        else:
            yield from (Job(setting, method, *best, "final", seed) for seed in SEEDS)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("setting", choices=SETTINGS)
    arguments.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--minutes", type=float, default=60.0, help="no run begins after so many minutes")
    arguments.add_argument("--only", default=",".join(METHODS))
    asked = arguments.parse_args()
    methods, deadline = asked.only.split(","), time.monotonic() + 60 * asked.minutes
    done = results(asked.setting)
    for method in methods if SETTINGS[asked.setting].tuned_on else ():
        assert chosen(asked.setting, method, done), f"run {SETTINGS[asked.setting].tuned_on} first: its choice for {method} is taken"
    with multiprocessing.get_context("spawn").Pool(asked.workers) as pool:
        do_all(pool, run_job, partial(ready, asked.setting, methods), file_of(asked.setting), deadline, asked.workers, _tell)


def _tell(line: dict[str, Any]) -> None:
    print(f"{line['key']}  validation {line['validation']}  {line['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
