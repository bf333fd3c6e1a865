"""The matcher of a recipe: its section, and what it is when it is loaded. Importing this module must stay cheap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tellapart.errors import UsageError

if TYPE_CHECKING:
    import torch

    from tellapart.data.dataset import CaptionDataset, Collate
    from tellapart.recipe.load import Recipe
    from tellapart.rewards.matchers import AnyMatcher


@dataclass(frozen=True, kw_only=True)
class MatcherSection:
    """The model that tells how well a caption and its image go together, for reward.itm (docs/listeners.md).

    Args:
        model: a model folder, a Hugging Face id, world/itm or world/listener; null when no reward needs one.
        kind: itm (BLIP or BLIP-2 with a matching head; score: its positive logit), dual (CLIP or SigLIP; the cosine), yes_no (an
            instruct vision-language model that is asked; log-odds of yes); auto tells by the model.
        question: what a yes_no model is asked, with {caption} in the caption's place; null takes our own words.
        scaled: let a dual give the logit of its own loss (of CLIP usually 100 times the cosine).
        batch_size: most images, and most texts, read at once.
        dtype: precision the weights are held in.
        autocast: precision of matrix products, for weights in float32.
        device: where it is, such as cuda:1; null is where the captioner is.
    """

    model: str | None = None
    kind: Literal["auto", "itm", "dual", "yes_no"] = "auto"
    question: str | None = None
    scaled: bool = False
    batch_size: int = 32
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    autocast: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str | None = None


def check_matcher(recipe: Recipe) -> None:
    """Raise where the reward asks for a matcher and the recipe names none, or the other way round, or an option cannot be used.

    Raises:
        UsageError: naming the option to change.
    """
    section = recipe.matcher
    if recipe.reward.itm and section.model is None:
        raise UsageError(
            "reward.itm needs a matcher: set matcher.model, such as Salesforce/blip-itm-base-coco or world/itm."
        )
    if section.model is not None and not recipe.reward.itm:
        raise UsageError(
            f"matcher.model is {section.model}, but reward.itm is 0, so nothing asks it: give reward.itm a weight, or set "
            "matcher.model to null."
        )
    if section.batch_size < 1:
        raise UsageError(f"matcher.batch_size is {section.batch_size}: give 1 or more.")


def load_matcher(section: MatcherSection, *, size: str = "full") -> AnyMatcher:
    """The matcher of a section, frozen, on the device that it names, else on this process's.

    Raises:
        UsageError: there is no such model or device, or an option is not for its kind.
    """
    from tellapart.recipe.models import build_stage, device, is_world
    from tellapart.rewards.matchers import open_matcher

    name = str(section.model)
    where = device() if section.device is None else _device(section.device)
    matcher = open_matcher(
        build_stage(name, size) if is_world(name) else name,
        kind=section.kind,
        question=section.question,
        batch_size=section.batch_size,
        dtype=section.dtype,
        autocast=section.autocast,
        scaled=section.scaled,
    )
    return matcher.to(where)


def recipe_matcher(recipe: Recipe, dataset: CaptionDataset, *, ahead: bool) -> AnyMatcher | None:
    """The matcher of the reward, if it asks one.

    Args:
        recipe: names it.
        dataset: the training images.
        ahead: let a dual encoder embed them before the first step.

    Raises:
        UsageError: there is no such model.
    """
    if not recipe.reward.itm:
        return None
    matcher = load_matcher(recipe.matcher, size=recipe.data.size)
    if ahead and _embeds(matcher):
        matcher.know_images(dataset)
    return matcher


def with_matcher(collate: Collate, matcher: AnyMatcher | None, *, ahead: bool) -> Collate:
    """What makes batches, with the matcher's pictures, which loader processes then prepare; not of images embedded before."""
    if matcher is None or (ahead and _embeds(matcher)):
        return collate
    return type(collate)(collate.processors | {matcher.name: matcher.process}, features=collate.features)


def _embeds(matcher: AnyMatcher) -> bool:
    from tellapart.listeners.dual import DualMatcher

    return isinstance(matcher, DualMatcher)


def _device(name: str) -> torch.device:
    import torch

    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise UsageError(
            f"matcher.device is {name!r}, which cannot be used here ({reason}): name another, or leave it out."
        ) from error
