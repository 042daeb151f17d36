"""Norm clipping: nobody's change of the model is longer than a radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedaccord.aggregation.figures import lengths
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState
from fedaccord.core.algorithm import Positive


@dataclass(frozen=True)
class NormClipping(Screen):
    """mean of u_i min(1, radius / |u_i|) (Sun et al. 2019, arXiv:1911.07963, section 4). Noise is the channel's.

    Any cohort will do; one upload alone is as long as its own median. Where most updates are zero, so is their median, and the model stays.
    """

    radius: Positive | None = None  # left out: the median length of the cohort's updates

    assumes: ClassVar[str] = "bad updates do harm by their length; one that is short and wrong passes"

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        norms = lengths(evidence.deltas)
        radius = float(norms.quantile(0.5)) if self.radius is None else self.radius
        return Screening.of(evidence)._replace(scales=shortening(norms, radius))


def shortening(norms: Tensor, radius: float) -> Tensor:
    """Factors [C] that bring lengths down to the radius; exactly 1 for those within."""
    return (radius / norms).nan_to_num(nan=1.0, posinf=1.0).clamp(max=1.0)
