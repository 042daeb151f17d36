"""fedaccord: federated learning when clients disagree.

    import fedaccord as fa
    task = fa.Task(model=Net(), loss=F.cross_entropy, train=(x, y), test=(xt, yt))
    run = fa.run(task, fa.FedSMOO(rho=0.1), partition=fa.DirichletPerClass(alpha=0.1, clients=100), cohort=10, rounds=200)

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ROOMS = {  # room -> the names it lends to `fedaccord`; None: its whole `__all__`, or the classes of its registry
    "algorithms": None,
    "tasks": None,
    "partition": None,
    "api": ("Run", "run"),
    "checks": ("LawError", "check_algorithm", "laws"),
    "core.algorithm": ("Algorithm",),
    "core.errors": ("ConfigError", "DataError", "FedaccordError", "PartitionError", "StorageError"),
    "core.local": ("LocalPlan",),
    "core.optimizer": ("Adam", "AdamW", "Sgd"),
    "core.schedule": ("Constant", "Cosine", "Exponential"),
    "core.server_optimizer": ("ServerAdagrad", "ServerAdam", "ServerSgd", "ServerYogi"),
    "experiment": ("Aggregation", "Devices"),
    "runtime.options": ("RuntimeOptions",),
    "sampling": ("Coin", "Favor", "Scripted", "StabilityAware", "Uniform"),
    "aggregation.policy": ("BySize", "CohortView", "Decision", "Equal", "Policy"),
    "aggregation.policies": None,
    "aggregation.projection": ("Projection",),
    "aggregation.screens": None,
    "attacks": None,
    "aggregation.memory": ("Quarantine",),
    "aggregation.rollout": ("Rollout",),
    "aggregation.screen": ("Screen",),
    "measures": ("Measures",),
    "report": ("write_report",),
    "tuning": ("Tuned", "tune"),
}


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for room, names in sorted(_ROOMS.items(), key=lambda item: item[1] is None):
            if name in (names or _all_of(room)):
                return getattr(import_module(f"fedaccord.{room}"), name)
    raise AttributeError(f"module 'fedaccord' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({"__version__"}.union(*(lent or _all_of(room) for room, lent in _ROOMS.items())))


def _all_of(room: str) -> tuple[str, ...]:
    module = import_module(f"fedaccord.{room}")
    if hasattr(module, "REGISTRY"):
        return ("REGISTRY", *(method.__name__ for method in module.REGISTRY.values()))
    return tuple(module.__all__)
