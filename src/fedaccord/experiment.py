"""One experiment: its sections as dataclasses, and how they become a federation that is ready to run.

A section is a part of the package, a key is a field. `config.py` reads the sections from TOML; `fedaccord.run` takes them as Python
objects.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from fedaccord.aggregation.guard import Guard
from fedaccord.aggregation.memory import Quarantine
from fedaccord.aggregation.policies import POLICIES
from fedaccord.aggregation.policies.trust import check_counted_once
from fedaccord.aggregation.policy import BySize, Policy
from fedaccord.aggregation.projection import Projection
from fedaccord.aggregation.rollout import Rollout
from fedaccord.aggregation.screen import Screen
from fedaccord.aggregation.screens import SCREENS
from fedaccord.aggregation.trust import Trust
from fedaccord.algorithms import REGISTRY, FedAvg
from fedaccord.attacks import ATTACKS, Attack, Attacked, poisoned
from fedaccord.channel.key_holder import KeyHolder
from fedaccord.channel.opening import MIN_CLIENTS
from fedaccord.channel.paillier import require_paillier
from fedaccord.channel.private_reward import PrivateReward
from fedaccord.core.algorithm import Algorithm, Count, Device, LocalParts, Positive, PositiveCount, Share
from fedaccord.core.errors import ConfigError, PartitionError
from fedaccord.core.local import LocalPlan, upload_template
from fedaccord.core.optimizer import LOCAL_OPTIMIZERS, LocalOptimizer
from fedaccord.core.reports import Evaluation, lower_is_better
from fedaccord.core.rng import stream
from fedaccord.core.schedule import SCHEDULES, Schedule
from fedaccord.core.server_optimizer import SERVER_OPTIMIZERS, ServerOptimized, ServerOptimizer
from fedaccord.core.state import children
from fedaccord.core.vector import Buffers, FlatModel, batch_norm_parameters
from fedaccord.federation import Federation, RunState, Target
from fedaccord.measures import Measures, PooledLoss, measure, unmeasured
from fedaccord.partition import IID, SCHEMES, Attributes, Partition, Partitioner, label_counts, summary
from fedaccord.runtime.base import Runtime
from fedaccord.runtime.choice import Chosen, choose
from fedaccord.runtime.client import Clients, Request
from fedaccord.runtime.evaluation import Metric, evaluate
from fedaccord.runtime.keeping import client_states
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.runtime.pool import Pool
from fedaccord.runtime.population import Population
from fedaccord.runtime.sequential import Sequential
from fedaccord.runtime.server_data import OwnExamples
from fedaccord.runtime.states import ClientState, ClientStates
from fedaccord.runtime.vectorized import Vectorized
from fedaccord.sampling import SAMPLERS, Favor, Sampler, Scripted, Uniform, most_seen
from fedaccord.tasks import Examples, Task
from fedaccord.tasks.memory import require_memory

MOST_LISTED = 10_000  # clients whose class counts a run writes down

Initial = Tensor | np.ndarray | nn.Module | Mapping[str, Tensor] | None
HeldOut = Annotated[float, Ge(0), Lt(1)]
TrainShare = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True)
class Aggregation:
    """Who counts for how much, and what happens to batch-norm statistics and other buffers."""

    policy: Policy | None = None  # left out: whom the screen's paper weighs how, mostly by size
    screen: Screen | None = None  # robust statistics before the policy; left out: none
    projection: Projection | None = None  # caps on the policy's weights; left out: of learned policies the default, of others none
    rollout: Rollout | None = None  # shadow, stages and breaker; left out: of learned policies the default, of others none
    quarantine: Quarantine = field(default_factory=Quarantine)
    root_examples: PositiveCount = 100  # of the validation data, that train the server's own update for screens and policies
    local_parts: LocalParts | Literal["method"] = "method"  # what stays with each client; method: what the method says, mostly none
    max_examples: Positive | None = None  # the largest sample count that a client may report; default: the training examples of the task
    private_reward: bool = False  # policies see each client's share of an encrypted sum of gains, and no client's metric (extra `privacy`)


@dataclass(frozen=True)
class Devices:
    """What clients compute on, for methods that give weak ones less to do. It changes how much they do, never the clock."""

    weak_share: Share = 0.0  # of the clients, drawn once
    gradients_per_second: Positive | None = None  # of a strong client, mini-batches; left out: unknown
    weak_speed: Annotated[float, Gt(0), Le(1)] = 0.25  # of a strong client's
    deadline: Positive | None = None  # seconds of computing that a round leaves a client; needs gradients_per_second


@dataclass(frozen=True)
class RunOptions:
    """How long, how many, how often."""

    rounds: PositiveCount = 100
    seed: Count = 0
    cohort: Sampler = field(default_factory=Uniform)
    client_test: HeldOut = 0.1  # share of each client's examples that only measure
    client_validation: HeldOut = 0.0  # share of each client's examples for its own choices (dynamic_sam's probe in warm-up)
    train_share: TrainShare = 1.0  # share of each client's other examples that trains, stratified, at least one; tuning begins with few
    evaluate_every: PositiveCount = 1  # rounds
    evaluate_clients_every: Count = 0  # rounds; 0: after the last round only
    evaluated_clients: PositiveCount = 10_000  # so many, drawn once, stand for a larger population on their own examples
    checkpoint_every: PositiveCount = 10  # rounds
    keep_weights: bool = True  # the global model after every round, not the last one only
    stop_metric: str = "accuracy"
    stop_at: float | None = None  # end early once the validation metric reaches this


@dataclass(frozen=True)
class Experiment:
    """All sections of one run."""

    partition: Partitioner = field(default_factory=lambda: IID(clients=10))
    algorithm: Algorithm = field(default_factory=FedAvg)
    local: LocalPlan = field(default_factory=LocalPlan)
    server_optimizer: ServerOptimizer | None = None
    aggregation: Aggregation = field(default_factory=Aggregation)
    devices: Devices = field(default_factory=Devices)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    run: RunOptions = field(default_factory=RunOptions)
    measures: Measures | None = None  # of the final model, taken once at the end of the run; None: not taken
    attack: Attack | None = None  # some clients are bad, to see what the rest of the experiment makes of them; None: nobody


class Prepared(NamedTuple):
    """An experiment with its data: ready to run."""

    federation: Federation
    start: RunState
    model: FlatModel
    data: Population
    partition: Partition
    experiment: Experiment  # nothing in it is open any more
    reason: str  # why this runtime
    bad: tuple[int, ...] = ()  # clients that attack


def prepare(experiment: Experiment, task: Task, initial: Initial = None, state_folder: Path | None = None) -> Prepared:
    """Draw the partition, build the model and put the rooms together.

    initial: where to start instead of the model's own weights: a vector [d], a module, or named tensors (with their buffers).
    state_folder: where client state may lie on disk. Raises E307 where the data or the clients' state would not fit in memory, E306
    where model and data do not fit each other, E203 where a cohort cannot be drawn, partition errors as they come.
    """
    run, seed = experiment.run, experiment.run.seed
    task.check()
    if experiment.devices.deadline is not None and experiment.devices.gradients_per_second is None:
        what, remedy = "a deadline says nothing of devices whose speed is unknown", "Give devices.gradients_per_second as well"
        raise ConfigError("E208", what, "devices.deadline", remedy)
    algorithm = experiment.algorithm
    if experiment.server_optimizer:
        algorithm = ServerOptimized(algorithm, experiment.server_optimizer)
    model = flat_model(experiment, task)
    data, partition = share_out(experiment, task)
    bad: tuple[int, ...] = ()
    if experiment.attack is not None:
        experiment.attack.check(task.num_classes)
        bad = experiment.attack.bad(len(data), seed)
        data = poisoned(data, experiment.attack, bad, task.num_classes)
    w, buffers = (model.initial_w, model.initial_buffers) if initial is None else _given(initial, model)
    has_local_buffers = local_parts_of(experiment) != "none" and bool(model.initial_buffers)
    like = ClientState(algorithm.init_client(w), buffers if has_local_buffers else {}, _first_moments(experiment.local, model))
    most = most_seen(run.cohort, len(data), run.rounds)  # who is never asked keeps nothing
    states, settled = client_states(experiment.runtime, like, most, state_folder)
    experiment = replace(experiment, runtime=settled)
    clients = Clients(
        model,
        task.loss.to(w.device) if isinstance(task.loss, nn.Module) else task.loss,
        data,
        local_buffers=has_local_buffers,
        device_of=partial(_device, experiment.devices, _weak_clients(experiment, len(data))),
        debug=experiment.runtime.debug,
        captures=experiment.runtime.step != "eager" and not model.initial_buffers and w.device.type == "cpu",
    )
    max_examples = experiment.aggregation.max_examples or max(task.num_examples, int(partition.shards.sizes.max()))
    template = upload_template(algorithm, w, model.layout)
    if not all(isinstance(leaf, Tensor) for leaf in children(template).values()) or "delta" not in children(template):
        what = f"{type(experiment.algorithm).__name__} uploads {sorted(children(template))}"
        raise ConfigError("E216", what, "algorithm", "An upload is a NamedTuple of tensors, and one of them is called delta")
    if experiment.local.same_masks and w.device.type != "cpu":
        what = "the same dropout masks in every pass are drawn on the CPU alone"
        raise ConfigError("E208", what, "local.same_masks", "Leave it out, or use runtime.device = 'cpu'")
    _check_cohorts(run, len(data), algorithm.signals(like.kept).keys(), type(experiment.algorithm).__name__)
    if isinstance(run.cohort, Favor):
        of_global = ("loss", *task.metrics) if task.validation and not has_local_buffers else ()
        run.cohort.check(of_global, len(data), model.layout.size)
    chosen = _choice(experiment, algorithm, clients, w, buffers)
    guard = Guard(template, {} if has_local_buffers else model.initial_buffers, model.layout, max_examples)
    experiment = replace(experiment, aggregation=_settled(experiment.aggregation))
    server_data = _server_data(experiment, task, model, has_local_buffers)
    trust = _trust(experiment, guard, server_data is not None)
    if run.stop_at is not None and task.validation is None:
        remedy = "Give the task validation data (validation = 0.1 carves a tenth of the training data), or leave run.stop_at out"
        raise ConfigError("E208", "stopping early needs validation data, since the test set makes no choices", "run.stop_at", remedy)
    if run.stop_at is not None and has_local_buffers:
        what, remedy = "no global model is measured where clients keep parts of it", "Leave run.stop_at out, or share all parts"
        raise ConfigError("E208", what, "run.stop_at", remedy)
    if run.stop_at is not None and run.stop_metric not in {"loss", *task.metrics}:
        known = f"The task measures {', '.join(['loss', *task.metrics])}"
        raise ConfigError("E205", f"unknown metric {run.stop_metric!r}", "run.stop_metric", known)
    runtime = _runtime(chosen, clients, task.metrics, states)
    federation = Federation(
        algorithm=algorithm,
        runtime=runtime if experiment.attack is None else Attacked(runtime, experiment.attack, bad, seed),
        trust=trust,
        plan=experiment.local,
        rounds=run.rounds,
        seed=seed,
        evaluate_test=_evaluator(model, task, task.test, "test", has_local_buffers),
        evaluate_validation=_evaluator(model, task, task.validation, "validation", has_local_buffers),
        sampler=run.cohort,
        server_data=server_data,
        evaluate_every=run.evaluate_every,
        evaluate_clients_every=run.evaluate_clients_every,
        evaluated_clients=run.evaluated_clients,
        stop_at=None if run.stop_at is None else Target(run.stop_metric, run.stop_at, falling=lower_is_better(run.stop_metric)),
        private_reward=_private_reward(experiment, trust.policy),
    )
    experiment = replace(experiment, runtime=chosen.options)
    return Prepared(federation, federation.start(w, buffers), model, data, partition, experiment, chosen.reason, bad)


def _settled(aggregation: Aggregation) -> Aggregation:
    """With what was left open: the screen's policy, and a learned policy's caps and breaker."""
    policy = aggregation.policy or (BySize() if aggregation.screen is None else aggregation.screen.policy())
    is_learned = policy.is_learned
    return replace(
        aggregation,
        policy=policy,
        projection=aggregation.projection or (Projection() if is_learned else None),
        rollout=aggregation.rollout or (Rollout() if is_learned else None),
    )


def _trust(experiment: Experiment, guard: Guard, has_data: bool) -> Trust:
    """The pipeline; what can fail for want of data or clients fails now."""
    own = experiment.aggregation
    screen, policy = own.screen, own.policy
    assert policy is not None
    policy.check()
    check_counted_once(policy, experiment.algorithm)
    if screen is not None:
        if screen.needs_root and not has_data:
            what = f"{type(screen).__name__} needs examples on the server, and the task has no validation data that the global model fits"
            remedy = "Give the task validation data (validation = 0.1), keep no buffers local, or use another screen"
            raise ConfigError("E208", what, "aggregation.screen", remedy)
        for size in _cohort_sizes(experiment.run.cohort):
            screen.check_cohort(size)
    if screen is not None and screen.combines and not isinstance(policy, BySize):
        what = f"{type(screen).__name__} knows no weights, so {type(policy).__name__} would change nothing"
        raise ConfigError("E208", what, "aggregation.policy", "Leave the policy or the screen out")
    return Trust(guard, policy, screen, own.projection, own.rollout, own.quarantine)


def _private_reward(experiment: Experiment, policy: Policy) -> PrivateReward | None:
    """E208 where nobody would look at it or no sum could be opened, E209 without the extra `privacy`."""
    if not experiment.aggregation.private_reward:
        return None
    where = "aggregation.private_reward"
    if not policy.wants_client_metrics:
        what = f"{type(policy).__name__} looks at no client's metric, so there is nothing to hide from it"
        raise ConfigError("E208", what, where, "Leave it out, or use a policy that learns from the clients' gains")
    smallest = min(_cohort_sizes(experiment.run.cohort), default=MIN_CLIENTS)
    if smallest < MIN_CLIENTS:
        what = f"a sum of gains is opened from {MIN_CLIENTS} clients, and a cohort has {smallest}"
        raise ConfigError("E208", what, where, f"Ask at least {MIN_CLIENTS} clients a round, or leave it out")
    require_paillier()
    return PrivateReward(KeyHolder)


def _cohort_sizes(sampler: Sampler) -> list[int]:
    """The sizes that are known before anything is drawn."""
    if isinstance(sampler, Scripted):
        return sorted({len(cohort) for cohort in sampler.cohorts})
    size = getattr(sampler, "asks", getattr(sampler, "size", None))
    return [size] if isinstance(size, int) else []


def _server_data(experiment: Experiment, task: Task, model: FlatModel, has_local_buffers: bool) -> OwnExamples | None:
    if task.validation is None or len(task.validation) == 0 or has_local_buffers:
        return None
    device, loss = model.initial_w.device, task.loss
    x, y = task.validation.x.to(device), task.validation.y.to(device)
    moved = loss.to(device) if isinstance(loss, nn.Module) else loss
    return OwnExamples(model, moved, x, y, experiment.local, experiment.run.seed, experiment.aggregation.root_examples)


def _choice(experiment: Experiment, algorithm: Algorithm, clients: Clients, w: Tensor, buffers: Buffers) -> Chosen:
    """Where the clients run."""
    run, plan = experiment.run, experiment.local
    lr = plan.lr * plan.schedule.factor(1, run.rounds)
    request = Request(algorithm, algorithm.broadcast(algorithm.init_server(w)), buffers, plan, 1, lr)
    cohort = run.cohort.draw(1, len(clients.data), run.seed)
    return choose(experiment.runtime, clients, request, [int(client) for client in cohort], run.rounds)


def _runtime(chosen: Chosen, clients: Clients, metrics: Mapping[str, Metric], states: ClientStates) -> Runtime:
    if chosen.options.name == "vectorized":
        return Vectorized(clients, metrics, states, chosen.per_example, chosen.options.block, chosen.options.workers or 1)
    if chosen.options.name == "pool":
        return Pool(clients, metrics, states, chosen.options.workers)
    return Sequential(clients, metrics, states)


def flat_model(experiment: Experiment, task: Task) -> FlatModel:
    """The task's model as this experiment trains it: parts that stay with the clients are no part of its vector."""
    module = task.build_model(experiment.run.seed).to(_place(experiment.runtime.device))
    return FlatModel(module, own=batch_norm_parameters(module) if local_parts_of(experiment) == "batch_norm" else ())


