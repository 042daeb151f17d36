"""Ctrl-C once: finish the round and save. Twice: stop at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """While entered, the first SIGINT or SIGTERM sets `asked`, the second raises KeyboardInterrupt. Each calls `tell(count)` first."""

    def __init__(self, tell: Callable[[int], None] | None = None) -> None:
        self.count, self._tell = 0, tell or self._say
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """Whether to stop after this round."""
        return self.count > 0

    def _say(self, count: int) -> None:
        text = "finishing the round, then saving; Ctrl-C again stops at once" if count == 1 else "stopping at once"
        print(f"\n{text}", file=sys.stderr, flush=True)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._tell(self.count)
        if self.count > 1:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
