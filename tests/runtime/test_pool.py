"""pool.py: worker processes give the bits of one client after another, and nothing stays behind, however a process ends."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.algorithms import REGISTRY
from fedaccord.checks.trial import PLAN, Trace, bits, make_task, prepare_trial, traced, with_batch_norm_and_dropout
from fedaccord.core.errors import ConfigError, NonFiniteError, UploadError, WorkerDied
from fedaccord.experiment import Prepared, RuntimeOptions
from fedaccord.runtime import crew as crew_module
from fedaccord.runtime.crew import IS_WORKER, Crew
from fedaccord.runtime.pool import Pool

METHODS = ["fedavg", "scaffold", "fedsmoo", "dynamic_sam", "noise_adaptive_sam", "fedbn", "moon"]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Two workers for all tests of this file: to start one takes seconds."""
    shared = Crew(2)
    yield shared
    shared.close()


def pooled(prepared: Prepared, crew: Crew) -> Prepared:
    """The same federation in the crew's workers."""
    runtime: Any = prepared.federation.runtime
    pool = Pool(runtime._clients, runtime._metrics, runtime._states, crew=crew)
    return prepared._replace(federation=replace(prepared.federation, runtime=pool))


def both(crew: Crew, algorithm: fa.Algorithm, *arguments: Any, **options: Any) -> tuple[Trace, Trace]:
    one, other = (prepare_trial(algorithm, *arguments, **options) for _ in range(2))
    return traced(one), traced(pooled(other, crew))


def assert_same(one: Trace, other: Trace) -> None:
    """Every round's server state, clients' state, reports and uploads."""
    assert one.bits() == other.bits() and one.settled == other.settled
    for ours, theirs in zip(one.uploads, other.uploads, strict=True):
        assert list(ours) == list(theirs) and [bits(each) for each in ours.values()] == [bits(each) for each in theirs.values()]


def train(made: Prepared, clients: Sequence[int], w: Tensor | None = None, round: int = 1) -> list[Any]:
    federation = made.federation
    sent = federation.algorithm.broadcast(made.start.server if w is None else made.start.server._replace(w=w))
    return federation.runtime.train(federation.algorithm, sent, made.start.buffers, clients, federation.plan, round, PLAN.lr)


@pytest.mark.parametrize("name", METHODS)
def test_the_bits_are_those_of_one_client_after_another(crew: Crew, name: str) -> None:
    """Ragged clients, batch norm, dropout, moments that are kept, the clients' own validation examples."""
    plan = replace(PLAN, optimizer=fa.Sgd(momentum=0.9), keep_moments=True)
    one, other = both(crew, REGISTRY[name](), make_task(with_batch_norm_and_dropout), local=plan, client_validation=0.2)
    assert_same(one, other)
    assert any(one.states[-1].values()) and not torch.equal(one.w, one.prepared.start.server.w)


@pytest.mark.parametrize(
    "options", [{"optimizer": fa.Adam(), "keep_moments": True}, {"precision": "float16"}, {"batch_size": "full"}], ids=str
)
def test_other_plans_give_the_same_bits(crew: Crew, options: dict[str, Any], tmp_path: Path) -> None:
    runtime = RuntimeOptions(state="disk")
    traces = [
        traced(made if at == "here" else pooled(made, crew))
        for at in ("here", "there")
        for made in [prepare_trial(fa.FedSMOO(), local=replace(PLAN, **options), folder=tmp_path / at, runtime=runtime, cohorts=None)]
    ]
    assert_same(*traces)


def test_another_cohort_model_or_method_needs_no_new_workers(crew: Crew) -> None:
    train(pooled(prepare_trial(fa.FedAvg()), crew), range(7))
    before = [worker.process.pid for worker in crew.workers]
    assert_same(*both(crew, fa.Scaffold(), cohorts=[[6], [], [5, 4], range(7)]))
    assert len(before) == 2 and [worker.process.pid for worker in crew.workers] == before


def test_both_workers_train_and_answers_come_in_the_order_asked(crew: Crew) -> None:
    made = pooled(prepare_trial(Pids(), local=replace(PLAN, epochs=20)), crew)
    train(made, range(7))
    while any(worker.loads for worker in crew.workers):
        train(made, range(7))
    answers = train(made, [6, 0, 3, 2, 5, 1, 4])
    assert [answer.client for answer in answers] == [6, 0, 3, 2, 5, 1, 4]
    assert {int(answer.upload.process) for answer in answers} == {worker.process.pid for worker in crew.workers}


class WithPid(NamedTuple):
    delta: Tensor
    process: Tensor


class Pids(fa.Algorithm):
    def upload(self, w: Tensor, sent: Any, local: Any, work: Any) -> tuple[Any, Any]:
        return WithPid(w - sent.w, torch.tensor(float(os.getpid()))), local