def _place(name: str) -> torch.device:
    """The device of this name. E208 where this machine, or this build of torch, has none."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        what = f"there is no device {name!r} here: {str(problem).splitlines()[0]}"
        raise ConfigError("E208", what, "runtime.device", "Use runtime.device = 'cpu', or a torch that supports it") from None
    return device


def local_parts_of(experiment: Experiment) -> LocalParts:
    """What stays with each client: as asked for, or as the method says."""
    asked = experiment.aggregation.local_parts
    return experiment.algorithm.local_parts if asked == "method" else asked


def _first_moments(plan: LocalPlan, model: FlatModel) -> Any:
    """What a client's optimiser keeps before its first round."""
    if not plan.keep_moments:
        return ()
    own = () if model.own is None else plan.optimizer.init(model.own.flatten(model.initial_buffers))
    return plan.optimizer.init(model.initial_w), own


def _weak_clients(experiment: Experiment, population: int) -> np.ndarray:
    """Who is weak, bool [N]."""
    weak, size = np.zeros(population, dtype=bool), round(experiment.devices.weak_share * population)
    weak[stream(experiment.run.seed, "devices").choice(population, size, replace=False)] = True
    return weak


def _device(devices: Devices, weak: np.ndarray, client: int) -> Device:
    is_weak, speed = bool(weak[client]), devices.gradients_per_second
    if is_weak:
        speed = speed and speed * devices.weak_speed
    return Device(is_weak, speed, devices.deadline)


