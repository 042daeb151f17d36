"""The verbs and their options. What they do is imported when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import typer.core

typer.core.HAS_RICH = False  # plain help: quicker, and where rich is installed typer prints "\\[required]" with the backslash

app = typer.Typer(
    name="fedaccord",
    help="Federated learning for clients that disagree. RUN is a run's folder, its name, or its short id.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        from fedaccord import __version__

        print(f"fedaccord {__version__}")
        raise typer.Exit


@app.callback()
def fedaccord(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")] = False,
) -> None:
    """Federated learning for clients that disagree. RUN is a run's folder, its name, or its short id."""


Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The experiment's TOML file.", show_default=False)]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, its name, or its short id.", show_default=False)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "-s", "--set", metavar="KEY=VALUE", help="Override a value, e.g. -s algorithm.rho=0.05; a list sweeps: -s algorithm.rho=[0.05,0.1]."
    ),
]
Seeds = Annotated[int | None, typer.Option("--seeds", metavar="N", help="Run N seeds, side by side under one parent folder.")]
Root = Annotated[Path, typer.Option("--root", help="The folder in which runs lie.")]
Out = Annotated[Path, typer.Option("--out", help="The folder in which new runs are put.")]
Jobs = Annotated[int | None, typer.Option("--jobs", metavar="N", help="Runs at the same time. Default: one a core.")]
Html = Annotated[Path | None, typer.Option("--html", help="Where the report is written; its CSV files go beside it.")]
Target = Annotated[float | None, typer.Option("--target", help="Value of the metric for rounds-to-target.")]
Metric = Annotated[str | None, typer.Option("--metric", help="The test metric that is reported. Default: the first that is not the loss.")]
Json = Annotated[bool, typer.Option("--json", help="Results as JSON on stdout; progress stays on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

RUNS = Path("runs")


@app.command()
def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.", show_default=False)],
    template: Annotated[str, typer.Option("--template", help="vision, tabular or segmentation.")] = "vision",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a runnable project: an experiment, a task of your own to change, and a README."""
    from fedaccord.cli.creating import create

    create(name, template, json)


@app.command()
def run(
    config: Config,
    set: Set = None,
    seeds: Seeds = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The seed, or the first of --seeds.")] = None,
    out: Out = RUNS,
    jobs: Jobs = None,
    target: Target = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, draw the partition, write nothing.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Train. Ctrl-C once finishes the round and saves; twice stops. Take it up again with `resume RUN`."""
    from fedaccord.cli.training import run_config

    return run_config(config, set or [], seeds, seed, out, jobs, target, dry_run, json)


@app.command()
def resume(name: RunName, root: Root = RUNS, jobs: Jobs = None, json: Json = False, debug: Debug = False) -> int:
    """Go on from a run's last checkpoint, or with what is left of a comparison."""
    from fedaccord.cli.training import resume_run

    return resume_run(name, root, jobs, json)


@app.command()
def compare(
    config: Config,
    algorithms: Annotated[
        str | None, typer.Option("--algorithms", metavar="A,B,...", help="The methods, e.g. fedavg,fedsmoo,dynamic_sam.")
    ] = None,
    seeds: Seeds = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The first seed.")] = None,
    attack: Annotated[
        str | None, typer.Option("--attack", metavar="A,B,...", help="Each method as it is, and under these attacks.")
    ] = None,
    screens: Annotated[
        str | None, typer.Option("--screens", metavar="A,B,...", help="Each method behind these screens; none is one of them.")
    ] = None,
    target: Target = None,
    html: Html = None,
    set: Set = None,
    out: Out = RUNS,
    jobs: Jobs = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="PARENT", help="Go on with an interrupted comparison.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Run several methods on the same seeds, partitions and cohorts, and report the difference with its interval."""
    from fedaccord.cli.training import compare_methods, resume_run

    if resume is not None:
        return resume_run(resume, out, jobs, json, html)
    swept = [*(set or []), *_listed("attack.name", attack, always="none"), *_listed("aggregation.screen.name", screens)]
    return compare_methods(config, algorithms, seeds, seed, target, html, swept, out, jobs, json)


def _listed(key: str, names: str | None, always: str | None = None) -> list[str]:
    """A sweep over the names, as --set takes it."""
    if names is None:
        return []
    asked = [name.strip() for name in names.split(",") if name.strip()]
    chosen = [*([] if always is None or always in asked else [always]), *asked]
    return [f"{key}={chosen[0]}" if len(chosen) == 1 else f"{key}=[{','.join(repr(name) for name in chosen)}]"]


@app.command()
def describe(config: Config, set: Set = None, json: Json = False, debug: Debug = False) -> None:
    """The resolved configuration, the partition drawn, the heterogeneity measured, and what will go wrong."""
    from fedaccord.cli.describing import describe_config

    describe_config(config, set or [], json)


@app.command()
def tune(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="The experiment's TOML file.", show_default=False)] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--set",
            metavar="KEY=VALUES",
            help="What to move: algorithm.rho=0.01..0.5 (a range, in the logarithm) or local.lr=0.01,0.03,0.1; one value overrides.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", help="Trials of the first stage. Default: 12; 6 a stage for dynamic_sam's rules.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The tuned TOML. Default: in the tuning's folder.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="The validation metric that decides. Default: the task's first.")] = None,
    shares: Annotated[str, typer.Option("--shares", metavar="A,B,...", help="Share of the training data in each stage.")] = "0.01,0.1,1",
    rounds: Annotated[str | None, typer.Option("--rounds", metavar="A,B,...", help="Rounds of each stage.")] = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="TUNING", help="Go on with an interrupted tuning.")] = None,
    root: Root = RUNS,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Tune in stages, on 1%, 10% and all of the data; each says pass or what to move. Without --set: dynamic_sam by its own rules."""
    from fedaccord.cli.tuning import resume_tuning, tune_config

    if resume is not None:
        return resume_tuning(resume, out, root, json)
    return tune_config(config, set or [], trials, out, metric, shares, rounds, root, json)


@app.command("ls")
def list_runs(root: Root = RUNS, json: Json = False, debug: Debug = False) -> None:
    """All runs, oldest first."""
    from fedaccord.cli.looking import list_all

    list_all(root, json)


@app.command()
def show(
    name: RunName,
    client: Annotated[int | None, typer.Option("--client", help="The story of one client.")] = None,
    root: Root = RUNS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """How far a run is, what it reached, who was refused and why."""
    from fedaccord.cli.looking import show_run

    show_run(name, client, root, json)


@app.command()
def log(
    name: RunName,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for further rounds until the run ends.")] = False,
    root: Root = RUNS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """A line a round. With --json, the records themselves, one a line."""
    from fedaccord.cli.looking import print_log

    print_log(name, follow, root, json)


@app.command()
def stop(
    name: RunName,
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for the round to end.")] = 10.0,
    root: Root = RUNS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Ask a run to finish its round, save and end."""
    from fedaccord.cli.stopping import stop_run

    stop_run(name, wait, root, json)


