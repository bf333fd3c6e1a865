"""Features in place of pictures: opening them, matching them with data and captioner, and captioners with random weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tellapart.errors import UsageError
from tellapart.listeners.kinds import reads_features
from tellapart.recipe.sections import (
    CaptionerSection,
    DataSection,
    EvaluationSection,
    ListenerSection,
    NewSection,
    OwnListenerSection,
    TransformerSection,
)

if TYPE_CHECKING:
    from tellapart.captioners.base import Captioner
    from tellapart.captioners.huggingface import HuggingFaceCaptioner
    from tellapart.data.dataset import CaptionDataset, Collate
    from tellapart.data.features.base import FeatureSet
    from tellapart.recipe.recipe import Recipe

logger = logging.getLogger(__name__)


def features_at(path: Path | None) -> FeatureSet | None:
    """The features in a folder or file, or none.

    Raises:
        UsageError: there are none.
    """
    if path is None:
        return None
    from tellapart.data.features.open import open_features

    return open_features(path)


def load_pictured(
    path: str, split: str, *, features: FeatureSet | None, missing_files: bool, **how: Any
) -> CaptionDataset:
    """The data as ``load_data`` reads them; where features replace pictures, the pictures need not exist.

    Args:
        path: of the data.
        split: of the data.
        features: what the captioner reads, if not pictures.
        missing_files: as for ``load_data``.
        how: the other arguments of ``load_data``.

    Raises:
        UsageError: the data cannot be read.
    """
    from tellapart.data.load import load_references, require_limit
    from tellapart.recipe.models import load_data

    require_limit(how["limit"])
    if features is not None and how.get("center_crop"):
        raise UsageError(
            f"center_crop cuts pictures, but the captioner reads the features {features.name}: leave one of the two out."
        )
    if features is None:
        return load_data(path, split, missing_files=missing_files, **how)
    try:
        return load_data(path, split, missing_files=True, **how)
    except UsageError:
        columns = {name: how[name] for name in ("image_column", "caption_column", "id_column") if name in how}
        unused = how.get("ignore_unused", False)
        return load_references(path, split=split, format=how["format"], ignore_unused=unused, **columns)[: how["limit"]]


def needs_pictures(recipe: Recipe) -> bool:
    """Whether a training opens images: not if its captioner reads features and nothing listens."""
    return opens_pictures(
        recipe.data,
        recipe.listener,
        recipe.evaluation,
        own=recipe.parts.get("own_listener"),
        itm=any(looks(parts) for parts in (recipe.parts, *(entry.parts for entry in recipe.reward))),
    )


def looks(parts: Mapping[str, Any]) -> bool:
    """Whether a model among the parts of a recipe or of a reward looks at pictures: a matcher, a listener, or one that mines
    neighbours."""
    named = (("listener", "path"), ("matcher", "model"), ("neighbours", "listener"))
    return any(getattr(parts.get(part), option, None) is not None for part, option in named)


def opens_pictures(
    data: DataSection,
    listener: ListenerSection,
    watched: EvaluationSection,
    *,
    own: OwnListenerSection | None,
    itm: bool,
) -> bool:
    """The same of a recipe's sections, ``itm`` being whether a part of the rewards looks at pictures."""
    looks = own is not None and own.path is not None and not reads_features(own.path)
    looks = looks or listener.path is not None or itm
    seen_by = [watched.listener, watched.judge, watched.pac, watched.itm, watched.vqa_score, watched.claims]
    return data.features is None or any([looks, *seen_by])


def usable(
    dataset: CaptionDataset, on_error: str, features: FeatureSet | None, *, pictures: bool = True, tell: bool = True
) -> tuple[CaptionDataset, list[tuple[str, str]]]:
    """The data that can be read: with ``on_error`` skip, without the images whose picture or features are unusable.

    Args:
        dataset: the data.
        on_error: ``fail`` or ``skip``.
        features: what the captioner reads, if not pictures.
        pictures: whether pictures are looked at, too.
        tell: log which are left out.

    Returns:
        The data set, and id and reason of every image that was left out.

    Raises:
        UsageError: an image has no features, and none may be left out.
    """
    skipped: list[tuple[str, str]] = []
    if features is not None:
        from tellapart.data.features.open import of_other_pictures, require_features, with_features

        if on_error == "skip":
            whole = len(dataset)
            dataset, skipped = with_features(dataset, features)
            if skipped and tell:
                logger.warning(
                    "note: %d of the %d images of %s have no usable features.", len(skipped), whole, dataset.name
                )
        else:
            require_features(dataset, features)
        other = of_other_pictures(dataset, features) if tell else None
        if other is not None:
            logger.warning(
                "note: %s was computed of other image files than those of %s, such as %r: see whether ids mean the same images.",
                features.name,
                dataset.name,
                other,
            )
    if pictures:
        dataset, broken = without_broken(dataset, on_error, tell=tell)
        skipped += broken
    return dataset, skipped


