"""The images of a training and of its evaluation, as a recipe names them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.data.dataset import CaptionDataset, Collate, problems_of
from tellapart.data.held_out import hold_out
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.files import in_a_cell, read_text, write_text
from tellapart.recipe.feature_inputs import load_pictured, needs_pictures, usable
from tellapart.recipe.fingerprint import digest

if TYPE_CHECKING:
    from tellapart.data.features.base import FeatureSet
    from tellapart.recipe.parts import Parts
    from tellapart.recipe.recipe import Recipe

logger = logging.getLogger(__name__)

Skipped = list[tuple[str, str]]
"""Id and reason of images that are left out."""

_NEED_ALL = {"own_listener", "neighbours", "discriminator", "gallery"}
"""What a method or a reward is given that has looked at every training image before the first step; not a listener that stays as
it is, which reads the pictures of each batch."""


def training_images(
    recipe: Recipe, features: FeatureSet | None
) -> tuple[CaptionDataset, CaptionDataset | None, Skipped]:
    """The images to train on, those held out for the evaluation (if any), and what is left out of both.

    Raises:
        UsageError: the data cannot be read, or the method cannot be trained on data that are read as they come.
    """
    section, held = recipe.data, None
    _check_on_error(recipe)
    _check_held_out(recipe)
    dataset = load_pictured(
        section.path,
        section.split,
        images=section.images,
        format=section.format,
        size=section.size,
        limit=section.limit,
        missing_files=section.on_error != "fail",
        seconds_between=section.seconds_between,
        center_crop=section.center_crop,
        features=features,
        **section.columns,
    )
    skipped = told_problems(dataset)
    dataset, broken = usable(dataset, section.on_error, features, pictures=needs_pictures(recipe))
    skipped += broken
    if recipe.evaluation.held_out is not None:
        dataset, held = hold_out(dataset, recipe.evaluation.held_out)
        held = held[: recipe.evaluation.limit]
        if section.reads_as_they_come:
            held, broken = usable(held, "skip", features, pictures=needs_pictures(recipe))
            skipped += broken
    if "preferences" in recipe.kind.needs:
        dataset = _with_preferences(recipe, dataset)
    return dataset, held, skipped


def _with_preferences(recipe: Recipe, dataset: CaptionDataset) -> CaptionDataset:
    """The images that preferences are about."""
    from tellapart.data.preferences import preferences_of, read_preferences

    section: Any = recipe.parts.get("preferences")
    if section is None:
        return dataset  # told with the other parts that a method must have
    pairs = read_preferences(section.path)
    known = preferences_of(pairs, dataset)
    used, given = (sum(map(len, of.values())) for of in (known, pairs))
    if used < given:
        logger.warning("%d of %d preferences are not about training images and are left out.", given - used, given)
    if len(known) < len(dataset):
        logger.warning("%d of %d training images have preferences: the others are left out.", len(known), len(dataset))
    return dataset.take([dataset.position[image_id] for image_id in known])


def watched_images(
    recipe: Recipe, dataset: CaptionDataset, features: FeatureSet | None, split: str
) -> tuple[CaptionDataset, Skipped]:
    """The images of the evaluation where none are held out, and those that are left out of them.

    Raises:
        UsageError: the data cannot be read.
    """
    section, data = recipe.evaluation, recipe.data
    own = section.path is not None and section.path != data.path
    watched = load_pictured(
        section.path or data.path,
        split,
        images=section.images or (None if own else data.images),
        format=None if own else data.format,
        size=data.size,
        limit=section.limit,
        missing_files=data.on_error != "fail",
        seconds_between=data.seconds_between,
        center_crop=data.center_crop,
        features=features,
        ignore_unused=own,
        **data.columns,
    )
    on_error = "fail" if data.on_error == "fail" else "skip"  # an evaluation is of the same images every time
    damaged = told_problems(watched)
    watched, broken = usable(watched, on_error, features, pictures=needs_pictures(recipe))
    skipped = [*damaged, *broken]
    _tell_what_is_seen(watched, dataset)
    return watched, skipped


def training_data(recipe: Recipe, dataset: CaptionDataset, collate: Collate, *, further: str = "") -> TrainingData:
    """The images as the loop reads them; ``further`` as ``read_further`` gives it."""
    section = recipe.data
    return TrainingData(
        dataset,
        collate,
        replace_unreadable=section.reads_as_they_come,
        shuffle_window=section.shuffle_window,
        further=further,
    )


def read_further(parts: Parts) -> str:
    """A digest of what steps read besides the training images: preferences, ids of unlabelled images, and files of neighbours
    and questions; empty for nothing."""
    found: list[Any] = []
    if parts.recipe.users("preferences"):
        found.append(list(parts("preferences").items()))
    if parts.recipe.users("unlabelled") and (joined := parts("unlabelled")) is not None:
        found.append(joined.images.ids)
    for name in ("neighbours", "questions"):
        shared = [parts.recipe.parts.get(name)] if parts.recipe.users(name) else []
        for section in (*shared, *(entry.parts.get(name) for entry in parts.recipe.reward)):
            path = getattr(section, "path", None)
            if path is not None and Path(path).expanduser().is_file():
                found.append(digest(Path(path).expanduser()))
    return hashlib.sha256(json.dumps(found, default=vars).encode()).hexdigest() if found else ""


def told_problems(dataset: CaptionDataset) -> Skipped:
    """Archives and videos that are damaged, of which the first are named."""
    problems = list(problems_of(dataset.examples))
    for _, problem in problems[:5]:
        logger.warning("note: %s", problem)
    if len(problems) > 5:
        logger.warning("note: %d files of %s are damaged in all.", len(problems), dataset.name)
    return problems


def _looks_at_all(recipe: Recipe, needs: Collection[str], own: Mapping[str, Any]) -> bool:
    """Whether one of the parts that a method or a reward is given looks at every image; parts that are null are not given."""
    given = {name for name in _NEED_ALL if (own.get(name) or recipe.parts.get(name)) is not None}
    return bool((given | {"gallery"}) & set(needs))


def _check_on_error(recipe: Recipe) -> None:
    if not recipe.data.reads_as_they_come:
        return
    asked: dict[str, tuple[Collection[str], Mapping[str, Any]]] = {f"method {recipe.method}": (recipe.kind.needs, {})}
    for entry in recipe.reward:
        asked[f"reward.{entry.name}"] = recipe.catalogue.rewards[entry.name].needs, entry.parts
    looks = next((who for who, (needs, own) in asked.items() if _looks_at_all(recipe, needs, own)), None)
    if looks is not None:
        raise UsageError(
            f"{looks} looks at all training images before the first step, which data.on_error=replace is there to avoid: set "
            "data.on_error to skip."
        )


def _check_held_out(recipe: Recipe) -> None:
    section = recipe.evaluation
    given = next((name for name in ("path", "images") if getattr(section, name) is not None), None)
    if section.held_out is not None and given is not None:
        raise UsageError(f"evaluation.held_out takes images of the training data: leave evaluation.{given} out.")
    if section.held_out is not None and section.split not in (None, type(section).split):
        raise UsageError("evaluation.held_out takes images of the training data: leave evaluation.split out.")


def _tell_what_is_seen(watched: CaptionDataset, trained: CaptionDataset) -> None:
    """Say how many images of the evaluation are trained on."""
    ids = enumerate(trained.iterate_ids())
    seen = sum(name in watched.position and watched[watched.position[name]] == trained[i] for i, name in ids)
    if seen:
        logger.warning(
            "note: %d of the %d images of the evaluation are trained on: set evaluation.path, or evaluation.held_out.",
            seen,
            len(watched),
        )


def keep_list(data: TrainingData, skipped: Skipped, listed: Path, *, resumes: bool) -> None:
    """Write down every image that is left out, now, and those that are replaced, whenever the training logs.

    Args:
        data: what is trained on.
        skipped: images that are left out.
        listed: the file. Where a run is resumed, the images that its earlier part has replaced count on.
        resumes: whether this resumes a run.
    """
    if resumes and data.replace_unreadable and listed.is_file():
        lines = read_text(listed, errors="replace").split("\n")
        rows = (line.split("\t", 1) for line in lines if line)
        absent = {in_a_cell(name) for name in dict(skipped)}
        data.replaced |= {row[0]: row[-1] for row in rows if row[0] not in absent}

    def write() -> None:
        rows = dict(skipped) | data.replaced
        if rows:
            write_text(listed, "".join(f"{in_a_cell(name)}\t{in_a_cell(reason)}\n" for name, reason in rows.items()))

    write()
    data.on_replaced = write


def tell_replaced(data: TrainingData, listed: Path) -> None:
    """Say how many images were replaced in a run that has ended."""
    if data.replaced:
        count, whose = len(data.replaced), f"{listed.name} of the run lists them"
        logger.warning("note: images that could not be read and were replaced by others: %d; %s.", count, whose)
