"""What a run's records say is wrong with it, with the figures and what to do."""

from fedaccord.diagnosis.finding import Finding, Rule
from fedaccord.diagnosis.quarantine import in_quarantine
from fedaccord.diagnosis.rules import RULES, diagnose

__all__ = ["RULES", "Finding", "Rule", "diagnose", "in_quarantine"]
