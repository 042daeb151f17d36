"""What a run leaves on disk, and how it is taken up again.

    experiment.toml      resolved, every default written out, and where each value came from
    provenance.json      commit, versions, seed, data hash
    partition.json       sizes and label counts of the clients
    status.json          state, round, error
    rounds.jsonl         one line a round
    clients.jsonl        one line a (round, client)
    measures.json        where asked: how flat the final model lies
    weights/0007.safetensors    where asked: the global model after each round
    orders.jsonl         what an operator asked of it: clients released, a policy promoted or rolled back
    checkpoints/0400/    server.safetensors, trust.json and .safetensors, clients.safetensors, progress.json; written aside, then renamed
    clients/             what clients keep, where it lies on disk: a checkpoint names the rows

A checkpoint names the lengths of the two .jsonl files, so a resumed run drops the lines that came after it. Nothing is ever pickled.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedaccord.core.arrays import load_arrays, save_arrays
from fedaccord.core.errors import ConfigError, FedaccordError, StorageError
from fedaccord.core.reports import ClientReport, Evaluation, RoundReport
from fedaccord.core.state import State, from_arrays, to_arrays
from fedaccord.core.toml import to_toml
from fedaccord.core.vector import Buffers

KEPT_CHECKPOINTS = 2


@dataclass
class Record:
    """A run as plain data: what reports, tables and `show` read."""

    experiment: dict[str, Any]  # resolved, nested by section
    sources: dict[str, str] = field(default_factory=dict)  # "algorithm.rho" -> default | file | environment | command line | call
    provenance: dict[str, Any] = field(default_factory=dict)
    partition: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    folder: Path | None = None
    measures: dict[str, Any] = field(default_factory=dict)  # of the global model after `round`; empty where none were taken


def lines_of(
    report: RoundReport, clients: tuple[ClientReport, ...], evaluations: tuple[tuple[int, Evaluation], ...]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The line of rounds.jsonl and those of clients.jsonl. Tuples become lists, as they come back from disk."""
    client_lines = [each.record() for each in clients] + [each.record(report.round, client) for client, each in evaluations]
    round_line: dict[str, Any] = json.loads(json.dumps(report.record(), allow_nan=False))
    return round_line, client_lines


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turns the operating system's complaints about `path` into our errors."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "Free some space, then: fedaccord resume RUN. Nothing before the last checkpoint is lost"
            raise StorageError("E321", f"the disk is full ({problem.strerror})", str(path), remedy) from problem
        raise StorageError(
            "E323", f"{type(problem).__name__}: {problem.strerror or problem}", str(path), "Check the path and its permissions"
        ) from problem


class Remembered(NamedTuple):
    """What guard, screen, policy and breaker know: plain JSON data, and vectors by name."""

    facts: Mapping[str, Any]
    vectors: Mapping[str, Any]  # name -> tensor


