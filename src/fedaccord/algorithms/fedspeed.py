"""FedSpeed (Sun et al. 2023, ICLR, arXiv:2302.10429, algorithm 1): FedDyn whose clients take the gradient ahead of them.

Reference code read: FL-Simulator 502bec6.
Deviation: the defaults are FL-Simulator's, from which the published numbers come: mix 1, e of length rho (the paper's is ascent = "raw"),
the mean drift of all clients on the server (the paper's is server_mean = "active"; on a toy problem it moves w by a fifth of its length).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedaccord.algorithms.feddyn import FedDyn, Kept, Local, Server
from fedaccord.core.algorithm import BatchGrad, Cohort, NonNegative, Positive, Share, Upload, Work
from fedaccord.core.around import Around, Transformed
from fedaccord.core.gradient import EPS, Grad, mixed


def unit_ascent(gradient: Tensor, rho: float) -> Tensor:
    """e = rho g / |g|, as FL-Simulator."""
    length: Tensor = rho / (gradient.norm() + EPS)
    return length * gradient


def raw_ascent(gradient: Tensor, rho: float) -> Tensor:
    """e = rho g, as the paper: the look ahead grows with the gradient."""
    return rho * gradient


ASCENTS: dict[str, Callable[[Tensor, float], Tensor]] = {"unit": unit_ascent, "raw": raw_ascent}


def add_all(server: Server, cohort: Cohort) -> Server:
    """The mean over ALL clients' drifts joins the mean model, as FL-Simulator (and FedDyn)."""
    return FedDyn().update(server, cohort)


def add_active(server: Server, cohort: Cohort) -> Server:
    """The uploads already carry their clients' drifts, as the paper: the mean is over this round's clients."""
    return server._replace(w=server.w + cohort.weighted.delta)


SERVER_MEANS: dict[str, Callable[[Server, Cohort], Server]] = {"all": add_all, "active": add_active}
UPLOADED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"all": lambda delta, drift: delta, "active": torch.add}


@dataclass(frozen=True)
class FedSpeed(Around):
    """Local objective f + alpha <drift_i, w> + alpha/2 |w - w_t|^2 on the gradient (1 - mix) g(w) + mix g(w + e).

    The paper's lambda is 1 / alpha, its alpha our mix. Order: the ascent sees the data gradient alone.
    """

    rho: NonNegative = 0.1  # radius of the perturbation, or with ascent = "raw" its factor
    alpha: Positive = 0.1  # weight of the pull
    mix: Share = 1.0
    ascent: Literal["unit", "raw"] = "unit"
    server_mean: Literal["all", "active"] = "all"

    @property
    def inner(self) -> FedDyn:
        return FedDyn(self.alpha)

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Local) -> tuple[Tensor, Local]:
        return self.inner.direction(Transformed(grad, self._ahead), w, sent, local)

    def _ahead(self, grad: Grad) -> Grad:
        def ahead(w: Tensor) -> Tensor:
            first = grad(w)
            return mixed(first, grad(w + ASCENTS[self.ascent](first, self.rho)), self.mix)

        return ahead

    def upload(self, w: Tensor, sent: Server, local: Local, work: Work) -> tuple[Upload, Kept]:
        upload, kept = self.inner.upload(w, sent, local, work)
        return Upload(UPLOADED[self.server_mean](upload.delta, kept.drift)), kept

    def update(self, server: Server, cohort: Cohort) -> Server:
        return SERVER_MEANS[self.server_mean](server, cohort)
