"""Which runtime an experiment gets where it leaves that open: by a short calibration on its own clients, kept for this machine.

Nothing that the calibration trains counts: methods are pure, and no state is settled. What it chose stands in the run's experiment, and
resume follows that, whatever a later calibration would say.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import nn

from fedaccord.core.errors import ConfigError
from fedaccord.runtime.client import Assignment, Clients, Request
from fedaccord.runtime.cores import cores
from fedaccord.runtime.options import MemoryFormat, RuntimeName, RuntimeOptions, StepKind
from fedaccord.runtime.padding import PerExample, per_example_loss
from fedaccord.runtime.side_by_side import SideBySide, block_size, why_not

CACHE = "FEDACCORD_CACHE"  # environment: the folder of what was measured on this machine
SHORT = 2.0  # seconds: a run that takes no longer is not worth a calibration
POOL_START = 3.0  # seconds until the workers have imported torch
POOL_SHARE = 0.9  # of a core that a worker makes use of
MARGIN, MARGIN_OF_FORMAT = 0.8, 0.95  # another runtime, or channels-last, has to take at most this share of the time
FORMATS: tuple[MemoryFormat, MemoryFormat] = ("contiguous", "channels_last")
ALONE, STEPS = 3, 5  # clients of a calibration one by one, and the most local steps of each
STEPS_TOGETHER = 2  # of a calibration side by side, of as many clients as a block has
PASS, PASSES = 0.5, 8  # seconds that one measurement should take, and how often it is repeated within them


class Estimate(NamedTuple):
    """What a round would take, with the start of its processes shared out over the rounds."""

    name: RuntimeName
    workers: int
    seconds: float

    def __str__(self) -> str:
        of = f" with {self.workers} workers" if self.name == "vectorized" and self.workers > 1 else ""
        return f"{self.name}{of} {self.seconds:.2g} s"


class Chosen(NamedTuple):
    """The options, none of them open any more, and why."""

    options: RuntimeOptions
    reason: str
    per_example: PerExample | None = None  # of the vectorised runtime


def choose(asked: RuntimeOptions, clients: Clients, request: Request, cohort: Sequence[int], rounds: int) -> Chosen:
    """Settle what is open for a run of `rounds` rounds whose first request and cohort these are; sets the model's memory format.

    E208 where `vectorized` is asked for and this model, method or plan cannot.
    """
    asked = replace(asked, name="sequential") if asked.debug and asked.name == "auto" else asked
    working = [each for each in (clients.assignment(request, client, None) for client in cohort) if each.num_examples]
    obstacle = why_not(clients.model, request.plan) or ("runtime.debug looks at every step" if asked.debug else None)
    if asked.name == "vectorized":
        obstacle = obstacle or (_fails(clients, request, [each._replace(max_steps=1) for each in working[:2]]) if working else None)
        if obstacle:
            remedy = "Use runtime.name = 'pool' or 'auto'"
            raise ConfigError("E208", f"clients cannot be vectorised: {obstacle}", "runtime.name", remedy)
    chosen = Chosen(asked, "as asked")
    if working and _is_open(asked, clients, len(cohort)):
        key = _key(asked, clients, request, len(cohort), rounds)
        remembered = _remembered(key, asked)
        chosen = remembered or _measured(asked, clients, request, working, len(cohort), rounds, obstacle)
        if remembered is None:
            _remember(key, chosen)
    settled = _settled(chosen.options, clients, request, len(cohort))
    clients.model.channels_last = settled.memory_format == "channels_last"
    return chosen._replace(options=settled, per_example=_padding(clients, request) if settled.name == "vectorized" else None)


def _padding(clients: Clients, request: Request) -> PerExample | None:
    """The loss of each example where batches may be padded."""
    data = clients.data
    if not request.algorithm.objective_is_loss or not len(data.train.indices):
        return None
    return per_example_loss(clients.model, clients.loss, *data.examples_at(data.train.indices[:5]))


def _is_open(asked: RuntimeOptions, clients: Clients, size: int) -> bool:
    """Whether something has to be measured."""
    if asked.name == "auto" or (asked.memory_format == "auto" and _has_pictures(clients)):
        return True
    return asked.name == "vectorized" and len(_counts(asked, clients, size)) > 1


def _counts(asked: RuntimeOptions, clients: Clients, size: int) -> list[int]:
    """Into how many processes a cohort of this size may go: one or all cores, where that is open."""
    if asked.workers is None:
        is_here = clients.model.initial_w.device.type == "cpu"  # data on an accelerator do not go to other processes
        return sorted({1, min(cores(), size) if is_here else 1})
    return [min(asked.workers, size)]


def _settled(options: RuntimeOptions, clients: Clients, request: Request, size: int) -> RuntimeOptions:
    """What is still open gets the plainest answer; options of another runtime are left out."""
    name = "sequential" if options.name == "auto" else options.name
    memory_format = "contiguous" if options.memory_format == "auto" else options.memory_format
    workers = block = None
    if name == "pool":
        workers = options.workers or cores()
    elif name == "vectorized":
        workers = options.workers or 1
        block = _block(options, request, size, workers)
    step: StepKind = "captured" if clients.captures and name != "vectorized" else "eager"
    return replace(options, name=name, step=step, memory_format=memory_format, workers=workers, block=block)


def _block(options: RuntimeOptions, request: Request, size: int, workers: int) -> int:
    """Clients of a block: as many as fit, and with several workers at least one block for each of them."""
    if options.block is not None:
        return options.block
    most = block_size(request.sent.w)
    return most if workers == 1 else max(1, min(most, -(-size // workers)))


def _measured(
    asked: RuntimeOptions,
    clients: Clients,
    request: Request,
    working: list[Assignment],
    size: int,
    rounds: int,
    obstacle: str | None,
) -> Chosen:
    """The runtime with the smallest estimate for the whole run, and the estimates in words."""
    all_steps, model = sum(each.num_steps for each in working), clients.model

    def of_a_round(measured: list[Assignment], work: Callable[[], Any]) -> float:
        return _seconds(work) * all_steps / sum(each.num_steps for each in measured)

    def train(each: Assignment) -> None:
        if isinstance(problem := clients.attempt(request, each), Exception):
            raise problem

    def one_by_one() -> None:
        for each in few:
            train(each)

    def of_blocks(block: int) -> float:
        together = [each._replace(max_steps=STEPS_TOGETHER) for each in _spread(working, block)]

        def side_by_side() -> None:
            _side_by_side(clients, request, together)

        return of_a_round(together, side_by_side)

    formats: tuple[MemoryFormat, ...] = (asked.memory_format,)
    if asked.memory_format == "auto":
        formats = FORMATS if _has_pictures(clients) else FORMATS[:1]
    sequential: dict[MemoryFormat, float] = {}
    side_by_side: dict[int, float] = {}  # seconds of a round in one process, by the size of its blocks
    try:
        started = time.process_time()
        train(working[0]._replace(max_steps=1))
        a_step = time.process_time() - started
        steps = max(1, min(STEPS, int(PASS / (ALONE * a_step))))
        few = [each._replace(max_steps=steps) for each in _spread(working, ALONE)]
        # Two formats in turns, there and back: what slows the machine down for a second must not decide.
        for memory_format in formats if len(formats) == 1 else (*formats, *reversed(formats)):
            model.channels_last = memory_format == "channels_last"
            sequential[memory_format] = min(of_a_round(few, one_by_one), sequential.get(memory_format, math.inf))
            if sequential[memory_format] * rounds < SHORT:
                chosen = replace(asked, name="sequential" if asked.name == "auto" else asked.name, memory_format=memory_format)
                return Chosen(chosen, f"the whole run takes some {max(sequential[memory_format] * rounds, 0.1):.1f} s")
        memory_format = min(sequential, key=lambda each: sequential[each] / (MARGIN_OF_FORMAT if each == FORMATS[1] else 1.0))
        alone = sequential[memory_format]
        reason = "" if len(formats) == 1 else f"{memory_format}: " + ", ".join(f"{name} {t:.2g} s" for name, t in sequential.items())
        counts = _counts(asked, clients, size)
        if asked.name in ("sequential", "pool") or (asked.name == "vectorized" and len(counts) == 1):
            return Chosen(replace(asked, memory_format=memory_format), reason or "as asked")
        format_together = FORMATS[0] if asked.name == "auto" else memory_format
        model.channels_last = format_together == FORMATS[1]
        if asked.name == "auto":
            obstacle = obstacle or _fails(clients, request, [each._replace(max_steps=1) for each in working[:2]])
        if not obstacle:
            most = max(2, int(PASS * all_steps / (STEPS_TOGETHER * alone)))
            for block in dict.fromkeys(_block(asked, request, size, count) for count in counts):
                side_by_side[block] = of_blocks(min(block, most))
    except Exception as problem:  # a user's model that fails here fails again in round 1, where it is reported as it should be
        return Chosen(asked, f"the calibration failed: {type(problem).__name__}: {problem}")
    found = [Estimate("sequential", 1, alone)] if asked.name == "auto" else []
    for count in counts if side_by_side else ():
        block = _block(asked, request, size, count)
        found.append(Estimate("vectorized", count, _shared_out(side_by_side[block], min(count, -(-size // block)), rounds)))
    if asked.name == "auto" and counts[-1] > 1:
        found.append(Estimate("pool", counts[-1], _shared_out(alone, counts[-1], rounds)))
    rivals = [each for each in found if each.name != "vectorized"]
    rivals += [reduce(_plainer, together)] if (together := [each for each in found if each.name == "vectorized"]) else []
    best = min(rivals, key=lambda each: each.seconds / (1.0 if each.name == "sequential" else MARGIN))
    text = f"a round is estimated at: {', '.join(map(str, found))}" + (f"; not vectorised: {obstacle}" if obstacle else "")
    text += f"; {reason}" if reason else ""
    if best.name == "vectorized":
        return Chosen(replace(asked, name="vectorized", workers=best.workers, memory_format=format_together), text)
    return Chosen(replace(asked, name=best.name, memory_format=memory_format), text)


def _plainer(plain: Estimate, other: Estimate) -> Estimate:
    """The other only where it is clearly faster."""
    return other if other.seconds < MARGIN * plain.seconds else plain


def _shared_out(seconds: float, workers: int, rounds: int) -> float:
    """Of a round, where the work of one process is shared by so many, with their start."""
    return seconds if workers == 1 else seconds / (POOL_SHARE * workers) + POOL_START / rounds


def _has_pictures(clients: Clients) -> bool:
    """Whether a memory format is a question here."""
    return clients.data.x.dim() == 4 and any(isinstance(part, nn.Conv2d) for part in clients.model.module.modules())


def _side_by_side(clients: Clients, request: Request, working: list[Assignment]) -> Any:
    return SideBySide(clients, _padding(clients, request)).trained(request, working)


def _fails(clients: Clients, request: Request, working: list[Assignment]) -> str | None:
    """Why these clients cannot be trained side by side."""
    try:
        _side_by_side(clients, request, working)
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    return None


def _spread(working: list[Assignment], most: int) -> list[Assignment]:
    """At most so many of them, from all over the cohort."""
    return working[:: max(1, len(working) // most)][:most]


def _seconds(work: Callable[[], Any]) -> float:
    """CPU time of the best of several passes: the first captures and warms up, and others may hold the core in some."""
    taken: list[float] = []
    while len(taken) < 2 or (len(taken) < PASSES and sum(taken) < PASS):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return max(min(taken), 1e-6)


def _key(asked: RuntimeOptions, clients: Clients, request: Request, size: int, rounds: int) -> str:
    """The same for runs that cost the same: of other seeds, or with other learning rates."""
    layout, data = clients.model.layout, clients.data
    parts = (
        (asked, cores(), size, rounds),
        (layout.names, layout.shapes, str(layout.dtype), layout.kinds, type(clients.model.module).__qualname__),
        (type(request.algorithm).__qualname__, request.plan.batch_size, request.plan.epochs, type(request.plan.optimizer).__name__),
        (tuple(data.x.shape[1:]), str(data.x.dtype), len(data.train.indices), len(data)),
        (torch.__version__, platform.machine(), platform.node()),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _cache() -> Path:
    base = os.environ.get(CACHE) or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fedaccord")
    return Path(base) / "calibration"


def _remembered(key: str, asked: RuntimeOptions) -> Chosen | None:
    """What was chosen before; None where nothing was, or nothing that can be read."""
    try:
        found = json.loads((_cache() / f"{key}.json").read_text())
        name, workers, memory_format, reason = found["name"], found["workers"], found["memory_format"], str(found["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_count = workers is None or (type(workers) is int and workers > 0)
    if name not in get_args(RuntimeName) or memory_format not in get_args(MemoryFormat) or not is_count:
        return None
    return Chosen(replace(asked, name=name, workers=workers, memory_format=memory_format), reason)


def _remember(key: str, chosen: Chosen) -> None:
    """A cache that cannot be written is no cache."""
    options = chosen.options
    with contextlib.suppress(OSError):
        _cache().mkdir(parents=True, exist_ok=True)
        aside = _cache() / f"{key}.{os.getpid()}"
        found = {name: getattr(options, name) for name in ("name", "workers", "memory_format")}
        aside.write_text(json.dumps(found | {"reason": chosen.reason}))
        aside.rename(_cache() / f"{key}.json")
