"""Questions that a vision-language model writes about images, once and offline, and those of them that need the image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tellapart.data.questions import LETTERS, MultipleChoice, Questions
from tellapart.rewards.question_answering import Reader, answered

INSTRUCTION = (
    "Write {count} multiple-choice questions about this image. Each must be answerable only by someone who sees the image. Ask "
    "about different things: objects, colours, numbers, positions, text. Write each question like this:\n"
    "Question: what is asked?\nA) an answer\nB) an answer\nC) an answer\nD) an answer\nAnswer: the letter of the right answer"
)
"""Our own words; ``{count}`` is the number of questions."""

_LINE_MARKS = re.compile(r"^[ \t]*(?:(?:#{1,6}|[-+*>•–])[ \t]+)+|^[ \t]*-{3,}[ \t]*$", re.MULTILINE)
"""Markdown's headings, lists, quotes and rules."""
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*\n]+)(?<=\S)\1(?![\w*])")
"""Markdown's italics and bold, within a line: ``2*3*4`` is none."""
_QUESTIONS = (
    re.compile(r"Question(?:\s*\d+)?\s*[:.]\s*|^[ \t]*Question[ \t]*\d+[ \t]*\n\s*", re.IGNORECASE | re.MULTILINE),
    re.compile(r"^[ \t]*\d+[.)][ \t]+", re.MULTILINE),
)
"""What questions begin with: the word, or else the number of a line."""
_OPTIONS = (re.compile(r"^[ \t]*\(?([A-Za-z])[).:]\s+", re.MULTILINE), re.compile(r"(?:^|(?<=\s))\(?([A-Z])[).:]\s+"))
"""Marks of options that begin lines, or else anywhere: an option or question may hold "vitamin C: "."""
_ANSWER = re.compile(
    r"(?:^[ \t]*(?:The[ \t]+)?(?:Correct|Right)[ \t]+|(?-i:Correct)[ \t]+)?Answer\s*:\s*\(?([A-Z])(?![A-Z])(?!\s+(?-i:[a-z]))",
    re.IGNORECASE | re.MULTILINE,
)
"""A letter alone: "a dog" is none."""


class Written(NamedTuple):
    """What a model has written.

    Args:
        questions: image id -> questions, of the images that have any.
        unlike: questions that do not have the form that was asked for.
    """

    questions: dict[str, list[MultipleChoice]]
    unlike: int


def questions_in(answers: Mapping[str, str]) -> Written:
    """The questions in a model's answers to ``INSTRUCTION``.

    Args:
        answers: image id -> what the model wrote, with its line breaks.
    """
    found: dict[str, list[MultipleChoice]] = {}
    unlike = 0
    for image, text in answers.items():
        own, bad = parse_questions(text)
        unlike += bad
        if own:
            found[image] = own
    return Written(found, unlike)


def parse_questions(text: str) -> tuple[list[MultipleChoice], int]:
    r"""The questions in a model's answer, and how many did not have the form that was asked for: options with the letters A, B, C
    and so on, and the letter of the right one.

    Example:
        >>> parse_questions("Question: what colour?\nA) red\nB) blue\nAnswer: B")
        ([MultipleChoice(question='what colour?', options=('red', 'blue'), answer=1)], 0)
    """
    plain = _without_markdown(text)
    begins = next((marks for pattern in _QUESTIONS if (marks := list(pattern.finditer(plain)))), [])
    if not begins:
        return [], len(_ANSWER.findall(plain))
    found, unlike = [], 0
    for begin, follows in zip(begins, [*begins[1:], None], strict=True):
        one = _parse(plain[begin.end() : None if follows is None else follows.start()])
        if one is None:
            unlike += 1
        else:
            found.append(one)
    return found, unlike


def _without_markdown(text: str) -> str:
    """The text without the marks of headings, lists, quotes, rules, italics and bold."""
    return _EMPHASIS.sub(r"\2", _LINE_MARKS.sub("", text))


def _parse(text: str) -> MultipleChoice | None:
    """The question in a text that begins behind the mark of a question, or None."""
    answer = _ANSWER.search(text)
    if answer is None:
        return None
    said = text[: answer.start()]
    for pattern in _OPTIONS:
        marks = list(pattern.finditer(said))
        if len(marks) > 1 and LETTERS.startswith("".join(mark[1] for mark in marks).upper()):
            break
    else:
        return None
    ends = [mark.start() for mark in marks[1:]] + [len(said)]
    words = [" ".join(said[mark.end() : end].split()) for mark, end in zip(marks, ends, strict=True)]
    question = " ".join(said[: marks[0].start()].split())
    if not question or not all(words) or "**" in said:  # Markdown that was not understood
        return None
    try:
        return MultipleChoice(question, tuple(words), LETTERS.index(answer[1].upper()))
    except ValueError:
        return None


def needing_the_image(questions: Questions, reader: Reader, *, turns: int = 4) -> dict[str, list[MultipleChoice]]:
    """The questions that a reader cannot answer from the question alone: right in less than half of ``turns`` orders of options.

    The text half of CapRL's filter (Xing et al. 2025), which also asks a vision-language model with the image; that half is left
    out here.

    Args:
        questions: image id -> questions.
        reader: answers.
        turns: how often each question is asked, with its options in another order each time.
    """
    alone = {f"{image}\x1f{place}": [one] for image, own in questions.items() for place, one in enumerate(own)}
    shares = answered(reader, [(key, "") for key in alone], alone, turns=turns)
    kept: dict[str, list[MultipleChoice]] = {}
    for (key, (one,)), share in zip(alone.items(), shares, strict=True):
        if share is not None and share < 0.5:
            kept.setdefault(key.rpartition("\x1f")[0], []).append(one)
    return kept
