"""Strange captions through the tokenizer, the metrics, the doctor and the checks of captions."""

from __future__ import annotations

import gc
import json
import math
import time
from typing import Any

from hypothesis import strategies as st

from tellapart.captioning.gate import ends_midway, has_loop, is_empty, opener_of, words
from tellapart.errors import printable
from tellapart.evaluation.caption_doctor import check_captions
from tellapart.metrics.coco import coco_metrics
from tellapart.metrics.diversity import self_bleu
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.sentences import split_sentences

from .fuzz import Tray, fuzzing
from .verdict import faults_of

SLOWEST = 2e-4
"""Seconds of processor time that a character may take, in all of them together; short captions have ``AT_LEAST``."""

AT_LEAST = 0.5

_PIECES = st.sampled_from(
    [
        "a",
        "dog",
        "'s",
        "n't",
        "can't",
        ".",
        "...",
        ",",
        ";",
        "&",
        "&amp;",
        "&#1",
        "a'",
        "1/",
        "a/",
        "½",
        "¼",
        "1⁄2",
        "--",
        "—",
        "“",
        "”",
        "''",
        "``",
        "(",
        ")",
        "-LRB-",
        "<b>",
        "<script>",
        "http://a.b/c",
        "a@b.c",
        "$5.00",
        "10,000",
        "U.S.",
        "Mr.",
        "e.g.",
        "'s's",
        "café",
        "café",
        "ß",
        "İ",
        "ﬁ",
        "٣٤",
        "日本語",
        "한국어",
        "ไทย",
        "👍🏽",
        "👨\u200d👩\u200d👧",
        "🇫🇷",
        "\u200b",
        "\ufeff",
        "\u2028",
        "\u202e",
        "\x00",
        "\x1b[31m",
        "\x85",
        "�",
        "\U0010ffff",
        "\r",
        "\t",
        "'s--n't",
        "'''",
        "..,,",
        "#@!",
        "%d",
        "{}",
        "{{",
        "$x",
        "\\n",
        "\\",
    ]
)
_CAPTIONS = st.one_of(
    st.text(max_size=80),
    st.text(st.characters(), max_size=60),  # with lone surrogates, which JSON can hold
    st.lists(_PIECES, max_size=25).map(" ".join),
    st.lists(_PIECES, max_size=25).map("".join),
    st.builds(lambda piece, times, end: piece * times + end, _PIECES, st.integers(1, 400), st.text(max_size=5)),
    st.builds(lambda piece, turn: piece * (10_000 if turn == 7 else 300), _PIECES, st.integers(0, 40)),
    st.from_regex(r"(a |the )?[a-z]+( [a-z'-]+){0,12}[.!?]?", fullmatch=True),
)


def _attempt(caption: str, tray: Tray) -> list[str]:
    gc.disable()  # a collection of what commands left would count as the time of this caption
    try:
        faults = _read(caption)
    finally:
        gc.enable()
    if tray.number % 100 == 99:
        faults += _commands(caption, tray)
    return faults


def _read(caption: str) -> list[str]:
    """Everything that reads a caption, in this process."""
    began = time.thread_time()
    faults = []
    plain = caption.encode("utf-8", errors="replace").decode()
    tokens = ptb_tokenize([plain, "a dog on a mat"])
    if len(tokens) != 2 or tokens[1] != "a dog on a mat" or "\n" in tokens[0]:
        faults.append(f"tokens of two captions: {tokens!r}"[:200])
    corpus, _ = coco_metrics({"a": plain, "b": "a dog"}, {"a": [plain, "a cat"], "b": ["a dog", plain]})
    if not all(math.isfinite(value) and 0 <= value <= 10 + 1e-6 for value in corpus.values()):
        faults.append(f"metrics {corpus}")
    check_captions([plain, "a dog"], [[plain], ["a dog"]])
    for check in (is_empty, has_loop, ends_midway, words, split_sentences):
        check(caption)
    opener_of(caption, [["the", "image"]])
    self_bleu([tokens[0], tokens[1], "a cat"])
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in printable(caption)):
        faults.append("a control character stays printable")
    took = time.thread_time() - began
    if took > max(AT_LEAST, SLOWEST * len(caption)):
        faults.append(f"{took:.1f} s for {len(caption)} characters")
    return faults


def _commands(caption: str, tray: Tray) -> list[str]:
    """``score`` and ``doctor`` of a file that holds the caption, which JSON escapes."""
    references: dict[str, Any] = {str(i): ["a dog on a mat", caption] for i in range(3)}
    (tray.folder / "captions.json").write_text(json.dumps({str(i): caption for i in range(3)}))
    (tray.folder / "references.json").write_text(json.dumps(references))
    score = tray.call("score", tray.folder / "captions.json", "--references", tray.folder / "references.json")
    doctor = tray.call("doctor", tray.folder / "captions.json")
    return [*faults_of(score), *faults_of(doctor, (0, 1, 2))]


CAPTIONS = fuzzing("captions", 20_000, 0.08, _CAPTIONS, _attempt, seconds=30)
