"""Screens: robust statistics of the uploads themselves, between the guard and the policy.

A screen leaves uploads out, weighs them, shortens the change of the model, or puts a robust statistic in place of the weighted mean. Of an
upload's vectors only `delta`, which moves the model, is ever shortened, and only in the weighted sum: the plain mean that moves duals and
control variates (SCAFFOLD, FedDyn, FedSMOO) takes every upload that counts as the client will commit it, so that the server's vector stays
the mean of the clients'. A screen with a `combine` applies it to each vector of the uploads and to both sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedaccord.aggregation.policy import BySize, Policy
from fedaccord.core.errors import ConfigError, UploadError
from fedaccord.core.reports import ClientReport

Combine = Callable[[Sequence[Tensor]], Tensor]  # C tensors of one shape -> one of that shape


class ScreenState(NamedTuple):
    """What a screen remembers: plain JSON data, and vectors by name."""

    facts: Mapping[str, Any] = MappingProxyType({})
    vectors: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class Evidence:
    """What a screen may look at: the uploads that the guard let pass, C of them, in client order."""

    round: int
    uploads: Sequence[Any]  # trees with a field `delta` [d]
    reports: Sequence[ClientReport]
    previous: Tensor | None = None  # [d], how the global model moved in the last round; None in the first
    root: Callable[[], Tensor] | None = None  # the move [d] of a model trained on the server's own examples; None: there are none

    @property
    def deltas(self) -> list[Tensor]:
        return [upload.delta for upload in self.uploads]


class Screening(NamedTuple):
    """What a screen says about C uploads."""

    factors: Tensor  # [C] float64, on the policy's weights; 0 = left out
    scales: Tensor  # [C] float64, on `delta` in the weighted sum; 1 = as it came
    counts: Tensor  # [C] float64, the sample counts that policies go by
    refusals: tuple[UploadError | None, ...]  # of each upload that is left out
    combine: Combine | None = None  # in place of both sums
    state: ScreenState = ScreenState()

    @classmethod
    def of(cls, evidence: Evidence) -> Screening:
        """Everybody counts as they came."""
        ones = torch.ones(len(evidence.reports), dtype=torch.float64)
        counts = torch.tensor([float(report.num_examples) for report in evidence.reports], dtype=torch.float64)
        return cls(ones, ones, counts, (None,) * len(ones))


@dataclass(frozen=True)
class Screen:
    """Base of all screens. Errors of `look` are configuration errors (E203), as too small a cohort for Krum."""

    assumes: ClassVar[str] = ""  # in words, for documentation and `describe`
    combines: ClassVar[bool] = False  # whether its `combine` takes the place of all weights
    needs_root: ClassVar[bool] = False  # whether it needs examples on the server
    needs_single_uploads: ClassVar[bool] = True  # False: it looks at the reports alone, and works where only sums can be opened
    policy: ClassVar[type[Policy]] = BySize  # whom the paper weighs how, where the experiment names no policy

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        """Never called without uploads."""
        raise NotImplementedError

    def check_cohort(self, size: int) -> None:
        """E203 where a cohort of this size can never be screened; called when the run is built. Smaller ones that come about by absence
        or refusal are the screen's to handle: it may not raise then."""


def check_channel(screen: Screen | None, sums_only: bool) -> None:
    """E208 where the screen looks at single uploads and the channel lets the server open nothing but sums; called when the run is built."""
    if screen is not None and screen.needs_single_uploads and sums_only:
        what = f"{type(screen).__name__} looks at single uploads, and this channel opens nothing but their sum"
        raise ConfigError("E208", what, "aggregation.screen", "Leave the screen out, or use a channel that shows the server each upload")


def left_out(reason: str, what: str, report: ClientReport) -> UploadError:
    """The refusal of an upload by a screen."""
    return UploadError("E116", reason, what, f"client {report.client}", "See: fedaccord show RUN --client")
