"""What clients keep between rounds: in the host's memory, or as rows of one file, of which memory holds only where each one lies.

Both write a checkpoint that belongs to one round, whatever moment the process is killed in. Neither leaves anything on an accelerator.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedaccord.core.arrays import load_arrays, save_arrays
from fedaccord.core.errors import StorageError
from fedaccord.core.state import State, from_arrays, map_state, num_bytes, to_arrays
from fedaccord.core.vector import Buffers
from fedaccord.runs import storage

FILE = "clients.safetensors"


class ClientState(NamedTuple):
    """All that one client keeps between its rounds."""

    kept: State  # of the algorithm
    buffers: Buffers  # with its own parameters; empty where they are shared
    moments: State  # of the local optimiser; () where it starts each round afresh


class ClientStates(Protocol):
    def load(self, client: int) -> ClientState | None:
        """The client's state; None where it never had an upload accepted."""
        ...

    def expect(self, clients: Sequence[int]) -> None:
        """These are about to be loaded: what lies on disk may be read while others train."""
        ...

    def settle(self, new: dict[int, ClientState]) -> None:
        """The new states of clients whose uploads counted: all of them, or, where it raises, none."""
        ...

    def save(self, folder: Path) -> None:
        """Write into a checkpoint that is not yet valid."""
        ...

    def committed(self, folder: Path) -> None:
        """The checkpoint of the last `save` is valid now, under this name."""
        ...

    def restore(self, folder: Path | None) -> None:
        """Take up the state of this checkpoint; None: there is none, start from nothing. E322 where that is not possible any more."""
        ...


class InMemory:
    """A dictionary of trees in the host's memory; `like` is one client's state before its first round, on the device it trains on."""

    def __init__(self, like: ClientState) -> None:
        self._like, self._here = like, map_state(lambda leaf: torch.empty_like(leaf, device="cpu"), like)
        self._states: dict[int, ClientState] = {}

    def load(self, client: int) -> ClientState | None:
        found = self._states.get(client)
        return None if found is None else map_state(lambda leaf, like: leaf.to(like.device), found, self._like)

    def expect(self, clients: Sequence[int]) -> None:
        pass

    def settle(self, new: dict[int, ClientState]) -> None:
        self._states.update({client: map_state(lambda leaf: leaf.cpu(), state) for client, state in new.items()})

    def save(self, folder: Path) -> None:
        save_arrays(_stacked(self._states), folder / FILE)

    def committed(self, folder: Path) -> None:
        pass

    def restore(self, folder: Path | None) -> None:
        self._states = {} if folder is None else _unstacked(load_arrays(folder / FILE), self._here)


