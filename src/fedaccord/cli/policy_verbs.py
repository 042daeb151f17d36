"""`fedaccord policy ...`: the verbs of a learned policy's life. What they do is imported when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedaccord.cli.verbs import RUNS, Debug, Json, Root, RunName, app

policy = typer.Typer(
    name="policy",
    help="Train a policy that weighs clients, evaluate it, and move it between shadow and use.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(policy)
__all__ = ["app"]

Kind = Annotated[str, typer.Option("--kind", help="residual, linear (by CMA-ES), or per_client (the source's).")]
Seed = Annotated[int, typer.Option("--seed", help="Fixes the scenes and the learner.")]


@policy.command()
def train(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file of weights to write (safetensors).", show_default=False)],
    kind: Kind = "residual",
    learner: Annotated[str, typer.Option("--learner", help="ppo, a2c_delayed or dqn.")] = "ppo",
    minutes: Annotated[float, typer.Option("--minutes", help="At most so long.")] = 30.0,
    episodes: Annotated[int, typer.Option("--episodes", help="At most so many.")] = 5000,
    seed: Seed = 0,
    journal: Annotated[
        str | None, typer.Option("--journal", metavar="RUN", help="Instead: refine --weights by what this run has written down.")
    ] = None,
    weights: Annotated[str, typer.Option("--weights", help="What a refinement begins with: a file, default, or untrained.")] = "default",
    root: Root = RUNS,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Train in simulated federations, or refine from a run's journal. Writes the weights, the learning curve and a card."""
    from fedaccord.cli.policies import refine_policy, train_policy

    if journal is not None:
        return refine_policy(out, journal, weights, seed, root, json)
    return train_policy(out, kind, learner, minutes, episodes, seed, json)


@policy.command()
def evaluate(
    weights: Annotated[str, typer.Argument(metavar="WEIGHTS", help="A file of weights, or default.")] = "default",
    kind: Kind = "residual",
    scenes: Annotated[int, typer.Option("--scenes", metavar="N", help="Federations, none of them from the training.")] = 20,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Whole runs beside FedAvg on the same seeds: differences with their intervals, under attacks and without."""
    from fedaccord.cli.policies import evaluate_policy

    return evaluate_policy(weights, kind, scenes, seed, json)


@policy.command()
def promote(name: RunName, root: Root = RUNS, json: Json = False, debug: Debug = False) -> int:
    """Ask a run to take its policy one stage further: shadow, canary, switchback, on."""
    from fedaccord.cli.policies import order_policy

    return order_policy(name, "promote", root, json)


@policy.command()
def rollback(name: RunName, root: Root = RUNS, json: Json = False, debug: Debug = False) -> int:
    """Ask a run to put its policy back into the shadow."""
    from fedaccord.cli.policies import order_policy

    return order_policy(name, "rollback", root, json)


@policy.command()
def status(name: RunName, root: Root = RUNS, json: Json = False, debug: Debug = False) -> int:
    """In which stage a run's policy is, what its breaker did, and how it does beside FedAvg."""
    from fedaccord.cli.policies import policy_status

    return policy_status(name, root, json)
