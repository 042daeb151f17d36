"""What a run tells while it goes: one event a fact, to as many sinks as wanted."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Event:
    """`kind` is one of run_started, round_finished, run_finished; `data` is plain JSON data."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


class Telemetry(Protocol):
    def emit(self, event: Event) -> None:
        """Take note of the event. Never raises, never blocks."""
        ...


@dataclass(frozen=True)
class Tee:
    """One event, many sinks, in order. A sink that raises is logged, and neither the other sinks nor the run notice."""

    sinks: tuple[Telemetry, ...] = ()

    def emit(self, event: Event) -> None:
        for sink in self.sinks:
            try:
                sink.emit(event)
            except Exception:
                logging.getLogger("fedaccord").exception("telemetry: %s could not take %s", type(sink).__name__, event.kind)
