"""What of a listener learns, what it reads in training, and the generated positives that it learns from."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tellapart.errors import UsageError
from tellapart.recipe.listener_recipe import ListenerRecipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from tellapart.data.dataset import CaptionDataset, Collate
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.trained import TrainedListener
    from tellapart.listeners.vse import Vse


def learner_of(recipe: ListenerRecipe, listener: ClipListener | Vse) -> TrainedListener | Vse:
    """The listener as the part that learns, with what stays frozen.

    Raises:
        UsageError: it has no projections to train alone, or takes no such adapters.
    """
    from tellapart.draws import seeded
    from tellapart.listeners.adapted import AdaptedListener
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.projections import ProjectionsListener
    from tellapart.listeners.trained import TrainedListener, freeze_vision

    if not isinstance(listener, ClipListener):
        if recipe.trains == "text":
            freeze_vision(listener)
        return listener

    def of_text(own: ClipListener) -> TrainedListener:
        freeze_vision(own)
        return TrainedListener(own)

    def adapted(own: ClipListener) -> TrainedListener:
        assert recipe.listener.lora is not None
        with seeded("adapter", recipe.training.seed):
            return AdaptedListener(own, **asdict(recipe.listener.lora))

    kinds: dict[str, Callable[[ClipListener], TrainedListener]] = {
        "text": of_text,
        "all": TrainedListener,
        "projections": ProjectionsListener,
        "lora": adapted,
    }
    return kinds[recipe.trains](listener)


def knows_images(learner: TrainedListener | Vse) -> bool:
    """Whether the listener has images by id, so that no picture is opened in training."""
    from tellapart.listeners.projections import ProjectionsListener
    from tellapart.listeners.trained import TrainedListener, vision_learns

    if isinstance(learner, ProjectionsListener) or not isinstance(learner, TrainedListener):
        return True
    return not vision_learns(learner.listener)


def collate_of(recipe: ListenerRecipe, learner: TrainedListener | Vse, dataset: CaptionDataset) -> Collate:
    """What turns images into what the listener reads.

    Raises:
        UsageError: generated images are missing.
    """
    from tellapart.data.dataset import Collate
    from tellapart.data.features.base import FeatureInputs
    from tellapart.listeners.trained import TrainedListener
    from tellapart.recipe.feature_inputs import features_at

    features = features_at(recipe.data.features)
    if features is not None:
        return Collate({}, features={learner.name: FeatureInputs(features)})
    if not isinstance(learner, TrainedListener):
        return Collate({})
    pictures = {} if knows_images(learner) else {learner.name: learner.listener.process}
    return Collate(pictures, features=_generated_images(recipe, learner.listener, dataset))


def generated_captions(recipe: ListenerRecipe, dataset: CaptionDataset) -> dict[str, list[str]]:
    """Image id -> its generated captions, of all training images; empty where they are left out.

    Raises:
        UsageError: they cannot be read, or an image has none.
    """
    section = recipe.pac
    if not section.caption_weight:
        return {}
    if section.captioner is not None:
        return _drawn(recipe, dataset)
    from tellapart.data.results import read_results
    from tellapart.evaluation.matching import count_of, own_ids

    assert section.captions is not None, "the recipe's checks ask for it"
    rows = read_results(section.captions).rows
    found: dict[str, list[str]] = {}
    for image_id, row in zip(own_ids(rows, dataset)[0], rows, strict=True):
        if row.caption.strip():
            found.setdefault(image_id, []).append(row.caption.strip())
    missing = [image_id for image_id in dataset.ids if image_id not in found]
    if missing:
        raise UsageError(
            f"{section.captions} has no caption of {count_of(len(missing), 'training image')}, first {missing[0]!r}: caption "
            "them too (tellapart caption), or train on fewer images."
        )
    return found


def _drawn(recipe: ListenerRecipe, dataset: CaptionDataset) -> dict[str, list[str]]:
    """One greedy caption of every image by the recipe's captioner; the cache keeps them."""
    from tellapart.data.dataset import Collate
    from tellapart.pretraining.start_captions import start_captions
    from tellapart.recipe.models import device, load_captioner
    from tellapart.recipe.sections import CaptionerSection
    from tellapart.types import Decoding

    section = CaptionerSection(model_name_or_path=str(recipe.pac.captioner))
    captioner = load_captioner(section, size=recipe.data.size).to(device())
    collate = Collate({captioner.name: captioner.process})
    drawn = start_captions(captioner, dataset, dataset.ids, collate, Decoding()).texts
    blank = next((image_id for image_id, text in drawn.items() if not text.strip()), None)
    if blank is not None:
        raise UsageError(f"{recipe.pac.captioner} writes nothing for image {blank!r}: name another pac.captioner.")
    return {image_id: [text] for image_id, text in drawn.items()}


def _generated_images(recipe: ListenerRecipe, listener: ClipListener, dataset: CaptionDataset) -> dict[str, Any]:
    if recipe.loss != "pac" or recipe.pac.images is None:
        return {}
    from tellapart.data.generated import GeneratedImages
    from tellapart.objectives.positive_augmented import GENERATED_IMAGES

    images = GeneratedImages(recipe.pac.images, listener.process)
    images.require(dataset.ids)
    return {GENERATED_IMAGES: images}