class OnDisk:
    """Rows of one file, a client's row from its first accepted upload on; a checkpoint names the place of each.

    A row that the newest checkpoint names is never written over: new rows go to free places (the lowest first, so that a resumed run
    writes what the unbroken one wrote), and the place of the row before is free once a checkpoint names the new one. The file is never
    longer than two rows for each client that took part and one for each of a cohort.

    It is read and not mapped whole: pages that are mapped count as this process's memory, and a full disk would kill it.
    """

    def __init__(self, like: ClientState, folder: Path) -> None:
        self._like, self._leaves, self._row = like, to_arrays(like), num_bytes(like)
        self._mark, self._file = folder / "newest.json", folder / "rows.bin"
        self._take_up({})
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file.touch()

    def _take_up(self, places: dict[int, int]) -> None:
        self._places = places  # the row of each client
        self._end = max(places.values(), default=-1) + 1  # of all that are or were in use
        self._free = sorted(set(range(self._end)) - set(places.values()))  # a heap
        self._new: set[int] = set()  # clients whose rows no checkpoint names
        self._superseded: list[int] = []  # rows that the newest checkpoint names, and we do not

    def load(self, client: int) -> ClientState | None:
        if client not in self._places:
            return None
        with storage(self._file), self._file.open("rb") as file:
            file.seek(self._places[client] * self._row)
            state: ClientState = from_arrays(self._like, {name: self._read(file, leaf) for name, leaf in self._leaves.items()})
        return state

    def _read(self, file: IO[bytes], leaf: Tensor) -> Tensor:
        values = torch.empty(leaf.shape, dtype=leaf.dtype)
        if file.readinto(_bytes(values)) != leaf.nbytes:  # type: ignore[attr-defined]
            raise StorageError("E322", "the file of client state ends early", str(self._file), "It was cut, or belongs to another run")
        return values

    def expect(self, clients: Sequence[int]) -> None:
        places = [self._places[client] for client in clients if client in self._places]
        if places and hasattr(os, "posix_fadvise"):
            with storage(self._file), self._file.open("rb") as file:
                for place in places:
                    os.posix_fadvise(file.fileno(), place * self._row, self._row, os.POSIX_FADV_WILLNEED)

    def settle(self, new: dict[int, ClientState]) -> None:
        if not new:
            return
        places = {client: self._place() for client in sorted(new)}
        try:
            self._write({place: new[client] for client, place in places.items()})
        except BaseException:
            self._give_back(places.values())
            raise
        self._give_back(self._places[client] for client in places.keys() & self._new)
        self._superseded += [self._places[client] for client in (places.keys() & self._places.keys()) - self._new]
        self._places.update(places)
        self._new.update(places)

    def _write(self, rows: dict[int, ClientState]) -> None:
        with storage(self._file), self._file.open("r+b") as file:
            for place, state in rows.items():
                file.seek(place * self._row)
                for leaf in to_arrays(state).values():
                    file.write(_bytes(leaf))

    def _place(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._end += 1
        return self._end - 1

    def _give_back(self, places: Iterable[int]) -> None:
        for place in places:
            heapq.heappush(self._free, place)

    def save(self, folder: Path) -> None:
        with self._file.open("rb") as file:
            os.fsync(file.fileno())
        clients = sorted(self._places)
        places = [self._places[client] for client in clients]
        index = {"_clients": torch.tensor(clients, dtype=torch.int64), "_places": torch.tensor(places, dtype=torch.int64)}
        save_arrays(index | to_arrays(self._no_rows()), folder / FILE)

    def committed(self, folder: Path) -> None:
        self._remember(folder)  # first, so that no older checkpoint is taken up once its rows may be written over
        self._give_back(self._superseded)
        self._new, self._superseded = set(), []

    def restore(self, folder: Path | None) -> None:
        newest = json.loads(self._mark.read_text())["checkpoint"] if self._mark.exists() else ""
        asked = "" if folder is None else folder.name
        if newest > asked:
            what = f"the client files hold round {newest}, the newest checkpoint is of round {asked or 0}"
            raise StorageError("E322", what, str(self._file.parent), "Start the run anew in another folder")
        if folder is None:
            return self._take_up({})
        index = load_arrays(folder / FILE)
        from_arrays(self._no_rows(), index)
        self._take_up(dict(zip(index["_clients"].tolist(), index["_places"].tolist(), strict=True)))
        if self._file.stat().st_size < self._end * self._row:
            what = f"{self._file.name} has {self._file.stat().st_size} bytes, the checkpoint names {self._end * self._row}"
            raise StorageError("E322", what, str(self._file.parent), "It was cut, or belongs to another run")
        self._remember(folder)

    def _remember(self, checkpoint: Path) -> None:
        aside = self._mark.with_suffix(".tmp")
        aside.write_text(json.dumps({"checkpoint": checkpoint.name}))
        aside.rename(self._mark)

    def _no_rows(self) -> State:
        """What stands in a checkpoint for the layout of a row: each leaf's dtype and shape, [0, ...]."""
        return map_state(lambda leaf: torch.empty((0, *leaf.shape), dtype=leaf.dtype), self._like)


def _bytes(leaf: Tensor) -> Any:
    """Its numbers as they lie in the host's memory, to be written, or to be filled."""
    return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _stacked(states: dict[int, ClientState]) -> dict[str, Tensor]:
    clients = sorted(states)
    arrays = {"_clients": torch.tensor(clients, dtype=torch.int64)}
    rows = [to_arrays(states[client]) for client in clients]
    for name in rows[0] if rows else ():
        arrays[name] = torch.stack([row[name] for row in rows])
    return arrays


def _unstacked(arrays: dict[str, Tensor], like: ClientState) -> dict[int, ClientState]:
    clients = arrays.pop("_clients").tolist()
    return {client: from_arrays(like, {name: stack[i].clone() for name, stack in arrays.items()}) for i, client in enumerate(clients)}
