"""Post-processing: what each preset does to a caption, and what no preset ever does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tellapart.captioning.gate import load_openers, words
from tellapart.captioning.style import STYLES, Finish, Style, as_sentence, sentence_ends, shorten, strip_opener
from tellapart.sentences import split_sentences

OPENERS = tuple(map(tuple, load_openers()))
LONG = (
    "The image shows a man in a red coat, who is walking two small dogs along a wet street, while several people with "
    "umbrellas wait for a bus on the other side of the road in front of a shop"
)
TEXTS = st.text(alphabet="abcde fgh,.;!AB’é狗 ", max_size=300)


def finish(style: str) -> Finish:
    return Finish(STYLES[style], OPENERS)


def test_plain_changes_nothing_but_spaces():
    assert finish("plain")("The image shows \n a  dog,").text == "The image shows a dog,"


def test_short_keeps_the_first_sentence():
    done = finish("short")("a dog on a bed. it sleeps and", finished=False)
    assert (done.text, done.whole) == ("a dog on a bed.", True)


def test_detailed_drops_what_the_model_did_not_finish():
    done = finish("detailed")("A dog on a bed. It sleeps. The wall behind it is pain", finished=False)
    assert (done.text, done.whole) == ("A dog on a bed. It sleeps.", True)
    done = finish("detailed")("A dog on a bed and", finished=False)
    assert (done.text, done.whole) == ("A dog on a bed and", False), "there is nothing else to keep"


def test_a_sentence_that_just_fitted_is_whole():
    assert finish("plain")("A dog on a bed.", finished=False).whole
    assert not finish("plain")("A dog on a bed", finished=False).whole
    assert not finish("plain")("A photo of Dr.", finished=False).whole
    assert finish("plain")("A dog on a bed").whole, "the model says so"


def test_alt_is_a_short_sentence_without_an_opener():
    done = finish("alt")(LONG)
    assert done.text == "A man in a red coat, who is walking two small dogs along a wet street."
    assert done.whole
    assert finish("alt")("in this picture we can see a dog").text == "A dog."
    assert finish("alt")('a dog with a sign saying "stop."').text == 'A dog with a sign saying "stop."'
    assert finish("alt")("a photo of").text == "A photo of.", "a caption that is only an opener is left to the gate"


@pytest.mark.parametrize(
    ("text", "limit", "cut"),
    [
        ("One dog. Two cats. Three birds sit.", 20, "One dog. Two cats."),
        ("a man with a hat and a dog with a ball", 25, "a man with a hat"),
        ("a man, a dog, a cat in the garden", 15, "a man, a dog"),
        ("Mr. Smith and St. Bernard live at no. 5 street", 27, "Mr. Smith"),
        ("thisisalongwordwithoutanyspace", 10, "thisisalon"),
        ("a cup on the table of the old house", 21, "a cup on the table"),
    ],
)
def test_long_captions_end_where_sense_ends(text, limit, cut):
    assert shorten(text, limit)[0] == cut


@pytest.mark.parametrize(
    "text", ["A dog sits…", "एक कुत्ता।", "هل هذا كلب؟", "A dog.)", 'A sign says "stop!"', "Cups, plates etc.", "Dogs!"]
)
def test_what_ends_as_a_sentence_gets_no_second_full_stop(text):
    assert as_sentence(text) == text
    assert as_sentence(text.rstrip("…।؟.!)") + " x") == text.rstrip("…।؟.!)") + " x."


def test_sentences_end_in_other_scripts():
    assert finish("short")("a dog sits… a cat runs").text == "a dog sits…"
    assert finish("short")("एक कुत्ता। एक बिल्ली।").text == "एक कुत्ता।"
    assert split_sentences("एक कुत्ता। एक बिल्ली।") == ["एक कुत्ता।", "एक बिल्ली।"]


def test_abbreviations_end_no_sentence():
    text = "Dr. Who at St. Paul's, e.g. today. He waves."
    assert [text[:end] for end in sentence_ends(text)] == ["Dr. Who at St. Paul's, e.g. today.", text]


@given(TEXTS, st.integers(10, 150))
def test_cutting_never_adds_and_keeps_the_beginning(text, limit):
    text = " ".join(text.split())
    if len(text) <= limit:
        return
    cut, _ = shorten(text, limit)
    assert cut
    assert len(cut) <= limit
    assert text.startswith(cut)


@given(TEXTS, st.booleans())
def test_presets_only_take_away(text, finished):
    said = words(text)
    for name in STYLES:
        left = words(finish(name)(text, finished=finished).text)
        places = iter(said)
        assert all(any(place.startswith(word) for place in places) for word in left), name


@pytest.mark.parametrize("text", ["ab " * 41 + "ab", "ab " * 60, "a" * 200, "ab " * 41 + "a.", "ab " * 42 + "a."])
def test_the_full_stop_of_alt_text_counts(text):
    done = finish("alt")(text).text
    assert 122 <= len(done) <= 125
    assert done.endswith(".")


@given(TEXTS)
def test_alt_text_is_stable(text):
    once = finish("alt")(text).text
    assert len(once) <= 125
    assert finish("alt")(once).text == once or not words(once)


def test_openers_go_and_capitals_stay():
    assert strip_opener("The image shows a dog", OPENERS) == "A dog"
    assert strip_opener("the image shows: a dog", OPENERS) == "a dog"
    assert strip_opener("This is an image of a picture of a dog", OPENERS) == "A dog"
    assert strip_opener("a dog", OPENERS) == "a dog"


def test_prefix_and_suffix_stand_as_they_are():
    done = Finish(Style(), prefix="ohwx, ", suffix=" #photo")
    assert done.written("a dog") == "ohwx, a dog #photo"
    assert done.written("") == "", "an empty caption is not made to look like one"
