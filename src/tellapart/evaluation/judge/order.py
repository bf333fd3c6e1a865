"""In which order and on which side a rater meets things: random, and the same again for the same name."""

from __future__ import annotations

from tellapart.evaluation.judge.keyed import drawn_number, shuffled
from tellapart.evaluation.judge.study import READS_BETTER, WHICH_IMAGE, Item, Study


def order(study: Study, rater: str) -> list[Item]:
    """The items as a rater meets them.

    *Which image* comes first: captions shown beside one picture would tell what it is about. Each pair of pictures comes
    once in a first round and, with the other run's caption, again at the same place of a second. Which run comes first is
    drawn for each pair, so that what is remembered favours neither.
    """
    pairs: dict[tuple[str, ...], list[Item]] = {}
    for item in study.items_of(WHICH_IMAGE):
        pairs.setdefault(item.images, []).append(item)
    names = {"\x1e".join(images): items for images, items in pairs.items()}
    turns = [
        sorted(names[name], key=lambda item: drawn_number(study.seed, rater, "first", item.id))
        for name in shuffled(names, study.seed, rater)
    ]
    rounds = max(map(len, turns), default=0)
    which = [items[number] for number in range(rounds) for items in turns if number < len(items)]
    rest = {item.id: item for item in study.items_of(READS_BETTER)}
    return which + [rest[name] for name in shuffled(rest, study.seed, rater)]


def swapped(study: Study, rater: str, item: Item) -> bool:
    """Whether the second of an item's two choices is shown first to a rater."""
    return drawn_number(study.seed, rater, "side", item.id) % 2 == 1
