"""Who is not asked until when, by the events that a run wrote down."""

from __future__ import annotations

from typing import Any

from fedaccord.diagnosis.seen import Client, Seen


def in_quarantine(seen: Seen, t: int | None = None) -> dict[Client, int]:
    """client -> the first round that may ask it again, of those that round t may not ask; t: default the next one."""
    until: dict[Client, Any] = {}
    now = seen.next_round if t is None else t
    for at, event in seen.events("quarantined", "released"):
        if at >= now:
            break
        client = event.get("client")
        if not isinstance(client, int | str):
            continue
        if event["event"] == "released":
            until.pop(client, None)
        else:
            until[client] = event.get("until")
    return {client: end for client, end in until.items() if isinstance(end, int) and now < end}
