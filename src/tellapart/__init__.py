"""Train image captioners to tell images apart while still writing like people.

Every public name is imported on first use, so that ``import tellapart`` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tellapart.objectives import SHIPPED as _METHODS

__version__ = "0.1.0"

_NAMED = {
    # recipes, and models by name
    "ListenerRecipe": "tellapart.recipe.listener",
    "Recipe": "tellapart.recipe.recipe",
    "load_captioner": "tellapart.recipe.models",
    "load_grammar": "tellapart.recipe.models",
    "load_language_model": "tellapart.recipe.models",
    "load_listener": "tellapart.recipe.models",
    "load_verifier": "tellapart.recipe.models",
    # training and evaluation
    "Evaluation": "tellapart.evaluation.evaluate",
    "TrainConfig": "tellapart.training.config",
    "TrainingData": "tellapart.data.loader",
    "compute_metrics": "tellapart.evaluation.trainer",
    "score": "tellapart.evaluation.given",
    "train": "tellapart.training.loop",
    # data
    "CaptionDataset": "tellapart.data.dataset",
    "Collate": "tellapart.data.dataset",
    "load_dataset": "tellapart.data.load",
    "load_world": "tellapart.world",
    # captions that tell apart, without training
    "Apart": "tellapart.captioning.apart",
    # captioners and listeners
    "Captioner": "tellapart.captioners.base",
    "ClipListener": "tellapart.listeners.clip",
    "HuggingFaceCaptioner": "tellapart.captioners.huggingface",
    "ItmMatcher": "tellapart.listeners.matcher",
    "LateListener": "tellapart.listeners.late",
    "Vse": "tellapart.listeners.vse",
    "mine": "tellapart.listeners.mining",
    # rewards; the classes of methods are added below
    "CiderD": "tellapart.rewards.reference",
    "DocumentFrequencies": "tellapart.rewards.reference",
    "Grammar": "tellapart.rewards.grammar",
    "LanguageModel": "tellapart.rewards.language_model",
    "Likelihood": "tellapart.rewards.likelihood",
    "Matching": "tellapart.rewards.matching",
    "MeanLogProbability": "tellapart.rewards.language_model",
    "Meteor": "tellapart.rewards.meteor",
    "Mix": "tellapart.rewards.mix",
    "RefSimilarity": "tellapart.rewards.similarity",
    "Similarity": "tellapart.rewards.similarity",
    "Truth": "tellapart.rewards.truth",
    # to be extended
    "Method": "tellapart.objectives",
    "ObjectiveModule": "tellapart.types",
    "PartKind": "tellapart.recipe.parts",
    "RewardKind": "tellapart.rewards",
    # metrics
    "bleu": "tellapart.metrics.bleu",
    "chair": "tellapart.metrics.chair",
    "cider": "tellapart.metrics.cider",
    "cider_d": "tellapart.metrics.cider",
    "clip_s": "tellapart.metrics.scores",
    "coco_metrics": "tellapart.metrics.coco",
    "div_n": "tellapart.metrics.diversity",
    "recall_at_k": "tellapart.metrics.retrieval",
    "refclip_s": "tellapart.metrics.scores",
    "retrieval_metrics": "tellapart.metrics.retrieval",
    "rouge_l": "tellapart.metrics.rouge",
    "self_bleu": "tellapart.metrics.diversity",
    # records
    "Batch": "tellapart.types",
    "Decoding": "tellapart.types",
    "Rollout": "tellapart.types",
    "UsageError": "tellapart.errors",
}
"""Public name -> the module that defines it."""

_PUBLIC = _NAMED | {method.target.partition(":")[2]: method.target.partition(":")[0] for method in _METHODS.values()}

__all__ = sorted([*_PUBLIC, "__version__"])


def public_names() -> dict[str, str]:
    """Public name -> the module that defines it, without importing any."""
    return dict(_PUBLIC)


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name == "rewards":
        return import_module("tellapart.rewards")  # for_trl and for_verl are of the package itself
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tellapart' has no attribute {name!r}")
    value = vars(import_module(_PUBLIC[name]))[name]
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*(name for name in globals() if not name.startswith("_")), *__all__})
