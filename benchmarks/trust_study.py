"""The studies of aggregation behind docs/results.md: threats, and what a learned policy gains. Resumable, one run a core, one thread each.

    python benchmarks/trust_study.py threats_digits [--workers 2] [--minutes 60] [--only fedavg,rule_guard]

Each rule's few settings (at most eight) are chosen on VALIDATION data, with a seed of their own, by the mean over the clean run and a sign
flip; the chosen one is run on the other seeds under every attack of the setting, and only these runs' test figures are reported. The grid
below was written down before any result was seen. Every finished run is one line of benchmarks/results/trust_SETTING.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from resumable import do_all

import fedaccord as fa
from fedaccord.tasks import Examples
from fedaccord.tasks.losses import overlap_and_cross_entropy
from fedaccord.tasks.models import model_factory

DATA = Path(os.environ.get("FEDACCORD_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESULTS = Path(__file__).parent / "results"
TUNING_SEED, TUNED_UNDER = 100, ("none", "sign_flip")
RUNTIME = fa.RuntimeOptions("sequential", memory_format="contiguous", state="memory")

ATTACKS: dict[str, Any] = {
    "none": None,
    "sign_flip": fa.SignFlip(),
    "scaling": fa.Scaling(),
    "alie": fa.ALIE(),
    "ipm": fa.IPM(),
    "label_flip": fa.LabelFlip(),
    "gaussian_noise": fa.GaussianNoise(),
    "inflated_counts": fa.InflatedCounts(share=0.05, factor=100.0),  # one of twenty, labels shifted
    "rider_zero": fa.FreeRider(kind="zero"),
    "rider_replayed": fa.FreeRider(kind="replayed"),
    "rider_noised": fa.FreeRider(kind="noised"),
    "adaptive": fa.Adaptive(),
    "backdoor": fa.Backdoor(share=0.1, boost=3.0),
}
THREATS = tuple(ATTACKS)
# How the rules differ, and at most eight settings of each: (screen, policy, server optimiser) from the setting's options.
GRID: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}],
    "equal": [{}],
    "fedavgm": [{"momentum": 0.5}, {"momentum": 0.9}],
    "fedadam": [{"lr": 0.003}, {"lr": 0.01}, {"lr": 0.03}],
    "fedadp": [{"alpha": 2.0}, {"alpha": 5.0}],
    "q_ffl": [{"q": 0.1}, {"q": 0.5}, {"q": 1.0}],
    "afl": [{"lr": 0.01}, {"lr": 0.1}],
    "median": [{}],
    "trimmed_mean": [{"share": 0.1}, {"share": 0.2}, {"share": 0.3}],
    "krum": [{"num_byzantine": 4}],
    "multi_krum": [{"num_byzantine": 2}, {"num_byzantine": 4}],
    "geometric_median": [{}],
    "foolsgold": [{}],
    "norm_clipping": [{}],
    "fltrust": [{}],
    "rule_guard": [{"min_cosine": -0.1}, {"min_cosine": -0.05}, {"min_cosine": 0.0}],
    "bandit": [{"alpha": 0.2}, {"alpha": 0.5}],
    "linear": [{}],
    "linear_cma": [{}],
    "per_client": [{}],
    "residual": [{}],
    "rule_guard+residual": [{}],
    "rule_guard+residual blind": [{}],  # without validation data on the server
    "rule_guard blind": [{}],
}
USES_RULE_GUARDS_CHOICE = ("rule_guard+residual", "rule_guard+residual blind", "rule_guard blind")


class Setting(NamedTuple):
    data: str
    partition: fa.Partitioner
    cohort: int
    lr: float
    attacks: tuple[str, ...]
    seeds: tuple[int, ...]
    rules: tuple[str, ...] = tuple(GRID)
    rounds: int = 40
    epochs: int = 1
    batch: int = 20
    model: str = "mlp"
    metrics: tuple[str, ...] = ("accuracy",)  # the first is reported


TWENTY = fa.DirichletPerClass(alpha=0.2, clients=20)
BRANCHES = fa.QuantityDirichlet(clients=15, alpha=0.5, min_size=50)
NATURAL = fa.NaturalIds()
UNEQUAL = fa.Explicit([list(range(a, b)) for a, b in itertools.pairwise(np.cumsum([0, *np.geomspace(2000, 50, 15).astype(int)]).tolist())])
TEN, FIVE = tuple(range(10)), tuple(range(5))
SCENARIO = ("fedavg", "rule_guard", "norm_clipping", "q_ffl", "fedadp", "linear", "per_client", "residual", "rule_guard+residual")
FEW = ("fedavg", "rule_guard", "residual")
# Three data sets that no policy was trained on, three skews each; under each skew nobody bad, and one attack: a fraction of all pairs.
SETTINGS: dict[str, Setting] = {
    "threats_digits": Setting("digits", TWENTY, 20, 0.1, THREATS, FIVE),
    "threats_fashion": Setting("fashion", TWENTY, 20, 0.05, THREATS, FIVE),
    "credit_quantity": Setting("credit", BRANCHES, 15, 0.05, ("none", "sign_flip"), TEN, batch=50),
    "credit_dir01": Setting("credit", fa.DirichletPerClass(alpha=0.1, clients=20), 20, 0.05, ("none", "adaptive"), TEN, batch=50),
    "credit_dir1": Setting("credit", fa.DirichletPerClass(alpha=1.0, clients=20), 20, 0.05, ("none", "gaussian_noise"), TEN, batch=50),
    "har_people": Setting("har", NATURAL, 18, 0.05, ("none", "label_flip"), TEN),
    "har_dir01": Setting("har", fa.DirichletPerClass(alpha=0.1, clients=20), 20, 0.05, ("none", "sign_flip"), TEN),
    "har_dir1": Setting("har", fa.DirichletPerClass(alpha=1.0, clients=60), 20, 0.05, ("none", "adaptive"), TEN),
    "writers": Setting("writers", fa.NaturalIds(clients=200), 50, 0.05, ("none", "adaptive"), TEN),
    "writers_dir01": Setting("writers", fa.DirichletPerClass(alpha=0.1, clients=20), 20, 0.05, ("none", "label_flip"), TEN),
    "writers_dir1": Setting("writers", fa.DirichletPerClass(alpha=1.0, clients=100), 10, 0.05, ("none", "sign_flip"), TEN),
    # The source's three scenarios, on the data that we have.
    "wearables": Setting("har", fa.DirichletPerClass(alpha=0.2, clients=20), 20, 0.05, ("none", "label_flip"), TEN, SCENARIO),
    "branches": Setting("credit", UNEQUAL, 15, 0.05, ("none",), TEN, SCENARIO, batch=50, metrics=("auc", "accuracy")),
    "retina": Setting("retina", fa.BySite(clients_per_site=2), 8, 0.05, ("none",), (0, 1, 2), FEW, 30, 1, 8, "unet", ("dice",)),
}

LEARNED = {  # how a learned policy is made, from the weights that are tried
    "linear_cma": lambda: fa.Residual(weights=str(RESULTS / "policies" / "linear.safetensors")),
    "per_client": fa.PerClient,
    "residual": fa.Residual,
}


class Job(NamedTuple):
    setting: str
    rule: str
    options: dict[str, Any]
    attack: str
    role: str  # "tune" or "final"
    seed: int

    @property
    def key(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"{self.rule}|{options}|{self.attack}|{self.role}|{self.seed}"


def rule_of(rule: str, options: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `fedaccord.run`."""
    from fedaccord.aggregation.policies import POLICIES
    from fedaccord.aggregation.screens import SCREENS

    name = rule.removesuffix(" blind")
    if name == "fedavgm":
        return {"server_optimizer": fa.ServerSgd(**options)}
    if name == "fedadam":
        return {"server_optimizer": fa.ServerAdam(**options)}
    if name == "rule_guard+residual":
        return {"screen": fa.RuleGuard(**options), "policy": fa.Residual()}
    if name in SCREENS:
        return {"screen": SCREENS[name](**options)}
    if name in LEARNED:
        return {"policy": LEARNED[name]()}
    return {} if name == "fedavg" else {"policy": POLICIES[name](**options)}


