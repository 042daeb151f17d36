"""Trains the policies that the package ships, from seed 0 and a fixed number of episodes: weights, learning curve and card.

    python tools/pretrain.py residual        # about half an hour on one core
    python tools/pretrain.py per_client
    python tools/pretrain.py linear

residual and per_client go into src/fedaccord/pretrained; linear, which is for comparison, into benchmarks/results/policies.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch

from fedaccord import __version__
from fedaccord.learning.learners import Training
from fedaccord.learning.pretraining import Pretraining, pretrain
from fedaccord.learning.scenes import Scenes

ROOT = Path(__file__).resolve().parent.parent
SHIPPED, COMPARED = ROOT / "src" / "fedaccord" / "pretrained", ROOT / "benchmarks" / "results" / "policies"
NEVER = 1e9  # minutes: the number of episodes ends a training, not the clock
PLANS = {
    "residual": (SHIPPED, Pretraining("residual", Training(minutes=NEVER, episodes=2000))),
    "per_client": (SHIPPED, Pretraining("per_client", Training(minutes=NEVER, episodes=1500))),
    "linear": (COMPARED, Pretraining("linear", Training(minutes=NEVER, episodes=1500), Scenes(cohorts=(5, 40)))),
}


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) == 2 else ""
    if kind not in PLANS:
        sys.exit(__doc__)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, plan = PLANS[kind]
    card = pretrain(
        plan, folder / f"{kind}.safetensors", lambda n, gain, minutes: print(n, f"{gain:+.5f}", f"{minutes:.1f} min", flush=True)
    )
    card["training"].pop("minutes")
    versions = {"fedaccord": __version__, "torch": torch.__version__.partition("+")[0]}
    (folder / f"{kind}.json").write_text(json.dumps({**card, "versions": versions}, indent=1) + "\n")


if __name__ == "__main__":
    main()
