"""`fedaccord describe`: what an experiment is, what its clients hold, and what will go wrong, before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.algorithms import Scaffold
from fedaccord.cli.output import note, result, say, table
from fedaccord.cli.words import run_line
from fedaccord.config import Resolved, checked_section, read_settings, runs_of, to_toml
from fedaccord.core.local import upload_template
from fedaccord.core.state import num_bytes
from fedaccord.core.vector import FlatModel
from fedaccord.experiment import flat_model, local_parts_of, partition_summary, share_out
from fedaccord.partition import Facts, Traits, findings, label_counts
from fedaccord.partition.examine import readable
from fedaccord.partition.measures import GradientAngles, feature_shift, gradient_angles, js_distance, label_entropy, mean_of, size_gini
from fedaccord.runtime.population import Population
from fedaccord.sampling import Coin, StabilityAware, Uniform
from fedaccord.tasks import Task
from fedaccord.tasks.memory import available_memory

MAX_CLIENTS = 100  # whose gradients are compared
BATCH = 500  # examples
SHOWN = 10  # clients in the table


def describe_config(config: Path, overrides: Sequence[str], as_json: bool) -> None:
    """The first run that the configuration asks for; a sweep says how many there are."""
    settings = read_settings(config, overrides, os.environ)
    checked_section(settings)
    runs = runs_of(settings)
    resolved = runs[0]
    task = resolved.task.make()
    task.check()
    facts, measures, drawn = examine(resolved, task)
    found = findings(facts)
    if len(runs) > 1:
        note(f"the lists stand for {len(runs)} runs; this is the first: {dict(resolved.varied)}")
    if as_json:
        result(
            {
                "runs": len(runs),
                "experiment": resolved.tables,
                "sources": resolved.sources,
                "partition": drawn,
                "measures": measures,
                "findings": [each.record() for each in found],
            }
        )
        return
    say(run_line("(described)", resolved.tables, drawn["clients"]))
    say(repr(task))
    say()
    say(to_toml(resolved.tables, resolved.sources).rstrip())
    say()
    _clients_table(drawn)
    say()
    for name, value in measures.items():
        say(f"{name.removesuffix('_bytes').replace('_', ' ')}: {_figure(name, value)}")
    for severity, heading in (("warning", "what will go wrong"), ("note", "to know")):
        chosen = [each for each in found if each.severity == severity]
        if chosen:
            say(f"\n{heading}")
        for each in chosen:
            say(f"  {each.name}: {each.what}" + (f"\n      -> {each.remedy}" if each.remedy else ""))


def examine(resolved: Resolved, task: Task) -> tuple[Facts, dict[str, Any], dict[str, Any]]:
    """(facts for the findings, the figures measured, the partition as partition.json has it)."""
    experiment = resolved.experiment
    data, partition = share_out(experiment, task)
    model = flat_model(experiment, task)
    drawn = partition_summary(experiment, task, partition)
    traits = _traits(resolved, model)
    angles = gradient_angles(np.stack([each.numpy() for each in _gradients(model, task, data)]), MAX_CLIENTS) if len(data) > 1 else None
    has_labels = task.labels is not None and task.num_classes is not None
    counts = label_counts(data.train, task.labels, task.num_classes) if has_labels else None  # type: ignore[arg-type]
    held_out = label_counts(data.held_out, task.labels, task.num_classes) if has_labels else None  # type: ignore[arg-type]
    shift = mean_of(feature_shift(data.train, data.x.numpy())) if data.x.is_floating_point() else None
    batch = experiment.local.batch_size
    facts = Facts(
        sizes=data.train.sizes,
        batch_size=None if batch == "full" else batch,
        local_epochs=experiment.local.epochs,
        num_parameters=model.layout.size,
        algorithm=traits,
        has_batch_norm=any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.module.modules()),
        cohort=_cohort(resolved, len(data)),
        label_counts=counts,
        holdout_sizes=data.held_out.sizes if experiment.run.client_test else None,
        holdout_counts=held_out if experiment.run.client_test else None,
        feature_shift=shift,
        angles=angles,
        partition_notes=partition.notes,
        memory_limit=available_memory(),
    )
    return facts, _measures(facts, resolved, model, angles), drawn


def _traits(resolved: Resolved, model: FlatModel) -> Traits:
    """How many vectors [d] the method keeps, sends and receives, from its own states."""
    algorithm, w = resolved.experiment.algorithm, model.initial_w
    one = num_bytes(w)
    kept, sent = algorithm.init_client(w), algorithm.broadcast(algorithm.init_server(w))
    return Traits(
        name=str(resolved.tables["algorithm"]["name"]),
        state_vectors=round(num_bytes(kept) / one),
        upload_vectors=max(1, round(num_bytes(upload_template(algorithm, w, model.layout)) / one)),
        sent_vectors=max(1, round(num_bytes(sent) / one)),
        control_variates=isinstance(algorithm, Scaffold),
    )


def _cohort(resolved: Resolved, clients: int) -> int | None:
    sampler = resolved.experiment.run.cohort
    if isinstance(sampler, Uniform | StabilityAware):
        return min(sampler.size, clients)
    return round(sampler.rate * clients) if isinstance(sampler, Coin) else None


def _gradients(model: FlatModel, task: Task, data: Population) -> list[Tensor]:
    """Each client's gradient [d] of its mean loss at the initial model, for at most MAX_CLIENTS clients that hold data, evenly spaced."""
    holders = np.flatnonzero(data.train.sizes)
    chosen = holders[np.unique(np.linspace(0, len(holders) - 1, min(MAX_CLIENTS, len(holders))).round().astype(np.int64))]
    model.train(False)
    return [_gradient(model, task, data, int(client)) for client in chosen]


