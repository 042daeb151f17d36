"""A process that trains runs: orders come as JSON lines on stdin, events and outcomes leave as JSON lines on stdout.

One worker after a crash is replaced by another; the runs that it had done are on disk.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from fedaccord.cli.interrupts import Interrupts


class Channel:
    """The way back. Whatever user code prints goes to stderr; where nobody listens any more, the run saves and ends."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._interrupts = interrupts

    def send(self, kind: str, **data: Any) -> None:
        """One line."""
        try:
            self._out.write(json.dumps({"kind": kind, **data}) + "\n")
            self._out.flush()
        except (BrokenPipeError, OSError):
            self._interrupts.count = max(self._interrupts.count, 1)

    def emit(self, event: Any) -> None:
        """As telemetry."""
        self.send("event", event={"kind": event.kind, "data": event.data})


def serve() -> None:
    """Work until stdin ends."""
    with Interrupts(tell=lambda count: None) as interrupts:
        channel = Channel(interrupts)
        from fedaccord.cli.one import train
        from fedaccord.config import Settings, resolve
        from fedaccord.core.errors import FedaccordError, InternalFault

        for line in sys.stdin:
            order = json.loads(line)
            try:
                resolved = resolve(Settings(order["tables"], order["folder"]))
                status = train(resolved, order["sources"], Path(order["folder"]), order["resume"], [channel], interrupts.asked)
            except FedaccordError as error:
                cause = error.__cause__ if error.code == "E701" else None
                channel.send("failed", error=error.record(), exit_code=error.exit_code, traceback=_trace(cause or error))
            except KeyboardInterrupt:
                channel.send("interrupted")
                return
            except Exception as problem:
                fault = InternalFault("E701", f"{type(problem).__name__}: {problem}", order["folder"], "Please report it")
                channel.send("failed", error=fault.record(), exit_code=fault.exit_code, traceback=_trace(problem))
            else:
                channel.send("done", status=status)


def _trace(problem: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(problem))


if __name__ == "__main__":
    serve()
