"""Weights from what sharpness-aware clients report: the pull that they needed, or how noisy their gradients are."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.aggregation.policy import CohortView, Decision, Memory, Policy
from fedaccord.core.algorithm import NonNegative, Share
from fedaccord.core.reports import ClientReport, number


@dataclass(frozen=True)
class LambdaTrust(Policy):
    """n_k exp(-trust lambda_raw), relative to the round's least: clients whose training went astray count less.

    For any method that reports `lambda_raw`. `dynamic_sam` does the same by itself unless its own `trust` is 0. A negative value is a lie,
    since no signal is; who reports none counts as the worst of the round.
    """

    trust: NonNegative = 1.0

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        told = _signals(cohort, "lambda_raw")
        known = [max(0.0, value) for value in told if value is not None]
        least, most = min(known, default=0.0), max(known, default=0.0)
        raw = torch.tensor([most if value is None else max(0.0, value) for value in told], dtype=torch.float64)
        return Decision(cohort.counts * torch.exp(-self.trust * (raw - least)), memory)


@dataclass(frozen=True)
class RadiusTrust(Policy):
    """n_k / (1 + noise_k), noise the ratio s/m of the client's gradient norms; whose radius is over twice the round's median, or missing,
    counts a tenth. For any method that reports `noise` and `rho`; `noise_adaptive_sam` does the same where its `server_weight` asks."""

    outlier_weight: Share = 0.1

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        noise = torch.tensor([max(0.0, value or 0.0) for value in _signals(cohort, "noise")], dtype=torch.float64)
        return Decision(cohort.counts / (1 + noise) * self._outliers(_signals(cohort, "rho")), memory)

    def _outliers(self, radii: list[float | None]) -> Tensor:
        known = [rho for rho in radii if rho is not None]
        if not known:  # a method without radii
            return torch.ones(len(radii), dtype=torch.float64)
        limit = 2 * statistics.median(known)
        return torch.tensor([self.outlier_weight if rho is None or rho > limit else 1.0 for rho in radii], dtype=torch.float64)


def _signals(cohort: CohortView, name: str) -> list[float | None]:
    return [_signal(report, name) for report in cohort.reports]


def _signal(report: ClientReport, name: str) -> float | None:
    value = number(report.signals.get(name)) if isinstance(report.signals, dict) else None
    return None if value is None else max(-1e6, min(1e6, value))