def _gradient(model: FlatModel, task: Task, data: Population, client: int) -> Tensor:
    found = data.examples(data.train, client)
    assert found is not None
    total, number = torch.zeros_like(model.initial_w), len(found[1])
    for x, y in zip(found[0].split(BATCH), found[1].split(BATCH), strict=True):
        leaf = model.initial_w.detach().clone().requires_grad_()
        buffers = {name: each.clone() for name, each in model.initial_buffers.items()}
        (gradient,) = torch.autograd.grad(task.loss(model(leaf, buffers, x), y), leaf)
        total += gradient * (len(y) / number)
    return total


def _measures(facts: Facts, resolved: Resolved, model: FlatModel, angles: GradientAngles | None) -> dict[str, Any]:
    plan = resolved.experiment.local
    steps = [plan.epochs * plan.steps_per_epoch(int(size)) for size in np.unique(facts.sizes)]
    one, held = num_bytes(model.initial_w), num_bytes(model.initial_buffers)
    stays = local_parts_of(resolved.experiment) != "none"  # buffers, and own parameters among them: no part of a message
    buffers, own = (0, held) if stays else (held, 0)
    return {
        "parameters": facts.num_parameters,
        "message_up_bytes": facts.algorithm.upload_vectors * one + buffers,
        "message_down_bytes": facts.algorithm.sent_vectors * one + buffers,
        "client_state_bytes": (facts.algorithm.state_vectors * one + own) * len(facts.sizes),
        "steps_a_round_min": min(steps),
        "steps_a_round_max": max(steps),
        "label_entropy_mean": None if facts.label_counts is None else mean_of(label_entropy(facts.label_counts)),
        "js_distance_mean": None if facts.label_counts is None else mean_of(js_distance(facts.label_counts)),
        "size_gini": size_gini(facts.sizes),
        "feature_shift_mean": facts.feature_shift,
        "gradient_angles": None if angles is None else asdict(angles),
        "empty_clients": np.flatnonzero(facts.sizes == 0).tolist(),
        "single_example_clients": np.flatnonzero(facts.sizes == 1).tolist(),
        "one_class_clients": None if facts.label_counts is None else np.flatnonzero((facts.label_counts > 0).sum(axis=1) == 1).tolist(),
    }


def _figure(name: str, value: Any) -> str:
    if value is None:
        return "not defined here"
    if name.endswith("_bytes"):
        return readable(value)
    if isinstance(value, dict):
        return "  ".join(f"{key.replace('_', ' ')} {each:.3g}" for key, each in value.items())
    if isinstance(value, list):
        return f"{len(value)}" + (f" ({', '.join(map(str, value))})" if value else "")
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}"


def _clients_table(drawn: dict[str, Any]) -> None:
    """The largest and the smallest clients, with what they hold of each class."""
    sizes, counts = drawn["sizes"], drawn["label_counts"]
    order = sorted(range(len(sizes)), key=lambda client: (-sizes[client], client))
    shown = order if len(order) <= 2 * SHOWN else order[:SHOWN] + order[-SHOWN:]
    classes = range(len(counts[0])) if counts and len(counts[0]) <= 12 else range(0)
    names = [str(name)[:8] for name in drawn["class_names"] or classes]
    rows = [
        {"client": str(client), "examples": str(sizes[client]), **{names[label]: str(counts[client][label] or "·") for label in classes}}
        for client in shown
    ]
    table(rows, f"{len(sizes)} clients" + (f", the {SHOWN} largest and the {SHOWN} smallest" if len(order) > 2 * SHOWN else ""))
