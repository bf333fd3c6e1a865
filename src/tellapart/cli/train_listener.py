"""``tellapart train-listener``: train a dual encoder, perhaps with a grammar head."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.cli.console import note, say
from tellapart.cli.train import RECIPE_FILE, SKIPPED_FILE, check_output_dir, clear, is_main
from tellapart.errors import UsageError
from tellapart.files import fresh_folder, write_text
from tellapart.listeners.kinds import FOLDER
from tellapart.recipe.listener_parts import knows_images
from tellapart.recipe.listener_recipe import ListenerRecipe, listener_help, load_listener_recipe

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.data.loader import TrainingData
    from tellapart.evaluation.listeners import ListenerEvaluation
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.trained import TrainedListener
    from tellapart.listeners.vse import Vse
    from tellapart.rewards.grammar import GrammarHead
    from tellapart.training.run import Run


def run(argv: Sequence[str]) -> int:
    """Train as a recipe and flags say."""
    if "--help" in argv or "-h" in argv:
        say(listener_help())
        return 0
    recipe = load_listener_recipe(argv)
    if recipe.flags.print_config:
        say(recipe.to_yaml().rstrip())
        return 0
    check_output_dir(recipe)
    if recipe.flags.push_to_hub or recipe.flags.hub_model_id:
        raise UsageError("--push_to_hub is for captioners: upload a listener's folder with hf upload.")
    built = build(recipe)
    if recipe.flags.dry_run:
        say(recipe.to_yaml().rstrip())
        note(_summary(recipe, built))
        return 0
    train(recipe, built)
    return 0


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
    from tellapart.recipe.listener_parts import collate_of, generated_captions, learner_of
    from tellapart.rewards.grammar import plain

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
    """What is trained, as it is at the start."""
    from tellapart.recipe.feature_inputs import features_at
    from tellapart.recipe.listener_sections import NewVseSection
    from tellapart.recipe.soft_listeners import clip_vectors, fresh_vse, load_retriever, stored_vectors

    section, size, features = recipe.listener, recipe.data.size, features_at(recipe.data.features)
    if not section.is_new:
        return load_retriever(section.path, name=FOLDER, prefix=section.prefix, size=size, features=features)
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
    from tellapart.recipe.models import as_usage_errors
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

    section = recipe.data
    if section.on_error == "replace":
        raise UsageError("train-listener reads all images before it trains: set data.on_error to skip, not replace.")
    same, features = path == section.path, features_at(section.features)
    dataset = load_pictured(
        path,
        split,
        features=features,
        images=images or (section.images if same else None),
        format=section.format if same else None,
        size=section.size,
        limit=limit,
        missing_files=section.on_error == "skip",
    )
    return usable(dataset, section.on_error, features, pictures=features is None)


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
    if knows_images(learner):
        learner.cache_images(watched)
    workers = recipe.training.dataloader_num_workers
    retriever = learner.listener if isinstance(learner, TrainedListener) else learner
    known = learner if isinstance(learner, ProjectionsListener) else None
    watch = ListenerEvaluation(watched, retriever, head=head, vocabulary=vocabulary, images=known, num_workers=workers)
    return watch, skipped


def train(recipe: ListenerRecipe, built: BuiltListener) -> Run:
    """Train, and keep the selected listener in ``listener/`` of the output folder."""
    from tellapart.captioners.modes import quiet
    from tellapart.training.loop import train as loop

    output_dir = recipe.training.output_dir
    if recipe.flags.overwrite_output_dir:
        clear(output_dir)
        shutil.rmtree(output_dir / FOLDER, ignore_errors=True)
    if built.skipped and is_main():
        write_text(output_dir / SKIPPED_FILE, "".join(f"{name}\t{reason}\n" for name, reason in built.skipped))
    try:
        with quiet():
            done = loop(built.objective, built.data, recipe.training, evaluate=built.watch, recipe=recipe.resolved)
    finally:
        if is_main() and (output_dir / "run.json").is_file():
            write_text(output_dir / RECIPE_FILE, recipe.to_yaml())
    if is_main():
        _conclude(output_dir / FOLDER, done)
    return done


def _conclude(folder: Path, done: Run) -> None:
    """Copy the selected checkpoint's listener to where it is found, and say where and what it reached."""
    source = done.checkpoint if done.best is None else done.output_dir / "best"
    with fresh_folder(folder) as temporary:
        shutil.copytree(source / folder.name, temporary, dirs_exist_ok=True)
    selected = "" if done.best is None else f" (of step {done.best.step}, by {done.best.metric})"
    note(f"trained {done.step} steps: {folder}{selected}")
    step = done.step if done.best is None else done.best.step
    for line in [line for line in done.evaluations if line["step"] == step][-1:]:
        say("\n".join(f"{key.removeprefix('eval_')}: {value:.1f}" for key, value in line.items() if "eval_" in key))


def _summary(recipe: ListenerRecipe, built: BuiltListener) -> str:
    """What was built, in a line."""
    trained = sum(p.numel() for p in built.objective.parameters() if p.requires_grad)
    watch = built.watch
    evaluated = "no evaluation" if watch is None else f"evaluation: {len(watch.dataset)} of {watch.dataset.name}"
    what = "with a grammar head" if recipe.grammar else f"{recipe.loss} loss, without a head"
    images = f"{len(built.dataset)} training images ({built.dataset.name})"
    return f"{images}, {trained:,} trained weights, {what}; {evaluated}"
