"""Your task: model, loss and data. Change anything; `experiment.toml` names `make_task`, and its keywords are keys of [task]."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

import fedaccord as fa


def make_task(hidden: int = 32) -> fa.Task:
    """Tumours, malignant or benign, from 30 measurements. Your own tables: fa.from_csv(...), fa.from_parquet(...) or arrays."""
    data = fa.TASKS["breast_cancer"]()
    return fa.Task(
        model=lambda: nn.Sequential(nn.Linear(30, hidden), nn.ReLU(), nn.Linear(hidden, 2)),
        loss=F.cross_entropy,
        train=data.train,
        test=data.test,
        validation=data.validation,
        metrics=("accuracy", "balanced_accuracy", "auc"),
        class_names=data.class_names,
        name="PROJECT_NAME",
    )
