"""The grammar: every caption has one reading, and everything written is read back as what was meant."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tellapart.world import WORDS, build_tokenizer, spec
from tellapart.world.captions import alt_text, describe, full_description, write_as_annotator
from tellapart.world.grammar import Description, NounPhrase, parse, plural, write
from tellapart.world.scenes import draw_scene


def optional(values):
    return st.none() | st.sampled_from(list(values))


PHRASES = st.builds(
    NounPhrase,
    count=st.integers(1, 3),
    shape=optional(spec.SHAPES),
    colour=optional(spec.COLOURS),
    size=optional(spec.SIZES),
    texture=optional(spec.TEXTURES),
    place=optional([(0, 0), (0, 1), (1, 0), (1, 1)]),
)


@st.composite
def descriptions(draw):
    phrases = draw(st.lists(PHRASES, min_size=1, max_size=4))
    relations = draw(st.lists(st.sampled_from(spec.RELATIONS), min_size=len(phrases) - 1, max_size=len(phrases) - 1))
    return Description(tuple(phrases), tuple(relations), draw(optional(spec.BACKGROUNDS)))


@settings(max_examples=400, deadline=None)
@given(descriptions(), st.sampled_from(["", *spec.PREFIXES]), st.integers(0, 2**32))
def test_whatever_is_written_is_read_back(description, prefix, seed):
    rng = random.Random(seed)
    caption = write(description, prefix=prefix, choose=lambda word: rng.choice([word, spec.SYNONYMS.get(word, word)]))
    assert parse(caption) == description
    assert parse(f"  {caption}. ") == description
    assert readings(caption) == 1


def test_annotators_list_objects_as_they_read():
    """From the top left to the bottom right, whatever they choose to say; relations begin with either object."""
    rng, listed = random.Random(3), 0
    for _ in range(400):
        scene = draw_scene(rng)
        kinds = [(thing.shape, thing.colour) for thing in scene.objects]
        said = describe(scene, rng)
        cells = [
            scene.objects[kinds.index((phrase.shape, phrase.colour))].cell
            for phrase in said.phrases
            if kinds.count((phrase.shape, phrase.colour)) == 1
        ]
        only_listed = set(said.relations) == {"and"} and all(phrase.place is None for phrase in said.phrases)
        if only_listed and len(cells) == len(said.phrases):
            assert cells == sorted(cells)
            listed += 1
    assert listed > 40


def alternatives(words) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


def with_synonyms(words):
    return [*words, *(spec.SYNONYMS[word] for word in words if word in spec.SYNONYMS)]


SINGULAR = with_synonyms([spec.ANY_SHAPE, *spec.SHAPES])
ADJECTIVES = [with_synonyms(spec.SIZES), with_synonyms(spec.TEXTURES), with_synonyms(spec.COLOURS)]
OPTIONAL = "".join(f"(?:(?:{alternatives(words)}) )?" for words in ADJECTIVES)
PLACE = f"(?: in the (?:{alternatives(spec.ROWS)}) (?:{alternatives(spec.COLUMNS)}))?"
PHRASE = (
    f"(?:(?:an(?= [aeiou])|a(?= [^aeiou])) {OPTIONAL}(?:{alternatives(SINGULAR)})"
    f"|(?:{alternatives(spec.NUMBERS)}) {OPTIONAL}(?:{alternatives(map(plural, SINGULAR))})){PLACE}"
)
RELATIONS = with_synonyms(spec.RELATIONS)
TAIL = f"(?: on (?:an(?= [aeiou])|a(?= [^aeiou])) (?:{alternatives(with_synonyms(spec.BACKGROUNDS))}) background)?"


def readings(caption: str) -> int:
    """Number of derivations, counted over all places where a phrase may end: written without the parser."""
    phrase, tail = re.compile(PHRASE), re.compile(TAIL)

    def from_here(position: int) -> int:
        found = 0
        ends = {
            m.end() for stop in range(position, len(caption) + 1) if (m := phrase.fullmatch(caption, position, stop))
        }
        for end in ends:
            found += tail.fullmatch(caption, end) is not None
            for relation in RELATIONS:
                if caption.startswith(f" {relation} ", end):
                    found += from_here(end + len(relation) + 2)
        return found

    starts = [0, *(len(prefix) + 1 for prefix in spec.PREFIXES if caption.startswith(f"{prefix} "))]
    return sum(from_here(start) for start in starts)


def test_references_are_read_as_what_the_annotator_meant():
    rng = random.Random(5)
    for _ in range(2000):
        description = describe(draw_scene(rng), rng)
        caption = write_as_annotator(description, rng)
        assert parse(caption) == description
        assert readings(caption) == 1


@pytest.mark.parametrize(
    "caption",
    [
        "",
        ".",
        "a",
        "a red",
        "red star",
        "a orange star",
        "an red star",
        "a star and",
        "a star a ring",
        "a red small star",
        "two star",
        "a stars",
        "a star in the left top",
        "a star in the top",
        "a star on a pink",
        "a star on a pink background and a ring",
        "a picture of",
        "a picture of a picture of a star",
        "a star above",
        "A star",
        "a  star",
        "a star  garbage",
        "a star  and a ring",
        "a star . .",
        "a star of a ring",
        "background background background",
    ],
)
def test_what_is_not_of_the_language_is_not_read(caption):
    assert parse(caption) is None
    assert readings(caption) == 0


def test_shuffled_captions_are_rarely_of_the_language():
    rng = random.Random(1)
    shuffled = [
        rng.sample(words, len(words)) for words in (full_description(draw_scene(rng)).split() for _ in range(500))
    ]
    assert sum(parse(" ".join(words)) is not None for words in shuffled) == 0


def test_the_tokenizer_knows_every_word_and_gives_it_back():
    tokenizer, rng = build_tokenizer(), random.Random(3)
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id) == (
        0,
        1,
        2,
        3,
    )
    assert len(WORDS) == len(set(WORDS))
    for _ in range(300):
        scene = draw_scene(rng)
        texts = [full_description(scene), alt_text(scene, rng), write_as_annotator(describe(scene, rng), rng)]
        for text in texts:
            ids = tokenizer(text)["input_ids"]
            assert ids[0] == 1
            assert ids[-1] == 3
            assert 2 not in ids
            assert len(ids) <= tokenizer.model_max_length
            assert tokenizer.decode(ids, skip_special_tokens=True) == text
