"""Floor and ceiling of a data set of the built-in world: human captions, full descriptions, and empty captions."""

from __future__ import annotations

from tellapart.evaluation.results import EvaluationResult
from tellapart.sweep.trainings import Resolved, evaluation_of, option
from tellapart.world import load_scenes
from tellapart.world.captions import full_description
from tellapart.world.video import load_moving_scenes
from tellapart.world.video.captions import full_description as describe_clip

WORLDS = "world", "world/video"


def on_world(recipe: Resolved) -> bool:
    """Whether a recipe's images are the built-in world's."""
    return str(option(recipe, "data.path")) in WORLDS


def reference_rows(recipe: Resolved, split: str = "test", *, meteor: bool = False) -> list[EvaluationResult]:
    """Rows of given captions, measured by a recipe's own evaluation; full descriptions are known of the world alone.

    Args:
        recipe: resolved.
        split: part of the data.
        meteor: also measure METEOR.
    """
    evaluation = evaluation_of(recipe, split=split, meteor=meteor)
    rows = [evaluation.human(), evaluation.empty()]
    if on_world(recipe):
        full = _full_descriptions(str(option(recipe, "data.path")), split, option(recipe, "data.size"))
        note = "every attribute of every object, in the references' grammar"
        rows.insert(1, evaluation.score(full, name="full description", note=note))
    return rows


def _full_descriptions(path: str, split: str, size: str) -> dict[str, str]:
    if path == "world/video":
        return {clip_id: describe_clip(moving) for clip_id, moving in load_moving_scenes(split, size=size).items()}
    return {image_id: full_description(scene) for image_id, scene in load_scenes(split, size=size).items()}
