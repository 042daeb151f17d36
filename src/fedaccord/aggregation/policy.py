"""Policies: the weight of each accepted client in the aggregate. They see scalars, never tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedaccord.core.reports import ClientReport


class Policy(Protocol):
    def weigh(self, reports: Sequence[ClientReport]) -> Tensor:
        """Weights [C] of the accepted clients, float64, not negative; the round divides them by their sum. 0 = left out."""
        ...


@dataclass(frozen=True)
class BySize:
    """FedAvg's: in proportion to the sample counts."""

    def weigh(self, reports: Sequence[ClientReport]) -> Tensor:
        return torch.tensor([float(report.num_examples) for report in reports], dtype=torch.float64)


@dataclass(frozen=True)
class Equal:
    """Every accepted client the same, as FL-Simulator."""

    def weigh(self, reports: Sequence[ClientReport]) -> Tensor:
        return torch.ones(len(reports), dtype=torch.float64)


POLICIES: dict[str, type] = {"by_size": BySize, "equal": Equal}
