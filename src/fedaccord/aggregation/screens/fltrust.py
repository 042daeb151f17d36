"""FLTrust: uploads count as far as they point where the server's own update points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedaccord.aggregation.figures import cosines, lengths
from fedaccord.aggregation.policy import Equal, Policy
from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState, left_out

LEAST = 1e-6  # of the length of the server's own update


@dataclass(frozen=True)
class FLTrust(Screen):
    """Weights ReLU(cos(u_i, u_0)) on uploads of the length of u_0, the move of a model trained on the server's root examples (Cao et al.
    2021, arXiv:2012.13995, equation 4). Any cohort will do; where nobody points its way, nobody counts, and the model stays."""

    assumes: ClassVar[str] = "the server has some hundred clean examples of the same task"
    needs_root: ClassVar[bool] = True
    policy: ClassVar[type[Policy]] = Equal

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        assert evidence.root is not None
        root, norms = evidence.root(), lengths(evidence.deltas)
        length = float(root.double().norm())
        is_update = norms > LEAST * length  # a shorter one has no direction that could be made as long
        trust = torch.where(is_update, cosines(evidence.deltas, norms, root).clamp(min=0), 0.0)
        scales = (length / norms).nan_to_num(nan=0.0, posinf=0.0)
        refusals = tuple(
            None
            if score > 0
            else left_out("no_trust", "the upload points away from the server's own update", report)
            if moved
            else left_out("no_update", "the update is next to nothing", report)
            for score, moved, report in zip(trust.tolist(), is_update.tolist(), evidence.reports, strict=True)
        )
        return Screening.of(evidence)._replace(factors=trust, scales=torch.where(trust > 0, scales, 1.0), refusals=refusals)
