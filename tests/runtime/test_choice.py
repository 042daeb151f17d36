from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedaccord as fa
from fedaccord.checks.trial import examples, make_task, mlp, prepare_trial, shards, with_batch_norm_and_dropout
from fedaccord.runtime import choice
from fedaccord.runtime.cores import CORES, cores
from fedaccord.runtime.options import RuntimeOptions

AUTO = RuntimeOptions()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(choice.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "calibration"


def timed(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> list[str]:
    """Calibrations answer so, by what is measured; the list names what was."""
    measured: list[str] = []

    def told(work: Any) -> float:
        name = "sequential" if work.__name__ == "one_by_one" else "vectorized"
        measured.append(name)
        work()
        return seconds[name]

    monkeypatch.setattr(choice, "_seconds", told)
    return measured


def test_a_short_run_is_not_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = timed(monkeypatch, sequential=1e-6)
    prepared = prepare_trial(fa.FedAvg(), runtime=AUTO)
    assert prepared.experiment.runtime == RuntimeOptions("sequential", step="captured", memory_format="contiguous", state="memory")
    assert measured == ["sequential"]
    assert "the whole run" in prepared.reason


@pytest.mark.parametrize(
    ("seconds", "cores_here", "expected"),
    [
        ({"sequential": 10.0, "vectorized": 1.0}, "2", "vectorized"),
        ({"sequential": 10.0, "vectorized": 18.0}, "1", "sequential"),  # not worth it
        ({"sequential": 10.0, "vectorized": 50.0}, "1", "sequential"),
    ],
)
def test_the_fastest_is_taken(seconds: dict[str, float], cores_here: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, **seconds)
    monkeypatch.setenv(CORES, cores_here)
    prepared = prepare_trial(fa.FedAvg(), runtime=AUTO)
    assert prepared.experiment.runtime.name == expected
    assert "a round is estimated at: sequential" in prepared.reason


@pytest.mark.parametrize(
    ("asked", "rounds", "blocks", "expected", "block"),
    [
        (AUTO, 100, {4: 2.0, 2: 2.1}, 2, 2),  # 2.1 / 1.8 + 0.03 s
        (AUTO, 4, {4: 2.0, 2: 2.1}, 1, None),  # 2.1 / 1.8 + 0.75 s
        (AUTO, 100, {4: 2.0, 2: 3.5}, 1, None),  # small blocks are slow
        (RuntimeOptions("vectorized"), 100, {4: 2.0, 2: 2.1}, 2, 2),
        (RuntimeOptions("vectorized"), 4, {4: 2.0, 2: 2.1}, 1, None),
        (RuntimeOptions(block=3), 100, {3: 2.0}, 2, 3),
        (RuntimeOptions(block=4), 100, {4: 2.0}, 1, 4),  # a single block
        (RuntimeOptions("vectorized", workers=2), 1, {}, 2, 2),  # as asked
        (RuntimeOptions(workers=1), 100, {4: 2.0}, 1, None),
    ],
)
def test_workers_train_blocks_where_that_is_faster_with_their_start(
    asked: RuntimeOptions, rounds: int, blocks: dict[int, float], expected: int, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """blocks: seconds of a round in one process, by the size of its blocks. Four clients a cohort, all with as many steps."""
    monkeypatch.setattr(choice, "cores", lambda: 2)
    sizes: list[int] = []
    together = choice._side_by_side
    monkeypatch.setattr(choice, "_side_by_side", lambda *given: sizes.append(len(given[2])) or together(*given))

    def told(work: Any) -> float:
        work()
        return 10.0 if work.__name__ == "one_by_one" else blocks[sizes[-1]] * sizes[-1] / 4  # of its share of the cohort

    monkeypatch.setattr(choice, "_seconds", told)
    monkeypatch.setattr(choice, "STEPS_TOGETHER", 10**6)  # whole rounds, so that the times above are of rounds
    monkeypatch.setattr(choice, "PASS", 10**9)
    prepared = prepare_trial(fa.FedAvg(), runtime=asked, rounds=rounds, cohorts=None, partition=shards([8] * 7))
    settled = prepared.experiment.runtime
    assert (settled.name, settled.workers) == ("vectorized", expected), prepared.reason
    assert settled.block == block if block is not None else settled.block is not None and settled.block > 1000
    assert set(sizes) >= blocks.keys()


def test_what_cannot_vectorise_is_not_measured_and_the_reason_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = timed(monkeypatch, sequential=10.0)
    monkeypatch.setenv(CORES, "1")
    prepared = prepare_trial(fa.FedAvg(), make_task(with_batch_norm_and_dropout), runtime=AUTO)
    assert measured == ["sequential"]
    assert "not vectorised: the model has buffers that move" in prepared.reason


def test_a_choice_is_kept_for_the_machine_and_for_all_seeds(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    timed(monkeypatch, sequential=10.0, vectorized=1.0)
    prepare_trial(fa.FedAvg(), runtime=AUTO, seed=1)
    measured = timed(monkeypatch, sequential=1.0, vectorized=10.0)
    assert prepare_trial(fa.FedAvg(), runtime=AUTO, seed=2).experiment.runtime.name == "vectorized"
    assert not measured
    assert prepare_trial(fa.FedSAM(), runtime=AUTO).experiment.runtime.name != "vectorized"
    assert measured
    assert len(list(own_cache.iterdir())) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "magic", "memory_format": "contiguous", "reason": ""}', '{"name": "pool"}'])
def test_a_cache_that_cannot_be_read_is_measured_anew(content: str, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    timed(monkeypatch, sequential=10.0, vectorized=1.0)
    prepare_trial(fa.FedAvg(), runtime=AUTO)
    (file,) = own_cache.iterdir()
    file.write_text(content)
    assert prepare_trial(fa.FedAvg(), runtime=AUTO).experiment.runtime.name == "vectorized"
    assert json.loads(file.read_text())["name"] == "vectorized"


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(choice.CACHE, str(tmp_path / "file"))
    assert prepare_trial(fa.FedAvg(), runtime=AUTO).experiment.runtime.name == "sequential"


def test_debug_runs_one_after_another() -> None:
    assert prepare_trial(fa.FedAvg(), runtime=RuntimeOptions(debug=True)).experiment.runtime.name == "sequential"


def test_a_calibration_changes_no_bit_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedaccord.checks.trial import traced

    monkeypatch.setenv(CORES, "1")
    task = make_task(with_batch_norm_and_dropout)
    asked = traced(prepare_trial(fa.Scaffold(), task, runtime=RuntimeOptions("sequential")))
    timed(monkeypatch, sequential=10.0)
    measured = traced(prepare_trial(fa.Scaffold(), task, runtime=AUTO))
    assert asked.bits() == measured.bits()


def convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("times", [(6.0, 9.9, 5.0, 11.0), (11.0, 5.0, 9.9, 6.0)])
def test_the_faster_memory_format_is_taken_where_there_are_pictures(times: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """There and back: contiguous takes 6 s and, disturbed, 11; channels-last 5 and 9.9."""
    monkeypatch.setenv(CORES, "1")
    x, y = examples()
    pictures = fa.Task(
        model=lambda: nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3)),
        loss=nn.functional.cross_entropy,
        train=(x.reshape(-1, 1, 2, 3), y),
        test=(x.reshape(-1, 1, 2, 3), y),
        num_classes=3,
    )
    seconds = iter([*times, 20.0, 20.0])  # then side by side
    monkeypatch.setattr(choice, "_seconds", lambda work: next(seconds))
    prepared = prepare_trial(fa.FedAvg(), pictures, runtime=AUTO)
    assert prepared.experiment.runtime.memory_format == "channels_last"
    assert prepared.model.channels_last
    assert "channels_last: contiguous" in prepared.reason
    fixed = prepare_trial(fa.FedAvg(), pictures, runtime=RuntimeOptions("sequential", memory_format="contiguous"))
    assert not fixed.model.channels_last


def test_pictures_in_the_other_format_give_the_same_but_for_rounding() -> None:
    from fedaccord.checks.trial import traced

    x, y = examples()
    pictures = x.reshape(-1, 1, 2, 3).double()
    task = fa.Task(
        model=lambda: nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3)).double(),
        loss=nn.functional.cross_entropy,
        train=(pictures, y),
        test=(pictures, y),
        num_classes=3,
    )
    one, other = (traced(prepare_trial(fa.FedAvg(), task, runtime=RuntimeOptions("sequential", memory_format=f))) for f in choice.FORMATS)
    assert float((one.w - other.w).norm()) <= 1e-12


def test_cores_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CORES, raising=False)
    everything = cores()
    monkeypatch.setenv(CORES, "1")
    assert cores() == 1
    for odd in ("", "many", "-3", str(everything + 5)):
        monkeypatch.setenv(CORES, odd)
        assert cores() == everything


