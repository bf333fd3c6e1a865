"""Question answering from names: the questions, and the reader that answers them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.data.questions import MultipleChoice
    from tellapart.evaluation.question_answering import QuestionMeasure
    from tellapart.rewards.question_answering import Reader

EXACT, REFERENCES, WORLD = "exact", "references", "world"
"""The name of the world's grammar as a reader, and for questions by template."""


def load_reader(
    path: str, *, data: str, dtype: Literal["float32", "bfloat16", "float16"] = "float32", size: str = "full"
) -> Reader:
    """The reader that answers questions from captions: a language model on this process's device, or the world's grammar.

    Args:
        path: the model's folder or id, or ``exact``.
        data: what the images were loaded from.
        dtype: of the weights.
        size: of the built-in world.

    Raises:
        UsageError: the model does not exist or cannot answer by letters, or the grammar is not that of the captions.
    """
    if path == EXACT:
        if data != WORLD:
            raise UsageError(
                f"the reader exact reads captions of the built-in world only, not those of {data}: name a language model."
            )
        from tellapart.world import load_scenes
        from tellapart.world.multiple_choice import ExactReader

        return ExactReader(load_scenes("train", size=size))
    from tellapart.recipe.models import load_language_model
    from tellapart.rewards.question_answering import ModelReader

    return ModelReader(load_language_model(path, dtype=dtype, size=size))


def load_questions(
    source: str, dataset: CaptionDataset, *, data: str, split: str, size: str, most: int | None = None
) -> dict[str, list[MultipleChoice]]:
    """Image id -> questions, of the images that have any.

    Args:
        source: a file, ``references`` or ``world``.
        dataset: the images.
        data: what they were loaded from.
        split: part of it.
        size: of the built-in world.
        most: questions per image at most.

    Raises:
        UsageError: there are none for these images.
    """
    found = _questions(source, dataset, data=data, split=split, size=size, most=most)
    return {image: own[:most] for image, own in found.items() if own}


def _questions(
    source: str, dataset: CaptionDataset, *, data: str, split: str, size: str, most: int | None
) -> Mapping[str, list[MultipleChoice]]:
    if source == WORLD:
        if data != WORLD:
            raise UsageError(
                f"questions world are about the built-in world, but the images are those of {data}: name a file of questions, or "
                "references."
            )
        from tellapart.world import load_scenes
        from tellapart.world.multiple_choice import questions_about

        scenes = load_scenes(split, size=size)
        return questions_about({image: scenes[image] for image in dataset.ids})
    if source == REFERENCES:
        from tellapart.rewards.question_templates import MOST, questions_from_references

        dataset.require_references("questions from references")
        found = questions_from_references(dataset.references, most=MOST if most is None else most)
        if not found:
            raise UsageError(
                f"the references of {dataset.name} give no question: two references of an image must name the same object of "
                "COCO's categories, and three others must occur in other images; give more images, or a file of questions."
            )
        return found
    from tellapart.data.questions import questions_of, read_questions

    return questions_of(read_questions(Path(source)), dataset, source)


def question_measure(
    reader: str | None,
    questions: str | None,
    dataset: CaptionDataset,
    *,
    data: str,
    split: str,
    size: str,
) -> tuple[QuestionMeasure, ...]:
    """The measure that the options ask for; none where they ask for none.

    Raises:
        UsageError: one of the two is missing, or cannot be used.
    """
    if (reader is None) != (questions is None):
        lacking, given = ("questions", "reader") if questions is None else ("reader", "questions")
        raise UsageError(f"{given} is given without {lacking}: name both, or leave both out.")
    if reader is None or questions is None:
        return ()
    from tellapart.evaluation.question_answering import QuestionMeasure

    found = load_questions(questions, dataset, data=data, split=split, size=size)
    called = _called(questions, found)
    return (QuestionMeasure(load_reader(reader, data=data, size=size), found, called=called),)


def _called(source: str, found: Mapping[str, Sequence[MultipleChoice]]) -> str:
    """The name of questions in a protocol: of a file's with a hash of them, since another file may have its name."""
    if source in (REFERENCES, WORLD):
        return f"from {source}"
    asked = {image: [(one.question, one.options, one.answer) for one in own] for image, own in found.items()}
    digits = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    return f"{Path(source).name} {digits}"
