"""Fake runs with the shape of the real records: small ones with known figures, and some that look like real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedaccord.core.rng import stream


@dataclass(frozen=True)
class FakeRecord:
    folder: Path | None = None
    experiment: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    partition: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    measures: dict[str, Any] = field(default_factory=dict)


def record(
    algorithm: str = "fedavg",
    seed: int = 0,
    accuracies: Sequence[float | None] = (0.5, 0.6, 0.7),
    *,
    validation: Sequence[float | None] | None = None,
    scores: Sequence[float | None] = (),
    sizes: Sequence[int] = (),
    gradients: int = 10,
    settings: Mapping[str, Any] | None = None,
    metric: str = "accuracy",
    **sections: Any,
) -> FakeRecord:
    """A run whose test metric follows `accuracies` (None: not evaluated), and whose clients score `scores` in the last round."""
    rounds = [
        {
            "round": at,
            "lr": 0.1,
            "cohort": [0, 1],
            "accepted": [0, 1],
            "refused": [],
            "absent": [],
            "train_loss": 1.0 / at,
            "test": None if value is None else {"loss": 1 - value, metric: value},
            "test_reason": "evaluated every second round" if value is None else None,
            "validation": None if validation is None or validation[at - 1] is None else {metric: validation[at - 1]},
            "validation_reason": None,
            "update_norm": 1.0,
            "drift": 0.1 * at,
            "pairwise_cosine": 0.2,
            "gradients": gradients,
            "bytes_up": 100,
            "bytes_down": 50,
            "seconds": 0.5,
            "model_kept": False,
            "reason": None,
        }
        for at, value in enumerate(accuracies, start=1)
    ]
    clients: list[dict[str, Any]] = [
        {"kind": "train", "round": line["round"], "client": client, "accepted": True, "code": None, "reason": None, "num_examples": 5}
        | {"steps": 5, "gradients": gradients // 2, "weight": 0.5, "loss": 0.9, "epoch_losses": [1.1, 0.9], "update_norm": 1.0}
        | {"cosine": 0.3, "drift": 0.1, "bytes_up": 50, "seconds": 0.01, "signals": {}}
        for line in rounds
        for client in (0, 1)
    ]
    sizes = list(sizes) or [10] * len(scores)
    for client, (score, size) in enumerate(zip(scores, sizes, strict=True)):
        metrics = None if score is None else {metric: score}
        clients.append(
            {"kind": "evaluate", "round": len(rounds), "client": client, "num_examples": size if score is not None else 0}
            | {"metrics": metrics, "reason": None if score is not None else "no held-out examples"}
        )
    experiment = {
        "task": {"name": "digits"},
        "partition": {"name": "dirichlet_per_class", "alpha": 0.1, "clients": 2},
        "local": {"lr": 0.1},
        "algorithm": {"name": algorithm, **(settings or {})},
        "run": {"seed": seed, "rounds": len(rounds), "cohort": 2},
    }
    for section, values in sections.items():
        experiment[section] = {**experiment.get(section, {}), **values}
    return FakeRecord(
        folder=Path(f"runs/{algorithm}_s{seed}"),
        experiment=experiment,
        sources={"task.name": "file", "local.lr": "command line", "run.seed": "command line"},
        provenance={"fedaccord": "0.1.0", "torch": "2.13.0", "seed": seed, "data_hash": "sha256:ab", "command": "fedaccord run"},
        partition={"scheme": "DirichletPerClass(alpha=0.1)", "clients": 2, "sizes": [7, 3], "label_counts": [[7, 0], [1, 2]]}
        | {"class_names": None, "notes": [], "measures": {"label_entropy_mean": 0.4}},
        status={"state": "finished", "round": len(rounds), "rounds": len(rounds), "run_id": f"a{seed}", "error": None},
        rounds=rounds,
        clients=clients,
    )


def changed(base: FakeRecord, change: Callable[[dict[str, Any]], None]) -> FakeRecord:
    """A copy whose rounds went through `change`."""
    from copy import deepcopy
    from dataclasses import replace

    rounds = deepcopy(base.rounds)
    for line in rounds:
        change(line)
    return replace(base, rounds=rounds)


def realistic(
    methods: Sequence[str] = ("fedavg", "fedsmoo", "dynamic_sam"), seeds: int = 3, rounds: int = 60, clients: int = 40
) -> list[FakeRecord]:
    """Runs that look like real ones: noisy rising curves, a skewed partition, refusals, absences, clients without test data, signals."""
    records = []
    for number, name in enumerate(methods):
        for seed in range(seeds):
            draw = stream(seed, "fake", number)
            shares = stream(seed, "partition").dirichlet([0.15] * 10, size=clients)
            sizes = stream(seed, "sizes").integers(0, 90, size=clients)
            sizes[::7] = 3  # too few to hold any back
            counts = [
                [int(n) for n in stream(seed, "labels", i).multinomial(size, share)]
                for i, (size, share) in enumerate(zip(sizes, shares, strict=True))
            ]
            base = record(name, seed, [0.5] * rounds)
            lines, people = [], []
            for at in range(1, rounds + 1):
                cohort = sorted(int(c) for c in stream(seed, "cohort", at).choice(clients, 8, replace=False))
                refused = [c for c in cohort if draw.random() < 0.02]
                absent = [c for c in cohort if c not in refused and draw.random() < 0.03]
                accepted = [c for c in cohort if c not in refused and c not in absent]
                level = 0.76 + 0.03 * number
                accuracy = level - 0.6 * float(draw.uniform(0.9, 1.1)) * 0.95 ** (at + number) + float(draw.normal(0, 0.012))
                line = dict(base.rounds[0])
                line |= {
                    "round": at,
                    "cohort": cohort,
                    "accepted": accepted,
                    "absent": absent,
                    "test": {"loss": 2.2 - 2 * accuracy, "accuracy": accuracy},
                }
                line |= {"test_reason": None, "validation": {"accuracy": accuracy + float(draw.normal(0, 0.01))}}
                line |= {
                    "refused": [
                        {"client": c, "code": "E101", "reason": "non_finite", "message": f"E101 3 NaN in 'fc2.weight'. client {c}"}
                        for c in refused
                    ]
                }
                line |= {
                    "train_loss": 2.0 * 0.97**at,
                    "drift": 0.1 + 0.4 * 0.96**at + 0.02 * number,
                    "pairwise_cosine": 0.2 + float(draw.normal(0, 0.03)),
                }
                line |= {
                    "gradients": len(accepted) * 20 * (1 + (number > 0)),
                    "bytes_up": 102_400 * len(accepted),
                    "bytes_down": 102_400 * 8,
                    "seconds": 0.8,
                }
                lines.append(line)
                total = sum(int(sizes[c]) + 1 for c in accepted) or 1
                for c in (*accepted, *refused):
                    row = dict(base.clients[0]) | {"round": at, "client": c, "accepted": c in accepted, "num_examples": int(sizes[c])}
                    row |= {"weight": (int(sizes[c]) + 1) / total if c in accepted else 0.0}
                    row |= {"code": "E101", "reason": "non_finite"} if c in refused else {}
                    if name == "dynamic_sam":
                        row["signals"] = {
                            k: float(v) for k, v in zip(("lambda", "rho", "gamma", "sigma", "tau"), draw.uniform(0, 1, 5), strict=True)
                        }
                    people.append(row)
            for c in range(clients):
                some = int(sizes[c]) >= 5
                score = min(1.0, max(0.0, 0.7 + 0.03 * number + float(draw.normal(0, 0.15))))
                people.append(
                    {"kind": "evaluate", "round": rounds, "client": c, "num_examples": int(sizes[c]) // 5}
                    | {"metrics": {"accuracy": score} if some else None, "reason": None if some else "no held-out examples"}
                )
            partition = base.partition | {"clients": clients, "sizes": [int(s) for s in sizes], "label_counts": counts}
            partition |= {
                "class_names": ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
            }
            records.append(FakeRecord(base.folder, base.experiment, base.sources, base.provenance, partition, base.status, lines, people))
    return records


@pytest.fixture(scope="session")
def run() -> Callable[..., FakeRecord]:
    """`run("fedsmoo", seed=1, accuracies=[...])` is a run with these figures."""
    return record


@pytest.fixture(scope="session")
def alter() -> Callable[..., FakeRecord]:
    """`alter(run, change)` is a copy whose rounds went through `change`."""
    return changed


@pytest.fixture(scope="session")
def real_looking() -> list[FakeRecord]:
    """Three methods, two seeds, with refusals, absences, clients without test data, signals."""
    return realistic(seeds=2, rounds=20, clients=16)
