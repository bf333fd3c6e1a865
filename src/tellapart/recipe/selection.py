"""By which metric of its evaluation a recipe selects checkpoints, checked before any model is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.evaluation.columns import describe, listener_metric, require_metric
from tellapart.evaluation.own_listener import NAME as OWN_LISTENER
from tellapart.names import require_known
from tellapart.recipe.models import VIDEO_WORLD, WORLD

if TYPE_CHECKING:
    from tellapart.recipe.listener import ListenerRecipe
    from tellapart.recipe.recipe import Recipe

_BY_REFERENCES = ("Bleu_", "METEOR", "ROUGE_L", "CIDEr", "SPICE")
"""What names of metrics begin with that compare captions with human ones."""

_MEASURED_BY = (
    ("language_model", re.compile("perplexity$")),
    ("grammar", re.compile("grammatical_head$")),
    ("meteor", re.compile("METEOR$")),
    ("pac", re.compile("(Ref)?PAC-S")),
    ("itm", re.compile("ITM")),
    ("vqa_score", re.compile("VQAScore$")),
    ("claims", re.compile("claim")),
    ("reader", re.compile("QA")),
)
"""Options of the evaluation that give metrics, whose names begin so."""

_SAMPLED = re.compile("(?:rs|bs)([0-9]+)_")
_OF_SCORE = re.compile("SPICE|CHAIR|object_recall$|novel_captions$|word_coverage$|asked_length")
"""Metrics of ``tellapart score`` for which an evaluation during training has no option."""

_OF_CLIPS = ("motion", "order")
_OF_WORLD = re.compile(r"grammatical$|truthful$|hallucinated$|detail$|exact_recall@[0-9]+$")
_HUMAN = f"{OWN_LISTENER}_human"


def check_selection(recipe: Recipe, watched: CaptionDataset) -> None:
    """Raise where a checkpoint is to be selected by human captions that the evaluation's images do not have.

    Raises:
        UsageError: naming the option and a metric that needs none.
    """
    for option, name in _selecting(recipe):
        compares = name.startswith(_BY_REFERENCES) or "Ref" in name
        if compares and not any(example.references for example in watched):
            raise UsageError(
                f"{option} names {name!r}, which compares with human captions, but {watched.name} has none: choose a "
                "metric without references, such as listener_R@1."
            )


def check_metrics(recipe: Recipe) -> None:
    """Raise where a checkpoint is to be selected by a metric that no evaluation gives, or for a worse value.

    A recipe without an evaluation may run with one of its caller's.

    Raises:
        UsageError: naming the option, and the closest metric or all of them.
    """
    if recipe.evaluation.split is None and recipe.evaluation.held_out is None:
        return
    for option, name in _selecting(recipe):
        try:
            require_metric(name)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None
        _check_direction(recipe, option, name)
        _check_measured(recipe, option, name)


def check_listener_metrics(recipe: ListenerRecipe) -> None:
    """The same for the training of a listener, all of whose metrics are better when they are higher.

    Raises:
        UsageError: naming the option, and the closest metric or all of them.
    """
    from tellapart.evaluation.listeners import metric_names

    if recipe.evaluation.split is None:
        return
    for option, name in _selecting(recipe):
        require_known(name, metric_names(head=recipe.grammar), f"a metric of this evaluation ({option})")
        if option != "best_floor" and not recipe.training.greater_is_better:
            raise UsageError(
                f"{option} names {name!r}, which is better when it is higher: set greater_is_better to true."
            )


def _check_measured(recipe: Recipe, option: str, name: str) -> None:
    """Raise where a checkpoint would be selected by a metric that the evaluation does not give. Without this the first
    evaluation would raise, after all models were loaded."""
    remedy = _remedy(recipe, name)
    if remedy:
        raise UsageError(f"{option} names {name!r}, which the evaluation does not measure: {remedy}.")


def _remedy(recipe: Recipe, name: str) -> str:
    """What to do for the evaluation to measure a metric; empty where it does."""
    section = recipe.evaluation
    lacking = next((key for key, names in _MEASURED_BY if names.match(name) and not getattr(section, key)), None)
    if lacking is not None:
        return f"set evaluation.{lacking}"
    drawn = _SAMPLED.match(name)
    if drawn is not None and int(drawn[1]) != section.samples:
        return f"set evaluation.samples to {drawn[1]}"
    if _OF_SCORE.match(name):
        return "only tellapart score does, so name another metric"
    return _remedy_of_world(recipe, name) or _remedy_of_listeners(recipe, name)


def _remedy_of_world(recipe: Recipe, name: str) -> str:
    data = recipe.data.path if recipe.evaluation.path is None else recipe.evaluation.path
    if name in _OF_CLIPS and data != VIDEO_WORLD:
        return f"only that of {VIDEO_WORLD} does, so name another metric"
    if _OF_WORLD.match(name) and data not in (WORLD, VIDEO_WORLD):
        return "only that of the built-in world does, so name another metric"
    return ""


def _remedy_of_listeners(recipe: Recipe, name: str) -> str:
    measured = None if _SAMPLED.match(name) else listener_metric(name)
    if measured is None:
        return ""
    given: dict[str, object] = {
        "listener": recipe.evaluation.listener or recipe.listener.path,
        "judge": recipe.evaluation.judge,
    }
    given |= dict.fromkeys((OWN_LISTENER, _HUMAN), OWN_LISTENER in recipe.kind.needs)
    listener = measured[0]
    if given.get(listener):
        return ""
    if listener in (OWN_LISTENER, _HUMAN):
        return f"method {recipe.method} has no listener of its own, so name another metric"
    return f"set evaluation.{listener}" if listener in given else f"its retrievers are {', '.join(list(given)[:2])}"


def _check_direction(recipe: Recipe, option: str, name: str) -> None:
    """Raise where a checkpoint would be selected for a value that is worse than others."""
    better = describe(name).better
    if option == "best_floor" and better < 0:
        raise UsageError(
            f"best_floor names {name!r}, which is better when it is lower, and a floor keeps a value from falling: name "
            "another metric."
        )
    if option != "best_floor" and better * (1 if recipe.training.greater_is_better else -1) < 0:
        lower = better < 0
        raise UsageError(
            f"{option} names {name!r}, which is better when it is {'lower' if lower else 'higher'}: set "
            f"greater_is_better to {'false' if lower else 'true'}."
        )


def _selecting(recipe: Recipe | ListenerRecipe) -> Iterator[tuple[str, str]]:
    """Options that select a checkpoint, and the metrics that they name, without ``eval_``."""
    training = recipe.training
    if training.metric_for_best_model is not None:
        yield "metric_for_best_model", training.metric_for_best_model.removeprefix("eval_")
    for name in training.best_floor:
        yield "best_floor", name.removeprefix("eval_")
