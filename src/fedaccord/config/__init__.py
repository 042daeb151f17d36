"""TOML -> experiments and back: layers, strict checks, sweeps, comparisons.

settings = read_settings(Path("experiment.toml"), ["algorithm.rho=[0.05, 0.1]"], os.environ)
for resolved in runs_of(settings, seeds=3): ...        # one `Resolved` a run
"""

from fedaccord.config.alternatives import alternatives
from fedaccord.config.build import ConfigErrors, Resolved, TaskOrder, resolve
from fedaccord.config.check import check
from fedaccord.config.comparison import Comparison, checked_section, comparison
from fedaccord.config.document import from_run
from fedaccord.config.layers import Settings, read_settings
from fedaccord.config.sweep import runs_of
from fedaccord.core.toml import to_toml

__all__ = [
    "Comparison",
    "ConfigErrors",
    "Resolved",
    "Settings",
    "TaskOrder",
    "alternatives",
    "check",
    "checked_section",
    "comparison",
    "from_run",
    "read_settings",
    "resolve",
    "runs_of",
    "to_toml",
]
