"""The runs that tests/test_kill.py kills. No test: a program.

    python tests/killed_run.py run FOLDER STATE [--resume]     one run, then the end
    python tests/killed_run.py serve                           a process that has loaded everything and forks a run for each line it reads

`serve` reads JSON lines. {"folder", "state", "resume", "die_at"} starts a run in a process of its own and answers {"pid"}; {"wait": pid}
answers {"status"}, negative for a signal. die_at: the run kills itself (SIGKILL) just before its file operation of that number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch

import fedaccord as fa

torch.set_num_threads(1)

ROUNDS = 30
CHECKPOINT_EVERY = 3
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


def start(task: fa.Task, folder: str, state: str, resume: bool) -> None:
    """Thirty rounds of FedSMOO on digits."""
    fa.run(
        task,
        fa.FedSMOO(rho=0.05),
        partition=fa.DirichletPerClass(alpha=0.3, clients=12),
        cohort=4,
        rounds=ROUNDS,
        seed=5,
        local=fa.LocalPlan(lr=0.1, epochs=1, batch_size=40),
        evaluate_every=10,
        checkpoint_every=CHECKPOINT_EVERY,
        state=state,
        folder=folder,
        resume=resume,
    )


def watch_operations(folder: str, die_at: int) -> list[int]:
    """Counts this process's file operations inside the folder, and kills it just before number `die_at` (0: never)."""
    done = [0]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in OPERATIONS and str(arguments[0]).startswith(folder):
            done[0] += 1
            if done[0] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return done


def forked(task: fa.Task, order: dict[str, object]) -> int:
    """The process id of a run of its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        folder = str(order["folder"])
        done = watch_operations(folder, int(str(order.get("die_at", 0))))
        start(task, folder, str(order["state"]), bool(order["resume"]))
        Path(f"{folder}.operations").write_text(str(done[0]))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(pid: int) -> int:
    """How the run ended, once it has."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve(task: fa.Task) -> None:
    """Until the input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps({"status": ended(order["wait"])} if "wait" in order else {"pid": forked(task, order)}), flush=True)


if __name__ == "__main__":
    digits = fa.digits(model="mlp", hidden=(16,))
    if sys.argv[1] == "serve":
        print(json.dumps({"ready": True}), flush=True)
        serve(digits)
    else:
        start(digits, sys.argv[2], sys.argv[3], "--resume" in sys.argv)
