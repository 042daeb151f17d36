"""Tasks: model, loss, metrics and data.

`Task` takes any of your own; `TASKS` holds those that an experiment can name, with their keywords; loaders read npz, Parquet, CSV and
Hugging Face data into the keywords of `Task`.
"""

from __future__ import annotations

from collections.abc import Callable

from fedaccord.tasks.embedded import breast_cancer, digits, fashion_mnist_mini, synthetic_segmentation
from fedaccord.tasks.examples import Examples
from fedaccord.tasks.files import csv, npz, parquet
from fedaccord.tasks.hugging_face import from_hugging_face
from fedaccord.tasks.loaders import from_csv, from_npz, from_parquet
from fedaccord.tasks.metrics import METRICS, Metric
from fedaccord.tasks.models import MODELS, model_factory
from fedaccord.tasks.splits import Splits
from fedaccord.tasks.tables import from_table
from fedaccord.tasks.task import Task
from fedaccord.tasks.user_code import load_user_task, user_factory

TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "fashion_mnist_mini": fashion_mnist_mini,
    "breast_cancer": breast_cancer,
    "synthetic_segmentation": synthetic_segmentation,
    "npz": npz,
    "parquet": parquet,
    "csv": csv,
}

__all__ = [
    "METRICS",
    "MODELS",
    "TASKS",
    "Examples",
    "Metric",
    "Splits",
    "Task",
    "breast_cancer",
    "digits",
    "fashion_mnist_mini",
    "from_csv",
    "from_hugging_face",
    "from_npz",
    "from_parquet",
    "from_table",
    "load_user_task",
    "model_factory",
    "synthetic_segmentation",
    "user_factory",
]
