"""The screens by name: `[aggregation.screen] name = ...`."""

from __future__ import annotations

from fedaccord.aggregation.screen import Screen
from fedaccord.aggregation.screens.coordinates import Bulyan, Median, TrimmedMean
from fedaccord.aggregation.screens.fltrust import FLTrust
from fedaccord.aggregation.screens.foolsgold import FoolsGold
from fedaccord.aggregation.screens.geometric_median import GeometricMedian
from fedaccord.aggregation.screens.krum import Krum, MultiKrum
from fedaccord.aggregation.screens.norm_clipping import NormClipping
from fedaccord.aggregation.screens.rule_guard import RuleGuard
from fedaccord.aggregation.screens.unscreened import Unscreened

SCREENS: dict[str, type[Screen]] = {
    "none": Unscreened,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "multi_krum": MultiKrum,
    "bulyan": Bulyan,
    "geometric_median": GeometricMedian,
    "fltrust": FLTrust,
    "foolsgold": FoolsGold,
    "norm_clipping": NormClipping,
    "rule_guard": RuleGuard,
}

__all__ = [
    "SCREENS",
    "Bulyan",
    "FLTrust",
    "FoolsGold",
    "GeometricMedian",
    "Krum",
    "Median",
    "MultiKrum",
    "NormClipping",
    "RuleGuard",
    "TrimmedMean",
    "Unscreened",
]
