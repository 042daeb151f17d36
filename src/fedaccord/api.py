"""The Python door: `run` takes objects, gives back a `Run`. The command line goes through `execute` as well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.aggregation.policy import Policy
from fedaccord.aggregation.rollout import Rollout
from fedaccord.aggregation.screen import Screen
from fedaccord.aggregation.trust import TrustState
from fedaccord.attacks import Attack
from fedaccord.core.algorithm import Algorithm
from fedaccord.core.errors import ConfigError, FedaccordError, InternalFault
from fedaccord.core.local import LocalPlan
from fedaccord.core.server_optimizer import ServerOptimizer
from fedaccord.core.state import num_bytes
from fedaccord.core.vector import load_into
from fedaccord.experiment import (
    Aggregation,
    Devices,
    Experiment,
    Initial,
    Prepared,
    RunOptions,
    measured,
    partition_summary,
    plain,
    prepare,
)
from fedaccord.federation import RunState
from fedaccord.measures import Measures
from fedaccord.partition import Partition, Partitioner
from fedaccord.provenance import provenance
from fedaccord.runs import Record, Remembered, RunFolder, lines_of, read
from fedaccord.runtime.collector import with_few_collections
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.sampling import Coin, Sampler, SamplerState, Scripted, Uniform, remembered
from fedaccord.tasks import Task
from fedaccord.tasks.memory import require_memory
from fedaccord.telemetry import Event, Tee, Telemetry
from fedaccord.telemetry.warns import Warns

if TYPE_CHECKING:
    import pandas as pd

CohortLike = int | float | Sampler | Sequence[Sequence[int]]


def run(
    task: Task,
    algorithm: Algorithm,
    *,
    partition: Partitioner,
    cohort: CohortLike = 10,
    rounds: int = 100,
    seed: int = 0,
    local: LocalPlan | None = None,
    server_optimizer: ServerOptimizer | None = None,
    policy: Policy | None = None,
    screen: Screen | None = None,
    rollout: Rollout | None = None,
    local_parts: str = "method",
    devices: Devices | None = None,
    client_test: float = 0.1,
    client_validation: float = 0.0,
    initial: Initial = None,
    evaluate_every: int = 1,
    evaluate_clients_every: int = 0,
    evaluated_clients: int = 10_000,
    checkpoint_every: int = 10,
    keep_weights: bool = True,
    stop_at: float | None = None,
    stop_metric: str = "accuracy",
    runtime: str | RuntimeOptions = "auto",
    state: str = "auto",
    debug: bool = False,
    measures: Measures | None = None,
    attack: Attack | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    telemetry: Sequence[Telemetry] | None = None,
) -> Run:
    """Train `task` with `algorithm` on clients drawn by `partition`; everything is fixed by `seed`.

    cohort: how many clients each round asks (int), the chance of each client (float below 1), a `Sampler`, or a list of client ids for
    each round. local: learning rate, epochs, batch size (or "full"), optimiser, schedule, weight decay, clip and its scope.
    policy: who counts for how much: `BySize()` (default), `Equal()`, or another of `aggregation.policies`. screen: robust statistics
    before it. rollout: how a learned policy comes into use, its stages and its breaker. local_parts: what stays with each client: "none",
    "buffers" (batch-norm statistics) or "batch_norm" (weights and biases too); "method": what the method says. devices: who is weak, how
    fast, and each round's deadline. client_test, client_validation: shares of each client's examples that do not train; 0 lets all train.
    evaluate_every, evaluate_clients_every: rounds between measurements on the task's data, and on the clients' own held-out examples
    (0: after the last round only), there of at most `evaluated_clients`, drawn once.
    initial: weights to start from, as a vector [d], a state dict or a module, instead of the model's own.
    measures: how flat the final model lies (`Measures()`), into `Run.record.measures`, the folder's measures.json and the report.
    attack: some clients are bad (`SignFlip(share=0.2)`), to see what the rest makes of them; who, is in `Run.record.provenance`.
    folder: where records and checkpoints go (None: nothing is written); resume: go on from the folder's last checkpoint.
    runtime: "sequential", "vectorized", "pool", or "auto" (measured once on this machine), or `RuntimeOptions` with more detail.
    state: of clients: "memory", "disk" (in the folder), or "auto" (what fits).
    debug: stop at the first NaN, naming client, round and step.

    Raises ConfigError (2xx), DataError and PartitionError (3xx); a client's bad upload is never an error, it is in `Run.rounds`.
    """
    experiment = experiment_of(
        task,
        algorithm,
        partition=partition,
        local=local,
        server_optimizer=server_optimizer,
        aggregation=Aggregation(policy, screen, rollout=rollout, local_parts=local_parts),  # type: ignore[arg-type]
        devices=devices,
        runtime=_runtime_options(runtime, state, debug),
        cohort=cohort,
        rounds=rounds,
        seed=seed,
        client_test=client_test,
        client_validation=client_validation,
        evaluate_every=evaluate_every,
        evaluate_clients_every=evaluate_clients_every,
        evaluated_clients=evaluated_clients,
        checkpoint_every=checkpoint_every,
        keep_weights=keep_weights,
        stop_metric=stop_metric,
        stop_at=stop_at,
        measures=measures,
        attack=attack,
    )
    tables = {"task": {"name": task.name}, **plain(experiment)}
    return execute(
        experiment,
        task,
        tables,
        sources=dict.fromkeys(_dotted(tables), "call"),
        initial=initial,
        folder=None if folder is None else Path(folder),
        resume=resume,
        telemetry=(Warns(), *(telemetry or ())),
    )


def _runtime_options(runtime: str | RuntimeOptions, state: str, debug: bool) -> RuntimeOptions:
    if isinstance(runtime, RuntimeOptions):
        return replace(runtime, state=state if state != "auto" else runtime.state, debug=debug or runtime.debug)  # type: ignore[arg-type]
    return RuntimeOptions(runtime, state=state, debug=debug)  # type: ignore[arg-type]


def experiment_of(
    task: Task,
    algorithm: Algorithm,
    *,
    partition: Partitioner,
    local: LocalPlan | None,
    server_optimizer: ServerOptimizer | None,
    aggregation: Aggregation,
    runtime: RuntimeOptions,
    devices: Devices | None = None,
    measures: Measures | None = None,
    attack: Attack | None = None,
    cohort: CohortLike,
    seed: int,
    where: str = "fedaccord.run",
    **options: Any,
) -> Experiment:
    """The experiment of a call, held to the same ranges and types as one from a TOML file. options: fields of RunOptions."""
    for value, kind, name in ((task, Task, "task"), (algorithm, Algorithm, "algorithm"), (local or LocalPlan(), LocalPlan, "local")):
        if not isinstance(value, kind):
            given = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
            remedy = f"Write {value.__name__}()" if isinstance(value, type) else f"Give a fedaccord.{kind.__name__}"
            raise ConfigError("E202", f"{name} is {given}", where, remedy)
    if not hasattr(partition, "split"):
        raise ConfigError("E202", f"partition is a {type(partition).__name__}", where, "Give e.g. fedaccord.IID(clients=10)")
    experiment = Experiment(
        partition=partition,
        algorithm=algorithm,
        local=local or LocalPlan(),
        server_optimizer=server_optimizer,
        aggregation=aggregation,
        devices=devices or Devices(),
        runtime=runtime,
        measures=measures,
        attack=attack,
        run=RunOptions(seed=int(seed) if isinstance(seed, np.integer) else seed, cohort=_sampler(cohort), **options),
    )
    from fedaccord.config import check

    check(experiment)
    return experiment


@dataclass(repr=False)
class Run:
    """What a run has measured, and the models it went through."""

    record: Record
    task: Task
    partition: Partition
    final: RunState
    _weights: dict[int, Tensor]
    _folder: RunFolder | None

    def __repr__(self) -> str:
        status = self.record.status
        return f"Run({self.record.experiment['algorithm']['name']}, {status['state']} after round {status['round']} of {status['rounds']})"

    @property
    def rounds(self) -> pd.DataFrame:
        """One row a round: metrics flat as test_accuracy, test_loss, validation_..., and who took part."""
        return _frame(self.record.rounds, nested=("test", "validation"))

    @property
    def clients(self) -> pd.DataFrame:
        """One row a (round, client) that was asked: loss, steps, weight, refusal, the method's own signals."""
        return _frame([line for line in self.record.clients if line["kind"] == "train"], nested=("signals",))

    @property
    def evaluations(self) -> pd.DataFrame:
        """One row a (round, client): the global model on the client's held-out examples."""
        return _frame([line for line in self.record.clients if line["kind"] == "evaluate"], nested=("metrics",))

    def weights(self, round: int | None = None) -> Tensor:
        """The global model [d] after `round` (0: the initial one), default after the last. E210 where it was not kept."""
        wanted = self.final.round if round is None else round
        if not 0 <= wanted <= self.final.round:
            raise ConfigError(
                "E210", f"there is no round {wanted}", "Run.weights", f"The run has {self.final.round} rounds; 0 is the start"
            )
        if wanted in self._weights:
            return self._weights[wanted].cpu().clone()
        if self._folder is not None and 0 < wanted <= self.final.round:
            return self._folder.weights(wanted)
        raise ConfigError("E210", f"the weights of round {wanted} were not kept", "Run.weights", "Run with keep_weights=True")

    def model(self, round: int | None = None) -> nn.Module:
        """A new module with the weights of `round`; buffers are those after the last round.

        Parts that stay with the clients (FedBN, SiloBN) are those that every client started from: no client trains this model.
        """
        return load_into(self.task.build_model(self.record.experiment["run"]["seed"]), self.weights(round), self.final.buffers).eval()

    def report(self, path: str | Path, target: float | None = None) -> Path:
        """Write one self-contained HTML file, and its CSV beside it."""
        from fedaccord.report import write_report

        write_report([self.record], Path(path), target=target)
        return Path(path)


