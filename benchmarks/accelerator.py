"""W1 to W3, and ResNet-18 with GroupNorm, on a GPU: one client after another against many side by side."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from contestants import NotHere, Ours
from interleaving import Row, ratios, taking_turns
from workloads import WORKLOADS

KINDS = ("sequential", "vectorized")


def gpu_rows(blocks: int, share: float) -> Iterator[Row]:
    """Seconds a round of each runtime, and their ratio; 'not run' where there is no GPU."""
    for work in ("W1", "W2", "W3", "resnet"):
        what = f"{work}: {' / '.join(KINDS)}"
        if not torch.cuda.is_available():
            yield Row("gpu", what, note="no GPU here; the code path is tested on torch's meta device")
            continue
        found = []
        try:
            found = [Ours(WORKLOADS[work](share), f"{kind}, cuda") for kind in KINDS]
            seconds = taking_turns(found, blocks)
        except NotHere as reason:
            yield Row("gpu", what, note=str(reason))
            continue
        finally:
            for each in found:
                each.close()
        for name, values in seconds.items():
            yield Row("gpu", f"{work}: {name}: a round", values, unit="s", note=torch.cuda.get_device_name())
        yield Row("gpu", what, ratios(seconds, *(f"{kind}, cuda" for kind in KINDS)))
