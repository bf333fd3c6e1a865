"""Train image captioners to tell images apart while still writing like people.

Every public name is imported on first use, so that ``import tellapart`` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Batch": "tellapart.types",
    "CaptionDataset": "tellapart.data.dataset",
    "Captioner": "tellapart.captioners.base",
    "CiderD": "tellapart.rewards.reference",
    "ClipListener": "tellapart.listeners.clip",
    "Collate": "tellapart.data.dataset",
    "Decoding": "tellapart.types",
    "DiCO": "tellapart.objectives.dico",
    "Evaluation": "tellapart.evaluation.evaluate",
    "Grammar": "tellapart.rewards.grammar",
    "HuggingFaceCaptioner": "tellapart.captioners.huggingface",
    "Meteor": "tellapart.rewards.meteor",
    "Mix": "tellapart.rewards.mix",
    "RefSimilarity": "tellapart.rewards.similarity",
    "Rollout": "tellapart.types",
    "SCST": "tellapart.objectives.scst",
    "Similarity": "tellapart.rewards.similarity",
    "TrainConfig": "tellapart.training.config",
    "TrainingData": "tellapart.data.loader",
    "UsageError": "tellapart.errors",
    "World": "tellapart.world.parts",
    "XE": "tellapart.objectives.xe",
    "compute_metrics": "tellapart.evaluation.trainer",
    "load_dataset": "tellapart.data.load",
    "load_world": "tellapart.world",
    "score": "tellapart.evaluation.given",
    "train": "tellapart.training.loop",
}

__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tellapart' has no attribute {name!r}")
    value = vars(import_module(_PUBLIC[name]))[name]
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*globals(), *__all__})
