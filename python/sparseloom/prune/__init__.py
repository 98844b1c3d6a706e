"""One-shot pruning of trained models: prune_, its budgets and its evaluators."""

from .._rooms import Room
from .api import prune_, prune_plan
from .budgets import owl
from .evaluators import embedding_agreement, perplexity
from .result import Layer, Plan, Pruned
from .statistics import Statistics

__all__ = [
    "Layer",
    "Plan",
    "Pruned",
    "Statistics",
    "embedding_agreement",
    "owl",
    "perplexity",
    "prune_",
    "prune_plan",
]

Room.of(__name__)
