"""How flat the global model lies: the Hessian of the pooled training loss, the rise within a small ball, slices of the loss.

The same measures for every method, whatever it minimised, on the same examples, with the same random directions for one seed.
"""

from fedaccord.measures.measures import Measures, measure, unmeasured
from fedaccord.measures.pooled import PooledLoss

__all__ = ["Measures", "PooledLoss", "measure", "unmeasured"]
