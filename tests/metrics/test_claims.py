"""Claims found by rules, given claims, and their scores."""

from __future__ import annotations

import pytest

from tellapart.metrics.claims import claim_scores, claims_by_rule, given_claims, singular


def texts(caption: str, kind: str | None = None) -> list[str]:
    return [claim.text for claim in claims_by_rule(caption) if kind in (None, claim.kind)]


@pytest.mark.parametrize(
    ("caption", "objects", "attributes", "relations"),
    [
        ("A small red car on the street.", ["a car", "a street"], ["a small car", "a red car"], ["a car on a street"]),
        ("a dog and an apple", ["a dog", "an apple"], [], []),
        ("The car is red. It is old", ["a car"], ["a red car"], []),
        (
            "two men riding brown horses",
            ["men", "horses"],
            ["two men", "brown horses"],
            ["men riding horses"],
        ),
        (
            "a bench in front of a large building",
            ["a bench", "a building"],
            ["a large building"],
            ["a bench in front of a building"],
        ),
        ("a cat, a dog sleeping", ["a cat", "a dog"], [], []),
        ("", [], [], []),
        ("there is of the", [], [], []),
    ],
)
def test_objects_attributes_and_relations(caption, objects, attributes, relations):
    assert texts(caption, "object") == objects
    assert texts(caption, "attribute") == attributes
    assert texts(caption, "relation") == relations


def test_claims_are_made_once_and_compared_in_the_singular():
    assert texts("a red car, a red car and red cars") == ["a car", "a red car"]
    (one,), (more,) = claims_by_rule("a bus"), claims_by_rule("buses")
    assert one.key == more.key == ("bus",)
    nouns = {"cars": "car", "boxes": "box", "glass": "glass", "cities": "city", "people": "person", "benches": "bench"}
    nouns |= {"ties": "tie", "pies": "pie", "cookies": "cookie", "tomatoes": "tomato", "potatoes": "potato"}
    nouns |= {"movies": "movie", "scarves": "scarf", "skis": "ski", "shoes": "shoe", "puppies": "puppy", "tie": "tie"}
    assert {noun: singular(noun) for noun in nouns} == nouns
    assert claim_scores(claims_by_rule("cookies"), [True], [claims_by_rule("a cookie")]).recall == 1.0


def test_scores():
    claims = claims_by_rule("a red car on a street")  # car, red car, street, car on street
    references = [claims_by_rule("a car"), claims_by_rule("a blue car by a tree")]  # car, blue car, tree, car by tree
    found = claim_scores(claims, [True, False, True, True], references)
    assert (found.precision, found.recall) == (0.75, 0.25)
    assert found.f1 == pytest.approx(2 * 0.75 * 0.25 / (0.75 + 0.25))
    assert claim_scores([], [], references) == type(found)(0.0, 0.0, 0.0)
    assert claim_scores(claims, [True] * 4, [[]]) == type(found)(1.0, None, None)


def test_given_claims_replace_the_rules_for_their_captions():
    parse = given_claims({"a red  car": ["A car.", "the car is red", "a car"]})
    assert [claim.text for claim in parse("a red car")] == ["a car", "the car is red"]
    assert parse("a dog") == claims_by_rule("a dog")
    assert given_claims({"a dog": []})("a dog") == []
