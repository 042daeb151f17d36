"""Which runs are one method, and whether they may be compared: `study(records)`.

A method is an algorithm's name together with the settings that vary between the runs given; its runs are the seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import lower_is_better
from fedaccord.report.source import Record, evaluations, last_round, metric_names, run_name, seed_of

BASELINE = "fedavg"

# Settings that say where a run is executed and how often it is looked at. Results do not depend on them.
_NOT_A_METHOD = ("runtime.", "telemetry.", "report.", "measures.")
_OF_THE_RUN = {
    f"run.{key}" for key in ("evaluate_every", "evaluate_clients_every", "evaluated_clients", "checkpoint_every", "keep_weights")
}


@dataclass(frozen=True, eq=False)
class Method:
    """One line of the report: an algorithm under one setting, a run for each seed (in the order of the seeds)."""

    label: str
    algorithm: str
    settings: tuple[tuple[str, str], ...]  # of the algorithm, those that vary between its runs
    context: tuple[tuple[str, str], ...]  # of the other sections, those that vary between any runs
    runs: tuple[Record, ...]

    @property
    def seeds(self) -> tuple[int | str, ...]:
        return tuple(seed_of(run) for run in self.runs)


@dataclass(frozen=True, eq=False)
class Study:
    """Runs that may stand in one report, and how they are read."""

    methods: tuple[Method, ...]
    metric: str | None  # None: no run was evaluated
    higher_is_better: bool
    fraction: bool  # the metric lies in [0, 1]: differences are shown in points of a hundred
    target: float | None
    window: int  # rounds of the mean that must meet the target
    last: int  # rounds of the tail mean
    notes: tuple[str, ...]

    @property
    def runs(self) -> tuple[Record, ...]:
        return tuple(run for method in self.methods for run in method.runs)

    def baseline_of(self, method: Method) -> Method | None:
        """FedAvg under the same other settings; failing that, the only FedAvg there is, if it trains on the same partition."""
        candidates = [other for other in self.methods if other.algorithm == BASELINE]
        if method.algorithm == BASELINE or not candidates:
            return None
        same = [other for other in candidates if other.context == method.context]
        if same:
            return same[0]
        return candidates[0] if len(candidates) == 1 and _partition(candidates[0]) == _partition(method) else None


def study(
    records: Sequence[Record], target: float | None = None, metric: str | None = None, window: int = 5, last: int | None = None
) -> Study:
    """Group `records` by method and check that they belong together.

    `metric`: by default the first test metric that is not 'loss'. `last`: 50 rounds, or a fifth of the rounds where no run has 100.
    Errors: E213 for no runs, for different tasks or for runs without the metric; E205 for a metric that nobody has; E203 for a bad window.
    """
    if not records:
        raise ConfigError("E213", "no run was given", remedy="name at least one run's folder")
    if window < 1 or (last is not None and last < 1):
        raise ConfigError("E203", f"window={window} and last={last} must be 1 or more", "report")
    _same_task(records)
    chosen = _metric(records, metric)
    notes: list[str] = []
    methods = _methods(records, notes)
    runs = [run for method in methods for run in method.runs]
    rounds = max(last_round(run) for run in runs)
    higher = chosen is None or not lower_is_better(chosen)
    values = [value for run in runs for value in evaluations(run, chosen).values()] if chosen else []
    notes += _unfinished(runs)
    hashes: dict[int | str, set[str]] = {}
    for run in runs:
        hashes.setdefault(seed_of(run), set()).add(str(run.provenance.get("data_hash")))
    if any(len(found) > 1 for found in hashes.values()):
        notes.append("Runs of one seed name different data hashes: they did not see the same data.")
    return Study(
        methods=tuple(methods),
        metric=chosen,
        higher_is_better=higher,
        fraction=higher and bool(values) and min(values) >= 0 and max(values) <= 1,
        target=target,
        window=window,
        last=last or (50 if rounds >= 100 else max(1, -(-rounds // 5))),
        notes=tuple(notes),
    )


def flatten(experiment: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as ``section.key`` -> text; equal values have equal text."""
    flat: dict[str, str] = {}
    for key, value in experiment.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def algorithm_of(record: Record) -> str:
    section = record.experiment.get("algorithm")
    return str(section.get("name", "unnamed") if isinstance(section, Mapping) else section or "unnamed")


def display_name(algorithm: str) -> str:
    """The class's name where the registry knows the method ("FedSMOO"), else the name as given, without its module."""
    from fedaccord.algorithms import REGISTRY

    known = REGISTRY.get(algorithm)
    return known.__name__ if known is not None else algorithm.rpartition(":")[2]


