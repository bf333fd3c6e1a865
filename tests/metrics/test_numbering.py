"""Numbers of words against the tokenizer's words."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tellapart.metrics.numbering import WordNumbers
from tellapart.metrics.ptb import _KEEPS_DOT, SPLIT_IN_TWO, ptb_tokenize

USUAL = (
    "a man riding the wave Dog TV CD park street two man's it's don't O'Clock t-shirt black-and-white x-ray wave, wave."
)
SPLIT = [first + second for first, second in SPLIT_IN_TWO.items()]
ODD = (
    "dogs' 'n' rock-'n'-roll d'or y'all aujourd'hui can not gon na wave., a,b , . .. ... 2 1/2 1,000 12th (left) "
    "K. k. a. U.S. u.s. No. no. Mr. mr. St. st. inc. co. & &amp; :-) <b> -- - $5 50% 10:14 caf\u00e9 na\u00efve \u2019s \u2014 "
    '\U0001f600 \x00 "east bronx"'
)
PIECES = [*USUAL.split(), *SPLIT, *ODD.split(" "), "\n", "", "\t", "two words"]


def words_of(numbers: WordNumbers, texts: list[str], **options: object) -> list[list[object]]:
    """The words behind the numbers; those outside the vocabulary as they are numbered."""
    found = numbers.number(texts, **options)
    ends = np.cumsum(found.lengths).tolist()
    names = {number: word for word, number in numbers.vocabulary.items()}
    flat = [names.get(number, number) for number in found.words.tolist()]
    return [flat[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("seed", range(4))
def test_words_are_those_of_the_tokenizer(seed):
    rng = random.Random(seed)
    dots = [f"{word}." for word in sorted(_KEEPS_DOT)] + [f"{word.title()}." for word in sorted(_KEEPS_DOT)]
    numbers = WordNumbers({"a": 0, "man": 1})
    for _ in range(30):
        texts = []
        for _ in range(40):
            usual = PIECES[: rng.choice([25, len(PIECES)])]
            last = rng.choices([*dots, *usual], k=rng.randint(0, 1))
            texts.append(" ".join(rng.choices(usual, k=rng.randint(0, 6)) + last))
        closing = rng.choices(["", "<end>"], k=len(texts))
        expected = [text.split() for text in ptb_tokenize(texts, alone=True)]
        assert words_of(numbers, texts, add=True) == expected
        ended = [[*row, end] if end else row for row, end in zip(expected, closing, strict=True)]
        assert words_of(numbers, texts, closing=closing, add=True) == ended
        assert words_of(numbers, texts, closing=closing) == ended
    assert len(numbers._pieces) > 80
    assert len(numbers._pairs) > 3


def test_unknown_words_get_numbers_of_their_own_and_are_not_kept():
    numbers = WordNumbers({"a": 0, "dog": 1})
    found = numbers.number(["a cat a cat", "a dog", "a cow cat"])
    assert found.lengths.tolist() == [4, 2, 3]
    a, cat, again, other, *rest = found.words.tolist()
    assert [a, again, *rest[:3]] == [0, 0, 0, 1, 0]
    assert cat == other == rest[4] >= 2
    assert rest[3] >= 2
    assert rest[3] != cat
    assert numbers.vocabulary == {"a": 0, "dog": 1}
    closed = numbers.number(["a dog", "a"], closing=["<end>", ""])  # the end is unknown, too
    assert closed.lengths.tolist() == [3, 1]
    assert closed.words[2] >= 2
    assert numbers.number([]).lengths.tolist() == []


class Yielding(dict):
    """Lets other threads run wherever its length is asked for."""

    def __len__(self):
        count = super().__len__()
        time.sleep(1e-5)
        return count


def test_threads_give_no_two_words_one_number():
    """Four threads gave 80 words 73 numbers, by which a reward took other words for those of references."""
    numbers = WordNumbers(Yielding())

    def grow(letter):
        for count in range(1, 21):
            numbers.number([letter * count], closing=[letter * 30], add=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(grow, "wxyz"))
    assert sorted(numbers.vocabulary.values()) == list(range(84))
