"""The scalars that others may look at: policies, samplers, records, telemetry. Never a tensor.

Every number is finite or None with a reason: NaN does not leave this file.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

_FALLING = ("loss", "error", "mae", "mse", "rmse", "perplexity", "nll", "brier")


def lower_is_better(metric: str) -> bool:
    """Whether less of this metric is better: its name holds one of the words for losses and errors."""
    return any(word in metric.lower() for word in _FALLING)


def finite(value: float | None) -> float | None:
    """The value as a float, or None where it is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def number(value: Any) -> float | None:
    """The value where it is a finite number, else None. What a client sends is not trusted to be one: it may be a string, or 10**400."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def alert_kind(alert: str) -> str:
    """What an alert is about, whatever its figures: its words up to the first number, colon or semicolon. Repeats are counted by it."""
    return re.split(r"[\d:;]", alert, maxsplit=1)[0].strip(" =,") or "alert"


@dataclass(frozen=True)
class ClientReport:
    """What one client did in one round."""

    round: int
    client: int
    num_examples: float  # what the client says; checked by the guard
    steps: int = 0
    gradients: int = 0  # gradient evaluations, each one forward and one backward pass of a mini-batch
    loss: float | None = None  # mean objective over the steps, clean pass
    epoch_losses: tuple[float | None, ...] = ()
    update_norm: float | None = None  # |delta|
    cosine: float | None = None  # of delta and the round's aggregated delta
    drift: float | None = None  # |w_K - w_{t+1}|^2
    weight: float = 0.0  # share in the aggregate; 0 = left out
    accepted: bool = False
    code: str | None = None
    reason: str | None = None  # of the refusal, one of errors.REASONS
    bytes_up: int = 0
    seconds: float = 0.0
    signals: dict[str, float | None] = field(default_factory=dict)
    latency: float | None = None  # seconds of computing, where the device's speed is known; `seconds` is what this machine took
    judged: dict[str, float | None] = field(default_factory=dict)  # what the server computed about it and its policy decided
    is_weak: bool = False  # its device, as far as the server knows

    def record(self) -> dict[str, Any]:
        """The line of clients.jsonl; what is no number in it becomes None, since a refused report may hold anything."""
        line: dict[str, Any] = {"kind": "train", **{each.name: getattr(self, each.name) for each in fields(self)}}
        for name in ("num_examples", "steps", "gradients", "loss", "bytes_up", "seconds", "latency"):
            line[name] = number(line[name])
        line["epoch_losses"] = [number(loss) for loss in self.epoch_losses] if isinstance(self.epoch_losses, list | tuple) else []
        line["signals"] = {str(name): number(value) for name, value in self.signals.items()} if isinstance(self.signals, dict) else {}
        return line


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one model on one set of examples."""

    num_examples: int
    metrics: dict[str, float] | None  # loss and the task's metrics; None where nothing could be measured
    reason: str | None = None

    def record(self, round: int, client: int) -> dict[str, Any]:
        """The line of clients.jsonl that says how the global model does on this client's held-out examples."""
        return {"kind": "evaluate", "round": round, "client": client, **asdict(self)}


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round. Fields that could not be measured are None, and a reason says why."""

    round: int
    lr: float
    cohort: tuple[int, ...]  # who was asked
    accepted: tuple[int, ...]
    refused: tuple[dict[str, Any], ...]  # client, code, reason, message
    absent: tuple[int, ...]  # asked, and did not answer
    train_loss: float | None
    test: dict[str, float] | None
    test_reason: str | None
    validation: dict[str, float] | None
    validation_reason: str | None
    update_norm: float | None  # |w_{t+1} - w_t|
    drift: float | None  # mean over the accepted of |w_{i,K} - w_{t+1}|^2
    pairwise_cosine: float | None  # mean over pairs of accepted deltas
    gradients: int
    bytes_up: int
    bytes_down: int
    seconds: float
    model_kept: bool  # True: nothing was accepted and the model is the old one
    reason: str | None
    alerts: tuple[str, ...] = ()  # what the method and the server tell an operator
    trust: dict[str, Any] = field(default_factory=dict)  # what guard, policy and breaker decided, where they decided anything

    def record(self) -> dict[str, Any]:
        """The line of rounds.jsonl."""
        return asdict(self)
