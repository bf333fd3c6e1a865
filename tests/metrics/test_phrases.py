import random

import pytest

from given import vector
from tellapart.errors import UsageError
from tellapart.metrics.phrases import EXEMPT, PhraseFinder, covered, read_phrases, repeated_words, vlrm_phrases


def spans_of(words):
    """Character spans of words joined by spaces."""
    spans, place = [], 0
    for word in words:
        spans.append((place, place + len(word)))
        place += len(word) + 1
    return spans


def test_the_vector_of_word_flags():
    inputs, expected, _ = vector("vlrm_word_flags")
    find = PhraseFinder(inputs["bad_phrases"])
    for name, suffix in (("words", ""), ("words_year", "_year"), ("words_traps", "_traps")):
        words = inputs[name]
        text, spans = " ".join(words), spans_of(words)
        assert covered(spans, find(text)) == [bool(flag) for flag in expected[f"bad{suffix}"]]
        assert covered(spans, repeated_words(text, inputs["exempt"])) == [
            bool(flag) for flag in expected[f"repeat{suffix}"]
        ]


def test_the_papers_list():
    phrases = vlrm_phrases()
    assert len(phrases) == 213  # the 212 of table 6, and "is talking about"
    assert {"a close-up of", "camera’s view", "in webcam is shown,", ", image"} <= set(phrases)
    assert not any(phrase.startswith("#") for phrase in phrases)


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("shot", "a gunshot, a shot; SHOT", ["shot", "SHOT"]),
        ("a view of", "a  view\nof a view", ["a  view\nof"]),
        (", image", "a dog, image of it", [", image"]),
        ("camera,", "camera, camera", ["camera,"]),
        ("c++", "c++ and c+++", ["c++", "c++"]),  # an edge of a word is asked for only where there is a word
        ("tv", "tvs tv's TV", ["tv", "TV"]),
    ],
)
def test_where_phrases_stand(phrase, text, found):
    spans = PhraseFinder([phrase], years=False)(text)
    assert [text[first:last] for first, last in spans] == found


def test_years_stand_alone():
    text = "in 1993 or 19931, 2020s and 2021"
    assert [text[a:b] for a, b in PhraseFinder([])(text)] == ["1993", "2021"]


def test_repetition_spares_colours_prepositions_and_articles():
    text = "a red dog on a red Dog's mat, on the dog. The DOG's dog"
    assert [text[a:b] for a, b in repeated_words(text)] == ["dog", "DOG's", "dog"]
    assert {"red", "on", "the", "of"} <= EXEMPT


def test_bad_lists_are_told(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_phrases(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("# only a comment\n\n")
    with pytest.raises(UsageError, match="hold no phrase"):
        read_phrases(tmp_path / "empty.txt")
    (tmp_path / "two.txt").write_text("# why\nan image of \n\n a view of\n#hashtag\n")
    assert read_phrases(tmp_path / "two.txt") == ["an image of", "a view of", "#hashtag"]


def bad_words(words, phrases):
    """Of each word whether it stands in a phrase: the paper's "there are s1 <= s <= s2 with words s1 to s2 among the phrases"."""
    split = [phrase.split() for phrase in phrases]
    return [
        any(words[s1 : s2 + 1] in split for s1 in range(s + 1) for s2 in range(s, len(words)))
        for s in range(len(words))
    ]


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("a webcam of a webcam of a", 7),
        ("a webcam of a webcam of a dog", 7),
        ("a webcam of a webcam of the", 4),  # the second occurrence is not complete
        ("a man and a webcam of a webcam of a webcam of a cat", 10),
    ],
)
def test_phrases_that_overlap_themselves_are_found_each_time(text, bad):
    words, phrases = text.split(), ["a webcam of a", "is talking about"]
    flags = covered(spans_of(words), PhraseFinder(phrases, years=False)(text))
    assert flags == bad_words(words, phrases)
    assert sum(flags) == bad


def test_the_papers_list_against_a_recomputation_word_by_word():
    """Captions made of the list's own words, so that phrases stand in, across and over each other."""
    phrases = [phrase for phrase in vlrm_phrases() if phrase.replace(" ", "").isalpha()]
    some, draws = [word for phrase in phrases[:60] for word in phrase.split()], random.Random(0)
    find = PhraseFinder(phrases, years=False)
    for _ in range(100):
        words = draws.choices(["a", "of", "webcam", "dog", *some], k=12)
        assert covered(spans_of(words), find(" ".join(words))) == bad_words(words, phrases)
