"""``tellapart train``: run a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from tellapart.cli.command import help_head
from tellapart.cli.console import note, result_console, say
from tellapart.cli.push import check_push, push_trained
from tellapart.cli.resuming import telling_how_to_resume
from tellapart.errors import count_of
from tellapart.launch import is_main
from tellapart.recipe.options import HELP_WIDTH, help_lines
from tellapart.recipe.recipe import Recipe, load_with, schema_of
from tellapart.recipe.schema import Catalogue, captioner_schema
from tellapart.recipe.words import FLAGS, TrainFlags, read_words, recipe_word

if TYPE_CHECKING:
    from tellapart.recipe.build import Built
    from tellapart.training.run import Run


def run(argv: Sequence[str]) -> int:
    """Train as a recipe and flags say."""
    if "--help" in argv or "-h" in argv:
        say(_help(argv))
        return 0
    recipe, flags = recipe_of(argv)
    if flags.print_config:
        say(recipe.to_yaml().rstrip())
        return 0
    from tellapart.recipe.rewards import refuse_controls
    from tellapart.recipe.run import check_evaluated, check_output_dir, held, train_held
    from tellapart.training.denormals import denormals_flushed

    refuse_controls(recipe)
    check_evaluated(recipe)
    if flags.dry_run:
        check_output_dir(recipe, overwrite=flags.overwrite_output_dir)
        check_push(flags)
        return _dry_run(recipe)
    with held(recipe.training.output_dir), denormals_flushed():  # from now on: building may take minutes
        check_output_dir(recipe, overwrite=flags.overwrite_output_dir)
        check_push(flags)
        built = recipe.build()
        with telling_how_to_resume("train", argv, recipe.training.output_dir):
            done = train_held(recipe, overwrite=flags.overwrite_output_dir, built=built)
    if is_main():
        _conclude(built, done)
        if flags.push_to_hub:
            push_trained(done.output_dir, flags)
    return 0


def recipe_of(argv: Sequence[str]) -> tuple[Recipe, TrainFlags]:
    """The recipe of a command line with its options applied, and what is asked of this invocation only.

    Raises:
        UsageError: the recipe cannot be read, or an option is unknown, missing or of a wrong type.
    """

    def load(source: str | None, asked: Mapping[str, Any], options: Any, plugins: Sequence[Path]) -> Recipe:
        return load_with(source, asked, options, Catalogue.load(plugins))

    return read_words(argv, load)


def _dry_run(recipe: Recipe) -> int:
    """Build everything, and say what would be trained."""
    from tellapart.cli import memory

    if memory.lacks_weights(recipe.captioner.model_name_or_path):
        say(memory.memory_of_configurations(recipe))
        note("note: the captioner has no weights, so nothing else was checked.")
        return 0
    built = recipe.build(dry_run=True)
    say(recipe.to_yaml().rstrip())
    note(memory.memory_table(recipe, built))
    note(_summary(built))
    return 0


EXAMPLES = (
    "tellapart train world_ved_dico_truth --output_dir runs/x",
    "tellapart train world_ved_dico_truth --objective.beta 0.1 --seed 1 --output_dir runs/y",
    "tellapart train coco_blip_wtf_rl --method scst --dry_run",
    "tellapart train world_ved_dico_truth --output_dir runs/x --resume_from_checkpoint last",
)
"""Shown in the help."""


def _help(argv: Sequence[str]) -> str:
    """The options of ``train``; with a recipe or ``--method``, also those of the method."""
    lines = help_head(
        "train RECIPE [--option value ...]",
        "Train a captioner as RECIPE says: a YAML file, or a name that tellapart recipes lists.",
        EXAMPLES,
    )
    rest = [word for word in argv if word not in ("--help", "-h")]
    if recipe_word(rest) is None and "--method" not in " ".join(rest):
        catalogue = Catalogue.load()
        lines += [*captioner_schema(None, catalogue).help(), "", "for one invocation:", *help_lines(FLAGS)]
        names = f"Name a recipe or --method ({', '.join(catalogue.methods)}) to see the method's options too."
        return "\n".join([*lines, "", *wrap(names, HELP_WIDTH)])
    found: list[str] = []

    def load(source: str | None, asked: Mapping[str, Any], options: Any, plugins: Sequence[Path]) -> None:
        found.extend(schema_of(source, asked, Catalogue.load(plugins)).help())

    read_words(rest, load)
    return "\n".join([*lines, *found, "", "for one invocation:", *help_lines(FLAGS)])


def _conclude(built: Built, done: Run) -> None:
    """Say where the run is and what its selected captioner scored."""
    selected = "" if done.best is None else f" (of step {done.best.step}, by {done.best.metric})"
    note(f"trained {count_of(done.step, 'step')}: {done.selected}{selected}")
    if done.best is not None and done.best.step == 0:
        note(
            f"note: that is the captioner before training: no later evaluation was better by {done.best.metric} and within "
            f"training.best_floor. The last step is {done.checkpoint}."
        )
    if built.watch is not None and built.watch.last is not None:
        from tellapart.evaluation.compare import compare_results

        compare_results([built.watch.last]).print(result_console())


def _summary(built: Built) -> str:
    """The built parts, in one line."""
    trained = sum(p.numel() for p in built.objective.parameters() if p.requires_grad)
    evaluated = "no evaluation" if built.watch is None else f"evaluation: {built.watch.evaluation.protocol.line()}"
    return f"{len(built.dataset)} training images ({built.dataset.name}), {trained:,} trained weights; {evaluated}"
