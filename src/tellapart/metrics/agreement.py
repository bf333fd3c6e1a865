"""Several people's answers to the same questions: the majority, and how far they agree beyond chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def majority(answers: Sequence[str]) -> str | None:
    """The answer that more people gave than any other, or None where two lead or no one answered."""
    ranked = Counter(answers).most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def observed_agreement(items: Sequence[Sequence[str]]) -> float:
    """The mean over items of the share of pairs of people who gave the same answer.

    Args:
        items: the answers to each item, two or more each.

    Returns:
        A fraction.

    Raises:
        ValueError: there are no items, or one has fewer than two answers.
    """
    if not items or any(len(answers) < 2 for answers in items):
        raise ValueError("agreement needs two answers or more to every item")
    shares = []
    for answers in items:
        pairs = sum(count * (count - 1) for count in Counter(answers).values())
        shares.append(pairs / (len(answers) * (len(answers) - 1)))
    return sum(shares) / len(shares)


def cohen_kappa(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Agreement of two people beyond chance (Cohen, "A coefficient of agreement for nominal scales", 1960).

    ``(P_o - P_e) / (1 - P_e)``, with ``P_o`` the share of items with equal answers and ``P_e`` the sum over answers of the
    product of how often each of the two gave it.

    Args:
        first: one person's answer to each item.
        second: the other's, in the same order.

    Returns:
        At most 1; 0 at chance; None where both gave one and the same answer throughout (0 / 0).

    Raises:
        ValueError: the lengths differ, or there are no items.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} answers are not pairs")
    equal = sum(a == b for a, b in zip(first, second, strict=True))
    mine, theirs = Counter(first), Counter(second)
    return _beyond_chance(equal / len(first), sum(mine[key] * theirs[key] for key in mine) / len(first) ** 2)


def fleiss_kappa(items: Sequence[Sequence[str]]) -> float | None:
    """Agreement of any number of people beyond chance (Fleiss, "Measuring nominal scale agreement among many raters", 1971).

    ``(P - P_e) / (1 - P_e)``, with ``P`` the mean over items of the share of agreeing pairs and ``P_e`` the sum over answers
    of the squared share that each has of all answers.

    Departs from the paper: items may have different numbers of answers (people stop early); each takes the pairs it has.

    Args:
        items: the answers to each item, two or more each.

    Returns:
        At most 1; 0 at chance; None where all answers are alike (0 / 0).

    Raises:
        ValueError: there are no items, or one has fewer than two answers.
    """
    observed = observed_agreement(items)
    counts = Counter(answer for answers in items for answer in answers)
    total = sum(counts.values())
    return _beyond_chance(observed, sum((count / total) ** 2 for count in counts.values()))


def _beyond_chance(observed: float, expected: float) -> float | None:
    return None if expected >= 1 else (observed - expected) / (1 - expected)