def execute(
    experiment: Experiment,
    task: Task,
    tables: dict[str, Any],
    *,
    sources: dict[str, str],
    initial: Initial = None,
    folder: Path | None = None,
    resume: bool = False,
    telemetry: Sequence[Telemetry] = (),
    should_stop: Callable[[], bool] = lambda: False,
    to_toml: Callable[[Mapping[str, Any], Mapping[str, str]], str] | None = None,
) -> Run:
    """Run an experiment to its end, to its target, or until `should_stop()` after a round; in every case the run can be resumed.

    tables: the experiment as plain data, for the records; sources: where each value came from; to_toml: how both are written.
    """
    with one_thread():
        _check_folder(folder, resume)
        if resume and folder:
            experiment = replace(experiment, runtime=_as_it_began(experiment.runtime, read(folder).experiment))
        prepared = prepare(experiment, task, initial, folder)
        experiment = prepared.experiment
        tables, sources = _with_runtime(experiment.runtime, tables, sources)
        logging.getLogger("fedaccord").info("runtime: %s (%s)", experiment.runtime.name, prepared.reason)
        record = Record(
            tables,
            sources,
            {
                **provenance(tables, experiment.run.seed, task.data_hash(), {"w": prepared.start.server.w, **prepared.start.buffers}),
                "runtime": f"{experiment.runtime.name}: {prepared.reason}",
                **({"bad_clients": list(prepared.bad)} if experiment.attack else {}),
            },
            partition_summary(experiment, task, prepared.partition),
            folder=folder,
        )
        if folder is None and experiment.run.keep_weights:
            needed = experiment.run.rounds * num_bytes(prepared.start.server.w)
            require_memory(needed, "the weights of every round", "run.keep_weights", "Set keep_weights to false, or give the run a folder")
        disk, state = _open(folder, resume, record, prepared, to_toml and to_toml(tables, sources))
        sinks = Tee(tuple(telemetry))
        weights = {0: prepared.start.server.w}
        try:
            state = _drive(experiment, task, prepared, state, record, disk, weights, sinks, should_stop)
        finally:
            prepared.federation.close()
            if disk:
                disk.close()
    return Run(record, task, prepared.partition, state, weights, disk)


