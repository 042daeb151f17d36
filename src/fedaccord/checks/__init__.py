"""The law suite as a function: whose method it is does not matter.

    import fedaccord as fa
    fa.check_algorithm(MyMethod(), neutral=MyMethod(mu=0.0))

The laws run the real loops (`prepare`, `Federation`, `local_training`) on seven very unequal clients and need no pytest.
"""

from fedaccord.checks.law import Broken, LawError, Verdict
from fedaccord.checks.suite import Law, check_algorithm, laws

__all__ = ["Broken", "Law", "LawError", "Verdict", "check_algorithm", "laws"]
