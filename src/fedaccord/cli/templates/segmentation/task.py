"""Your task: model, loss and data. Change anything; `experiment.toml` names `make_task`, and its keywords are keys of [task]."""

from __future__ import annotations

import fedaccord as fa
from fedaccord.tasks.losses import overlap_and_cross_entropy


def make_task(width: int = 8, depth: int = 2) -> fa.Task:
    """Bright discs in pictures from four sites that look different. Your own: train=fa.Examples(x, mask, site=site)."""
    data = fa.TASKS["synthetic_segmentation"](num_train=120, num_test=40)
    return fa.Task(
        model=fa.model_factory("unet", data.in_shape, 1, width=width, depth=depth),  # or any nn.Module that gives logits like the mask
        loss=overlap_and_cross_entropy,
        train=data.train,
        test=data.test,
        validation=data.validation,
        metrics=("dice",),
        name="PROJECT_NAME",
    )
