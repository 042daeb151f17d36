"""Who owns which example, how different the clients are, and what will go wrong."""

from __future__ import annotations

from fedaccord.partition.dirichlet import DirichletPerClass, DirichletPerClient
from fedaccord.partition.examine import Facts, Finding, Traits, findings
from fedaccord.partition.feature_skew import ByModality, BySite, FeatureNoise
from fedaccord.partition.foreign import FromPartitioner
from fedaccord.partition.label_skew import LabelShards, PathologicalLabels
from fedaccord.partition.measures import label_counts, summary
from fedaccord.partition.natural import Explicit, NaturalIds
from fedaccord.partition.partition import Attributes, Partition, Partitioner
from fedaccord.partition.quantity import IID, FewHoldMost, QuantityDirichlet
from fedaccord.partition.shards import Shards

SCHEMES: dict[str, type[Partitioner]] = {  # the names of `[partition] scheme` in an experiment's TOML
    "iid": IID,
    "dirichlet_per_class": DirichletPerClass,
    "dirichlet_per_client": DirichletPerClient,
    "label_shards": LabelShards,
    "pathological_labels": PathologicalLabels,
    "quantity_dirichlet": QuantityDirichlet,
    "few_hold_most": FewHoldMost,
    "feature_noise": FeatureNoise,
    "by_site": BySite,
    "by_modality": ByModality,
    "natural_ids": NaturalIds,
}

__all__ = [
    "IID",
    "SCHEMES",
    "Attributes",
    "ByModality",
    "BySite",
    "DirichletPerClass",
    "DirichletPerClient",
    "Explicit",
    "Facts",
    "FeatureNoise",
    "FewHoldMost",
    "Finding",
    "FromPartitioner",
    "LabelShards",
    "NaturalIds",
    "Partition",
    "Partitioner",
    "PathologicalLabels",
    "QuantityDirichlet",
    "Shards",
    "Traits",
    "findings",
    "label_counts",
    "summary",
]