@cache
def arrays(data: str) -> dict[str, Any]:
    """train, validation and test as (x, y), the ids of natural clients, and the model's shape. Nobody is in two parts."""
    rng = np.random.default_rng(0)
    if data == "digits":
        task = fa.digits("mlp", hidden=(32,))
        parts = {name: (getattr(task, name).x, getattr(task, name).y) for name in ("train", "validation", "test")}
        return {**parts, "ids": None, "shape": (1, 8, 8), "classes": 10, "hidden": (32,)}
    if data == "fashion":
        with np.load(DATA / "fashion_mnist.npz") as file:
            x, y = _pictures(file["x_train"], file["y_train"], 0.286, 0.353)
            x_test, y_test = _pictures(file["x_test"], file["y_test"], 0.286, 0.353)
        return {"train": (x[:4000], y[:4000]), "validation": (x[-500:], y[-500:]), "test": (x_test, y_test), "ids": None, **_coarse(10)}
    if data == "writers":
        with np.load(DATA / "mnist_writers.npz") as file:
            x, y = _pictures(file["x_train"], file["y_train"], 0.131, 0.308)
            x_test, y_test = _pictures(file["x_test"], file["y_test"], 0.131, 0.308)
            writer = file["writer_train"].astype(np.int64)
        held = np.isin(writer, rng.choice(np.unique(writer), 40, replace=False))
        rows = rng.permutation(np.flatnonzero(held))[:500]
        validation = x[torch.from_numpy(rows)], y[torch.from_numpy(rows)]
        own = torch.from_numpy(np.flatnonzero(~held))
        return {"train": (x[own], y[own]), "validation": validation, "test": (x_test, y_test), "ids": writer[~held], **_coarse(10)}
    if data == "har":
        return _har(rng)
    if data == "retina":
        return _retina()
    return _credit(rng)


