"""The methods, by name. One file a method; adding one touches its file, two lines here, and the changelog."""

from fedaccord.algorithms.dynamic_sam import DynamicSAM as DynamicSAM
from fedaccord.algorithms.fedavg import FedAvg as FedAvg
from fedaccord.algorithms.feddyn import FedDyn as FedDyn
from fedaccord.algorithms.fedprox import FedProx as FedProx
from fedaccord.algorithms.fedsam import FedSAM as FedSAM
from fedaccord.algorithms.fedsmoo import FedSMOO as FedSMOO
from fedaccord.algorithms.scaffold import Scaffold as Scaffold
from fedaccord.core.algorithm import Algorithm

REGISTRY: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "fedsam": FedSAM,
    "fedsmoo": FedSMOO,
    "dynamic_sam": DynamicSAM,
}
