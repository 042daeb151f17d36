"""No screen at all, by a name: what screens are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState


@dataclass(frozen=True)
class Unscreened(Screen):
    """Everybody counts as they came: the bits of a run without a screen."""

    assumes: ClassVar[str] = "nobody is bad"
    needs_single_uploads: ClassVar[bool] = False

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        return Screening.of(evidence)
