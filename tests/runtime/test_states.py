"""states.py: client state in memory and on disk, and a crash at each moment of a checkpoint."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedaccord.core.errors import StorageError
from fedaccord.core.state import map_state, num_bytes, tensors_of, to_arrays
from fedaccord.runtime import states as states_module
from fedaccord.runtime.states import ClientState, ClientStates, InMemory, OnDisk


class Kept(NamedTuple):
    dual: Tensor


def state(value: float) -> ClientState:
    buffers = {"bn.count": torch.tensor(int(value)), "bn.mean": torch.full((2,), value / 3)}
    return ClientState(Kept(torch.full((3,), value)), buffers, ())


LIKE = state(0.0)
Make = Callable[[Path], ClientStates]
KINDS: dict[str, Make] = {"memory": lambda folder: InMemory(LIKE), "disk": lambda folder: OnDisk(LIKE, folder)}


def same(a: Any, b: Any) -> bool:
    return to_arrays(a).keys() == to_arrays(b).keys() and all(torch.equal(x, to_arrays(b)[name]) for name, x in to_arrays(a).items())


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ClientStates]:
    """A new process's view of the same client files."""
    return lambda: KINDS[request.param](tmp_path / "clients")


def checkpoint(states: ClientStates, folder: Path) -> Path:
    folder.mkdir(parents=True)
    states.save(folder)
    states.committed(folder)
    return folder


def test_a_client_without_an_accepted_upload_has_no_state(make: Callable[[], ClientStates]) -> None:
    states = make()
    states.settle({3: state(1.0)})
    assert states.load(2) is None and same(states.load(3), state(1.0))
    states.settle({3: state(2.0)})
    assert same(states.load(3), state(2.0))


def test_a_restored_store_holds_what_the_checkpoint_held(make: Callable[[], ClientStates], tmp_path: Path) -> None:
    states = make()
    states.settle({3: state(1.0), 9: state(7.0)})
    folder = checkpoint(states, tmp_path / "000001")
    states.settle({3: state(2.0), 4: state(5.0)})  # never saved
    again = make()
    again.restore(folder)
    assert same(again.load(3), state(1.0)) and same(again.load(9), state(7.0)) and again.load(4) is None


def test_several_checkpoints_add_up(make: Callable[[], ClientStates], tmp_path: Path) -> None:
    states = make()
    for t in range(1, 4):
        states.settle({t: state(float(t)), 0: state(10.0 * t)})
        folder = checkpoint(states, tmp_path / f"{t:06d}")
    again = make()
    again.restore(folder)
    assert [float(again.load(client).kept.dual[0]) for client in (0, 1, 2, 3)] == [30.0, 1.0, 2.0, 3.0]


def test_an_empty_checkpoint_can_be_restored(make: Callable[[], ClientStates], tmp_path: Path) -> None:
    folder = checkpoint(make(), tmp_path / "000001")
    again = make()
    again.restore(folder)
    assert again.load(0) is None


CRASHES = ["some rows are written", "all rows are settled", "the checkpoint is written", "it is valid", "it is marked", "new rows follow"]