def test_what_was_returned_is_ours_and_no_later_round_changes_it(crew: Crew) -> None:
    made = pooled(prepare_trial(fa.Scaffold()), crew)
    runtime: Any = made.federation.runtime
    first = train(made, [0, 1, 2])
    runtime.settle({0, 1})
    before = [bits(answer.upload) for answer in first], [bits(runtime.client_state(client)) for client in (0, 1)]
    train(made, range(7), round=2)
    assert before == ([bits(answer.upload) for answer in first], [bits(runtime.client_state(client)) for client in (0, 1)])
    assert runtime.client_state(2) is None


def failing(outputs: Tensor, y: Tensor) -> Tensor:
    if outputs.requires_grad and bool((y == y[0]).all()):
        raise RuntimeError("the loss does not like this batch")
    return F.cross_entropy(outputs, y)


def test_clients_that_fail_or_have_no_data_are_refused_with_the_same_words(crew: Crew) -> None:
    task = make_task(with_batch_norm_and_dropout, loss=failing)
    sizes = fa.Explicit([range(30), [], range(30, 52), range(52, 66), [66, 67], [68], range(69, 83)])
    one, other = both(crew, fa.Scaffold(), task, partition=sizes, cohorts=[range(7)] * 2, rounds=2)
    assert_same(one, other)
    refused = {each["client"]: each for each in other.results[0].report.refused}
    assert refused[1]["code"] == "E108" and refused[5]["code"] == "E107" and "does not like" in refused[5]["message"]
    assert other.results[0].report.accepted


def test_in_debug_the_first_client_in_the_order_asked_ends_the_run(crew: Crew) -> None:
    def debugged(**options: Any) -> Prepared:
        return prepare_trial(fa.FedAvg(), runtime=RuntimeOptions(debug=True), **options)

    messages = []
    for made in (debugged(), pooled(debugged(), crew)):
        made.data.x[made.data.train[5]] = made.data.x[made.data.train[1]] = float("nan")
        with pytest.raises(NonFiniteError) as caught:
            train(made, [6, 5, 0, 1])
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "E113" in messages[0] and "client 5" in messages[0]
    with pytest.raises(UploadError, match="E107") as raised:
        train(pooled(debugged(task=make_task(nn.Linear(6, 3), loss=failing)), crew), range(7))
    assert isinstance(raised.value.__cause__, RuntimeError) and "Raised in a worker process" in raised.value.__notes__[0]
    assert_same(*both(crew, fa.FedAvg()))


