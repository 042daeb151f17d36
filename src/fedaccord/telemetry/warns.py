"""What a notebook, which has no progress line, is told through logging."""

from __future__ import annotations

import logging

from fedaccord.core.reports import alert_kind
from fedaccord.telemetry.events import Event


class Warns:
    """Says through logging, once each, that a round changed nothing and what a method alerts to: a notebook has no progress line."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def emit(self, event: Event) -> None:
        if event.kind != "round_finished":
            return
        round, log = event.data["round"], logging.getLogger("fedaccord")
        if event.data["model_kept"] and self._is_new("model kept"):
            first = next((refusal["message"] for refusal in event.data["refused"]), "")
            text = "round %d kept the old model: %s. %s See Run.rounds and Run.clients."
            log.warning(text, round, event.data["reason"], first)
        for alert in event.data["alerts"]:
            if self._is_new(f"alert: {alert_kind(alert)}"):
                log.warning("round %d, %s. See Run.rounds.alerts.", round, alert)

    def _is_new(self, what: str) -> bool:
        is_new = what not in self._said
        self._said.add(what)
        return is_new