@pytest.mark.parametrize("moment", CRASHES)
def test_a_crash_at_any_moment_leaves_one_round(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1 is saved whole. The process dies around the saving of round 2. What is restored is all of round 1 or all of round 2."""
    states = OnDisk(LIKE, tmp_path / "clients")
    states.settle({0: state(1.0), 1: state(1.0)})
    first, second, came = checkpoint(states, tmp_path / "000001"), tmp_path / "000002", CRASHES.index(moment)
    if came == 0:
        with pytest.raises(StorageError, match="E321"):
            fails_at(monkeypatch, 3, lambda: states.settle({0: state(2.0), 1: state(2.0), 2: state(2.0)}))
        assert same(states.load(0), state(1.0)) and states.load(2) is None, "this process sees none of it either"
    else:
        states.settle({0: state(2.0), 1: state(2.0), 2: state(2.0)})
    if came >= 2:
        second.mkdir()
        states.save(second)
    if came >= 4:
        states.committed(second)
    if came >= 5:
        states.settle({0: state(3.0), 1: state(3.0), 2: state(3.0)})
    expected = 1.0 if came < 3 else 2.0
    again = OnDisk(LIKE, tmp_path / "clients")
    again.restore(first if came < 3 else second)
    for _ in range(2):
        assert same(again.load(0), state(expected)) and same(again.load(1), state(expected))
        assert (again.load(2) is None) == (expected == 1.0)
        again.settle({0: state(4.0), 1: state(4.0), 2: state(4.0)})  # and a second crash, before the next checkpoint
        again = OnDisk(LIKE, tmp_path / "clients")
        again.restore(first if came < 3 else second)


def fails_at(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], None]) -> None:
    """Runs `action` on a disk that is full when leaf number `number` is to be written."""
    whole, written = states_module._bytes, [0]

    def bytes_of(leaf: Tensor) -> Any:
        written[0] += 1
        if written[0] == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(leaf)

    with monkeypatch.context() as patched:
        patched.setattr(states_module, "_bytes", bytes_of)
        action()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_in_whatever_order_each_checkpoint_stands(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 random steps (rounds, checkpoints, crashes, full disks) beside a dictionary; and the file stays within its bound."""
    draws, population, cohort = random.Random(seed), 12, 4
    states, valid = OnDisk(LIKE, tmp_path / "clients"), None
    now, saved = dict[int, float](), dict[int, float]()
    for step in range(1, 301):
        new = {client: float(step) for client in draws.sample(range(population), cohort)}
        what = draws.choices(["round", "checkpoint", "crash", "full disk", "crash in a checkpoint"], [10, 3, 1, 1, 1])[0]
        if what == "round":
            states.settle({client: state(value) for client, value in new.items()})
            now |= new
        elif what == "checkpoint":
            valid, saved = checkpoint(states, tmp_path / f"{step:06d}"), dict(now)
        elif what == "full disk":
            with pytest.raises(StorageError, match="E321"):
                settle = partial(states.settle, {client: state(value) for client, value in new.items()})
                fails_at(monkeypatch, draws.randint(1, 3 * cohort), settle)
        else:
            if what == "crash in a checkpoint":
                (tmp_path / f"{step:06d}").mkdir()
                states.save(tmp_path / f"{step:06d}")
                if draws.random() < 0.5:  # it became valid, and nobody was told
                    valid, saved = tmp_path / f"{step:06d}", dict(now)
            states, now = OnDisk(LIKE, tmp_path / "clients"), dict(saved)
            states.restore(valid)
        for client in range(population):
            expected = state(now[client]) if client in now else None
            found = states.load(client)
            assert same(found, expected) if expected is not None and found is not None else found is expected, f"{what} in step {step}"
    longest = 2 * population + cohort
    assert (tmp_path / "clients" / "rows.bin").stat().st_size <= longest * num_bytes(LIKE)


def test_a_resumed_store_writes_the_file_that_the_unbroken_one_writes(tmp_path: Path) -> None:
    draws = random.Random(0)
    rounds = [{client: state(float(t)) for client in draws.sample(range(8), 3)} for t in range(1, 13)]

    def run(place: Path, crashes: bool) -> bytes:
        states = OnDisk(LIKE, place / "clients")
        for t, new in enumerate(rounds, start=1):
            states.settle(new)
            if crashes and t % 4 == 3:  # one round after a checkpoint; the two rounds since then come again
                states = OnDisk(LIKE, place / "clients")
                states.restore(place / f"{t - 1:06d}")
                states.settle(new)
            if t % 2 == 0:
                checkpoint(states, place / f"{t:06d}")
        return (place / "clients" / "rows.bin").read_bytes()

    assert run(tmp_path / "broken", crashes=True) == run(tmp_path / "whole", crashes=False)


def test_a_store_that_starts_anew_knows_nothing_of_rows_that_no_checkpoint_names(tmp_path: Path) -> None:
    states = OnDisk(LIKE, tmp_path / "clients")
    states.settle({0: state(1.0)})
    assert same(states.load(0), state(1.0))
    again = OnDisk(LIKE, tmp_path / "clients")
    again.restore(None)
    assert again.load(0) is None


def test_an_older_checkpoint_than_the_files_is_refused(tmp_path: Path) -> None:
    states = OnDisk(LIKE, tmp_path / "clients")
    states.settle({0: state(1.0)})
    first = checkpoint(states, tmp_path / "000001")
    states.settle({0: state(2.0)})
    checkpoint(states, tmp_path / "000002")
    with pytest.raises(StorageError, match="E322 the client files hold round 000002"):
        OnDisk(LIKE, tmp_path / "clients").restore(first)


def test_rows_that_are_missing_are_named(tmp_path: Path) -> None:
    states = OnDisk(LIKE, tmp_path / "clients")
    states.settle({0: state(1.0), 1: state(1.0)})
    folder = checkpoint(states, tmp_path / "000001")
    rows = tmp_path / "clients" / "rows.bin"
    os.truncate(rows, rows.stat().st_size - 1)
    with pytest.raises(StorageError, match=r"E322 the file of client state ends early"):
        states.load(1)
    with pytest.raises(StorageError, match=r"E322 rows\.bin has \d+ bytes"):
        OnDisk(LIKE, tmp_path / "clients").restore(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_method_is_refused(kind: str, tmp_path: Path) -> None:
    states = KINDS[kind](tmp_path / "clients")
    states.settle({0: state(1.0)})
    folder = checkpoint(states, tmp_path / "000001")
    other = LIKE._replace(kept=Kept(torch.zeros(4)))
    with pytest.raises(StorageError, match="E110"):
        (InMemory(other) if kind == "memory" else OnDisk(other, tmp_path / "clients")).restore(folder)


def test_clients_that_never_took_part_cost_no_disk(tmp_path: Path) -> None:
    wide = ClientState(Kept(torch.zeros(1000)), {}, ())
    states = OnDisk(wide, tmp_path / "clients")
    states.settle({19_999: ClientState(Kept(torch.ones(1000)), {}, ())})
    folder = checkpoint(states, tmp_path / "000001")
    assert sum(file.stat().st_size for place in (folder, tmp_path / "clients") for file in place.iterdir()) < 5000


class OnAccelerator(Tensor):
    """Stands for a tensor on another device: the host has it once it was asked for."""

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)


def test_what_clients_keep_leaves_the_accelerator(make: Callable[[], ClientStates]) -> None:
    states = make()
    states.settle({0: map_state(lambda leaf: leaf.as_subclass(OnAccelerator), state(1.0))})
    found = states.load(0)
    assert same(found, state(1.0)) and not any(isinstance(leaf, OnAccelerator) for leaf in tensors_of(found))


def test_what_is_loaded_goes_where_the_client_trains(tmp_path: Path) -> None:
    there = map_state(lambda leaf: leaf.to("meta"), LIKE)
    for states in (InMemory(there), OnDisk(there, tmp_path / "clients")):
        states.settle({0: state(1.0)})
        folder = checkpoint(states, tmp_path / type(states).__name__)
        for each in (states, type(states)(there, *([] if isinstance(states, InMemory) else [tmp_path / "clients"]))):
            each.restore(folder)
            assert {leaf.device.type for leaf in tensors_of(each.load(0))} == {"meta"}


def test_what_is_loaded_from_the_files_is_a_copy(tmp_path: Path) -> None:
    states = OnDisk(LIKE, tmp_path / "clients")
    states.settle({0: state(1.0)})
    checkpoint(states, tmp_path / "000001")
    loaded: Any = states.load(0)
    loaded.kept.dual.zero_()
    assert same(states.load(0), state(1.0))


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs reads that do not wait for the disk")
def test_what_is_expected_is_read_from_disk_before_it_is_asked_for(tmp_path: Path) -> None:
    """Such a read fails for what is not in the page cache, and starts to fetch what lies near: every look goes to another place."""
    wide = ClientState(Kept(torch.arange(1_000_000.0)), {}, ())
    states = OnDisk(wide, tmp_path / "clients")
    states.settle({3: wide, 7: wide})
    checkpoint(states, tmp_path / "000001")
    with (tmp_path / "clients" / "rows.bin").open("rb") as file:

        def is_cached(row: int, place: int) -> bool:
            try:
                return os.preadv(file.fileno(), [bytearray(1)], 4_000_000 * row + 300_000 * place, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                return False

        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_cached(1, 6):
            pytest.skip("this file system keeps its pages")
        states.expect([2, 3])
        assert any(time.sleep(0.1 * place) or is_cached(0, place) for place in range(1, 12))
    assert same(states.load(3), wide) and states.load(2) is None
