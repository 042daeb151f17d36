"""FedSMOO (Sun et al. 2023, ICML, arXiv:2305.11584, algorithm 1): FedDyn and SAM, each with its own dual variable.

Reference code read: FL-Simulator 502bec6.
Deviation: as FL-Simulator, the s-step drops the last local perturbation (s_step = "minus_last" is the paper's).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, Cohort, NonNegative, Positive, RoundStart, Work
from fedaccord.core.gradient import EPS


class Server(NamedTuple):
    w: Tensor  # [d]
    s: Tensor  # [d], global perturbation, |s| = rho after round 1
    dual: Tensor  # [d], lambda, mean over ALL clients of their duals


class Sent(NamedTuple):
    w: Tensor  # [d]
    s: Tensor  # [d]


class Kept(NamedTuple):
    mu: Tensor  # [d], mu_i, dual of "local perturbation = global perturbation"
    dual: Tensor  # [d], lambda_i, dual of "local model = global model"


class Local(NamedTuple):
    gap: Tensor  # [d], mu_i + s
    gap_before: Tensor  # [d], before the last step
    dual: Tensor  # [d], lambda_i
    anchor: Tensor  # [d], w_t + beta lambda_i: the dual's term is a shift of the point that the pull leads to


class Upload(NamedTuple):
    delta: Tensor  # [d]
    mu: Tensor  # [d]


def drop_last(mu: Tensor, last: Tensor) -> Tensor:
    """The dual alone, as the authors' code, whose comment calls the dropped term small."""
    return mu


def minus_last(mu: Tensor, last: Tensor) -> Tensor:
    """The exact s-step: the dual less the perturbation of the last local step."""
    return mu - last


S_STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"drop_last": drop_last, "minus_last": minus_last}


@dataclass(frozen=True)
class FedSMOO(Algorithm):
    """Clients agree on the model and on the direction in which it is sharp.

    Symbols as in the paper: rho is its r. Order: the ascent sees the data gradient and the perturbation duals; the pull to the global
    model and the model dual are added after it.
    """

    rho: NonNegative = 0.1  # radius of the perturbation, an absolute length in weight space
    beta: Positive = 10.0  # 1 / weight of the pull to the global model
    s_step: Literal["drop_last", "minus_last"] = "drop_last"  # what becomes of the last local perturbation; it moves w by some 0.3%

    def init_server(self, w: Tensor) -> Server:
        return Server(w, torch.zeros_like(w), torch.zeros_like(w))

    def init_client(self, w: Tensor) -> Kept:
        return Kept(torch.zeros_like(w), torch.zeros_like(w))

    def broadcast(self, server: Server) -> Sent:
        return Sent(server.w, server.s)

    def begin(self, start: RoundStart, sent: Sent, kept: Kept) -> Local:
        gap = kept.mu + sent.s
        return Local(gap, gap, kept.dual, sent.w + self.beta * kept.dual)

    def direction(self, grad: BatchGrad, w: Tensor, sent: Sent, local: Local) -> tuple[Tensor, Local]:
        ascent = grad(w) - local.gap
        length = self.rho / (ascent.norm() + EPS)  # s_hat = length * ascent
        gap = torch.addcmul(local.gap - sent.s, length, ascent)
        step = torch.add(grad(torch.addcmul(w, length, ascent)), w - local.anchor, alpha=1 / self.beta)
        return step, local._replace(gap=gap, gap_before=local.gap)

    def upload(self, w: Tensor, sent: Sent, local: Local, work: Work) -> tuple[Upload, Kept]:
        delta, mu = w - sent.w, local.gap - sent.s
        return Upload(delta, S_STEPS[self.s_step](mu, sent.s + local.gap - local.gap_before)), Kept(mu, local.dual - delta / self.beta)

    def update(self, server: Server, cohort: Cohort) -> Server:
        share = cohort.size / cohort.population
        dual = server.dual - share * cohort.uniform.delta / self.beta
        s = self.rho * cohort.uniform.mu / (cohort.uniform.mu.norm() + EPS)
        return Server(server.w + cohort.weighted.delta - self.beta * dual, s, dual)

    @property
    def proximal_weight(self) -> float:
        return 1 / self.beta
