"""Where clients run, as an experiment says it; what it leaves open is settled before round 1 and written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedaccord.core.algorithm import PositiveCount

RuntimeName = Literal["auto", "sequential", "vectorized", "pool"]
StepKind = Literal["auto", "eager", "captured"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]
StateKind = Literal["auto", "memory", "disk"]


@dataclass(frozen=True)
class RuntimeOptions:
    """Where clients run and what they keep lies. What is `auto` or left out is chosen from model, data and a short calibration."""

    name: RuntimeName = "auto"
    workers: PositiveCount | None = None  # processes; left out: of the pool one a core; of the vectorised runtime this one, or one a core
    block: PositiveCount | None = None  # clients that are vectorised together; left out: as many as fit, and a block for each worker
    step: StepKind = "auto"  # captured: gradients by recorded steps, to the same bits
    device: str = "cpu"  # where models and data lie: "cpu", or an accelerator as torch names it ("cuda", "cuda:1")
    memory_format: MemoryFormat = "auto"  # of pictures inside the model; which is faster depends on the model
    state: StateKind = "auto"  # of clients: in memory, or in the folder of the run; memory where it is small beside what is available
    debug: bool = False  # stop at the first non-finite value, naming client, round and step
