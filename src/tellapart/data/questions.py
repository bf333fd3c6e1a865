"""Multiple-choice questions about images, as a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart.data.dataset import CaptionDataset, ids_named
from tellapart.data.formats.rows import json_rows
from tellapart.errors import UsageError
from tellapart.files import write_text

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""What options are called, in order; a question has at most this many."""

FORM = 'lines such as {"id": "42", "question": "What colour is the car?", "options": ["red", "blue"], "answer": "red"}'


@dataclass(frozen=True)
class MultipleChoice:
    """A question about one image, of which one option is right.

    Args:
        question: the words.
        options: 2 to 26 different answers.
        answer: position of the right one.

    Raises:
        ValueError: there are fewer or more options, two are equal, or the answer is none of them.
    """

    question: str
    options: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        if not 2 <= len(self.options) <= len(LETTERS):
            raise ValueError(f"{len(self.options)} options: give 2 to {len(LETTERS)}")
        if len(set(self.options)) < len(self.options):
            raise ValueError("two options are equal")
        if not 0 <= self.answer < len(self.options):
            raise ValueError(f"the answer {self.answer} is none of the {len(self.options)} options")


Questions = Mapping[str, Sequence[MultipleChoice]]
"""Image id -> its questions."""


def read_questions(path: Path) -> dict[str, list[MultipleChoice]]:
    """Questions by what the file calls their image.

    ``answer`` is the right option's text, its position from 0, or its letter (A is the first). Of options that are numbers, an
    equal number is the option, not a position.

    Raises:
        UsageError: the file cannot be read, a line is not a question, or there is none.

    Example:
        >>> read_questions(Path("questions.jsonl"))["42"][0].options
        ('red', 'blue')
    """
    found: dict[str, list[MultipleChoice]] = {}
    for number, row in json_rows(path):
        try:
            if not isinstance(row["options"], list):  # the letters of a text would be options
                raise TypeError("options is not a list")
            options = tuple(str(option).strip() for option in row["options"])
            question = MultipleChoice(
                str(row["question"]).strip(), options, _answer(row["answer"], options, row["options"])
            )
            found.setdefault(str(row["id"]), []).append(question)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"line {number} of {path} is not a question ({error}): give {FORM}.") from error
    if not found:
        raise UsageError(f"{path} holds no question: give {FORM}.")
    return found


def _answer(given: Any, options: Sequence[str], written: Sequence[Any]) -> int:
    """Position of the answer in the options as text, or as they were written."""
    if isinstance(given, int) and not isinstance(given, bool):
        return next((place for place, one in enumerate(written) if type(one) is int and one == given), given)
    said = str(given).strip()
    if said in options:
        return options.index(said)
    if len(said) == 1 and said.upper() in LETTERS:
        return LETTERS.index(said.upper())
    raise ValueError(f"the answer {said!r} is none of the options")


def write_questions(path: Path, questions: Questions) -> None:
    """Write what ``read_questions`` reads."""
    rows = [
        {"id": name, "question": one.question, "options": list(one.options), "answer": one.options[one.answer]}
        for name, own in questions.items()
        for one in own
    ]
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def questions_of(questions: Questions, dataset: CaptionDataset, source: str) -> dict[str, list[MultipleChoice]]:
    """Image id -> its questions, of images in ``dataset``: found by id, else by file name, else by file name without ending.

    Raises:
        UsageError: none of the questions is about an image of the data set, or a name is that of several images.
    """
    named: dict[str, list[MultipleChoice]] = {}
    for name, image in ids_named(questions, dataset, f"questions of {source}", field="id").items():
        named.setdefault(image, []).extend(questions[name])
    if not named:
        raise UsageError(f"no question of {source} is about an image of {dataset.name}: use the ids of the data.")
    return {image: named[image] for image in dataset.iterate_ids() if image in named}