class RunFolder:
    """One run's folder, opened by the process that runs it: a lock keeps a second process out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, record: Record, experiment_toml: str | None = None) -> RunFolder:
        """A new run. E211 where the folder holds one already. experiment_toml: the file's text, default the record's tables as they are."""
        with storage(path):
            path.mkdir(parents=True, exist_ok=True)
            if any(each.name != "clients" for each in path.iterdir()):  # client state on disk is laid out first, empty
                raise ConfigError("E211", "the folder is not empty", str(path), "Choose another --out, or: fedaccord resume RUN")
            folder = cls(path)
            folder.lock()
            try:
                (path / "checkpoints").mkdir()
                for name, content in (("provenance", record.provenance), ("sources", record.sources)):
                    _write(path / f"{name}.json", json.dumps(content, indent=1))
                _write(path / "partition.json", json.dumps(record.partition))  # a number for each client: not a line for each
                for name in ("rounds.jsonl", "clients.jsonl"):
                    (path / name).touch()
                # Last, and whole or not at all: where this file is, there is a run that can be resumed.
                _replace(path / "experiment.toml", to_toml(record.experiment) if experiment_toml is None else experiment_toml)
            except BaseException:
                folder.close()
                raise
        folder.set_status({"state": "running", "round": 0, "rounds": record.experiment["run"]["rounds"], "error": None})
        return folder

    def lock(self) -> None:
        """Take the run for this process. E212 where another one holds it (not where one merely looks whether it is held)."""
        with storage(self.path):
            self._lock = (self.path / ".lock").open("w")
            for patience in (0.05, 0.1, 0.2, None):
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    if patience:
                        time.sleep(patience)
            self.close()
            raise ConfigError("E212", "another process is running it", str(self.path), "Wait for it, or: fedaccord stop RUN")

    def close(self) -> None:
        """Let go of the run."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def set_status(self, status: dict[str, Any]) -> None:
        """state (running, finished, stopped, interrupted, failed), round, rounds, error; the run's short id is added."""
        with storage(self.path):
            _replace(self.path / "status.json", json.dumps({"run_id": short_id(self.path), **status}))

    def check_same(self, record: Record) -> Record:
        """The run as it was; E212 where the experiment or the data are not the ones it began with."""
        earlier = read(self.path)
        now = json.loads(json.dumps(record.experiment))
        changed = sorted(_differences(earlier.experiment, now))  # the file may have been edited as well: hence the hash
        for name, what in (("experiment_hash", "the experiment"), ("data_hash", "the data"), ("start_hash", "the initial weights")):
            if earlier.provenance.get(name) != record.provenance.get(name):
                changed.append(what)
        if earlier.partition != json.loads(json.dumps(record.partition)):
            changed.append("the partition")
        if changed:
            raise ConfigError(
                "E212",
                f"changed since the run began: {', '.join(changed)}",
                str(self.path),
                "Resume with what it began with, or start a new run",
            )
        return earlier

    def records(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The lines of rounds.jsonl and clients.jsonl."""
        return list(read_lines(self.path / "rounds.jsonl")), list(read_lines(self.path / "clients.jsonl"))

    def append(self, round_line: dict[str, Any], client_lines: list[dict[str, Any]]) -> None:
        """One round's records; NaN is a fault of ours."""
        with storage(self.path):
            for name, lines in (("rounds.jsonl", [round_line]), ("clients.jsonl", client_lines)):
                with (self.path / name).open("a") as file:
                    file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)

    def keep_weights(self, round: int, w: State) -> None:
        """Store the global model [d] after `round`."""
        with storage(self.path):
            (self.path / "weights").mkdir(exist_ok=True)
            save_arrays({"w": w}, self.path / "weights" / f"{round:06d}.safetensors")

    def weights(self, round: int) -> State:
        """The global model [d] after `round`. E210 where it was not kept."""
        path = self.path / "weights" / f"{round:06d}.safetensors"
        if not path.exists():
            raise ConfigError("E210", f"the weights of round {round} were not kept", str(self.path), "Set run.keep_weights = true")
        return load_arrays(path)["w"]

    def keep_measures(self, measures: dict[str, Any]) -> None:
        """Store, or replace, what was measured of the global model."""
        with storage(self.path):
            _replace(self.path / "measures.json", json.dumps(measures, allow_nan=False))

    def last_model(self) -> tuple[int, State, Buffers]:
        """(round, w [d], buffers) of the newest checkpoint. E210 before the first, E322 where it is damaged."""
        found = self.checkpoints()
        if not found:
            raise ConfigError("E210", "there is no checkpoint yet", str(self.path), "Wait for the first, or: fedaccord resume RUN")
        try:
            arrays = load_arrays(found[-1] / "server.safetensors")
            buffers = {name.removeprefix("buffers."): value for name, value in arrays.items() if name.startswith("buffers.")}
            return int(found[-1].name), arrays["server.w"], buffers
        except Exception as problem:
            what = f"the checkpoint cannot be read ({type(problem).__name__}: {problem})"
            raise StorageError("E322", what, str(found[-1])) from problem

    def checkpoint(
        self,
        round: int,
        state: State,
        trust: Remembered,
        save_clients: Callable[[Path], None],
        committed: Callable[[Path], None],
    ) -> None:
        """Make `round` the point that a resume starts from. Whole or not at all, whenever the process dies."""
        final = self.path / "checkpoints" / f"{round:06d}"
        aside = final.with_name(f".{final.name}.tmp")
        with storage(aside):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            save_clients(aside)
            save_arrays(to_arrays(state), aside / "server.safetensors")
            save_arrays(dict(trust.vectors), aside / "trust.safetensors")
            _write(aside / "trust.json", json.dumps(dict(trust.facts), allow_nan=False))
            lengths = {name: (self.path / name).stat().st_size for name in ("rounds.jsonl", "clients.jsonl")}
            _write(aside / "progress.json", json.dumps({"round": round, "lengths": lengths}))
            for file in [*aside.iterdir(), *(self.path / name for name in lengths)]:
                _to_disk(file)
            aside.rename(final)
            _to_disk(final.parent)
            committed(final)
        for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old, ignore_errors=True)

    def checkpoints(self) -> list[Path]:
        """Valid checkpoints, oldest first."""
        return sorted(path for path in (self.path / "checkpoints").glob("[0-9]*") if path.is_dir())

    def facts(self) -> dict[str, Any]:
        """What guard, screen, policy and breaker knew at the newest checkpoint; empty before the first. E322 where it is damaged."""
        found = self.checkpoints()
        file = found[-1] / "trust.json" if found else None
        if file is None or not file.exists():
            return {}
        try:
            facts: dict[str, Any] = json.loads(file.read_text())
            return facts
        except ValueError as problem:
            raise StorageError("E322", f"trust.json is not JSON ({problem})", str(found[-1])) from problem

    def restore(self, like: State, trust: Remembered, restore_clients: Callable[[Path | None], None]) -> tuple[int, State, Remembered]:
        """(round, state, trust) of the newest checkpoint; (0, like, trust) before the first. Drops the records that came after it."""
        for left in [*self.path.glob("weights/.tmp*"), *self.path.glob("checkpoints/.*.tmp/*")]:
            left.unlink()  # what a killed process was writing aside
        found = self.checkpoints()
        if not found:
            restore_clients(None)
            self._truncate({"rounds.jsonl": 0, "clients.jsonl": 0})
            return 0, like, trust
        newest = found[-1]
        try:
            progress = json.loads((newest / "progress.json").read_text())
            state = from_arrays(like, load_arrays(newest / "server.safetensors"))
            trust = Remembered(json.loads((newest / "trust.json").read_text()), load_arrays(newest / "trust.safetensors"))
            with storage(newest):
                restore_clients(newest)
        except FedaccordError:
            raise
        except Exception as problem:
            remedy = "Remove this checkpoint folder to resume from the one before (not where the clients' state lies on disk)"
            raise StorageError(
                "E322", f"the checkpoint cannot be read ({type(problem).__name__}: {problem})", str(newest), remedy
            ) from problem
        self._truncate(progress["lengths"])
        return int(progress["round"]), state, trust

    def _truncate(self, lengths: dict[str, int]) -> None:
        for name, length in lengths.items():
            with storage(self.path), (self.path / name).open("r+b") as file:
                file.truncate(length)

    def order(self, order: Mapping[str, Any]) -> None:
        """Leave an order of the operator for the process that runs it, or that resumes it."""
        with storage(self.path), (self.path / "orders.jsonl").open("a") as file:
            file.write(json.dumps(order, allow_nan=False) + "\n")

    def orders(self) -> list[dict[str, Any]]:
        """All orders since the run began."""
        return list(read_lines(self.path / "orders.jsonl"))

    def ask_to_stop(self) -> None:
        """Ask the process that runs it to finish its round, save and end."""
        with storage(self.path):
            (self.path / "stop").touch()

    def stop_asked(self) -> bool:
        return (self.path / "stop").exists()

    def clear_stop(self) -> None:
        (self.path / "stop").unlink(missing_ok=True)

    def is_running(self) -> bool:
        """Whether a process holds the run at this moment."""
        try:
            with (self.path / ".lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def read(path: Path) -> Record:
    """The run in this folder, as far as it has come. E210 where there is none, E322 where a file is damaged."""
    if not (path / "experiment.toml").is_file():
        raise ConfigError("E210", "no run is here", str(path), "See: fedaccord ls")
    contents: dict[str, Any] = {}
    for name in ("provenance", "partition", "status", "sources", "measures"):
        file = path / f"{name}.json"
        try:
            contents[name] = json.loads(file.read_text()) if file.exists() else {}
        except ValueError as problem:
            raise StorageError("E322", f"{file.name} is not JSON ({problem})", str(path)) from problem
    try:
        experiment = tomllib.loads((path / "experiment.toml").read_text())
    except ValueError as problem:
        raise StorageError("E322", f"experiment.toml is not TOML ({problem})", str(path)) from problem
    rounds, clients = RunFolder(path).records()
    return Record(experiment, **contents, rounds=rounds, clients=clients, folder=path)


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Dotted names of the values that differ between two nested tables."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a .jsonl file; a last line that is still being written is left out."""
    if not path.exists():
        return
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as problem:
                raise StorageError("E322", f"line {number} is not JSON ({problem})", str(path)) from problem


def find(root: Path) -> list[Path]:
    """The folders of all runs below `root`, oldest first; the runs of one comparison lie under one parent."""
    found = [
        path.parent for depth in ("*", "*/*") for path in root.glob(f"{depth}/experiment.toml") if (path.parent / "status.json").exists()
    ]
    return sorted(found, key=lambda path: (path / "provenance.json").stat().st_mtime)


def short_id(path: Path) -> str:
    """Four hexadecimal digits that stand for the folder: the end of its name, or a hash of the name where it was chosen by hand."""
    named = re.search(r"(?:^|_)([0-9a-f]{4})$", path.name)
    return named[1] if named else hashlib.sha256(path.name.encode()).hexdigest()[:4]


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text)
    aside.rename(path)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
