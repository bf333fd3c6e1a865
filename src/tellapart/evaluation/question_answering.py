"""How many questions about images can be answered from their captions alone."""

from __future__ import annotations

from collections.abc import Mapping

from tellapart.data.questions import Questions
from tellapart.errors import UsageError
from tellapart.evaluation.measures import Measured
from tellapart.rewards.question_answering import Reader, answered

QA, FLOOR, CHANCE, TRUNCATED = "QA", "QA_floor", "QA_chance", "QA_truncated"


class QuestionMeasure:
    """Accuracy of a reader that knows the caption alone, and its floor, in percent.

    ``QA``: mean over images of the share of their questions that are answered right. ``QA_floor``: the same without a caption.
    ``QA_chance``: of guessing. ``QA_truncated``: captions that the reader had to cut. Images without questions do not count.
    Source, departures and pitfalls: ``QuestionAnswering``.

    Args:
        reader: answers from captions.
        questions: image id -> questions.
        called: name of the questions in the line "how measured", such as the file's name.
        turns: how often each question is asked, with its options in another order each time.
        seed: of the orders.

    Example:
        >>> QuestionMeasure(reader, questions, called="questions.jsonl")({"42": "a red car"})[0]
        {'QA': 75.0, 'QA_floor': 25.0, 'QA_chance': 25.0, 'QA_truncated': 0.0}
    """

    def __init__(self, reader: Reader, questions: Questions, *, called: str, turns: int = 1, seed: int = 0) -> None:
        self.reader, self.questions, self.turns, self.seed = reader, questions, turns, seed
        self._floors: dict[str, float] = {}
        self.measured_by = {QA: f"{reader.identity()}, questions {called}, asked {turns} times, seed {seed}"}

    def __call__(self, captions: Mapping[str, str]) -> Measured:
        """The metrics, and a row per image; rows of images without questions are empty.

        Raises:
            UsageError: none of the images has a question.
        """
        pairs = list(captions.items())
        asked = [image for image in captions if self.questions.get(image)]
        if not asked:
            raise UsageError("no question is about one of the images that are measured: use the ids of the data.")
        rows = answered(self.reader, pairs, self.questions, turns=self.turns, seed=self.seed)
        cut = 100.0 * self.reader.truncated
        self._ask_without_caption([image for image in asked if image not in self._floors])
        floors = [self._floors.get(image) for image in captions]
        chances = [_chance(self.questions, image) for image in captions]
        columns = {
            name: [None if value is None else 100.0 * value for value in values]
            for name, values in ((QA, rows), (FLOOR, floors), (CHANCE, chances))
        }
        metrics = {name: _mean(values) for name, values in columns.items()}
        return metrics | {TRUNCATED: cut}, columns

    def _ask_without_caption(self, images: list[str]) -> None:
        """Accuracy of the reader without a caption; asked once per image."""
        found = answered(
            self.reader, [(image, "") for image in images], self.questions, turns=self.turns, seed=self.seed
        )
        self._floors |= {image: value for image, value in zip(images, found, strict=True) if value is not None}


def _chance(questions: Questions, image: str) -> float | None:
    own = questions.get(image, ())
    return sum(1 / len(one.options) for one in own) / len(own) if own else None


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)
