"""Several runs at the same time: worker processes of one thread each. A run that crashes takes none of the others with it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord.cli.interrupts import Interrupts
from fedaccord.cli.places import STOP, Order
from fedaccord.cli.progress import Progress
from fedaccord.runs import short_id
from fedaccord.runtime.cores import CORES, cores
from fedaccord.telemetry import Event


@dataclass(frozen=True)
class Outcome:
    """How one run ended: finished, stopped, interrupted, failed, or not begun."""

    order: Order
    state: str
    error: dict[str, Any] | None = None
    exit_code: int = 0
    traceback: str = ""


class Pool:
    """Trains orders in `jobs` processes."""

    def __init__(self, orders: Sequence[Order], jobs: int, progress: Progress, parent: Path | None) -> None:
        self._waiting: queue.SimpleQueue[Order] = queue.SimpleQueue()
        for order in orders:
            self._waiting.put(order)
        self._orders, self._progress, self._parent = list(orders), progress, parent
        self._jobs = max(1, min(jobs, len(orders)))
        self._outcomes: dict[Path, Outcome] = {}
        self._workers: set[subprocess.Popen[str]] = set()
        self._lock, self._asked = threading.Lock(), 0

    def run(self) -> list[Outcome]:
        """Until all are done. Ctrl-C once: the running ones finish their round and save, no further one begins. Twice: all stop at once."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._jobs)]
        with Interrupts(self._interrupt):
            for thread in threads:
                thread.start()
            try:
                while alive := [thread for thread in threads if thread.is_alive()]:
                    alive[0].join(0.1)
            except KeyboardInterrupt:
                for thread in threads:
                    thread.join(5)
                self._signal(signal.SIGKILL)
        return [self._outcomes.get(order.folder, Outcome(order, "not begun")) for order in self._orders]

    def _interrupt(self, count: int) -> None:
        self._asked = count
        self._progress.say("finishing the rounds, then saving; Ctrl-C again stops at once" if count == 1 else "stopping at once")
        self._signal(signal.SIGINT)

    def _signal(self, number: int) -> None:
        for worker in list(self._workers):
            if worker.poll() is None:
                worker.send_signal(number)

    def _stopped(self) -> bool:
        return self._asked > 0 or (self._parent is not None and (self._parent / STOP).exists())

    def _work(self) -> None:
        worker: subprocess.Popen[str] | None = None
        while not self._stopped():
            try:
                order = self._waiting.get_nowait()
            except queue.Empty:
                break
            if worker is not None and worker.poll() is not None:
                self._dismiss(worker)
                worker = None
            worker = worker or self._hire()
            outcome = self._train(worker, order)
            with self._lock:
                self._outcomes[order.folder] = outcome
        if worker is not None:
            self._dismiss(worker)

    def _hire(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            CORES: str(max(1, cores() // self._jobs)),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        }
        worker = subprocess.Popen(
            [sys.executable, "-m", "fedaccord.cli.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
            start_new_session=True,  # the terminal's Ctrl-C comes here, and is passed on
        )
        self._workers.add(worker)
        return worker

    def _dismiss(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdin and worker.stdout
        with contextlib.suppress(OSError):
            worker.stdin.close()
        worker.kill()  # what it did is on disk, and it has nothing left to do
        worker.wait()
        worker.stdout.close()
        self._workers.discard(worker)

    def _train(self, worker: subprocess.Popen[str], order: Order) -> Outcome:
        assert worker.stdin and worker.stdout
        run_id = short_id(order.folder)
        self._progress.begin(run_id, order.label, order.resolved.experiment.run.rounds)
        resume = (order.folder / "experiment.toml").exists()
        if not resume:  # what a run left that died while its folder was made
            shutil.rmtree(order.folder, ignore_errors=True)
        task = {"tables": order.resolved.tables, "sources": order.resolved.sources, "folder": str(order.folder), "resume": resume}
        try:
            worker.stdin.write(json.dumps(task) + "\n")
            worker.stdin.flush()
            for line in worker.stdout:
                message = json.loads(line)
                if message["kind"] == "event":
                    self._progress.emit(run_id, Event(**message["event"]))
                else:
                    return self._ended(run_id, order, message)
        except (OSError, ValueError):
            pass  # it died before it could read, or in the middle of a line
        code = worker.wait()
        if self._asked:
            self._progress.end(run_id)
            return Outcome(order, "interrupted", exit_code=130)
        why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        error = {
            "code": "E701",
            "what": f"the process that trained it died ({why})",
            "where": str(order.folder),
            "remedy": "Resume it; a kill may mean too little memory",
        }
        self._progress.end(run_id, f"failed: {error['what']}")
        return Outcome(order, "failed", error, 70)

    def _ended(self, run_id: str, order: Order, message: dict[str, Any]) -> Outcome:
        if message["kind"] == "done":
            state = str(message["status"]["state"])
            self._progress.end(run_id, "" if state == "finished" else f"stopped after round {message['status']['round']}, saved")
            return Outcome(order, state)
        if message["kind"] == "interrupted":
            self._progress.end(run_id)
            return Outcome(order, "interrupted", exit_code=130)
        error = message["error"]
        self._progress.end(run_id, f"failed: {error['code']} {error['what']}")
        return Outcome(order, "failed", error, int(message["exit_code"]), str(message["traceback"]))
