"""Events, and where they go."""

from fedaccord.telemetry.events import Event, Tee, Telemetry

__all__ = ["Event", "Tee", "Telemetry"]
