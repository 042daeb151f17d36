"""Progress of one run or several, on stderr: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from fedaccord.cli.output import is_rich, note
from fedaccord.cli.words import alert_line, duration, refusal_line, round_line, run_line
from fedaccord.core.reports import alert_kind
from fedaccord.telemetry import Event

PAUSE = 5.0  # seconds between plain lines of one run, where several go side by side


@dataclass
class Watched:
    """One run as far as its events told."""

    run_id: str
    label: str
    rounds: int
    done: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=10))  # seconds of the last rounds
    refused: dict[int, int] = field(default_factory=dict)  # client -> times
    alerts: dict[str, int] = field(default_factory=dict)  # kind -> times
    text: str = ""
    told: float = -PAUSE  # when its last plain line was printed

    def left(self, done: int) -> float | None:
        """Seconds until the last round, at the pace of the last ten."""
        return sum(self.recent) / len(self.recent) * (self.rounds - done) if self.recent else None


class Progress:
    """Takes the events of runs; enter it to show them. Safe to call from several threads."""

    def __init__(self, several: int | None = None) -> None:
        """several: how many runs go side by side; each line then names its run. None: one run alone."""
        self._several, self._live, self._lock = several, None, threading.RLock()
        self._running: dict[str, Watched] = {}
        self._done = 0
        self._started = time.monotonic()
        self._is_live = is_rich(sys.stderr)

    def __enter__(self) -> Progress:
        if self._is_live:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(get_renderable=self._render, console=Console(stderr=True), transient=True, refresh_per_second=4)  # type: ignore[assignment]
            self._live.start()  # type: ignore[attr-defined]
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, run_id: str, label: str, rounds: int) -> None:
        """A run is about to start."""
        with self._lock:
            self._running[run_id] = Watched(run_id, label, rounds)

    def emit(self, run_id: str, event: Event) -> None:
        """An event of a run that has begun."""
        with self._lock:
            watched = self._running.get(run_id)
            if watched is None:
                return
            if event.kind == "run_started":
                self.say(run_line(run_id, event.data["experiment"], event.data["clients"]))
                if event.data["round"]:
                    self.say(f"{self._name(watched)}resumed after round {event.data['round']}")
            elif event.kind == "round_finished":
                self._round(watched, event.data)

    def end(self, run_id: str, text: str = "") -> None:
        """The run is over."""
        with self._lock:
            watched = self._running.pop(run_id, None)
            self._done += 1
            if watched is not None and text:
                self.say(f"{self._name(watched)}{text}")

    def say(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            if self._live is not None:
                self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                note(text)

    def _round(self, watched: Watched, line: Mapping[str, Any]) -> None:
        done = int(line["round"])
        watched.recent.append(float(line["seconds"]))
        for refusal in line["refused"]:
            times = watched.refused[refusal["client"]] = watched.refused.get(refusal["client"], 0) + 1
            if times & (times - 1) == 0:  # the 1st, 2nd, 4th, 8th ... time
                self.say(refusal_line(watched.run_id, refusal, times))
        for alert in line.get("alerts") or ():
            times = watched.alerts[alert_kind(alert)] = watched.alerts.get(alert_kind(alert), 0) + 1
            if times & (times - 1) == 0:
                self.say(alert_line(watched.run_id, done, alert, times))
        watched.done = done
        watched.text = round_line(
            line, watched.rounds, watched.left(done), bar=self._is_live, brief=self._is_live and self._several is not None
        )
        now = time.monotonic()
        if not self._is_live and (self._several is None or now - watched.told >= PAUSE or done == watched.rounds):
            watched.told = now
            self.say(f"{self._name(watched)}{watched.text}")

    def _name(self, watched: Watched) -> str:
        return f"{watched.run_id}  {watched.label}  " if self._several is not None else ""

    def _render(self) -> Any:
        from rich.text import Text

        with self._lock:
            lines = [f"{self._name(each)}{each.text or 'starting'}" for each in self._running.values()]
            if self._several is not None:
                spent = time.monotonic() - self._started
                share = (self._done + sum(each.done / each.rounds for each in self._running.values())) / self._several
                left = f"  ETA {duration(spent / share * (1 - share))}" if 0 < share < 1 else ""
                lines.append(f"{self._done}/{self._several} runs  {duration(spent)}{left}")
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


@dataclass(frozen=True)
class Sink:
    """The telemetry of one run, passed on."""

    run_id: str
    progress: Progress

    def emit(self, event: Event) -> None:
        """Pass it on."""
        self.progress.emit(self.run_id, event)
