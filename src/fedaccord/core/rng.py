"""Named random streams: every draw of a run comes from `stream(seed, *names)`, so no draw depends on what was drawn before it.

A stream is fixed by its names alone: neither the order of clients, nor another run in the same process, nor a resume can move it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.bit_generator import ISeedSequence

Name = str | int


def _key(seed: int, names: tuple[Name, ...]) -> bytes:
    """128 bits from the seed and the names; the type of a name counts, so "1" and 1 are two streams."""
    text = "\x1f".join([str(int(seed)), *(f"{type(name).__name__}:{name}" for name in names)])
    return hashlib.sha256(text.encode()).digest()[:16]


def stream(seed: int, *names: Name) -> np.random.Generator:
    """A numpy generator for the draws called `names`, e.g. ``stream(seed, "batches", round, client)``."""
    # Seeded by four words instead of one long number, which numpy would take apart slowly, to the same state.
    return np.random.Generator(np.random.PCG64(np.frombuffer(_key(seed, names), dtype="<u4")))


def streams(seed: int, *names: Name, last: Sequence[Name]) -> list[np.random.Generator]:
    """``[stream(seed, *names, each) for each in last]``, at a third of the time: numpy's seeding, of all at once."""
    keys = b"".join([_key(seed, (*names, each)) for each in last])
    entropy = np.frombuffer(keys, dtype="<u4").reshape(-1, 4).astype(np.uint32)
    seeds: list[Any] = [_Seeded(words) for words in _seed_sequence_words(entropy)]  # numpy's types know only its own
    return [np.random.Generator(np.random.PCG64(each)) for each in seeds]


class _Seeded(ISeedSequence):
    """The words that a generator asks its seed for."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        assert n_words == len(self._words) and np.dtype(dtype) == self._words.dtype
        return self._words


def _seed_sequence_words(entropy: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """``SeedSequence(row).generate_state(4, uint64)`` for each row of the entropy [n, 4].

    O'Neill 2015, "Developing a seed_seq alternative", with the constants of numpy, which promises that they stay.
    """
    constant = 0x43B0D7E5

    def hashed(value: npt.NDArray[np.uint32], multiplier: int) -> npt.NDArray[np.uint32]:
        nonlocal constant
        value = value ^ np.uint32(constant)
        constant = constant * multiplier & 0xFFFFFFFF
        value = value * np.uint32(constant)
        return value ^ value >> np.uint32(16)

    def mixed(one: npt.NDArray[np.uint32], other: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        value: npt.NDArray[np.uint32] = np.uint32(0xCA01F9DD) * one - np.uint32(0x4973F715) * other
        return value ^ value >> np.uint32(16)

    pool = [hashed(word, 0x931E8875) for word in entropy.T]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source], 0x931E8875))
    constant = 0x8B51F9DD
    words = np.stack([hashed(pool[i % 4], 0x58F38DED) for i in range(8)], axis=1)
    return words.astype("<u4").view("<u8").astype(np.uint64)


def torch_seed(seed: int, *names: Name) -> int:
    """A 63-bit seed for torch's generators, from the same names."""
    return int.from_bytes(_key(seed, names), "little") & (2**63 - 1)


@contextmanager
def layers_draw_from(seed: int, *names: Name, device: torch.device | None = None) -> Iterator[None]:
    """Inside, torch's global CPU generator, and that of a CUDA device, are the stream called `names` (dropout, initial weights);
    afterwards they are as they were.

    Not `torch.manual_seed`, which reseeds every accelerator and formats a stack trace for each.
    """
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        generators.append(torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index])
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(torch_seed(seed, *names))
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def torch_stream(seed: int, *names: Name) -> torch.Generator:
    """A CPU torch generator for the draws called `names`."""
    return torch.Generator().manual_seed(torch_seed(seed, *names))


@contextmanager
def untouched_generators(device: torch.device | None = None) -> Iterator[None]:
    """What is drawn inside, others do not miss: afterwards every global generator (torch's on an accelerator `device` too) is as it was."""
    before = np.random.get_state(), random.getstate()
    accelerators = [] if device is None or device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(accelerators, device_type=accelerators[0].type if accelerators else "cuda"):
            yield
    finally:
        np.random.set_state(before[0])
        random.setstate(before[1])


@contextmanager
def disturbed_generators() -> Iterator[None]:
    """Inside, every global generator stands somewhere else; afterwards they are as they were."""
    with untouched_generators():
        torch.manual_seed(123)
        np.random.seed(5)
        random.seed(9)
        yield