@app.command()
def report(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs, or parents of runs.", show_default=False)],
    html: Html = None,
    target: Target = None,
    metric: Metric = None,
    root: Root = RUNS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """One self-contained HTML file for one run or several, and its CSV files."""
    from fedaccord.cli.looking import write

    write(names, html, target, metric, root, json)


@app.command()
def measure(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs, or parents of runs.", show_default=False)],
    rho: Annotated[float | None, typer.Option("--rho", help="Radius of the SAM gap. Default: the run's [measures], else 0.1.")] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", metavar="N", help="Pooled training examples. Default: the run's, else 1000.")
    ] = None,
    root: Root = RUNS,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """How flat a run's last model lies: Hessian, SAM gap, slices of the loss. Kept in its folder; `report` shows it."""
    from fedaccord.cli.measuring import measure_runs

    measure_runs(names, rho, examples, root, json)


@app.command()
def diagnose(name: RunName, root: Root = RUNS, json: Json = False, debug: Debug = False) -> int:
    """Which alerts hold, with the figures, and what to do. Exit code 6 where one holds."""
    from fedaccord.cli.diagnosing import diagnose_run

    return diagnose_run(name, root, json)


@app.command()
def quarantine(
    name: RunName,
    release: Annotated[
        str | None, typer.Option("--release", metavar="A,B,...", help="Let these clients back in: the run's next round obeys.")
    ] = None,
    root: Root = RUNS,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Who was refused, when and why, and who is not asked until when."""
    from fedaccord.cli.diagnosing import quarantine_run

    return quarantine_run(name, release, root, json)
