"""The longest-match lexer against Python's re, which knows the same notation."""

import re

import pytest
from hypothesis import assume, settings
from hypothesis import given as forall
from hypothesis import strategies as st

from tellapart.metrics.lexer import Lexer, Rule
from tellapart.metrics.ptb import _tables

PIECES = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", "[a-c]", ".", r"\.", r"[\]-]"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}", "{0,1}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda choices: f"({'|'.join(choices)})"),
    ),
    max_leaves=6,
)
TEXTS = st.text(alphabet="abc.]-\n", max_size=8)


def longest(pattern, text):
    """By trying every length; None where the pattern matches at most nothing."""
    return next((end for end in range(len(text), 0, -1) if re.fullmatch(pattern, text[:end])), None)


@settings(max_examples=400, deadline=None)
@forall(st.lists(PIECES, min_size=1, max_size=3), TEXTS)
def test_the_longest_match_wins_and_the_first_among_equals(patterns, text):
    lengths = [longest(pattern, text) or 0 for pattern in patterns]
    best = max(lengths)
    expected = (lengths.index(best), best) if best else (-1, 0)
    assert Lexer([Rule("kind", pattern) for pattern in patterns]).scan(text).match(0) == expected


@settings(max_examples=200, deadline=None)
@forall(PIECES, PIECES, TEXTS)
def test_a_context_counts_for_the_length_and_stays_outside(pattern, context, text):
    assume(not re.fullmatch(pattern, ""))
    both = longest(f"({pattern})({context})", text)
    rule, end = Lexer([Rule("kind", pattern, context)]).scan(text).match(0)
    assert (rule == 0) == (both is not None)
    if both is not None:
        assert re.fullmatch(pattern, text[:end])
        assert re.fullmatch(context, text[end:both])
        later = [cut for cut in range(end + 1, both + 1) if re.fullmatch(pattern, text[:cut])]
        assert not any(re.fullmatch(context, text[cut:both]) for cut in later)


def test_matching_starts_anywhere():
    scan = Lexer([Rule("word", "[a-z]+"), Rule("number", "[0-9]+", "[a-z]")]).scan("ab12c")
    assert [scan.match(at) for at in range(5)] == [(0, 2), (0, 2), (1, 4), (1, 4), (0, 5)]


@pytest.mark.parametrize("pattern", ["(a", "a)", "a|b)"])
def test_unbalanced_patterns_are_refused(pattern):
    with pytest.raises((ValueError, IndexError)):
        Lexer([Rule("kind", pattern)])


@settings(max_examples=200, deadline=None)
@forall(st.lists(PIECES, min_size=1, max_size=3), PIECES, TEXTS)
def test_what_a_scan_remembers_changes_no_token(patterns, context, text):
    lexer = Lexer([Rule("kind", pattern, "" if n else context) for n, pattern in enumerate(patterns)])
    assume(not re.fullmatch(patterns[0], ""))
    scan = lexer.scan(text)
    assert [scan.match(at) for at in range(len(text))] == [lexer.scan(text).match(at) for at in range(len(text))]


class Counted(str):
    """A text that counts how often a character of it is read."""

    read = 0

    def __getitem__(self, place):
        self.read += 1
        return super().__getitem__(place)


VAIN = [
    "&",
    "&#1",
    "a'",
    "1/",
    "a/",
    "\x01",
    "n'",
    "+",
    "Ⅰ",
    "a.b.",
    "A. <!a ",
    'A. <a b="',
    "http://",
    "www.",
    "a@",
    "<a ",
]


@pytest.mark.parametrize("pattern", VAIN)
def test_no_text_is_read_more_than_a_few_times(pattern):
    """Each of these might become an address, a tag or a number at its very end; ``&`` was read n² / 2 times."""
    text = Counted(pattern * (4000 // len(pattern)))
    scan, position, lexer = _tables()[0].scan(text), 0, _tables()[0]
    while position < len(text):
        rule, end = scan.match(position)
        position = max(end - (rule >= 0 and lexer.rules[rule].kind == "shared dot"), position + 1)
    assert text.read < 12 * len(text)
