import pytest

from tellapart.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("a dog runs. a cat sits", ["a dog runs.", "a cat sits"]),
        ("a dog . a cat .", ["a dog .", "a cat ."]),
        ("A dog.", ["A dog."]),
        ("", []),
        ("...", []),
        ('It reads "Stop." The car waits!', ['It reads "Stop."', "The car waits!"]),
        (
            "Mr. Lee holds 3 kg, e.g. cod, etc. and smiles. He waves.",
            ["Mr. Lee holds 3 kg, e.g. cod, etc. and smiles.", "He waves."],
        ),
        ("Fruit, nuts, etc. Two cups.", ["Fruit, nuts, etc.", "Two cups."]),
        ("J. Smith is no. 5. Is there one? No. She left.", ["J. Smith is no. 5.", "Is there one?", "No.", "She left."]),
        ("at 6 p.m. on a bench in the U.S. flag room", ["at 6 p.m. on a bench in the U.S. flag room"]),
        ("A list:\n- one\n\n- two", ["A list:", "- one", "- two"]),
        ("一只狗。一只猫。", ["一只狗。", "一只猫。"]),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize("text", ["a dog runs. a cat sits", "Wait... what? yes!", " a\n b. c "])
def test_no_words_are_lost(text):
    assert " ".join(split_sentences(text)).split() == text.split()


@pytest.mark.parametrize("piece", ["a dog runs. ", ".", "a", "a.", '."', "?\n"])
def test_time_grows_with_the_length(piece):
    split_sentences(piece * 50_000)  # minutes, were it with the square
