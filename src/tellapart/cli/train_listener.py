"""``tellapart train-listener``: train a dual encoder, perhaps with a grammar head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tellapart.cli.command import help_head
from tellapart.cli.console import note, say
from tellapart.cli.resuming import telling_how_to_resume
from tellapart.errors import UsageError, count_of
from tellapart.launch import is_main
from tellapart.recipe.listener import listener_schema, load_listener
from tellapart.recipe.options import help_lines
from tellapart.recipe.words import FLAGS, read_words

if TYPE_CHECKING:
    from tellapart.recipe.listener import ListenerRecipe
    from tellapart.recipe.listener_build import BuiltListener
    from tellapart.training.run import Run

OWN_FLAGS = ("dry_run", "print_config", "overwrite_output_dir")

EXAMPLES = (
    "tellapart train-listener world_listener_pac --output_dir runs/pac",
    "tellapart train-listener coco_clip_grammar --data.path data/coco/dataset_coco.json",
)
"""Shown in the help."""

PAC = ("--loss", "pac")
"""The options that ``--pac`` sets."""


def run(argv: Sequence[str]) -> int:
    """Train as a recipe and flags say."""
    if "--help" in argv or "-h" in argv:
        say(_help())
        return 0
    argv = [part for word in argv for part in (PAC if word == "--pac" else (word,))]
    recipe, flags = read_words(argv, lambda source, asked, options, plugins: load_listener(source, options))
    if flags.print_config:
        say(recipe.to_yaml().rstrip())
        return 0
    if flags.push_to_hub or flags.hub_model_id or flags.hub_private_repo:
        raise UsageError("--push_to_hub is for captioners: upload a listener's folder with hf upload.")
    if flags.plugin:
        raise UsageError("--plugin brings methods and rewards of captioners: leave it out.")
    from tellapart.recipe.run import check_output_dir, held

    if flags.dry_run:
        check_output_dir(recipe, overwrite=flags.overwrite_output_dir)
        say(recipe.to_yaml().rstrip())
        note(_summary(recipe, recipe.build()))
        return 0
    from tellapart.recipe.listener_build import train_held
    from tellapart.training.denormals import denormals_flushed

    with held(recipe.training.output_dir), denormals_flushed():  # from now on: building may take minutes
        check_output_dir(recipe, overwrite=flags.overwrite_output_dir)
        built = recipe.build()
        with telling_how_to_resume("train-listener", argv, recipe.training.output_dir):
            done = train_held(recipe, overwrite=flags.overwrite_output_dir, built=built)
    if is_main():
        _conclude(done)
    return 0


def _help() -> str:
    return "\n".join(
        [
            *help_head(
                "train-listener RECIPE [--option value ...]",
                "Train a listener (CLIP, SigLIP, VSE) on images and captions as RECIPE says: a YAML file, or a name that "
                "tellapart recipes lists.",
                EXAMPLES,
            ),
            *listener_schema().help(),
            "",
            "for one invocation:",
            *help_lines({name: option for name, option in FLAGS.items() if name in OWN_FLAGS}),
        ]
    )


def _conclude(done: Run) -> None:
    """Say where the selected listener is and what it reached."""
    from tellapart.listeners.kinds import FOLDER

    selected = "" if done.best is None else f" (of step {done.best.step}, by {done.best.metric})"
    note(f"trained {count_of(done.step, 'step')}: {done.output_dir / FOLDER}{selected}")
    step = done.step if done.best is None else done.best.step
    for line in [line for line in done.evaluations if line["step"] == step][-1:]:
        say("\n".join(f"{key.removeprefix('eval_')}: {value:.1f}" for key, value in line.items() if "eval_" in key))


def _summary(recipe: ListenerRecipe, built: BuiltListener) -> str:
    """The built parts, in one line."""
    trained = sum(p.numel() for p in built.objective.parameters() if p.requires_grad)
    watch = built.watch
    evaluated = "no evaluation" if watch is None else f"evaluation: {len(watch.dataset)} of {watch.dataset.name}"
    what = "with a grammar head" if recipe.grammar else f"{recipe.loss} loss, without a head"
    images = f"{len(built.dataset)} training images ({built.dataset.name})"
    return f"{images}, {trained:,} trained weights, {what}; {evaluated}"