def _check_cohorts(run: RunOptions, population: int, signals: Collection[str], method: str) -> None:
    """Samplers that can fail do so now, not in round 70."""
    missing = sorted(set(getattr(run.cohort, "looks_at", ())) - set(signals))
    if missing:
        what = f"{type(run.cohort).__name__} looks at {', '.join(missing)}, which {method} does not report"
        raise ConfigError("E208", what, "run.cohort", "Use it with dynamic_sam, or sample uniformly")
    rounds = run.rounds if isinstance(run.cohort, Scripted) else min(run.rounds, 1)
    for t in range(1, rounds + 1):
        run.cohort.draw(t, population, run.seed)


def share_out(experiment: Experiment, task: Task) -> tuple[Population, Partition]:
    """The partition of this seed, and each client's rows for training, for its own choices, and for measuring."""
    run, seed = experiment.run, experiment.run.seed
    attributes = Attributes(task.num_examples, task.labels, task.ids, task.site)
    partition = experiment.partition.split(attributes, stream(seed, "partition"))
    if not len(partition.shards):
        raise PartitionError("E311", "the partition has no clients", "partition")
    rest, held_out = partition.holdout(run.client_test, task.labels, stream(seed, "client-test"))
    of_rest = Partition(rest, duplicates=partition.duplicates)
    train, validation = of_rest.holdout(run.client_validation, task.labels, stream(seed, "client-validation"))
    if run.train_share < 1:
        train, _ = Partition(train, duplicates=partition.duplicates).holdout(1 - run.train_share, task.labels, stream(seed, "train-share"))
    x = task.train.x if partition.noise is None else _noisy(task.train.x, partition, seed)
    device = _place(experiment.runtime.device)
    return Population(x.to(device), task.train.y.to(device), train, validation, held_out, seed), partition


