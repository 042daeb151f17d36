"""states.py: client state in memory and memory-mapped, and a crash at each moment of a checkpoint."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedaccord.core.errors import StorageError
from fedaccord.core.state import to_arrays
from fedaccord.runtime.states import ClientState, ClientStates, InMemory, MemoryMapped


class Kept(NamedTuple):
    dual: Tensor


def state(value: float) -> ClientState:
    buffers = {"bn.count": torch.tensor(int(value)), "bn.mean": torch.full((2,), value / 3)}
    return ClientState(Kept(torch.full((3,), value)), buffers, ())


LIKE = state(0.0)
Make = Callable[[Path], ClientStates]
KINDS: dict[str, Make] = {"memory": lambda folder: InMemory(LIKE), "memory_mapped": lambda folder: MemoryMapped(LIKE, 10, folder)}


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


CRASHES = ["before the checkpoint is valid", "after it is valid", "after it is marked, before the rows", "after some rows"]


@pytest.mark.parametrize("moment", CRASHES)
def test_a_crash_at_any_moment_leaves_one_round(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1 is saved whole. The process dies while round 2 is being saved. What is restored is all of round 1 or all of round 2."""
    states = MemoryMapped(LIKE, 10, tmp_path / "clients")
    states.settle({0: state(1.0), 1: state(1.0)})
    first = checkpoint(states, tmp_path / "000001")
    states.settle({0: state(2.0), 1: state(2.0), 2: state(2.0)})
    second = tmp_path / "000002"
    second.mkdir()
    states.save(second)
    if moment == "before the checkpoint is valid":
        shutil.rmtree(second)
        valid, expected = first, 1.0
    else:
        valid, expected = second, 2.0
        if moment != "after it is valid":
            survivors = {} if moment == "after it is marked, before the rows" else {0: state(2.0)}
            whole = MemoryMapped._write
            monkeypatch.setattr(MemoryMapped, "_write", lambda self, rows: whole(self, survivors))
            states.committed(second)
            monkeypatch.undo()
    again = MemoryMapped(LIKE, 10, tmp_path / "clients")
    again.restore(valid)
    assert same(again.load(0), state(expected)) and same(again.load(1), state(expected))
    assert (again.load(2) is None) == (expected == 1.0)


def test_rows_are_held_back_until_a_checkpoint_names_them(tmp_path: Path) -> None:
    states = MemoryMapped(LIKE, 10, tmp_path / "clients")
    states.settle({0: state(1.0)})
    assert same(states.load(0), state(1.0)), "this process sees it"
    assert MemoryMapped(LIKE, 10, tmp_path / "clients").load(0) is None, "the disk does not"


def test_an_older_checkpoint_than_the_files_is_refused(tmp_path: Path) -> None:
    states = MemoryMapped(LIKE, 10, tmp_path / "clients")
    states.settle({0: state(1.0)})
    first = checkpoint(states, tmp_path / "000001")
    states.settle({0: state(2.0)})
    checkpoint(states, tmp_path / "000002")
    with pytest.raises(StorageError, match="E322 the client files hold round 000002"):
        MemoryMapped(LIKE, 10, tmp_path / "clients").restore(first)


def test_files_of_another_population_are_refused(tmp_path: Path) -> None:
    MemoryMapped(LIKE, 10, tmp_path / "clients")
    with pytest.raises(StorageError, match="E322"):
        MemoryMapped(LIKE, 11, tmp_path / "clients")


def test_a_checkpoint_of_another_method_is_refused(make: Callable[[], ClientStates], tmp_path: Path) -> None:
    states = make()
    states.settle({0: state(1.0)})
    folder = checkpoint(states, tmp_path / "000001")
    with pytest.raises(StorageError, match="E110"):
        InMemory(LIKE._replace(kept=Kept(torch.zeros(4)))).restore(folder)


def test_clients_that_never_took_part_cost_no_disk(tmp_path: Path) -> None:
    wide = ClientState(Kept(torch.zeros(1000)), {}, ())
    states = MemoryMapped(wide, 20_000, tmp_path / "clients")
    states.settle({7: ClientState(Kept(torch.ones(1000)), {}, ())})
    checkpoint(states, tmp_path / "000001")
    files = list((tmp_path / "clients").glob("*.bin"))
    assert sum(file.stat().st_size for file in files) >= 80_000_000
    assert sum(file.stat().st_blocks * 512 for file in files) < 1_000_000


def test_what_is_loaded_from_the_files_is_a_copy(tmp_path: Path) -> None:
    states = MemoryMapped(LIKE, 10, tmp_path / "clients")
    states.settle({0: state(1.0)})
    checkpoint(states, tmp_path / "000001")
    loaded: Any = states.load(0)
    loaded.kept.dual.zero_()
    assert same(states.load(0), state(1.0))


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs reads that do not wait for the disk")
def test_what_is_expected_is_read_from_disk_before_it_is_asked_for(tmp_path: Path) -> None:
    """Such a read fails for what is not in the page cache, and starts to fetch what lies near: every look goes to another place."""
    wide = ClientState(Kept(torch.arange(1_000_000.0)), {}, ())
    states = MemoryMapped(wide, 10, tmp_path / "clients")
    states.settle({3: wide, 7: wide})
    checkpoint(states, tmp_path / "000001")
    with (tmp_path / "clients" / "kept.dual.bin").open("rb") as file:

        def is_cached(client: int, place: int) -> bool:
            try:
                return os.preadv(file.fileno(), [bytearray(1)], 4_000_000 * client + 300_000 * place, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                return False

        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_cached(7, 6):
            pytest.skip("this file system keeps its pages")
        states.expect([2, 3])
        assert any(time.sleep(0.1 * place) or is_cached(3, place) for place in range(1, 12))
    assert same(states.load(3), wide) and states.load(2) is None
