from collections import Counter

import numpy as np
import pytest

from tellapart.world import load_scenes, load_world
from tellapart.world.grammar import parse
from tellapart.world.negatives import (
    RATES,
    hard_negative,
    replace_attribute,
    shuffle_words,
    swap_attributes,
    swap_relation,
)
from tellapart.world.truth import is_true


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def found(make, text: str, rng: np.random.Generator) -> set[str]:
    return {make(text, rng) for _ in range(60)}


def test_swapped_attributes_keep_the_words_and_mend_the_articles(rng):
    assert found(swap_attributes, "a red star and an orange ring", rng) == {
        "an orange star and a red ring",
        "a red ring and an orange star",
    }
    text = "a tiny star with a big box on a pink background"
    assert found(swap_attributes, text, rng) == {
        "a big star with a tiny box on a pink background",
        "a tiny box with a big star on a pink background",
    }


@pytest.mark.parametrize(
    "text", ["a small star and a large star", "a violet star and a purple ring", "two stars and a ring", "a star"]
)
def test_nothing_is_swapped_where_that_would_say_the_same(text, rng):
    # Sizes exchanged, or a word and its synonym; a plural and a singular do not stand for each other.
    siblings = found(swap_attributes, text, rng)
    assert siblings in ({None}, {"a violet ring and a purple star"})


def test_order_matters_once_there_is_a_relation(rng):
    assert found(swap_attributes, "a small star above a large star", rng) == {"a large star above a small star"}


def test_relations_turn_into_their_opposites(rng):
    assert found(swap_relation, "a star left of a ring", rng) == {"a star right of a ring"}
    assert found(swap_relation, "a star in the top left", rng) == {
        "a star in the bottom left",
        "a star in the top right",
    }
    assert swap_relation("a star and a ring", rng) is None


def test_replaced_attributes_are_other_values_and_the_background_stays_one(rng):
    siblings = found(replace_attribute, "a tiny star on a grey background", rng)
    assert "a tiny star on a gray background" not in siblings
    assert "a small star on a grey background" not in siblings
    assert {"a big star on a grey background", "a tiny star on a pink background"} <= siblings
    assert all(parse(sibling) is not None for sibling in siblings)
    assert replace_attribute("two shapes", rng) is None


def test_shuffling_keeps_the_words(rng):
    text = "a red star and a blue ring"
    shuffled = shuffle_words(text, rng)
    assert Counter(shuffled.split()) == Counter(text.split())
    assert shuffled != text


def test_siblings_of_true_captions_are_grammatical_and_false(rng):
    scenes, made = load_scenes("val", size="small"), Counter()
    for example in load_world("val", size="small"):
        for text in example.references:
            for make in (swap_attributes, swap_relation, replace_attribute):
                if (sibling := make(text, rng)) is None:
                    continue
                said = parse(sibling)
                assert said is not None
                made["false"] += not is_true(said, scenes[example.id])
                made["all"] += 1
    # "a red star" of a scene with a red ring too becomes "a red ring" and is true by chance: now and then only.
    assert made["all"] > 300
    assert made["false"] / made["all"] > 0.95


def test_every_kind_comes_at_about_its_rate(rng):
    text, kinds, draws = "a red star above a blue ring", Counter(), 2000
    for _ in range(draws):
        sibling = hard_negative(text, rng)
        said = parse(sibling)
        same_words = Counter(sibling.split()) == Counter(text.split())
        relation = sibling == "a red star below a blue ring"
        kinds["relation" if relation else "replaced" if not same_words else "swapped" if said else "shuffled"] += 1
    # Three standard deviations of a share of at most one half over 2000 draws are 0.034.
    for kind, rate in RATES.items():
        assert abs(kinds[kind] / draws - rate) < 0.034, kind
    assert sum(RATES.values()) == pytest.approx(1.0)
    assert hard_negative("star", rng) == "star" or parse(hard_negative("star", rng)) is None
