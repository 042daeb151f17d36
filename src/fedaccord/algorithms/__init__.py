"""The methods, by name. One file a method; adding one touches its file, two lines here, and the changelog."""

from fedaccord.algorithms.dynamic_sam import DynamicSAM as DynamicSAM
from fedaccord.algorithms.fedasam import FedASAM as FedASAM
from fedaccord.algorithms.fedavg import FedAvg as FedAvg
from fedaccord.algorithms.fedavgm import FedAvgM as FedAvgM
from fedaccord.algorithms.fedbn import FedBN as FedBN
from fedaccord.algorithms.fedcm import FedCM as FedCM
from fedaccord.algorithms.feddyn import FedDyn as FedDyn
from fedaccord.algorithms.fedgamma import FedGamma as FedGamma
from fedaccord.algorithms.fedgloss import FedGloSS as FedGloSS
from fedaccord.algorithms.fedgmt import FedGMT as FedGMT
from fedaccord.algorithms.fedlesam import FedLESAM as FedLESAM
from fedaccord.algorithms.fedlesam import FedLESAM_D as FedLESAM_D
from fedaccord.algorithms.fedlesam import FedLESAM_S as FedLESAM_S
from fedaccord.algorithms.fednova import FedNova as FedNova
from fedaccord.algorithms.fedprox import FedProx as FedProx
from fedaccord.algorithms.fedsam import FedSAM as FedSAM
from fedaccord.algorithms.fedsmoo import FedSMOO as FedSMOO
from fedaccord.algorithms.fedspeed import FedSpeed as FedSpeed
from fedaccord.algorithms.fedwmsam import FedWMSAM as FedWMSAM
from fedaccord.algorithms.mofedsam import MoFedSAM as MoFedSAM
from fedaccord.algorithms.moon import Moon as Moon
from fedaccord.algorithms.noise_adaptive_sam import NoiseAdaptiveSAM as NoiseAdaptiveSAM
from fedaccord.algorithms.scaffold import Scaffold as Scaffold
from fedaccord.algorithms.silobn import SiloBN as SiloBN
from fedaccord.core.algorithm import Algorithm

REGISTRY: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "fedcm": FedCM,
    "moon": Moon,
    "fedsam": FedSAM,
    "fedasam": FedASAM,
    "mofedsam": MoFedSAM,
    "fedgamma": FedGamma,
    "fedspeed": FedSpeed,
    "fedsmoo": FedSMOO,
    "fedlesam": FedLESAM,
    "fedlesam_s": FedLESAM_S,
    "fedlesam_d": FedLESAM_D,
    "fedgmt": FedGMT,
    "fedgloss": FedGloSS,
    "fedwmsam": FedWMSAM,
    "fedbn": FedBN,
    "silobn": SiloBN,
    "dynamic_sam": DynamicSAM,
    "noise_adaptive_sam": NoiseAdaptiveSAM,
}