def run(folder: Path, rounds: int = 4, **options: Any) -> fa.Run:
    x, y = examples()
    task = fa.Task(model=mlp, loss=nn.functional.cross_entropy, train=(x, y), test=(x, y), num_classes=3)
    return fa.run(task, fa.FedAvg(), partition=fa.IID(clients=5), cohort=3, rounds=rounds, folder=folder, checkpoint_every=2, **options)


def test_resume_follows_what_the_run_began_with_whatever_the_cache_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path
) -> None:
    monkeypatch.setenv(CORES, "1")
    timed(monkeypatch, sequential=10.0, vectorized=1.0)
    whole = run(tmp_path / "whole")
    assert whole.record.experiment["runtime"]["name"] == "vectorized"
    assert whole.record.sources["runtime.name"] == "chosen"
    for content in (None, '{"name": "sequential", "memory_format": "contiguous", "reason": "another machine"}'):
        folder = tmp_path / f"part {content is None}"
        with pytest.raises(KeyboardInterrupt):
            run(folder, telemetry=[_StopsAfter(2)])
        for file in own_cache.iterdir():
            file.write_text(content) if content else file.unlink()
        timed(monkeypatch, sequential=1.0, vectorized=10.0)
        resumed = run(folder, resume=True)
        assert resumed.record.experiment["runtime"]["name"] == "vectorized"
        assert torch.equal(resumed.weights(), whole.weights())
        timed(monkeypatch, sequential=10.0, vectorized=1.0)
        for file in own_cache.iterdir():
            file.unlink()


