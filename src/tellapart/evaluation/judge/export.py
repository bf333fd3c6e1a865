"""Raters' answers as preferences: rows with TRL's columns, which the methods on given preferences read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tellapart.evaluation.judge.answers import Answer, is_model
from tellapart.evaluation.judge.results import verdict
from tellapart.evaluation.judge.study import PICTURES, READS_BETTER, WHICH_IMAGE, Item, Study

Votes = Mapping[str, Mapping[str, str]]


class Preferences(NamedTuple):
    """Which captions were preferred.

    Args:
        rows: one per image.
        contradicted: images whose two questions prefer opposite captions.
    """

    rows: list[dict[str, Any]]
    contradicted: list[str]


def preferences(study: Study, answers: Sequence[Answer]) -> Preferences:
    """A row for each image of which one caption was preferred.

    *Which reads better*: the caption that the majority chose. *Which image*: the caption whose majority answer is the right
    image, where the other run's caption was taken for the other image. Undecided items make no row. Where both questions ask
    about an image and agree, its row is that of *which reads better*; where they contradict each other, it has none. Models'
    answers count only where no person has answered anything.

    Args:
        study: the items.
        answers: to them.

    Returns:
        Rows of ``image_id``, ``images`` (one path, relative to the study's folder), ``prompt`` (empty), ``chosen``, ``rejected``,
        ``question``, ``votes_chosen`` and ``votes_rejected`` (answers for either caption); and the images that are left out.

    Example:
        >>> [(row["chosen"], row["rejected"]) for row in preferences(study, answers).rows]
        [('a red car on a bridge', 'a car')]
    """
    votes: dict[str, dict[str, str]] = {item.id: {} for item in study.items}
    people = [answer for answer in answers if not is_model(answer.rater)]
    for answer in people or answers:
        if answer.item in votes:
            votes[answer.item][answer.rater] = answer.choice
    better = [row for item in study.items_of(READS_BETTER) if (row := _better(study, item, votes[item.id]))]
    by_image: dict[str, list[Item]] = {}
    for item in study.items_of(WHICH_IMAGE):
        by_image.setdefault(item.images[0], []).append(item)
    found = [row for pair in by_image.values() if len(pair) == 2 and (row := _found(study, pair, votes))]
    kept: dict[str, dict[str, Any]] = {}
    contradicted = [
        row["image_id"] for row in [*better, *found] if kept.setdefault(row["image_id"], row)["chosen"] != row["chosen"]
    ]
    return Preferences([row for row in kept.values() if row["image_id"] not in contradicted], contradicted)


def _better(study: Study, item: Item, votes: Mapping[str, str]) -> dict[str, Any] | None:
    said = verdict(votes) if votes else None
    if said not in ("a", "b"):
        return None
    chosen, rejected = item.captions if said == "a" else item.captions[::-1]
    choices = list(votes.values())
    against = len(choices) - choices.count(said) - choices.count("unsure")
    return _row(study, item, (chosen, rejected), (choices.count(said), against))


def _found(study: Study, pair: Sequence[Item], votes: Votes) -> dict[str, Any] | None:
    """The caption that raters found the image by against the one that led them to the other image."""
    said = [verdict(votes[item.id]) if votes[item.id] else None for item in pair]
    if sorted(map(str, said)) != ["distractor", "target"]:
        return None
    right, wrong = (pair[said.index(kind)] for kind in ("target", "distractor"))
    counts = [list(votes[item.id].values()).count("target") for item in (right, wrong)]
    return _row(study, right, (right.captions[0], wrong.captions[0]), (counts[0], counts[1]))


def _row(study: Study, item: Item, captions: tuple[str, str], counts: tuple[int, int]) -> dict[str, Any]:
    image = item.images[0]
    return {
        "image_id": image,
        "images": [f"{PICTURES}/{study.pictures[image]}"],
        "prompt": "",
        "chosen": captions[0],
        "rejected": captions[1],
        "question": item.question,
        "votes_chosen": counts[0],
        "votes_rejected": counts[1],
    }
