"""Other frameworks beside ours, one at a time: the same data from one file, the same steps, counted; each in its own environment."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
from contestants import Contestant, NotHere, Ours
from interleaving import Aim, Row, at_least, one_turn, ratios, taking_turns
from peer_environments import environment
from workloads import WORKLOADS, Miscounted, Outcome, Workload, save

from fedaccord.runtime.cores import cores

HERE = Path(__file__).parent
PATIENCE = 300  # seconds for one answer


class Peer:
    """A script of peers/ in another environment, which does one round for each line that it is sent."""

    threads = 1

    def __init__(self, name: str, python: Path, script: str, workload: Workload, *options: str) -> None:
        self.name, self.workload = name, workload
        self._folder = tempfile.TemporaryDirectory(prefix="peer_")
        folder = Path(self._folder.name)
        save(workload, folder / "data.npz")
        self._log = folder / "log.txt"
        paths = os.pathsep.join(map(str, (HERE, HERE / "peers", HERE.parent / "src")))
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
        inherited = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [str(python), str(HERE / "peers" / f"{script}.py"), str(folder / "data.npz"), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            env={**inherited, **quiet, "PYTHONPATH": paths},
            cwd=folder,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        self.told: dict[str, Any] = {}
        self.start_up = 0.0  # seconds from the process's start to the end of its first round
        self.memory = 0.0  # GB resident after the last round, with its children
        try:
            self._answer()
        except NotHere:
            self.close()
            raise

    def work(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        self.told = self._answer()

    def outcome(self) -> Outcome:
        self.start_up = self.start_up or time.perf_counter() - self._started
        self.memory = max(self.memory, _resident(self._process.pid))
        return Outcome(self.told["examples"], self.told["steps"], self.told.get("moved"))

    def close(self) -> None:
        """The peer's children end with it; what does not is ended."""
        children = _children(self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in psutil.wait_procs(children, timeout=5)[1]:
            child.kill()
        self._folder.cleanup()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise NotHere(f"{self.name} did not answer within {PATIENCE} s") from None
        if not line:
            lines = [each.strip() for each in self._log.read_text(errors="replace").splitlines() if each.strip()]
            named = [each for each in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", each)]
            raise NotHere(f"{self.name} ended: {[*lines, *named][-1][:200] if lines else 'without a word'}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _read(stdout: IO[str], lines: queue.Queue[str]) -> None:
    for line in stdout:
        lines.put(line)
    lines.put("")


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _resident(pid: int) -> float:
    """GB of a process and its children; memory that they share counts once for each."""
    total = 0
    for each in [psutil.Process(pid), *_children(pid)]:
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 1e9


def beside(
    peer: str,
    work: str,
    blocks: int,
    share: float,
    folder: Path,
    torch_options: Sequence[str],
    *,
    kind: str = "",
    ours: str = "auto",
    cores_each: int = 1,
    aim: Aim | None = None,
) -> Iterator[Row]:
    """Turns of one peer and of ours: ratio of their times, for each core where the peer has fewer; the peer's start and memory."""
    name = f"{peer}{f', {kind} client' if kind else ''}"
    what = f"{name} / {ours}{', a core' if cores_each > 1 else ''}"
    workload, found = WORKLOADS[work](share), list[Contestant]()
    try:
        found.append(theirs := Peer(name, environment(peer, folder, torch_options), f"with_{peer}", workload, *filter(None, [kind])))
        found.append(Ours(workload, ours))
        seconds = taking_turns(found, blocks)
    except (NotHere, Miscounted) as reason:
        yield Row(work, what, aim=aim, note=str(reason))
        return
    finally:
        for each in found:
            each.close()
    yield Row(work, f"{name}: a round", seconds[name], unit="s")
    values = [each / cores_each for each in ratios(seconds, name, ours)]
    yield Row(work, what, values, aim)
    yield Row(work, f"{name}: start to end of first round", [theirs.start_up], unit="s")
    yield Row(work, f"{name}: resident", [theirs.memory], unit="GB")


def flower_rows(blocks: int, share: float, folder: Path, torch_options: Sequence[str]) -> Iterator[Row]:
    """Flower's simulation with its usual client, and with ours inside; its empty round against registered clients."""
    aims = {"W1": at_least(6), "W2": at_least(1.15)}
    for work, aim in aims.items():
        for kind in ("naive", "ours"):
            yield from _as(
                "flower",
                beside("flower", work, blocks, share, folder, torch_options, kind=kind, aim=aim if kind == "naive" else None),
            )
    for registered in (100, 1_000, 10_000):
        if registered <= 10_000 * share:
            yield _empty_flower(registered, blocks, folder, torch_options)


def _empty_flower(registered: int, blocks: int, folder: Path, torch_options: Sequence[str]) -> Row:
    """A hundred of the registered clients answer at once with what they were sent."""
    what, peer, taken = f"Flower: empty round, {registered} registered", None, []
    try:
        peer = Peer(what, environment("flower", folder, torch_options), "with_flower", WORKLOADS["W4"](0.1), "empty", str(registered))
        for _ in range(blocks + 1):
            taken.append(one_turn(peer))
            if peer.told["answers"] != 100:
                raise Miscounted(f"{peer.told['answers']} of 100 clients answered")
    except (NotHere, Miscounted) as reason:
        return Row("flower", what, note=str(reason), unit="s")
    finally:
        if peer:
            peer.close()
    return Row("flower", what, taken[1:], unit="s", note=f"the first took {taken[0]:.1f} s")


def pfl_rows(blocks: int, share: float, folder: Path, torch_options: Sequence[str]) -> Iterator[Row]:
    """pfl has one process: held against all cores of ours, then for each core."""
    both = beside("pfl", "W1", blocks, share, folder, torch_options, cores_each=cores(), aim=at_least(1.5))
    yield from _as("pfl", both)
    yield from _as("pfl", beside("pfl", "W2", blocks, share, folder, torch_options, cores_each=cores()))


def blazefl_rows(blocks: int, share: float, folder: Path, torch_options: Sequence[str]) -> Iterator[Row]:
    for work in ("W1", "W2"):
        yield from _as("blazefl", beside("blazefl", work, blocks, share, folder, torch_options))


def fedjax_rows(blocks: int, share: float, folder: Path, torch_options: Sequence[str]) -> Iterator[Row]:
    """fedjax compiles one program for a device; JAX uses what cores it wants."""
    yield from _as("fedjax", beside("fedjax", "W1", blocks, share, folder, torch_options))
    yield from _as("fedjax", beside("fedjax", "W4", blocks, share, folder, torch_options))


def _as(section: str, rows: Iterator[Row]) -> Iterator[Row]:
    """With the peer's name as the work, so that the rows of one section lie together in the table."""
    for row in rows:
        yield Row(f"{section} {row.work}", row.what, row.values, row.aim, row.unit, row.note)