def _pictures(x: Any, y: Any, mean: float, std: float) -> tuple[torch.Tensor, torch.Tensor]:
    pictures = F.avg_pool2d(torch.from_numpy(x).float().div(255).unsqueeze(1), 2)
    return (pictures - mean) / std, torch.from_numpy(y.astype(np.int64))


def _coarse(classes: int) -> dict[str, Any]:
    return {"shape": (1, 14, 14), "classes": classes, "hidden": (32,)}


def _har(rng: np.random.Generator) -> dict[str, Any]:
    """Six activities: means, deviations and spectra of three axes; 9 people test, 3 of the others validate."""
    with np.load(DATA / "har_subjects.npz") as file:
        x, y = file["x"].astype(np.float32) * float(file["scale"]), file["y"].astype(np.int64)
        subject, is_test = file["subject"].astype(np.int64), file["is_test_subject"]
    spectra = np.abs(np.fft.rfft(x - x.mean(1, keepdims=True), axis=1))[:, 1:16].reshape(len(x), -1)
    features = np.concatenate([x.mean(1), x.std(1), np.log1p(spectra)], axis=1)
    held = np.isin(subject, rng.choice(np.unique(subject[~is_test]), 3, replace=False)) & ~is_test
    own = ~is_test & ~held
    features = (features - features[own].mean(0)) / (features[own].std(0) + 1e-6)
    z, labels = torch.from_numpy(features.astype(np.float32)), torch.from_numpy(y - y.min())
    parts = {name: (z[torch.from_numpy(mask)], labels[torch.from_numpy(mask)]) for name, mask in (("train", own), ("test", is_test))}
    rows = torch.from_numpy(rng.permutation(np.flatnonzero(held))[:500])
    return {**parts, "validation": (z[rows], labels[rows]), "ids": subject[own], "shape": (z.shape[1],), "classes": 6, "hidden": (32,)}


