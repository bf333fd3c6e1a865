"""Lengths in words: counting, ranges and buckets."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest

from tellapart.errors import UsageError
from tellapart.lengths import WORD, LengthBuckets, WordRange, count_words


def test_words_are_counted_without_punctuation():
    assert [count_words(text) for text in ("", "A dog's bed, red.", "twenty-one", "ein  Hund\n", "...")] == [
        0,
        4,
        2,
        2,
        0,
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी में एक कुत्ता", 4),
        ("நாய் ஓடுகிறது", 2),
        ("مُحَمَّد", 1),
        ("می\u200cخواهم", 1),
        ("cafe\u0301s nai\u0308ve", 2),
        ("d’e\u0301te\u0301", 1),
        ("\u0301 \u200d", 0),
    ],
)
def test_marks_belong_to_the_word_that_they_stand_in(text: str, words: int):
    """Each vowel sign ended a word: counts were twice too high, and pieces of one letter looked like a loop."""
    assert count_words(text) == words


def test_without_marks_a_word_is_what_it_is_for_python():
    letters = [chr(code) for code in range(0x20, 0x3000) if not re.match("M|Cn", unicodedata.category(chr(code)))]
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices(letters, k=40)).replace("\u200c", "").replace("\u200d", "")
        assert WORD.findall(text) == re.findall(r"\w+(?:['’]\w+)*", text), ascii(text)


@pytest.mark.parametrize(
    ("text", "low", "high"), [("8-15", 8, 15), (" 8 - 15 ", 8, 15), ("8-", 8, None), ("8", 8, 8), ("1-1", 1, 1)]
)
def test_a_range_is_read_and_written(text: str, low: int, high: int | None):
    found = WordRange.parse(text)
    assert (found.low, found.high) == (low, high)
    assert WordRange.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "8-15-20", "-8", "15-8", "0-3", "eight", "8.5", "0"])
def test_what_is_no_range_is_refused(text: str):
    with pytest.raises(UsageError, match=f"^'?{text}'?( words)? is not a range of lengths"):
        WordRange.parse(text)


def test_distance_is_in_words():
    assert [WordRange(8, 15).distance(words) for words in (0, 7, 8, 15, 16, 40)] == [8, 1, 0, 0, 1, 25]
    assert WordRange(8).distance(400) == 0


def test_every_length_is_in_exactly_one_bucket_whose_range_holds_it():
    shuffled = random.Random(0)
    for _ in range(50):
        bounds = tuple(sorted(shuffled.sample(range(1, 40), shuffled.randint(1, 5))))
        buckets = LengthBuckets(bounds)
        assert len(buckets) == len(bounds) + 1
        for words in range(1, 60):
            holding = [bucket for bucket in range(len(buckets)) if buckets.range(bucket).distance(words) == 0]
            assert holding == [buckets.of(words)]


def shared(buckets: LengthBuckets, bucket: int, asked: WordRange, most: int) -> int:
    """Lengths up to ``most`` in both, one by one."""
    return sum(
        asked.distance(words) == 0 and buckets.range(bucket).distance(words) == 0 for words in range(1, most + 1)
    )


def test_the_nearest_bucket_shares_most_lengths():
    buckets = LengthBuckets((6, 10, 16))
    for low in range(1, 30):
        for high in range(low, 30):
            asked = WordRange(low, high)
            found = [shared(buckets, bucket, asked, high) for bucket in range(4)]
            assert buckets.nearest(asked) == found.index(max(found)), (low, high)
    assert [buckets.nearest(WordRange(low)) for low in (1, 8, 12, 16, 17, 50)] == [0, 2, 2, 3, 3, 3]
    assert [buckets.phrase(bucket) for bucket in range(4)] == [
        "at most 6 words",
        "7 to 10 words",
        "11 to 16 words",
        "more than 16 words",
    ]


@pytest.mark.parametrize("bounds", [(), (0, 3), (3, 3), (5, 2), (-1,), ("a",), (2.5, 4), (True, 3)])
def test_bounds_are_whole_numbers_that_ascend(bounds: tuple[int, ...]):
    with pytest.raises(UsageError, match="ascending order"):
        LengthBuckets(bounds)