def _drive(
    experiment: Experiment,
    task: Task,
    prepared: Prepared,
    state: RunState,
    record: Record,
    disk: RunFolder | None,
    weights: dict[int, Tensor],
    telemetry: Telemetry,
    should_stop: Callable[[], bool],
) -> RunState:
    federation, options = prepared.federation, experiment.run
    saved, outcome = state.round, "finished"
    try:
        telemetry.emit(Event("run_started", {"experiment": record.experiment, "clients": len(prepared.data), "round": state.round}))
        has_ended = bool(record.rounds) and federation.reached(record.rounds[-1]["validation"])
        federation = federation if disk is None else replace(federation, orders=disk.orders)
        for result in () if has_ended else with_few_collections(federation.run(state)):
            state = result.state
            round_line, client_lines = lines_of(result.report, result.clients, result.evaluations)
            record.rounds.append(round_line)
            record.clients.extend(client_lines)
            if disk:
                disk.append(round_line, client_lines)
            if options.keep_weights:
                _keep(disk, weights, state)
            telemetry.emit(Event("round_finished", round_line))
            if disk and state.round % options.checkpoint_every == 0:
                disk.checkpoint(state.round, _on_disk(state), _remembered(state), federation.runtime.save, federation.runtime.committed)
                disk.set_status({"state": "running", "round": state.round, "rounds": options.rounds, "error": None})
                saved = state.round
            if should_stop() or (disk is not None and disk.stop_asked()):
                outcome = "stopped" if state.round < options.rounds else "finished"
                break
        weights[state.round] = state.server.w
        if disk:
            if saved < state.round:
                disk.checkpoint(state.round, _on_disk(state), _remembered(state), federation.runtime.save, federation.runtime.committed)
            disk.clear_stop()
        if experiment.measures and outcome == "finished" and record.measures.get("round") != state.round:
            record.measures = measured(experiment.measures, experiment, task, prepared.model, prepared.data, state)
            if disk:
                disk.keep_measures(record.measures)
        record.status = {"state": outcome, "round": state.round, "rounds": options.rounds, "error": None}
    except KeyboardInterrupt:
        record.status = {"state": "interrupted", "round": state.round, "rounds": options.rounds, "error": None}
        raise
    except FedaccordError as error:
        record.status = {"state": "failed", "round": state.round, "rounds": options.rounds, "error": error.record()}
        raise
    except Exception as problem:
        fault = InternalFault(
            "E701", f"{type(problem).__name__}: {problem}", f"round {state.round + 1}", "Please report it, with --debug's output"
        )
        record.status = {"state": "failed", "round": state.round, "rounds": options.rounds, "error": fault.record()}
        raise fault from problem
    finally:
        if disk and record.status:
            disk.set_status(record.status)
        telemetry.emit(Event("run_finished", record.status))
    return state


