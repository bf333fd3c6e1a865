"""The tokenizer without Java: recorded answers of the reference, and what holds for any text."""

import json
import re
import string
import subprocess
import sys
import time

import pytest
from hypothesis import example, settings
from hypothesis import given as forall
from hypothesis import strategies as st

from tellapart.metrics.ptb import DROPPED, _any, ptb_tokenize

ANSWERS = {
    "A man,  riding a Wave.": "a man riding a wave",
    "“hi” – café 東京 😀…": "hi café 東京",
    "$5 €5 £5 5¢ ½ cup": "$ 5 $ 5 # 5 5 cents 1/2 cup",
    "22 3/4 and (555) 123-4567": "22\u00a03/4 and -lrb-555-rrb-\u00a0123-4567",
    "www.x.com, me@x.com http://a.b/c.": "www.x.com me@x.com http://a.b/c",
    "the dogs' toys, don't, cannot, o'clock, John's 'til": "the dogs toys do n't can not o'clock john 's 'til",
    "Mr. Smith of Apple Inc. The etc.": "mr. smith of apple inc. the etc.",
    "the U.S. Army in the U.S. He": "the u.s. army in the u.s. he",
    "a jack-o'-lantern, 5-year-old, a/b/c (x) [y]": "a jack-o lantern 5-year-old a/b/c -lrb- x -rrb- -lsb- y -rsb-",
    "the '90s, 1990's, 12:43pm #41 AT&T at&t": "the '90s 1990 's 12:43 pm # 41 at&t at & t",
    "a\u00adb &amp; &lt;b&gt; <b c=\"d\"> @user #tag :-)": "ab & < b > <b\u00a0c=\"d\"> @user #tag :--rrb-",
    "parked.A ... .. . ? -- '' \" ; :": "parked.a",
    "a sign that reads K.": "a sign that reads k",
    "a train on a.": "a train on a",
    "an Inc. etc.": "an inc. etc.",
    "rt.co ed.d.j x": "rt.co ed.d. j x",
    "Pty.é'M, &lt;b@c&gt; x.": "pty.é 'm &lt;b@c&gt; x",
    "No. 5 and no.": "no. 5 and no",
    "": "",
}  # fmt: skip


@pytest.mark.parametrize("caption", ANSWERS)
def test_recorded_answers_of_the_reference(caption):
    assert ptb_tokenize([caption], alone=True) == [ANSWERS[caption]]


@pytest.mark.parametrize(
    ("captions", "tokens"),
    [
        (["a sign at 8th Ave/CTH D."], ["a sign at 8th ave/cth d."]),
        (["L.A.  a."], ["l.a. a."]),
        (["a K.", "The x"], ["a k", "the x"]),
        (["a K.", "Two x"], ["a k.", "two x"]),
        (["a K. ", "a x"], ["a k.", "a x"]),
        (["a K.", "", "In x"], ["a k", "", "in x"]),
        (["a K.", "The"], ["a k.", "the"]),  # nothing behind "The" shows that the word ended
        (["L.A.  a.", "A x"], ["l.a. a", "a x"]),
        (["it is No.", "5 x"], ["it is no.", "5 x"]),
        (["it is No.", "a x"], ["it is no", "a x"]),
        (["they'll", "in '05", "so :)"], ["they 'll", "in '05", "so -rrb-"]),
        (["so :)", "in '05", "they'll"], ["so :-rrb-", "in '05", "they ll"]),  # nothing behind the last caption
    ],
)
def test_the_next_caption_decides_about_the_end_of_a_caption_as_in_the_reference(captions, tokens):
    assert ptb_tokenize(captions) == tokens


def test_captions_alone_do_not_depend_on_their_neighbours():
    captions = ["a K.", "The x", "it is No.", "5 x", "they'll"]
    assert ptb_tokenize(captions, alone=True) == ["a k", "the x", "it is no", "5 x", "they 'll"]


def test_equals_the_reference_on_all_recorded_captions(shared_data):
    tokens = json.loads((shared_data / "coco-captions" / "ptb_tokens.json").read_text())
    rows = json.loads((shared_data / "coco-captions" / "captions_val2017.json").read_text())["annotations"]
    assert len(rows) == len(tokens) > 10_000
    found = ptb_tokenize(row["caption"] for row in rows)
    assert [(row["id"], line) for row, line in zip(rows, found, strict=True)] == [
        (row["id"], tokens[str(row["id"])]) for row in rows
    ]


@pytest.mark.parametrize("separator", [*"\n\r\v\f\x85\u2028\u2029", "\r\n"])
def test_a_line_separator_is_a_space_and_shifts_nothing(separator):
    assert ptb_tokenize([f"a b.{separator}The dog", "a cat"]) == [*ptb_tokenize(["a b. The dog"]), "a cat"]
    assert ptb_tokenize([f"one{separator}", separator, "two"]) == ["one", "", "two"]


ODD = st.text(
    alphabet=st.one_of(st.characters(), st.sampled_from(string.printable + "’“–é\u00a0\u00ad…½€")), max_size=40
)


@settings(max_examples=400, deadline=None)
@forall(st.lists(ODD, max_size=4))
@example(["\ud800 http://\udfff.com", "İΣ ẞ ŉ", "\x00"])
def test_any_text_gives_clean_tokens_that_depend_on_nothing_else(captions):
    assert ptb_tokenize(captions) == ptb_tokenize(captions)
    found = ptb_tokenize(captions, alone=True)
    assert found == [ptb_tokenize([caption], alone=True)[0] for caption in captions]
    for line in found:
        assert not re.search("[A-Z\n\r]", line)
        assert line == "" or (all(line.split(" ")) and DROPPED.isdisjoint(line.split(" ")))


SOME_WORDS = [
    "a",
    "A",
    "cannot",
    "Gonna",
    "st",
    "Inc",
    "etc",
    "x",
    "I",
    "man",
    "no",
    "wash",
    "Wash",
    "The",
    ",",
    ".",
    " ",
]


@settings(max_examples=400, deadline=None)
@forall(st.lists(st.sampled_from(SOME_WORDS)).map("".join) | st.lists(st.sampled_from(SOME_WORDS)).map(" ".join))
def test_the_short_cut_changes_nothing(caption):
    assert ptb_tokenize([caption]) == [_any([caption], 0)]
    assert ptb_tokenize([caption, "A x"])[0] == _any([caption, "A x"], 0)


def test_long_garbage_takes_linear_time():
    for piece in ("a.", "<a ", "http://a", "1-", "&amp;", "'", "@", "a'", "(", "www."):
        ptb_tokenize([piece * 500])  # quadratic in the worst case, never worse: each stays far below the time limit


def test_importing_it_is_cheap_and_brings_no_heavy_package():
    code = (
        "import sys, time; import tellapart.metrics; start = time.process_time(); import tellapart.metrics.ptb;"
        "print(time.process_time() - start);"
        "print(sorted({'torch', 'numpy', 'transformers', 'pyarrow'} & set(sys.modules)))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    times, heavy = zip(*(run.stdout.splitlines() for run in runs), strict=True)
    assert min(map(float, times)) < 0.03
    assert set(heavy) == {"[]"}


def test_thirty_thousand_emoji_take_no_time():
    """They took 20 s: 0.05 s are usual, the rest is for a busy machine."""
    ptb_tokenize(["warm up 😀"])
    begun = time.process_time()
    assert ptb_tokenize(["😀" * 30_000, "a dog " + "😀" * 30_000 + " sits"]) == ["", "a dog sits"]
    assert time.process_time() - begun < 2.0
