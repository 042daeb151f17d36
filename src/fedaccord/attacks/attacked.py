"""A federation some of whose clients are bad: their examples, and a runtime around the real one that sends what they send."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaccord.attacks.attack import Attack, Scene
from fedaccord.core.algorithm import Algorithm
from fedaccord.core.arrays import load_arrays, save_arrays
from fedaccord.core.local import LocalPlan
from fedaccord.core.state import State
from fedaccord.core.vector import Buffers
from fedaccord.runtime.base import ClientUpload, Runtime, RuntimeAround
from fedaccord.runtime.population import Population

FILE = "attack.safetensors"


def poisoned(data: Population, attack: Attack, bad: Collection[int], classes: int | None) -> Population:
    """The population with the attackers' training examples changed."""
    if not attack.poisons_data or not bad:
        return data
    rows = np.unique(np.concatenate([data.train[client] for client in sorted(bad)]))
    if not len(rows):
        return data
    x, y = attack.data(*data.examples_at(rows), rows, classes, data.seed)
    # New rows, since an honest client may own an example too where a partition gives it to several.
    indices, offsets = data.train.indices.copy(), data.train.offsets
    for client in bad:
        own = slice(offsets[client], offsets[client + 1])
        indices[own] = len(data.y) + np.searchsorted(rows, indices[own])
    return replace(data, x=torch.cat([data.x, x]), y=torch.cat([data.y, y]), train=replace(data.train, indices=indices))


class Attacked(RuntimeAround):
    """Sends what the attack says for the bad clients; everybody trains in `inner`, so that all runtimes tell the same lies.

    The last move of the global model is what the attackers see of it: the difference of the models they were sent in two rounds.
    """

    def __init__(self, inner: Runtime, attack: Attack, bad: Collection[int], seed: int) -> None:
        self.inner, self.attack, self.bad, self._seed = inner, attack, frozenset(bad), seed
        self._last: Tensor | None = None

    def train(
        self, algorithm: Algorithm, sent: State, buffers: Buffers, clients: Sequence[int], plan: LocalPlan, round: int, lr: float
    ) -> list[ClientUpload]:
        answers = sorted(self.inner.train(algorithm, sent, buffers, clients, plan, round, lr), key=lambda answer: answer.client)
        previous, self._last = None if self._last is None else sent.w - self._last, sent.w
        if round < self.attack.from_round:
            return answers
        able = [answer for answer in answers if answer.error is None]
        bad = [answer for answer in able if answer.client in self.bad]
        if not bad:
            return answers
        honest = [answer for answer in able if answer.client not in self.bad] if self.attack.knows_honest else []
        lies = self.attack.uploads(Scene(round, self._seed, bad, honest, previous, len(clients)))
        told = {answer.client: answer for answer in lies}
        return [told.get(answer.client, answer) for answer in answers]

    def save(self, folder: Path) -> None:
        self.inner.save(folder)
        save_arrays({} if self._last is None else {"w": self._last}, folder / FILE)

    def restore(self, folder: Path | None) -> None:
        self.inner.restore(folder)
        self._last = None if folder is None else load_arrays(folder / FILE).get("w")
