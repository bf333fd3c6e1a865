"""Making a study from what a user names: two runs, data, and where distractors come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.cli.console import note
from tellapart.cli.judge import JudgeOptions
from tellapart.data.results import read_results
from tellapart.errors import UsageError
from tellapart.evaluation.judge.distractors import nearest_others, random_others
from tellapart.evaluation.judge.study import (
    READS_BETTER,
    STUDY_FILE,
    WHICH_IMAGE,
    Study,
    choose_images,
    make_items,
    plain,
    write_study,
)
from tellapart.evaluation.matching import match
from tellapart.evaluation.results import METRICS_FILE, find_result
from tellapart.recipe.measured import Where, load
from tellapart.recipe.runs import made

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset

_NOT_PART = ("output_dir", "port", "results")
"""Options that change nothing about what is asked."""


def make_or_open(words: Sequence[str], options: JudgeOptions) -> Study:
    """The study in ``output_dir`` if it was made with the same words and options, else a new one there.

    Raises:
        UsageError: another study is there, or this one cannot be made.
    """
    asked = _asked(words, options)
    if (options.output_dir / STUDY_FILE).is_file():
        study = Study.load(options.output_dir)
        others = [key for key in asked if study.asked.get(key, asked[key]) != asked[key]]
        if others:
            was, now = study.asked.get(others[0]), asked[others[0]]
            raise UsageError(
                f"{options.output_dir} holds a study with {others[0]} {was!r}, not {now!r}: give another --output_dir."
            )
        return study
    if options.images is not None and options.data is None:
        options = replace(options, data=str(options.images), images=None)
    where = load(options, made(Path(words[0])), pictures=True)
    dataset = where.dataset
    names, captions = _runs(words, options, dataset)
    chosen = choose_images(*captions, count=options.num_items, seed=options.seed)
    kept = {question: ids for question, ids in chosen.items() if options.question in ("both", question)}
    _tell_shortage(kept, options.num_items)
    distractors, source = _distractors(options, where, kept.get(WHICH_IMAGE, []))
    items = make_items(kept, *captions, distractors, seed=options.seed)
    about = {"data": f"Images of {dataset.name}.", "distractors": source, **_alike(*captions)}
    return write_study(options.output_dir, dataset, items, runs=names, seed=options.seed, asked=asked, about=about)


def _asked(words: Sequence[str], options: JudgeOptions) -> dict[str, Any]:
    """What decides a study, as its file keeps it."""
    values = {field.name: getattr(options, field.name) for field in fields(options) if field.name not in _NOT_PART}
    plain_values = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
    return {"run_a": str(Path(words[0])), "run_b": str(Path(words[1])), **plain_values}


def _runs(
    words: Sequence[str], options: JudgeOptions, dataset: CaptionDataset
) -> tuple[tuple[str, str], tuple[dict[str, str], dict[str, str]]]:
    """Names and captions of both runs, of the images that the data hold."""
    (first, a), (second, b) = (_captions(Path(word), options.protocol, dataset) for word in words)
    if first == second:
        first, second = f"{first} ({words[0]})", f"{second} ({words[1]})"
    for name, captions in ((first, a), (second, b)):
        lacking = [image_id for image_id in captions if image_id not in dataset.position]
        if len(lacking) == len(captions):
            raise UsageError(
                f"{name} captions no image of {dataset.name}, but {lacking[0]!r}: name the data and the split it was "
                "measured on."
            )
    a, b = ({image_id: found[image_id] for image_id in dataset.ids if image_id in found} for found in (a, b))
    shared = len(a.keys() & b.keys())
    if shared < len(dataset):
        note(f"note: {shared} of the {len(dataset)} images of {dataset.name} are captioned by both runs.")
    return (first, second), (a, b)


def _captions(path: Path, protocol: str | None, dataset: CaptionDataset) -> tuple[str, dict[str, str]]:
    """Name and captions of a measured run, or of a file or folder of captions."""
    if path.is_dir() and ((path / METRICS_FILE).is_file() or (path / "eval").is_dir()):
        result = find_result(path, protocol)
        return result.name, result.captions
    results = read_results(path)
    return results.name, match(results, dataset, compared=False).captions


def _tell_shortage(chosen: dict[str, list[str]], wanted: int) -> None:
    reasons = {WHICH_IMAGE: "are captioned by both runs", READS_BETTER: "have different captions by the two runs"}
    for question, ids in chosen.items():
        if len(ids) < wanted:
            note(f"note: only {len(ids)} images {reasons[question]}; {question} asks about these.")


def _distractors(options: JudgeOptions, where: Where, ids: Sequence[str]) -> tuple[dict[str, str], str]:
    """The other image of each image, and in words where it comes from."""
    dataset = where.dataset
    if not ids:
        return {}, ""
    if options.neighbours is not None:
        from tellapart.listeners.neighbours import Neighbours

        found = nearest_others(Neighbours.load(options.neighbours), dataset, ids)
        return found, f"The other image is the nearest neighbour by {options.neighbours}."
    if options.listener is not None:
        from tellapart.listeners.mining import mine
        from tellapart.recipe.models import load_listener

        listener = load_listener(options.listener, name="listener", size=where.size)
        found = nearest_others(mine(listener, dataset, 1), dataset, ids)
        return found, f"The other image is the nearest neighbour among {len(dataset)} images by {options.listener}."
    note(
        "warning: the other image of which_image is any other one, which is easy to tell apart: give --neighbours, or "
        "--listener to mine look-alikes."
    )
    return random_others(
        dataset, ids, seed=options.seed
    ), "The other image was drawn at random: no look-alikes were mined."


def _alike(first: dict[str, str], second: dict[str, str]) -> dict[str, Any]:
    both = [image_id for image_id in first if image_id in second]
    alike = sum(plain(first[image_id]) == plain(second[image_id]) for image_id in both)
    text = f"Of {len(both)} images captioned by both runs, {alike} have equal captions."
    return {"captions": text, "images": len(both), "equal_captions": alike}