def _retina() -> dict[str, Any]:
    """Vessels in photos of four sites, cut into nine crops of 64x64 a photo; every fifth training photo validates."""
    with np.load(DATA / "retina_vessels_4_sites.npz") as file:
        x, mask, site, is_test = file["x"], file["mask_fraction"] > 100, file["site"], file["is_test"]
    z = (torch.from_numpy(x).float().permute(0, 3, 1, 2) / 255 - 0.35) / 0.25
    y = torch.from_numpy(mask).float().unsqueeze(1)

    def crops(rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cut = [each[rows].unfold(2, 64, 64).unfold(3, 64, 64).permute(0, 2, 3, 1, 4, 5).flatten(0, 2) for each in (z, y)]
        return cut[0].contiguous(), cut[1].contiguous()

    train = np.flatnonzero(~is_test)
    validation, own = train[::5], np.setdiff1d(train, train[::5])
    sites = np.repeat(np.asarray(site)[own].astype(str), 9)
    return {
        "train": crops(torch.from_numpy(own)),
        "validation": crops(torch.from_numpy(validation)),
        "test": crops(torch.from_numpy(np.flatnonzero(is_test))),
        "ids": None,
        "site": sites,
        "shape": (3, 64, 64),
        "classes": 1,
        "hidden": None,
    }


def _credit(rng: np.random.Generator) -> dict[str, Any]:
    """Default of card holders, 23 attributes; a quarter tests, a thousand validate. Classes are made even by subsampling, so that
    accuracy says something."""
    import pandas as pd

    frame = pd.read_parquet(DATA / "credit_default.parquet")
    y = frame.pop("default").to_numpy().astype(np.int64)
    x = frame.to_numpy().astype(np.float32)
    money = [i for i, name in enumerate(frame.columns) if name.startswith(("bill", "pay_amt", "limit"))]
    x[:, money] = np.sign(x[:, money]) * np.log1p(np.abs(x[:, money]))
    rows = np.concatenate([rng.permutation(np.flatnonzero(y == label))[: int((y == 1).sum())] for label in (0, 1)])
    rows = rng.permutation(rows)
    test, validation, train = np.split(rows, [len(rows) // 4, len(rows) // 4 + 1000])
    x = (x - x[train].mean(0)) / (x[train].std(0) + 1e-6)
    parts = {n: (torch.from_numpy(x[r]), torch.from_numpy(y[r])) for n, r in (("train", train), ("validation", validation), ("test", test))}
    return {**parts, "ids": None, "shape": (x.shape[1],), "classes": 2, "hidden": (32,)}


@cache
def task_of(data: str, model: str, metrics: tuple[str, ...], blind: bool) -> fa.Task:
    """blind: the server has no validation data. Its examples train nobody in either case."""
    found, is_mask = arrays(data), data == "retina"
    options: dict[str, Any] = {"width": 8, "depth": 2} if model == "unet" else {"hidden": found["hidden"]}
    return fa.Task(
        model=model_factory(model, found["shape"], found["classes"], **options),  # type: ignore[arg-type]
        loss=overlap_and_cross_entropy if is_mask else F.cross_entropy,
        train=Examples.of(*found["train"], ids=found["ids"], site=found.get("site")),
        test=found["test"],
        validation=None if blind else found["validation"],
        metrics=metrics,
        num_classes=None if is_mask else found["classes"],
        name=data,
    )


def run_job(job: Job) -> dict[str, Any]:
    """One run, as one line of the results."""
    torch.set_num_threads(1)
    setting, attack = SETTINGS[job.setting], ATTACKS[job.attack]
    started = time.process_time()
    run = fa.run(
        task_of(setting.data, setting.model, setting.metrics, job.rule.endswith(" blind")),
        fa.FedAvg(),
        partition=setting.partition,
        cohort=setting.cohort,
        rounds=setting.rounds,
        seed=job.seed,
        local=fa.LocalPlan(lr=setting.lr, epochs=setting.epochs, batch_size=setting.batch),
        client_test=0.2,
        evaluate_every=setting.rounds,
        keep_weights=False,
        runtime=RUNTIME,
        attack=attack,
        **rule_of(job.rule, job.options),
    )
    return {"key": job.key, **job._asdict(), "seconds": time.process_time() - started, **figures(run, job, attack, setting)}


def figures(run: fa.Run, job: Job, attack: Any, setting: Setting) -> dict[str, Any]:
    """Test figures are looked at for final runs alone."""
    last, metric = run.record.rounds[-1], setting.metrics[0]
    found: dict[str, Any] = {"validation": (last["validation"] or {}).get(metric)}
    if job.role == "tune":
        return found
    bad = set(run.record.provenance.get("bad_clients", ()))
    own = {e["client"]: e["metrics"] for e in run.record.clients if e["kind"] == "evaluate" and e["metrics"] and e["client"] not in bad}
    losses = [metrics["loss"] for metrics in own.values() if "loss" in metrics]
    sizes = run.record.partition["sizes"]
    trust, flags = [line["trust"] for line in run.record.rounds], fa.flags(run.record)
    found |= {
        "test": last["test"].get(metric),
        "small": _mean([metrics.get(metric) for client, metrics in own.items() if sizes[client] < 200]),
        "large": _mean([metrics.get(metric) for client, metrics in own.items() if sizes[client] >= 200]),
        "test_loss": last["test"].get("loss"),
        "worst": float(np.percentile(losses, 95)) if losses else None,
        "left_behind": float(np.mean(np.array(losses) > 0.5)) if losses else None,
        "model_kept": sum(line["model_kept"] for line in run.record.rounds),
        "breaker": sum(event["event"] == "breaker_opened" for each in trust for event in each.get("events", ())),
        "caught": flags.caught(within=5),
        "precision": flags.precision,
        "recall": flags.recall,
        "false_flags": flags.mean_false,
        "false_flags_most": flags.most_false and flags.most_false[1],
    }
    if job.attack == "backdoor":
        found["backdoor"] = attack.success(run.model(), *arrays(setting.data)["test"])
    return found


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def file_of(setting: str) -> Path:
    return RESULTS / f"trust_{setting}.jsonl"


def chosen(setting: str, rule: str, done: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The point with the best mean validation accuracy; None before all were tried. A single one needs no tuning."""
    if rule in USES_RULE_GUARDS_CHOICE:
        return chosen(setting, "rule_guard", done)
    if len(GRID[rule]) == 1:
        return GRID[rule][0]
    tried = [([done.get(job.key) for job in tuning(setting, rule, point)], point) for point in GRID[rule]]
    if any(line is None for lines, _ in tried for line in lines):
        return None
    return max(tried, key=lambda pair: sum(line["validation"] or 0.0 for line in pair[0]))[1]  # type: ignore[index]


def tuning(setting: str, rule: str, point: dict[str, Any]) -> list[Job]:
    return [Job(setting, rule, point, attack, "tune", TUNING_SEED) for attack in TUNED_UNDER]


def ready(setting: str, rules: list[str], done: dict[str, dict[str, Any]]) -> Iterator[Job]:
    """Jobs that can be done now, seed by seed, so that what is there is balanced."""
    own = SETTINGS[setting]
    points = {rule: chosen(setting, rule, done) for rule in rules}
    for rule in rules:
        if points[rule] is None and rule not in USES_RULE_GUARDS_CHOICE:
            yield from (job for point in GRID[rule] for job in tuning(setting, rule, point))
    for seed in own.seeds:
        for rule, point in points.items():
            if point is not None:
                yield from (Job(setting, rule, point, attack, "final", seed) for attack in own.attacks)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("settings", nargs="+", choices=SETTINGS)
    arguments.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--minutes", type=float, default=60.0, help="no run begins after so many minutes")
    arguments.add_argument("--only", help="some of the rules")
    asked = arguments.parse_args()
    deadline = time.monotonic() + 60 * asked.minutes
    with multiprocessing.get_context("spawn").Pool(asked.workers) as pool:
        for setting in asked.settings:
            rules = asked.only.split(",") if asked.only else list(SETTINGS[setting].rules)
            done = do_all(pool, run_job, partial(ready, setting, rules), file_of(setting), deadline, 2 * asked.workers)
            print(f"{setting}: {len(done)} runs are there", flush=True)


if __name__ == "__main__":
    main()
