"""What clients keep between rounds: in memory, or one memory-mapped [N, ...] file a field.

Both write a checkpoint that belongs to one round, whatever moment the process is killed in. The memory-mapped store holds new rows
back until a checkpoint that names them is on disk, and only then writes them into the files; after a crash the rows of the last
checkpoint are written again.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedaccord.core.arrays import save_arrays
from fedaccord.core.errors import StorageError
from fedaccord.core.state import State, from_arrays, to_arrays
from fedaccord.core.vector import Buffers

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
        """The new states of clients whose uploads counted."""
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
    """A dictionary of trees; `like` is one client's state before its first round."""

    def __init__(self, like: ClientState) -> None:
        self._like = like
        self._states: dict[int, ClientState] = {}

    def load(self, client: int) -> ClientState | None:
        return self._states.get(client)

    def expect(self, clients: Sequence[int]) -> None:
        pass

    def settle(self, new: dict[int, ClientState]) -> None:
        self._states.update(new)

    def save(self, folder: Path) -> None:
        save_arrays(_stacked(self._states), folder / FILE)

    def committed(self, folder: Path) -> None:
        pass

    def restore(self, folder: Path | None) -> None:
        self._states = {} if folder is None else _unstacked(load_file(folder / FILE), self._like)


class MemoryMapped:
    """One sparse file a field, [population, ...]; a client's row costs disk from its first accepted upload on."""

    def __init__(self, like: ClientState, population: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._like, self._folder = like, folder
        leaves = to_arrays(like) | {"_seen": torch.zeros((), dtype=torch.uint8)}
        self._fields = {name: self._open(folder / f"{name}.bin", leaf, population) for name, leaf in leaves.items()}
        self._held_back: dict[int, ClientState] = {}

    def _open(self, path: Path, leaf: Tensor, population: int) -> np.memmap[Any, Any]:
        """One row of bytes a client. Mapped for reading alone: a write through the map would kill the process on a full disk."""
        row = max(leaf.numel(), 1) * leaf.element_size()
        if not path.exists() or path.stat().st_size == 0:  # empty: the process was killed while it laid out the files
            with path.open("wb") as file:
                file.truncate(population * row)
        elif path.stat().st_size != population * row:
            what = f"{path.name} has {path.stat().st_size} bytes, expected {population * row}"
            raise StorageError("E322", what, str(path.parent), "It belongs to another run")
        return np.memmap(path, dtype=np.uint8, mode="r", shape=(population, row))

    def load(self, client: int) -> ClientState | None:
        if client in self._held_back:
            return self._held_back[client]
        if not self._fields["_seen"][client, 0]:
            return None
        rows = {name: torch.from_numpy(np.array(self._fields[name][client])) for name in to_arrays(self._like)}
        typed = {name: rows[name][: leaf.nbytes].view(leaf.dtype).view(leaf.shape) for name, leaf in to_arrays(self._like).items()}
        state: ClientState = from_arrays(self._like, typed)
        return state

    def expect(self, clients: Sequence[int]) -> None:
        for client in clients:
            if client not in self._held_back and self._fields["_seen"][client, 0]:
                for field in self._fields.values():
                    start, row = client * field.shape[1], field.shape[1]
                    page = start - start % mmap.PAGESIZE
                    field.base.madvise(mmap.MADV_WILLNEED, page, start + row - page)  # type: ignore[union-attr]

    def settle(self, new: dict[int, ClientState]) -> None:
        self._held_back.update(new)

    def save(self, folder: Path) -> None:
        save_arrays(_stacked(self._held_back), folder / FILE)

    def committed(self, folder: Path) -> None:
        self._apply(self._held_back, folder)

    def restore(self, folder: Path | None) -> None:
        applied = json.loads(self._mark.read_text())["checkpoint"] if self._mark.exists() else ""
        asked = "" if folder is None else folder.name
        if applied > asked:
            what = f"the client files hold round {applied}, the newest checkpoint is of round {asked or 0}"
            raise StorageError("E322", what, str(self._folder), "Start the run anew in another folder")
        if folder is not None:
            self._apply(_unstacked(load_file(folder / FILE), self._like), folder)
        self._held_back = {}

    def _apply(self, states: dict[int, ClientState], checkpoint: Path) -> None:
        """Write rows that a valid checkpoint names; the mark comes first, so that an older checkpoint is never taken up with them."""
        aside = self._mark.with_suffix(".tmp")
        aside.write_text(json.dumps({"checkpoint": checkpoint.name}))
        aside.rename(self._mark)
        self._write(states)
        self._held_back = {}

    def _write(self, states: dict[int, ClientState]) -> None:
        rows = {client: to_arrays(state) | {"_seen": torch.ones((), dtype=torch.uint8)} for client, state in states.items()}
        for name, field in self._fields.items():
            with (self._folder / f"{name}.bin").open("r+b") as file:
                for client, row in rows.items():
                    file.seek(client * field.shape[1])
                    file.write(row[name].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
                file.flush()
                os.fsync(file.fileno())

    @property
    def _mark(self) -> Path:
        return self._folder / "applied.json"


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
