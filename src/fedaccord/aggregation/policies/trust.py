"""Weights from what sharpness-aware clients report: the pull that they needed, or how noisy their gradients are."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedaccord.aggregation.policy import CohortView, Decision, Memory, Policy
from fedaccord.core.algorithm import Algorithm, NonNegative, Share
from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import ClientReport, number


@dataclass(frozen=True)
class LambdaTrust(Policy):
    """n_k exp(-trust lambda_raw), relative to the round's least: clients whose training went astray count less.

    For any method that reports `lambda_raw` and does not do the same by itself, as `dynamic_sam` does unless its own `trust` is 0. A
    negative value is a lie, since no signal is; who reports none counts as the worst of the round.
    """

    trust: NonNegative = 1.0

    weighs_by: ClassVar[tuple[str, ...]] = ("lambda_raw",)

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        told = _signals(cohort, "lambda_raw")
        known = [max(0.0, value) for value in told if value is not None]
        least, most = min(known, default=0.0), max(known, default=0.0)
        raw = torch.tensor([most if value is None else max(0.0, value) for value in told], dtype=torch.float64)
        return Decision(cohort.counts * torch.exp(-self.trust * (raw - least)), memory)


@dataclass(frozen=True)
class RadiusTrust(Policy):
    """n_k / (1 + noise_k), noise the ratio s/m of the client's gradient norms; whose radius is over twice the round's median, or missing,
    counts a tenth; a negative one is a lie and counts as missing. For any method that reports `noise` and `rho` and does not do the same by
    itself, as `noise_adaptive_sam` does unless its `outlier_weight` is 1 and its `server_weight` "size"."""

    outlier_weight: Share = 0.1

    weighs_by: ClassVar[tuple[str, ...]] = ("noise", "rho")

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        noise = torch.tensor([max(0.0, value or 0.0) for value in _signals(cohort, "noise")], dtype=torch.float64)
        return Decision(cohort.counts / (1 + noise) * self._outliers(_signals(cohort, "rho")), memory)

    def _outliers(self, radii: list[float | None]) -> Tensor:
        radii = [rho if rho is not None and rho >= 0 else None for rho in radii]
        known = [rho for rho in radii if rho is not None]
        if not known:  # a method without radii
            return torch.ones(len(radii), dtype=torch.float64)
        limit = 2 * statistics.median(known)
        return torch.tensor([self.outlier_weight if rho is None or rho > limit else 1.0 for rho in radii], dtype=torch.float64)


def check_counted_once(policy: Policy, algorithm: Algorithm) -> None:
    """E208 where the method itself weighs clients by a signal that the policy weighs them by; called when the run is built.

    The method is asked: of three clients one reports far more than the others, and counts less or it does not.
    """
    if not isinstance(policy, LambdaTrust | RadiusTrust):
        return
    usual = dict.fromkeys(policy.weighs_by, 0.02)
    for name in policy.weighs_by:
        reports = [ClientReport(1, client, 1.0, signals={**usual, name: 0.02 if client < 2 else 1.0}) for client in range(3)]
        if len(set(algorithm.confidence(reports).tolist())) > 1:
            what = f"{type(algorithm).__name__} weighs clients by {name} itself, and {type(policy).__name__} would do so once more"
            raise ConfigError("E208", what, "aggregation.policy", "Leave the policy out, or turn the method's own weights off")


def _signals(cohort: CohortView, name: str) -> list[float | None]:
    return [_signal(report, name) for report in cohort.reports]


def _signal(report: ClientReport, name: str) -> float | None:
    value = number(report.signals.get(name)) if isinstance(report.signals, dict) else None
    return None if value is None else max(-1e6, min(1e6, value))
