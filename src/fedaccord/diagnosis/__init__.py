"""What a run's records say is wrong with it, with the figures and what to do."""

from fedaccord.diagnosis.findings import RULES, Finding, diagnose

__all__ = ["RULES", "Finding", "diagnose"]