def _noisy(x: Tensor, partition: Partition, seed: int) -> Tensor:
    """Inputs with each client's own Gaussian noise, drawn once: an example looks the same in every epoch."""
    assert partition.noise is not None
    require_memory(x.numel() * x.element_size(), "a noisy copy of the inputs", "partition", "Use fewer examples")
    noisy = x.clone()
    for client, std in enumerate(partition.noise):
        rows = torch.from_numpy(partition.shards[client])
        drawn = stream(seed, "feature-noise", client).standard_normal((len(rows), *x.shape[1:]), dtype=np.float32)
        noisy[rows] += float(std) * torch.from_numpy(drawn).to(x.dtype)
    return noisy


def _given(initial: Tensor | np.ndarray | nn.Module | Mapping[str, Tensor], model: FlatModel) -> tuple[Tensor, Buffers]:
    """Weights [d] and buffers to start from. E112 where they are not this model's, or where frozen parameters differ."""
    named: Mapping[str, Any] = initial.state_dict() if isinstance(initial, nn.Module) else initial if isinstance(initial, Mapping) else {}
    tensors = {name: torch.as_tensor(value).detach() for name, value in named.items()}
    if named:
        trained = {*model.layout.names, *(model.own.names if model.own else ())}
        frozen = {name: p for name, p in model.module.named_parameters() if name not in trained and name in tensors}
        changed = [name for name, p in frozen.items() if not torch.equal(p, tensors[name])]
        if changed:
            what = f"the frozen parameter {changed[0]!r} is not the model's"
            raise ConfigError("E112", what, "initial", "Put frozen parameters into the task's model")
        w = model.layout.flatten(tensors).to(model.initial_w.device)
    else:
        w = torch.as_tensor(initial).detach().to(model.initial_w).reshape(-1).clone()
    if len(w) != model.layout.size:
        raise ConfigError("E112", f"the initial weights have {len(w)} numbers, the model has {model.layout.size}", "initial")
    if not torch.isfinite(w).all():
        raise ConfigError("E112", "the initial weights hold NaN or Inf", "initial")
    return w, {name: tensors[name].to(own).clone() if name in tensors else own for name, own in model.initial_buffers.items()}


