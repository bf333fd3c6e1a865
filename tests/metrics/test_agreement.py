"""Majorities and kappas: textbook tables, and plain enumeration."""

from __future__ import annotations

from itertools import combinations

import pytest

from tellapart.metrics.agreement import cohen_kappa, fleiss_kappa, majority, observed_agreement

TEXTBOOK = """
0 0 0 0 14
0 2 6 4 2
0 0 3 5 6
0 3 9 2 0
2 2 8 1 1
7 7 0 0 0
3 2 6 3 0
2 5 3 2 2
6 5 2 1 0
0 2 2 3 7
"""
"""How many of 14 raters gave each of 5 answers to 10 items: the usual example, kappa 0.210 with P 0.378, P_e 0.213."""


def rows(table: str) -> list[list[str]]:
    return [
        [str(answer) for answer, count in enumerate(line.split()) for _ in range(int(count))]
        for line in table.strip().splitlines()
    ]


def test_fleiss_kappa_of_the_textbook_example():
    items = rows(TEXTBOOK)
    assert observed_agreement(items) == pytest.approx(0.378, abs=5e-4)
    assert fleiss_kappa(items) == pytest.approx(0.210, abs=5e-4)


def test_fleiss_kappa_of_unequal_numbers_by_hand():
    items = [["a", "a"], ["a", "b", "b"], ["b", "b", "c", "b"]]
    agreeing = [sum(x == y for x, y in combinations(row, 2)) / len(list(combinations(row, 2))) for row in items]
    assert agreeing == pytest.approx([1, 1 / 3, 1 / 2])
    expected = (3 / 9) ** 2 + (5 / 9) ** 2 + (1 / 9) ** 2
    assert observed_agreement(items) == pytest.approx(sum(agreeing) / 3)
    assert fleiss_kappa(items) == pytest.approx((sum(agreeing) / 3 - expected) / (1 - expected))


def test_cohen_kappa_of_the_textbook_example():
    """20 times both yes, 5 yes and no, 10 no and yes, 15 both no: P_o 0.7, P_e 0.5, kappa 0.4."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    first, second = zip(*pairs, strict=True)
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert cohen_kappa(second, first) == pytest.approx(0.4)
    assert cohen_kappa(first, first) == 1.0


def test_kappa_without_anything_to_disagree_on_is_undefined():
    assert cohen_kappa(["a", "a"], ["a", "a"]) is None
    assert fleiss_kappa([["a", "a"], ["a", "a", "a"]]) is None


def test_answers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="not pairs"):
        cohen_kappa(["a"], ["a", "b"])
    for items in ([], [["a"]]):
        with pytest.raises(ValueError, match="two answers"):
            fleiss_kappa(items)


@pytest.mark.parametrize(
    ("answers", "leads"),
    [([], None), (["a"], "a"), (["a", "b"], None), (["a", "b", "b"], "b"), (["a", "a", "b", "b", "c"], None)],
)
def test_a_majority_leads_alone(answers, leads):
    assert majority(answers) == leads
