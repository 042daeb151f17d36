"""What bad clients do: to their data before training, and to what they send after it.

An attack never touches an honest client, the test or the validation data. Its clients train like all others, see one another's honest
updates in a round (they collude), and send what the attack says. Of an upload's vectors all are changed alike where the attack scales or
turns the update; attacks that make up an update change `delta` and send the other vectors as they trained them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedaccord.core.algorithm import PositiveCount, Share
from fedaccord.core.errors import ConfigError
from fedaccord.core.rng import stream
from fedaccord.core.state import map_state
from fedaccord.runtime.base import ClientUpload


class Scene(NamedTuple):
    """What the attackers of one round know."""

    round: int
    seed: int
    bad: Sequence[ClientUpload]  # of all attackers in the cohort, as they trained, in client order
    honest: Sequence[ClientUpload]  # of the others; only attacks that say `knows_honest` look at them
    previous: Tensor | None  # [d], how the global model moved in the last round; None in the first
    asked: int  # clients in the cohort


@dataclass(frozen=True)
class Attack:
    """Base of all attacks: override `data`, which changes the attackers' examples, `uploads`, which changes what they send, or both."""

    share: Share = 0.2  # of the clients are bad, drawn once; at least one where it is above 0
    clients: tuple[int, ...] | None = None  # these are bad, instead of a drawn share
    from_round: PositiveCount = 1  # before it, uploads are honest

    knows_honest: ClassVar[bool] = False

    def bad(self, population: int, seed: int) -> tuple[int, ...]:
        """Who is bad. E203 where a client is named that does not exist."""
        if self.clients is not None:
            strangers = [client for client in self.clients if not 0 <= client < population]
            if strangers:
                raise ConfigError(
                    "E203", f"client {strangers[0]} of {population} clients", "attack.clients", f"Ids are 0 to {population - 1}"
                )
            return tuple(sorted(set(self.clients)))
        size = max(1, round(self.share * population)) if self.share > 0 else 0
        return tuple(sorted(int(client) for client in stream(seed, "attackers").choice(population, size, replace=False)))

    def data(self, x: Tensor, y: Tensor, rows: np.ndarray[Any, Any], classes: int | None, seed: int) -> tuple[Tensor, Tensor]:
        """(x, y) of the attackers' examples [n, ...], whose rows in the task are given. Default: as they are."""
        return x, y

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        """What the attackers send, in the order of `scene.bad`. Default: what they trained."""
        return list(scene.bad)

    @property
    def poisons_data(self) -> bool:
        return type(self).data is not Attack.data


@dataclass(frozen=True)
class Nobody(Attack):
    """Nobody is bad: what attacks are compared with."""

    share: Share = 0.0


def scaled(answer: ClientUpload, factor: float) -> ClientUpload:
    """All vectors of the upload times a factor."""
    return answer._replace(upload=map_state(lambda leaf: leaf * factor, answer.upload))


def with_delta(answer: ClientUpload, delta: Tensor) -> ClientUpload:
    """Another change of the model; what the report says of it stays the client's own word."""
    return answer._replace(upload=answer.upload._replace(delta=delta))


def deltas(answers: Sequence[ClientUpload]) -> Tensor:
    """[n, d]."""
    return torch.stack([answer.upload.delta for answer in answers])