def _evaluator(model: FlatModel, task: Task, examples: Examples | None, split: str, has_local_buffers: bool) -> Any:
    if examples is None or len(examples) == 0:
        return partial(_unmeasured, f"the task has no {split} data")
    if has_local_buffers:
        return partial(_unmeasured, "buffers are local to the clients: see their own metrics")

    device = model.initial_w.device
    x, y = examples.x.to(device), examples.y.to(device)

    def measure(w: Tensor, buffers: Buffers) -> Evaluation:
        return evaluate(model, w, buffers, x, y, task.loss, task.metrics)

    return measure


def _unmeasured(reason: str, w: Tensor, buffers: Buffers) -> Evaluation:
    return Evaluation(0, None, reason)


def measured(plan: Measures, experiment: Experiment, task: Task, model: FlatModel, data: Population, state: RunState) -> dict[str, Any]:
    """measures.json: how flat the global model of `state` lies, on examples drawn from those that the clients train on."""
    seed, pooled = experiment.run.seed, data.train.indices
    if local_parts_of(experiment) != "none" and state.buffers:
        found = unmeasured(plan, seed, "buffers are local to the clients, so the global model has none of its own")
    else:
        drawn = stream(seed, "measures", "examples").choice(pooled, min(plan.examples, len(pooled)), replace=False)
        pooled_loss = PooledLoss(model, state.buffers, task.loss, *data.examples_at(np.sort(drawn)))
        found = measure(plan, pooled_loss, state.server.w, seed)
    return {"round": state.round, **found}