def collate_of(captioner: Captioner, features: FeatureSet | None) -> Collate:
    """The function from images to a captioner's inputs: pictures, or features by their ids.

    Raises:
        UsageError: it reads features and there are none, or the other way round, or they are of another width.
    """
    from tellapart.data.dataset import Collate

    check_width(captioner, features)
    if features is None:
        return Collate({captioner.name: captioner.process})
    from tellapart.data.features.base import FeatureInputs

    return Collate({}, features={captioner.name: FeatureInputs(features)})


def check_width(captioner: Captioner, features: FeatureSet | None) -> None:
    """Raise unless the features are what the captioner reads.

    Raises:
        UsageError: they are not.
    """
    if captioner.feature_size is None and features is not None:
        raise UsageError(f"the captioner reads pictures, not the features {features.name}: leave features out.")
    if captioner.feature_size is not None and features is None:
        raise UsageError(
            f"the captioner reads features {captioner.feature_size} wide, not pictures: make them with tellapart features, and "
            "name their folder (data.features in recipes, --features elsewhere)."
        )
    if features is not None and captioner.feature_size != features.width:
        raise UsageError(
            f"the features {features.name} are {features.width} wide, but the captioner was made for {captioner.feature_size}: "
            "give those of the model it was trained with."
        )


def start_captioner(
    section: CaptionerSection, dataset: CaptionDataset, features: FeatureSet | None, *, size: str, seed: int
) -> HuggingFaceCaptioner:
    """The captioner of a recipe; a new one knows the words of the training captions.

    Raises:
        UsageError: the model does not exist, or cannot be used here.
    """
    from tellapart.recipe.models import NEW, load_captioner

    name = section.model_name_or_path
    if not name.startswith(NEW):
        if section.new is not None or section.transformer is not None:
            option = "captioner.new" if section.new is not None else "captioner.transformer"
            raise UsageError(f"{option} is for a captioner with random weights, and {name} is trained: leave it out.")
        return load_captioner(section, size=size, seed=seed)
    if section.lora is not None:
        raise UsageError(f"captioner.lora adapts trained weights, but {name} begins with random ones: leave lora out.")
    from tellapart.draws import seeded

    with TemporaryDirectory() as temporary:
        with seeded(name, seed):
            fresh = _fresh(section, dataset, features, size)
        fresh.save(Path(temporary))
        saved = replace(section, model_name_or_path=temporary, new=None, transformer=None)
        return load_captioner(saved, size=size, seed=seed)


def _fresh(
    section: CaptionerSection, dataset: CaptionDataset, features: FeatureSet | None, size: str
) -> HuggingFaceCaptioner:
    """A captioner with random weights.

    Raises:
        UsageError: there is none of this name, or it cannot be made so.
    """
    from tellapart.captioners.fresh import CLIP_TRANSFORMER, fresh_captioner, fresh_clip_transformer
    from tellapart.recipe.models import NEW, model_folder

    name, kind = section.model_name_or_path, section.model_name_or_path.removeprefix(NEW)
    unused = ("new", section.new) if kind == CLIP_TRANSFORMER else ("transformer", section.transformer)
    if unused[1] is not None:
        raise UsageError(f"captioner.{unused[0]} says nothing of {name}: leave it out.")
    if kind == CLIP_TRANSFORMER:
        settings = asdict(section.transformer or TransformerSection())
        tower = settings.pop("tower")
        return fresh_clip_transformer(model_folder(tower, size=size), **settings)
    if features is None:
        raise UsageError(f"{name} reads features: make them with tellapart features, and set data.features.")
    captions = (text for example in dataset for text in example.references)
    return fresh_captioner(kind, captions, feature_size=features.width, **asdict(section.new or NewSection()))


def without_broken(
    dataset: CaptionDataset, on_error: str, *, tell: bool = True
) -> tuple[CaptionDataset, list[tuple[str, str]]]:
    """The data without images that cannot be read, if these are to be skipped; with ``tell`` the log names them.

    Returns:
        The data set, and id and reason of every image that was left out.
    """
    if on_error != "skip":
        return dataset, []
    from tellapart.data.check import usable

    kept, skipped = usable(dataset, tell=tell)
    if skipped and tell:
        logger.warning(
            "note: %d of the %d images of %s cannot be read and are left out.", len(skipped), len(dataset), dataset.name
        )
    return kept, skipped