def test_after_the_first_client_that_raises_no_later_one_is_asked(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, order = list[int](), crew_module.Worker.order

    def noted(worker: crew_module.Worker, given: crew_module.Order, positions: list[int], clients: list[int]) -> None:
        asked.extend(clients)
        order(worker, given, positions, clients)

    monkeypatch.setattr(crew_module.Worker, "order", noted)
    monkeypatch.setattr(crew, "size", 1)
    made = pooled(prepare_trial(fa.FedAvg(), make_task(nn.Linear(6, 3), loss=raising), runtime=RuntimeOptions(debug=True)), crew)
    with pytest.raises(UploadError, match="client 0"):
        train(made, range(7))
    assert asked == [0, 1], "the second was on its way while the first trained"


def raising(outputs: Tensor, y: Tensor) -> Tensor:
    if outputs.requires_grad:
        raise RuntimeError("never")
    return F.cross_entropy(outputs, y)


class Trap(nn.Module):
    """Trains, until its first weight is large: then it kills its process."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if float(self.layer.weight.flatten()[0].detach()) > 100:
            os.kill(os.getpid(), signal.SIGKILL)
        out: Tensor = self.layer(x)
        return out


def test_a_worker_that_dies_is_named_with_its_clients_and_the_next_round_trains(crew: Crew) -> None:
    alone = prepare_trial(fa.FedAvg(), make_task(Trap()))
    sequential, made = alone.federation.runtime, pooled(alone, crew)
    d = len(made.start.server.w)
    with pytest.raises(WorkerDied, match=r"E702 a worker process died \(SIGKILL\) while it trained client 4\. .*Resume the run"):
        train(made, [4], torch.full((d,), 200.0))
    assert crew.workers == []
    after = train(made, range(7))
    here = train(made._replace(federation=replace(made.federation, runtime=sequential)), range(7))
    assert [bits(answer.upload) for answer in after] == [bits(answer.upload) for answer in here]


def test_an_interrupt_of_the_workers_does_not_end_their_round(crew: Crew) -> None:
    made = pooled(prepare_trial(fa.FedAvg()), crew)
    train(made, range(7))
    while any(worker.loads for worker in crew.workers):  # a signal before they listen ends them
        train(made, range(7))
    for worker in crew.workers:
        os.kill(worker.process.pid, signal.SIGINT)
        os.kill(worker.process.pid, signal.SIGTERM)
    assert len(train(made, range(7))) == 7


def test_a_task_that_cannot_be_sent_says_so(crew: Crew) -> None:
    generator = (number for number in range(3))

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) + 0 * len(str(generator))

    with pytest.raises(ConfigError, match=r"E217 the task .* cannot be sent to worker processes: .*generator"):
        train(pooled(prepare_trial(fa.FedAvg(), make_task(nn.Linear(6, 3), loss=loss)), crew), [0])


def test_a_worker_starts_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IS_WORKER, "1")
    with pytest.raises(ConfigError, match=r"E207 .*__main__"):
        train(pooled(prepare_trial(fa.FedAvg()), Crew(1)), [0])


def test_a_worker_that_dies_is_missed_even_where_its_socket_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it has forked."""
    crew = Crew(1)
    (worker,) = crew.hire(1, crew_module.Loaded(prepare_trial(fa.FedAvg()).federation.runtime._clients))  # type: ignore[attr-defined]
    worker.process.kill()
    monkeypatch.setattr(crew, "_selector", SimpleNamespace(select=lambda patience: []))
    with pytest.raises(WorkerDied, match=r"E702 a worker process died \(SIGKILL\) before it was ready"):
        crew.answering()


def test_workers_end_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they are even ready; a fork that lets go of them does not end them."""
    made = pooled(prepare_trial(fa.FedAvg()), Crew(1))
    runtime: Any = made.federation.runtime
    loaded = crew_module.Loaded(runtime._clients)
    (worker,) = runtime._dispatch.crew.hire(5, loaded)
    process = psutil.Process(worker.process.pid)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        runtime.close()
    assert process.is_running()
    del made, runtime, worker
    gc.collect()
    assert not process.is_running()


SCRIPT = """
import os, sys, time
from dataclasses import replace
from typing import NamedTuple
import torch
import torch.nn.functional as F
from torch import nn
import fedaccord as fa
from fedaccord.checks.trial import bits, make_task, prepare_trial
from fedaccord.runtime.pool import Pool

torch.set_num_threads(1)
SLOW = 100.0

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        if float(self.layer.weight.flatten()[0].detach()) > SLOW:
            print("asleep", flush=True)
            time.sleep(600)
        return self.layer(x)

class Sent(NamedTuple):
    delta: torch.Tensor
    twice: torch.Tensor

class Mine(fa.Algorithm):
    def upload(self, w, sent, local, work):
        print("words of a worker" if os.environ.get("FEDACCORD_WORKER") else "words of the script", file=sys.stderr)
        return Sent(w - sent.w, 2 * w), local

made = prepare_trial(Mine(), make_task(Net(), loss=lambda outputs, y: F.cross_entropy(outputs, y)))
here = made.federation.runtime
pool = Pool(here._clients, here._metrics, here._states, workers=WORKERS)
def train(runtime, w):
    return runtime.train(Mine(), made.start.server._replace(w=w), {}, range(7), made.federation.plan, 1, 0.1)
w = made.start.server.w
ours, theirs = train(here, w), train(pool, w)
same = [type(b.upload) is Sent and bits(a.upload) == bits(b.upload) for a, b in zip(ours, theirs)]
print("same", all(same), len(same), *[worker.process.pid for worker in pool._dispatch.crew.workers], flush=True)
if sys.argv[1:] == ["stay"]:
    train(pool, torch.full_like(w, 200.0))
"""


def start(arguments: list[str], script: str | None = None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if script is not None:
        assert process.stdin is not None
        process.stdin.write(script)
        process.stdin.close()
        process.stdin = None
    return process


def alive(pids: list[int]) -> list[int]:
    """Those of the processes that still run."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def test_a_script_without_a_main_guard_trains_what_it_defines(tmp_path: Path) -> None:
    """More workers than clients; what workers print goes to stderr; at the end all are gone, and nothing was said."""
    (tmp_path / "script.py").write_text(SCRIPT.replace("WORKERS", "1"))
    process = start([str(tmp_path / "script.py")])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    first, same, number, *pids = out.split()
    assert (first, same, number, len(pids)) == ("same", "True", "7", 1)
    assert sorted(set(err.splitlines())) == ["words of a worker", "words of the script"]
    assert alive([int(pid) for pid in pids]) == []


def test_after_a_kill_in_the_middle_of_a_round_nothing_stays_behind() -> None:
    """A script from stdin; its workers are asleep for ten minutes when it is killed."""
    before = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    process = start(["-", "stay"], SCRIPT.replace("WORKERS", "2"))
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline().split()
        assert line[:3] == ["same", "True", "7"], process.stderr.read()
        pids = [int(pid) for pid in line[3:]]
        while "asleep" not in process.stderr.readline():
            pass
        assert len(pids) == 2 and alive(pids) == pids
        if Path("/dev/shm").is_dir():
            assert {name for name in set(os.listdir("/dev/shm")) - before if "fedaccord" in name or "torch" in name} == set()
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive(pids) == []
    _, err = process.communicate()
    assert "Traceback" not in err and "resource_tracker" not in err