class _StopsAfter:
    def __init__(self, round: int) -> None:
        self.round = round

    def emit(self, event: Any) -> None:
        if event.kind == "round_finished" and event.data["round"] == self.round:
            raise KeyboardInterrupt


@pytest.mark.parametrize("seconds", [{"sequential": 10.0, "vectorized": 50.0}])
def test_a_pool_that_was_chosen_trains_though_clients_were_vectorised_to_measure_it(
    seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = timed(monkeypatch, **seconds)
    monkeypatch.setenv(CORES, "2")
    monkeypatch.setattr("fedaccord.runtime.cores._QUOTAS", ())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    prepared = prepare_trial(fa.FedAvg(), runtime=AUTO)
    assert prepared.experiment.runtime.name == "pool"
    assert "vectorized" in measured
    try:
        result = prepared.federation.round(prepared.start)
    finally:
        prepared.federation.runtime.close()
    alone = prepare_trial(fa.FedAvg())
    assert torch.equal(result.state.server.w, alone.federation.round(alone.start).state.server.w)


@pytest.mark.parametrize(("seconds", "passes"), [([0.4, 0.05, 0.3], 3), ([3.0, 2.0], 2), ([0.01] * 8, 8)])
def test_a_pass_is_repeated_and_its_best_time_counts(seconds: list[float], passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one captures steps and warms up: it is never the only one, however long it takes."""
    now, calls = 0.0, 0

    def work() -> None:
        nonlocal now, calls
        now += seconds[calls]
        calls += 1

    monkeypatch.setattr(choice.time, "process_time", lambda: now)
    assert choice._seconds(work) == pytest.approx(min(seconds))
    assert calls == passes


def test_clients_side_by_side_are_measured_in_the_numbers_that_a_block_has(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    together = choice._side_by_side
    monkeypatch.setattr(choice, "_side_by_side", lambda *given: blocks.append(len(given[2])) or together(*given))
    monkeypatch.setattr(choice, "SHORT", 0.0)
    timed(monkeypatch, sequential=0.1, vectorized=0.01)
    prepare_trial(fa.FedAvg(), runtime=AUTO)
    assert max(blocks) == 4  # the whole first cohort
    blocks.clear()
    prepare_trial(fa.FedAvg(), runtime=RuntimeOptions(block=2))
    assert max(blocks) == 2
