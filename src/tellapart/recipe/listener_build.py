"""The training of a listener, built from its recipe and run: what learns, what it reads, and the positives it learns from."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.errors import UsageError, count_of
from tellapart.files import fresh_folder
from tellapart.launch import is_main
from tellapart.listeners.kinds import FOLDER
from tellapart.recipe.clearing import SKIPPED_FILE, clear
from tellapart.recipe.listener import ListenerRecipe
from tellapart.recipe.run import checked, held, run_loop
from tellapart.recipe.selection import check_listener_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tellapart.data.dataset import CaptionDataset, Collate
    from tellapart.data.loader import TrainingData
    from tellapart.evaluation.listeners import ListenerEvaluation
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.trained import TrainedListener
    from tellapart.listeners.vse import Vse
    from tellapart.rewards.grammar import GrammarHead
    from tellapart.training.run import Run


LEAST_TOKENS = 3
"""Of a generated caption where the captioner would write none."""


@dataclass(frozen=True)
class BuiltListener:
    """The parts of a training.

    Args:
        objective: how the listener learns.
        dataset: the training images.
        data: the same, as the loop reads them.
        watch: the evaluation, if there is one.
        skipped: id and reason of the images that are left out because they cannot be read, the evaluation's included.
    """

    objective: Any
    dataset: CaptionDataset
    data: TrainingData
    watch: ListenerEvaluation | None
    skipped: list[tuple[str, str]] = field(default_factory=list)


def build(recipe: ListenerRecipe) -> BuiltListener:
    """Listener, data, objective and evaluation of a recipe.

    Images are embedded once, before the training, where it leaves their embeddings as they are.

    Raises:
        UsageError: a part is missing, broken, or does not go with another.
    """
    from tellapart.data.corruptions import vocabulary_of
    from tellapart.data.loader import TrainingData
    from tellapart.rewards.grammar import plain

    check_listener_metrics(recipe)
    dataset, skipped = _data(recipe, recipe.data.path, recipe.data.split, recipe.data.limit)
    dataset.require_references("train-listener")
    listener = _listener(recipe)
    learner = learner_of(recipe, listener)
    if knows_images(learner):
        learner.cache_images(dataset)
    vocabulary: list[str] = []
    if recipe.grammar:
        words = plain([text for example in dataset for text in example.references])
        vocabulary = vocabulary_of(words, min_count=recipe.head.min_count)
    generated = generated_captions(recipe, dataset) if recipe.loss == "pac" else {}
    objective, head = _objective(recipe, learner, vocabulary, generated)
    watch, watched_skipped = _watch(recipe, learner, head, vocabulary)
    collate = collate_of(recipe, learner, dataset)
    skipped = list(dict.fromkeys(skipped + watched_skipped))
    return BuiltListener(
        objective, dataset, TrainingData(dataset, collate, shuffle_window=recipe.data.shuffle_window), watch, skipped
    )


def _listener(recipe: ListenerRecipe) -> ClipListener | Vse:
    """The listener to train, at its start."""
    from tellapart.listeners.late import LateListener
    from tellapart.recipe.feature_inputs import features_at
    from tellapart.recipe.sections import NewVseSection
    from tellapart.recipe.soft_listeners import clip_vectors, fresh_vse, load_retriever, stored_vectors

    section, size, features = recipe.listener, recipe.data.size, features_at(recipe.data.features)
    if not section.is_new:
        found = load_retriever(section.path, name=FOLDER, prefix=section.prefix, size=size, features=features)
        if isinstance(found, LateListener):
            raise UsageError(
                f"{section.path} is a late-interaction listener, which train-listener does not train: name a CLIP, a SigLIP or a "
                "VSE as listener.path."
            )
        return found
    images = clip_vectors(str(section.image_encoder), size) if features is None else stored_vectors(features)
    return fresh_vse(
        section.new or NewVseSection(),
        vocabulary=str(section.vocabulary),
        images=images,
        name=FOLDER,
        size=size,
        seed=recipe.training.seed,
    )


def _objective(
    recipe: ListenerRecipe,
    learner: TrainedListener | Vse,
    vocabulary: Sequence[str],
    generated: Mapping[str, Sequence[str]],
) -> tuple[Any, GrammarHead | None]:
    """The objective, and the head if one is trained."""
    from tellapart.draws import seeded
    from tellapart.listeners.trained import TrainedListener
    from tellapart.objectives.contrastive import Contrastive
    from tellapart.objectives.contrastive_grammar import ContrastiveGrammar
    from tellapart.objectives.hinge import Hinge
    from tellapart.objectives.positive_augmented import PositiveAugmented
    from tellapart.recipe.options import as_usage_errors
    from tellapart.rewards.grammar import make_head

    if recipe.loss == "hinge":
        with as_usage_errors("hinge"):
            return Hinge(learner, **vars(recipe.hinge)), None
    assert isinstance(learner, TrainedListener), "the recipe's checks ask for the hinge loss"
    if recipe.loss == "pac":
        section = recipe.pac
        with as_usage_errors("pac"):
            return PositiveAugmented(
                learner, generated, caption_weight=section.caption_weight, image_weight=section.image_weight
            ), None
    listener = learner.listener
    if not recipe.grammar:
        return Contrastive(listener), None
    with seeded("grammar head", recipe.training.seed):
        head = make_head(listener)
    with as_usage_errors("head"):
        return ContrastiveGrammar(listener, head, vocabulary=vocabulary, weight=recipe.head.weight), head


def _data(
    recipe: ListenerRecipe, path: str, split: str, limit: int | None, *, images: Path | None = None
) -> tuple[CaptionDataset, list[tuple[str, str]]]:
    """A split and the images left out of it, read as the data section says where the path is that of the training."""
    from tellapart.recipe.feature_inputs import features_at, load_pictured, usable
    from tellapart.recipe.images import told_problems

    section = recipe.data
    if section.reads_as_they_come:
        raise UsageError("train-listener reads all images before it trains: set data.on_error to skip, not replace.")
    idle = next((name for name in ("num_frames", "context_column") if getattr(section, name) is not None), None)
    if idle is not None:
        raise UsageError(f"data.{idle} is for captioners, and train-listener trains none: leave it out.")
    same, features = path == section.path, features_at(section.features)
    dataset = load_pictured(
        path,
        split,
        features=features,
        images=images or (section.images if same else None),
        format=section.format if same else None,
        size=section.size,
        limit=limit,
        seconds_between=section.seconds_between,
        center_crop=section.center_crop,
        missing_files=section.on_error == "skip",
        ignore_unused=not same,
        **section.columns,
    )
    damaged = told_problems(dataset)
    dataset, broken = usable(dataset, section.on_error, features, pictures=features is None)
    return dataset, [*damaged, *broken]


def _watch(
    recipe: ListenerRecipe, learner: TrainedListener | Vse, head: GrammarHead | None, vocabulary: Sequence[str]
) -> tuple[ListenerEvaluation | None, list[tuple[str, str]]]:
    """The evaluation, and the images it leaves out."""
    from tellapart.evaluation.listeners import ListenerEvaluation
    from tellapart.listeners.projections import ProjectionsListener
    from tellapart.listeners.trained import TrainedListener

    section = recipe.evaluation
    if section.split is None:
        return None, []
    path = section.path or recipe.data.path
    watched, skipped = _data(recipe, path, section.split, section.limit, images=section.images)
    from tellapart.recipe.models import device

    workers = recipe.training.workers(device().type)
    retriever = learner.listener.with_own_images() if isinstance(learner, TrainedListener) else learner
    known = learner.with_own_images() if isinstance(learner, ProjectionsListener) else None
    if knows_images(learner):
        (known or retriever).cache_images(watched)
    watch = ListenerEvaluation(watched, retriever, head=head, vocabulary=vocabulary, images=known, num_workers=workers)
    return watch, skipped


def train(recipe: ListenerRecipe, *, overwrite: bool = False, built: BuiltListener | None = None) -> Run:
    """Train, and keep the selected listener in ``listener/`` of the output folder.

    Args:
        recipe: what to train.
        overwrite: delete what an earlier training left there.
        built: the recipe, built before.

    Raises:
        UsageError: the folder holds another training, another process trains into it, or a part is missing or broken.
    """
    from tellapart.training.denormals import denormals_flushed

    with held(recipe.training.output_dir), denormals_flushed():
        return train_held(recipe, overwrite=overwrite, built=built)


def train_held(recipe: ListenerRecipe, *, overwrite: bool = False, built: BuiltListener | None = None) -> Run:
    """The same as ``train``, into a folder that ``held`` holds."""
    from tellapart.recipe.images import keep_list

    recipe, overwrite = checked(recipe, overwrite=overwrite)
    built = recipe.build() if built is None else built
    output_dir = recipe.training.output_dir
    if overwrite:
        clear(output_dir, FOLDER)
    if is_main():
        keep_list(built.data, built.skipped, output_dir / SKIPPED_FILE, resumes=False)
    done = run_loop(recipe, built.objective, built.data, built.watch)
    if is_main():
        _keep_selected(output_dir / FOLDER, done)
    return done


def _keep_selected(folder: Path, done: Run) -> None:
    """Copy the selected checkpoint's listener to where it is found."""
    with fresh_folder(folder) as temporary:
        shutil.copytree(done.selected / folder.name, temporary, dirs_exist_ok=True)


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
    """The function from images to the listener's inputs.

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
    from tellapart.evaluation.matching import own_ids

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
    """One greedy caption of every image by the recipe's captioner; the cache keeps them. Where it writes nothing, its caption of
    ``LEAST_TOKENS`` tokens or more.

    Raises:
        UsageError: these are blank, too.
    """
    from tellapart.data.dataset import Collate
    from tellapart.pretraining.start_captions import start_captions
    from tellapart.recipe.models import device, load_captioner
    from tellapart.recipe.sections import CaptionerSection
    from tellapart.types import Decoding

    section = CaptionerSection(model_name_or_path=str(recipe.pac.captioner))
    captioner = load_captioner(section, size=recipe.data.size).to(device())
    collate = Collate({captioner.name: captioner.process})
    drawn = {**start_captions(captioner, dataset, dataset.ids, collate, Decoding()).texts}
    if blank := _blank(drawn):
        longer = Decoding(min_new_tokens=LEAST_TOKENS)
        drawn |= start_captions(captioner, dataset, blank, collate, longer).texts
    if still := _blank(drawn):
        raise UsageError(f"{recipe.pac.captioner} writes nothing for image {still[0]!r}: name another pac.captioner.")
    return {image_id: [text] for image_id, text in drawn.items()}


def _blank(texts: Mapping[str, str]) -> list[str]:
    """Ids of images whose caption has no words."""
    return [image_id for image_id, text in texts.items() if not text.strip()]


def _generated_images(recipe: ListenerRecipe, listener: ClipListener, dataset: CaptionDataset) -> dict[str, Any]:
    if recipe.loss != "pac" or recipe.pac.images is None:
        return {}
    from tellapart.data.generated import GeneratedImages
    from tellapart.objectives.positive_augmented import GENERATED_IMAGES

    images = GeneratedImages(recipe.pac.images, listener.process, center_crop=recipe.data.center_crop)
    images.require(dataset.ids)
    return {GENERATED_IMAGES: images}
