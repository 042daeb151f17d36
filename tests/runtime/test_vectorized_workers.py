"""vectorized.py with workers: blocks in other processes, to the bits that the same blocks have here."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.algorithms import REGISTRY
from fedaccord.checks.trial import PLAN, FailsOnThree, bits, make_task, prepare_trial, shards, traced
from fedaccord.core.errors import ConfigError, WorkerDied
from fedaccord.experiment import Prepared
from fedaccord.runtime.crew import IS_WORKER, Crew
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.runtime.vectorized import Vectorized


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Two workers for all tests of this file: to start one takes seconds."""
    shared = Crew(2)
    yield shared
    shared.close()


def spread(prepared: Prepared, crew: Crew | None, block: int = 2) -> Prepared:
    """The same federation, vectorised in the crew's workers; None: in this process."""
    own: Any = prepared.federation.runtime
    per_example = own._side_by_side._per_example if isinstance(own, Vectorized) else None
    runtime = Vectorized(own._clients, own._metrics, own._states, per_example, block, crew=crew)
    return prepared._replace(federation=replace(prepared.federation, runtime=runtime))


def train(made: Prepared, clients: Sequence[int], w: Tensor | None = None) -> list[Any]:
    federation = made.federation
    sent = federation.algorithm.broadcast(made.start.server if w is None else made.start.server._replace(w=w))
    return federation.runtime.train(federation.algorithm, sent, made.start.buffers, clients, federation.plan, 1, PLAN.lr)


@pytest.mark.parametrize("block", [1, 3, 100])
def test_neither_the_workers_nor_their_number_move_a_bit(crew: Crew, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectorized = RuntimeOptions("vectorized", workers=1)
    here = traced(spread(prepare_trial(fa.Scaffold(), runtime=vectorized), None, block))
    there = traced(spread(prepare_trial(fa.Scaffold(), runtime=vectorized), crew, block))
    monkeypatch.setattr(crew, "size", 1)
    by_one = traced(spread(prepare_trial(fa.Scaffold(), runtime=vectorized), crew, block))
    assert here.bits() == there.bits() == by_one.bits()
    assert here.settled == there.settled == by_one.settled and any(here.states[-1].values())


def test_methods_that_draw_directions_and_states_on_disk_give_the_same_bits(crew: Crew, tmp_path: Any) -> None:
    runtime = RuntimeOptions("vectorized", workers=1, state="disk")
    plan = replace(PLAN, optimizer=fa.Adam(), lr=0.01, keep_moments=True)
    traces = [
        traced(
            spread(
                prepare_trial(REGISTRY["noise_adaptive_sam"](), folder=tmp_path / name, runtime=runtime, local=plan, cohorts=None), given
            )
        )
        for name, given in (("here", None), ("there", crew))
    ]
    assert traces[0].bits() == traces[1].bits()


def test_what_was_returned_is_ours_and_no_later_round_changes_it(crew: Crew) -> None:
    made = spread(prepare_trial(fa.Scaffold(), runtime=RuntimeOptions("vectorized", workers=1)), crew)
    runtime: Any = made.federation.runtime
    first = train(made, [0, 1, 2, 3])
    runtime.settle({0, 1})
    before = [bits(answer.upload) for answer in first], bits(runtime.client_state(1))
    train(made, range(7), torch.ones_like(made.start.server.w))
    assert before == ([bits(answer.upload) for answer in first], bits(runtime.client_state(1)))
    control = runtime.client_state(0).kept.control
    assert control.untyped_storage().nbytes() == control.nbytes, "no state holds its block in memory"


class Deadly(nn.Module):
    """Kills the worker that it trains in."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if os.environ.get(IS_WORKER):
            os.kill(os.getpid(), signal.SIGKILL)
        out: Tensor = self.last(x)
        return out


def test_where_one_fails_the_others_still_train_and_it_is_named(crew: Crew) -> None:
    made = [
        prepare_trial(fa.Scaffold(), make_task(FailsOnThree), partition=shards([8, 3, 8, 4, 0, 4, 4]), cohorts=[range(7)], rounds=1)
        for _ in "ab"
    ]
    here, there = (traced(spread(each, given, 3)) for each, given in zip(made, (None, crew), strict=True))
    assert here.bits() == there.bits()
    codes = {each.client: each.code for each in there.results[0].clients}
    assert codes == {0: None, 1: "E107", 2: None, 3: None, 4: "E108", 5: None, 6: None}
    assert there.results[0].report.refused == here.results[0].report.refused
    assert "three at once" in str(there.results[0].report.refused)


def test_a_worker_that_dies_is_named_with_its_block_and_the_next_round_trains() -> None:
    crew = Crew(1)
    try:
        made = spread(prepare_trial(fa.FedAvg(), make_task(Deadly)), crew, 3)
        with pytest.raises(WorkerDied, match=r"E702 a worker process died \(SIGKILL\) while it trained side by side clients 0, 5, 6\."):
            train(made, [0, 5, 6])
        assert crew.workers == []
        healthy = spread(prepare_trial(fa.FedAvg()), crew, 3)
        assert len(train(healthy, range(7))) == 7
        healthy.federation.runtime.close()
        assert crew.workers == []
    finally:
        crew.close()


def test_a_task_that_cannot_be_sent_says_so(crew: Crew) -> None:
    generator = (number for number in range(3))

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) + 0 * len(str(generator))

    with pytest.raises(ConfigError, match=r"E217 the task .* cannot be sent to worker processes: .*generator"):
        train(spread(prepare_trial(fa.FedAvg(), make_task(nn.Linear(6, 3), loss=loss)), crew), [0, 1])


def test_an_experiment_that_asks_for_workers_gets_them_and_a_block_for_each() -> None:
    prepared = prepare_trial(fa.FedAvg(), runtime=RuntimeOptions("vectorized", workers=2))
    settled = prepared.experiment.runtime
    assert (settled.name, settled.workers, settled.block) == ("vectorized", 2, 2), "the first cohort has four clients"
    runtime: Any = prepared.federation.runtime
    assert runtime._dispatch.crew.size == 2 and runtime._dispatch.crew.workers == []
    alone = prepare_trial(fa.FedAvg(), runtime=RuntimeOptions("vectorized", workers=1)).experiment.runtime
    assert alone.workers == 1 and alone.block is not None and alone.block > 1000
    asked = prepare_trial(fa.FedAvg(), runtime=RuntimeOptions("vectorized", workers=2, block=3)).experiment.runtime
    assert asked.block == 3
