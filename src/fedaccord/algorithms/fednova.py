"""FedNova (Wang et al. 2020, NeurIPS, arXiv:2007.07481, eq. 8 and §4).

Reference code read: none.
Deviation: p_i are the policy's weights, n_i / n by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Cohort, Server, Work
from fedaccord.core.state import State


class Upload(NamedTuple):
    delta: Tensor  # [d], (w_K - w_t) / a
    effective_steps: Tensor  # [], a: the displacement that K unit gradients bring, in units of the learning rate


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Clients that take more steps do not pull harder: w <- w + (sum p_i a_i) (sum p_i delta_i / a_i).

    With equal numbers of steps it is FedAvg.
    """

    def upload(self, w: Tensor, sent: Server, local: State, work: Work) -> tuple[Upload, State]:
        effective = w.new_zeros(()) + work.effective_steps
        return Upload((w - sent.w) / effective, effective), local

    def moved(self, upload: Upload) -> Tensor:
        return upload.effective_steps * upload.delta

    def update(self, server: Server, cohort: Cohort) -> Server:
        return Server(server.w + cohort.weighted.effective_steps * cohort.weighted.delta)