def partition_summary(experiment: Experiment, task: Task, partition: Partition) -> dict[str, Any]:
    """partition.json: who has how much of what, before anything is held out. Of large populations, how much of everything, and no table."""
    is_large, has_classes = len(partition.shards) > MOST_LISTED, task.labels is not None and bool(task.num_classes)
    counts = label_counts(partition.shards, task.labels, task.num_classes) if has_classes and not is_large else None  # type: ignore[arg-type]
    notes = (f"more than {MOST_LISTED} clients: their counts of each class are not listed",) if has_classes and is_large else ()
    figures = summary(partition.shards, task.labels, task.num_classes)
    return {
        "scheme": repr(experiment.partition),
        "clients": len(partition.shards),
        "sizes": partition.shards.sizes.tolist(),
        "label_counts": None if counts is None else counts.tolist(),
        "class_names": None if task.class_names is None else list(task.class_names),
        "notes": [*partition.notes, *notes],
        "measures": {name: value for name, value in figures.items() if value is not None and math.isfinite(value)},
    }


CHOICES: dict[type, dict[str, type]] = {  # a field of this type is written as a table whose `name` picks the class
    Algorithm: dict(REGISTRY),
    Partitioner: dict(SCHEMES),
    LocalOptimizer: LOCAL_OPTIMIZERS,
    Schedule: SCHEDULES,
    ServerOptimizer: SERVER_OPTIMIZERS,
    Attack: ATTACKS,
    Policy: POLICIES,
    Screen: SCREENS,
    Sampler: SAMPLERS,
}


SECTIONS = Experiment | Aggregation | Devices | RuntimeOptions | RunOptions | LocalPlan | Measures | Projection | Rollout | Quarantine


def plain(value: Any) -> Any:
    """An experiment, or a part of it, as the nested tables of the TOML file: every default written out, None left out."""
    if is_dataclass(value) and not isinstance(value, type):
        table = {each.name: plain(getattr(value, each.name)) for each in fields(value) if getattr(value, each.name) is not None}
        if isinstance(value, SECTIONS):
            return table
        names = [name for registry in CHOICES.values() for name, kind in registry.items() if kind is type(value)]
        return {"name": names[0] if names else f"{type(value).__module__}:{type(value).__qualname__}", **table}
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {"name": f"{type(value).__module__}:{type(value).__qualname__}"}