def _as_it_began(asked: RuntimeOptions, earlier: Mapping[str, Any]) -> RuntimeOptions:
    """What the call leaves open is what the run began with, whatever a calibration would say today."""
    began, default = earlier.get("runtime", {}), RuntimeOptions()
    is_open = [each.name for each in fields(asked) if getattr(asked, each.name) == getattr(default, each.name) in ("auto", None)]
    return replace(asked, **{name: began[name] for name in is_open if name in began})


def _with_runtime(settled: RuntimeOptions, tables: dict[str, Any], sources: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Tables and sources with the runtime that was settled."""
    before, now = tables.get("runtime", {}), plain(settled)
    chosen = {f"runtime.{name}": "chosen" for name, value in now.items() if before.get(name) != value}
    kept = {name: source for name, source in sources.items() if not name.startswith("runtime.") or name.partition(".")[2] in now}
    return {**tables, "runtime": now}, {**kept, **chosen}


def _keep(disk: RunFolder | None, weights: dict[int, Tensor], state: RunState) -> None:
    if disk:
        disk.keep_weights(state.round, state.server.w)
    else:
        weights[state.round] = state.server.w


def _on_disk(state: RunState) -> dict[str, Any]:
    """What a checkpoint holds of the state; the round is its name."""
    return {"server": state.server, "buffers": state.buffers}


def _remembered(state: RunState) -> Remembered:
    learned = {f"sampling.{name}": vector for name, vector in state.sampling.vectors.items()}
    return Remembered({**state.trust.facts, "sampling": dict(state.sampling.facts)}, {**state.trust.vectors, **learned})


def _taken_up(kept: Remembered) -> tuple[TrustState, SamplerState]:
    facts, own = dict(kept.facts), {name: vector for name, vector in kept.vectors.items() if name.startswith("sampling.")}
    sampling = SamplerState(facts.pop("sampling", {}), {name.removeprefix("sampling."): vector for name, vector in own.items()})
    return TrustState(facts, {name: vector for name, vector in kept.vectors.items() if name not in own}), sampling


def _open(folder: Path | None, resume: bool, record: Record, prepared: Prepared, toml: str | None) -> tuple[RunFolder | None, RunState]:
    if folder is None:
        return None, prepared.start
    if not resume:
        return RunFolder.create(folder, record, toml), prepared.start
    disk = RunFolder(folder)
    disk.lock()
    try:
        earlier = disk.check_same(record)
        round, parts, trust = disk.restore(_on_disk(prepared.start), _remembered(prepared.start), prepared.federation.runtime.restore)
        disk.clear_stop()
        record.rounds, record.clients = disk.records()
        history = remembered(prepared.federation.sampler, record.clients)
        state = RunState(round, parts["server"], parts["buffers"], history, *_taken_up(trust))
        record.provenance, record.measures = earlier.provenance, earlier.measures
        disk.set_status({"state": "running", "round": round, "rounds": prepared.federation.rounds, "error": None})
    except BaseException:
        disk.close()
        raise
    return disk, state


def _sampler(cohort: CohortLike) -> Sampler:
    if isinstance(cohort, int | np.integer) and not isinstance(cohort, bool):
        return Uniform(int(cohort))
    if isinstance(cohort, float):
        return Coin(cohort)
    if hasattr(cohort, "draw"):
        return cohort
    try:
        return Scripted.of(cohort)  # type: ignore[arg-type]
    except TypeError:
        remedy = "Give a number of clients, a share below 1, a sampler, or a list of client ids for each round"
        raise ConfigError("E202", f"cohort is {cohort!r}", "fedaccord.run", remedy) from None


def _check_folder(folder: Path | None, resume: bool) -> None:
    """What is wrong with the folder is said before anything is laid out in it."""
    if resume and folder is None:
        raise ConfigError("E208", "resume needs a folder", "fedaccord.run", "Give the folder of the run")
    if folder is None:
        return
    if resume and not (folder / "experiment.toml").is_file():
        raise ConfigError("E210", "no run is here", str(folder), "Start it without resume")
    if not resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("E211", "the folder is not empty", str(folder), "Choose another one, or resume the run in it")


def _dotted(tables: dict[str, Any], path: str = "") -> Iterator[str]:
    """ "section.key" of every value."""
    for key, value in tables.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _dotted(value, name)
        else:
            yield name


def one_thread() -> Any:
    """Local steps are too small for torch's threads, which collapse on a busy machine; restored afterwards."""
    return _Threads() if torch.get_num_threads() > 1 else nullcontext()


class _Threads:
    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)


def _frame(lines: list[dict[str, Any]], nested: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    flat = []
    for line in lines:
        row = {name: value for name, value in line.items() if name not in nested}
        for part in nested:
            row |= {f"{part}_{name}": value for name, value in (line.get(part) or {}).items()}
        flat.append(row)
    return pd.DataFrame(flat)
