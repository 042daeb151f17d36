"""BlazeFL 2.0.2 (a process pool, shared memory): DATA.npz. Its own client is the usual one, with a DataLoader: naive.py's is run."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as processes
from blazefl.core import IPCMode, ProcessPoolClientTrainer, SHMHandle, deserialize_model, serialize_model
from naive import train_client
from serving import part, serve, workload
from torch import Tensor

CORES = len(os.sched_getaffinity(0))


@dataclass
class Down:
    model_parameters: Tensor


@dataclass
class Up:
    model_parameters: Any  # a tensor, or the handle of one in shared memory
    size: int = 0
    steps: int = 0
    examples: int = 0


class Trainer(ProcessPoolClientTrainer[Up, Down, int]):
    def __init__(self, parameters: Tensor, share_dir: Path, stop_event: threading.Event) -> None:
        self.num_parallels, self.share_dir, self.device, self.device_count = CORES, share_dir, "cpu", 0
        self.cache: list[Up] = []
        self.ipc_mode, self.stop_event = IPCMode.SHARED_MEMORY, stop_event
        self._parameters = parameters

    def get_client_config(self, cid: int) -> int:
        return cid

    def prepare_uplink_package_buffer(self) -> Up:
        return Up(self._parameters.clone())

    @staticmethod
    def worker(config: Any, payload: Any, device: str, stop_event: threading.Event, *, shm_buffer: Up | None = None) -> Any:
        work = workload(sys.argv[1])  # read before the fork
        model = work.module()
        deserialize_model(model, payload.model_parameters)
        found = train_client(model, *part(work, config), work.batch_size, work.lr, work.rho)
        assert shm_buffer is not None
        shm_buffer.model_parameters.copy_(serialize_model(model))
        return Up(SHMHandle(), found.size, found.steps, found.examples)

    def uplink_package(self) -> list[Up]:
        package, self.cache = self.cache, []
        return package


def main() -> None:
    torch.set_num_threads(1)
    work = workload(sys.argv[1])
    model = work.module()
    # Each round's processes are forked afresh: what torch imports with its first step (over a second) is imported before.
    train_client(work.module(), *part(work, 0), work.batch_size, work.lr, work.rho)
    with tempfile.TemporaryDirectory() as folder, processes.Manager() as manager:
        trainer = Trainer(serialize_model(model), Path(folder), manager.Event())

        def round() -> dict[str, Any]:
            before = serialize_model(model)
            trainer.local_process(Down(before.clone()), list(range(len(work.sizes))))
            answers = trainer.uplink_package()
            total = sum(each.size for each in answers)
            mean = sum(each.model_parameters * (each.size / total) for each in answers)
            deserialize_model(model, mean)
            steps, examples = sum(each.steps for each in answers), sum(each.examples for each in answers)
            return {"steps": steps, "examples": examples, "moved": float((mean - before).norm())}

        serve(round)


if __name__ == "__main__":
    main()