def _methods(records: Sequence[Record], notes: list[str]) -> list[Method]:
    flats = [_compared(record) for record in records]
    names = [algorithm_of(record) for record in records]
    others = _without_followers([{key: value for key, value in flat.items() if not key.startswith("algorithm.")} for flat in flats])
    own = {name: _varying([_of_algorithm(flat) for flat, of in zip(flats, names, strict=True) if of == name]) for name in set(names)}
    groups: dict[tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]], list[Record]] = {}
    for record, flat, name in zip(records, flats, names, strict=True):
        settings = tuple((key, flat.get(key, "unset")) for key in own[name])
        context = tuple((key, flat.get(key, "unset")) for key in others)
        groups.setdefault((name, settings, context), []).append(record)
    methods = []
    for (name, settings, context), runs in groups.items():
        label = display_name(name)
        differs = [f"{key.split('.', 1)[1]}={value}" for key, value in settings] + [f"{in_words(key)}={value}" for key, value in context]
        label += f" ({', '.join(differs)})" if differs else ""
        methods.append(Method(label, name, settings, context, _one_a_seed(label, runs, notes)))
    return sorted(methods, key=lambda method: method.algorithm != BASELINE)  # FedAvg first, the others as given


def _compared(record: Record) -> dict[str, str]:
    flat = flatten(record.experiment)
    kept = {key: value for key, value in flat.items() if not key.startswith(_NOT_A_METHOD) and key not in _OF_THE_RUN}
    kept = {key: value for key, value in kept.items() if key.rsplit(".", 1)[-1] != "seed"}
    if not any(key.startswith("partition") for key in kept) and record.partition.get("scheme") is not None:
        kept["partition.scheme"] = str(record.partition["scheme"])
    return kept


def _of_algorithm(flat: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in flat.items() if key.startswith("algorithm.")}


def _varying(flats: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for flat in flats for key in flat)
    return [key for key in keys if len({flat.get(key) for flat in flats}) > 1]


def _without_followers(flats: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that vary, but for those that follow from a name beside them: `attack.factor` is 3 wherever `attack.name` is sign_flip."""
    varying = _varying(flats)

    def follows(key: str) -> bool:
        name = f"{key.rpartition('.')[0]}.name"
        if key == name or name not in varying:
            return False
        values: dict[str | None, set[str | None]] = {}
        for flat in flats:
            values.setdefault(flat.get(name), set()).add(flat.get(key))
        return all(len(found) == 1 for found in values.values())

    return [key for key in varying if not follows(key)]


def in_words(key: str) -> str:
    """A key in a label: `aggregation.screen.name` is the screen."""
    return key.removesuffix(".name").rpartition(".")[2] if key.endswith(".name") else key


def _one_a_seed(label: str, runs: Sequence[Record], notes: list[str]) -> tuple[Record, ...]:
    """Two runs of one method and seed are one observation, not two: the longest counts, the later of equals."""
    chosen: dict[int | str, Record] = {}
    for run in runs:
        seed = seed_of(run)
        if seed in chosen:
            notes.append(f"{label} has seed {seed} more than once: only the longest run counts (the later of equals).")
        if seed not in chosen or last_round(run) >= last_round(chosen[seed]):
            chosen[seed] = run
    return tuple(chosen[seed] for seed in sorted(chosen, key=lambda seed: (isinstance(seed, str), str(seed).zfill(20))))


def _metric(records: Sequence[Record], asked: str | None) -> str | None:
    offered = [(record, metric_names(record)) for record in records]
    evaluated = [(record, names) for record, names in offered if names]
    if not evaluated:
        if asked is not None:
            raise ConfigError("E205", f"no run has a metric '{asked}'", "report", "no round was evaluated on the test set")
        return None
    everything = list(dict.fromkeys(name for _, names in evaluated for name in names))
    if asked is not None and asked not in everything:
        raise ConfigError("E205", f"no run has a metric '{asked}'", "report", f"take one of {', '.join(everything)}")
    shared = [name for name in everything if all(name in names for _, names in evaluated)]
    chosen = asked or next((name for name in [*shared, *everything] if name != "loss"), everything[0])
    for record, names in evaluated:
        if chosen not in names:
            raise ConfigError(
                "E213", f"metric '{chosen}' is missing", f"run {run_name(record)} has {', '.join(names)}", "report these runs apart"
            )
    return chosen


def _same_task(records: Sequence[Record]) -> None:
    flats = [flatten({"task": record.experiment.get("task") or {}}) for record in records]
    differing = [key for key in _varying(flats) if not key.startswith("task.model") and key.rsplit(".", 1)[-1] not in {"seed"}]
    if differing:
        key = differing[0]
        values = sorted({str(flat.get(key, "unset")) for flat in flats})
        raise ConfigError("E213", f"the runs solve different tasks: {key} is {' and '.join(values)}", "report", "report each task apart")


def _unfinished(runs: Sequence[Record]) -> list[str]:
    notes = []
    for run in runs:
        state = str(run.status.get("state", "finished"))
        if state != "finished":
            error = run.status.get("error") or {}
            cause = f" ({error.get('code')} {error.get('what', '')})".rstrip() if isinstance(error, Mapping) and error else ""
            asked = run.status.get("rounds")
            of = f" of {asked}" if asked else ""
            notes.append(f"Run {run_name(run)} is {state} at round {last_round(run)}{of}{cause}: its figures are of that round.")
    return notes


def _partition(method: Method) -> list[tuple[str, str]]:
    return [item for item in method.context if item[0].startswith("partition")]
