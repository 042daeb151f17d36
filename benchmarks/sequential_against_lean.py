"""Our sequential runtime against a hand-written lean loop, and every method against FedAvg per gradient evaluation.

    python benchmarks/sequential_against_lean.py [--repeats 7] [--out benchmarks/results/sequential_against_lean.json]

Both sides do the same steps (counted) on the same data and the same batches, one thread each, in pairs that take turns; the printed
figures are medians of the ratios of pairs. The lean loop is what a careful researcher writes: one reused model, tensors in memory,
index batches, no DataLoader, gradients applied in place, a running weighted sum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import lenet, mlp

import fedaccord as fa
from fedaccord.experiment import Aggregation, Experiment, Prepared, RunOptions, prepare

AIM_AGAINST_LEAN = 1.10
AIM_PER_GRADIENT = 1.10


WORK: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, int]] = {  # model, one input, clients, examples a client, epochs
    "mlp": (mlp, (784,), 100, 600, 1),
    "lenet": (lenet, (3, 32, 32), 10, 500, 5),
}


class LeanRound(NamedTuple):
    w: list[Tensor]
    steps: int
    examples: int  # sample passes


def lean_round(
    model: nn.Module, w: list[Tensor], x: Tensor, y: Tensor, rows: list[np.ndarray], plan: fa.LocalPlan, seed: int, rho: float = 0.0
) -> LeanRound:
    """One round of FedAvg, or of FedSAM where rho > 0, from the weights w."""
    parameters, total, steps, examples = list(model.parameters()), [torch.zeros_like(part) for part in w], 0, 0
    rng, num_examples = np.random.default_rng(seed), sum(map(len, rows))
    for own in rows:
        with torch.no_grad():
            for parameter, value in zip(parameters, w, strict=True):
                parameter.copy_(value)
        for chosen in map(torch.from_numpy, plan.batches(own, rng)):
            inputs, labels = x[chosen], y[chosen]
            gradients = torch.autograd.grad(F.cross_entropy(model(inputs), labels), parameters)
            examples += len(inputs)
            if rho:
                with torch.no_grad():
                    before = [parameter.clone() for parameter in parameters]
                    length = torch.stack([gradient.norm() for gradient in gradients]).norm()
                    torch._foreach_add_(parameters, torch._foreach_mul(gradients, rho / (length + 1e-12)))
                gradients = torch.autograd.grad(F.cross_entropy(model(inputs), labels), parameters)
                examples += len(inputs)
                with torch.no_grad():
                    torch._foreach_copy_(parameters, before)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=plan.lr)
            steps += 1
        with torch.no_grad():
            for part, parameter in zip(total, parameters, strict=True):
                part.add_(parameter, alpha=len(own) / num_examples)
    return LeanRound(total, steps, examples)


def prepared(name: str, algorithm: fa.Algorithm) -> tuple[Prepared, fa.Task, Experiment]:
    make, shape, clients, examples, epochs = WORK[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * examples, *shape, generator=generator)
    y = torch.randint(10, (clients * examples,), generator=generator)
    task = fa.Task(model=make, loss=F.cross_entropy, train=(x, y), test=(x[:10], y[:10]))
    run = RunOptions(rounds=10_000, cohort=fa.Uniform(clients), client_test=0.0, evaluate_every=10_000)
    experiment = Experiment(
        partition=fa.IID(clients=clients),
        algorithm=algorithm,
        local=fa.LocalPlan(lr=0.01, epochs=epochs, batch_size=50),
        runtime=fa.RuntimeOptions("sequential", memory_format="contiguous"),
        run=run,
        aggregation=Aggregation(),
    )
    return prepare(experiment, task), task, experiment


def timed(call: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """(seconds of this process's own time, result): with one thread that is what the work costs, whoever else is on the machine."""
    start = time.process_time()
    result = call(*given)
    return time.process_time() - start, result


def against_lean(name: str, repeats: int) -> dict[str, Any]:
    found, task, experiment = prepared(name, fa.FedAvg())
    federation, state, data = found.federation, found.start, found.data
    plain = task.build_model(0)
    w = [parameter.detach().clone() for parameter in plain.parameters()]
    rows = [data.train[client] for client in range(len(data))]
    ratios, ours_counted, lean_counted = [], 0, 0
    for repeat in range(repeats + 1):
        seconds, result = timed(federation.round, state)
        lean_seconds, (w, lean_counted, _) = timed(lean_round, plain, w, data.x, data.y, rows, experiment.local, repeat)
        state, ours_counted = result.state, result.report.gradients
        if repeat:  # the first pair warms up
            ratios.append(seconds / lean_seconds)
    assert ours_counted == lean_counted, "both sides must do the same steps"
    return {
        "work": name,
        "against": "lean loop",
        "steps": lean_counted,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "aim": AIM_AGAINST_LEAN,
    }


def against_fedavg(name: str, method: str, repeats: int) -> dict[str, Any]:
    """ratios: time per gradient evaluation; rounds: time per round; passes: gradient evaluations for each of FedAvg's."""
    method_found, base_found = prepared(name, fa.REGISTRY[method]())[0], prepared(name, fa.FedAvg())[0]
    ours, state = method_found.federation, method_found.start
    base, base_state = base_found.federation, base_found.start
    ratios, rounds, passes = [], [], 0.0
    for repeat in range(repeats + 1):
        seconds, result = timed(ours.round, state)
        base_seconds, base_result = timed(base.round, base_state)
        state, base_state = result.state, base_result.state
        passes = result.report.gradients / base_result.report.gradients
        if repeat:
            rounds.append(seconds / base_seconds)
            ratios.append(rounds[-1] / passes)
    return {
        "work": name,
        "against": "fedavg",
        "method": method,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "rounds": rounds,
        "passes": passes,
        "aim": AIM_PER_GRADIENT,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in WORK:
        rows.append(against_lean(name, asked.repeats))
        print(
            f"{name:6} against the lean loop ({rows[-1]['steps']} steps a round): {rows[-1]['ratio']:.3f}x  aim <= {AIM_AGAINST_LEAN}x",
            flush=True,
        )
    for name in WORK:
        for method in fa.REGISTRY:
            if method != "fedavg":
                rows.append(against_fedavg(name, method, asked.repeats))
                print(
                    f"{name:6} {method:12} time per gradient against fedavg: {rows[-1]['ratio']:.3f}x  aim <= {AIM_PER_GRADIENT}x",
                    flush=True,
                )
    if asked.out:
        asked.out.write_text(json.dumps({"torch": torch.__version__, "threads": 1, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
