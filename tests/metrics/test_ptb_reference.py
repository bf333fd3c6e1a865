"""The tokenizer held against the Java one that pycocoevalcap ships."""

import collections
import itertools
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from metrics.odd_captions import odd_captions
from metrics.test_ptb import ANSWERS
from tellapart.metrics.ptb import _SPACES, ptb_tokenize

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java runtime"),
]
LINES, NEXT = 5_000, "A x"


def reference(captions, folder: Path, following: str = NEXT) -> list[str]:
    """What pycocoevalcap's tokenizer makes of each caption.

    Between two captions stands one more line, since the reference looks at how the next line begins.
    """
    module = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    jar = Path(module.__file__).parent / module.STANFORD_CORENLP_3_4_1_JAR
    text = folder / "captions.txt"
    text.write_text("".join(f"{caption}\n{following}\n" for caption in captions), encoding="utf-8", newline="")
    command = [
        "java",
        "-cp",
        str(jar),
        "edu.stanford.nlp.process.PTBTokenizer",
        "-preserveLines",
        "-lowerCase",
        str(text),
    ]
    lines = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\n")
    assert lines[1 : 2 * len(captions) : 2] == [following.lower()] * len(captions), "a caption was cut into two lines"
    return [
        " ".join(word for word in line.rstrip().split(" ") if word not in module.PUNCTUATIONS)
        for line in lines[0 : 2 * len(captions) : 2]
    ]


def disagreements(lines, folder, following: str = NEXT) -> list[tuple[str, str, str, str]]:
    captions = [caption for _, caption in lines]
    ours = ptb_tokenize(line for caption in captions for line in (caption, following))[::2]
    rows = zip(lines, reference(captions, folder, following), ours, strict=True)
    return [(name, caption, theirs, ours) for (name, caption), theirs, ours in rows if theirs != ours]


def in_one_file(captions) -> list[str]:
    """What pycocoevalcap's own class makes of the captions, line under line."""
    module = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    found = module.PTBTokenizer().tokenize({n: [{"caption": caption}] for n, caption in enumerate(captions)})
    return [found[n][0] for n in range(len(captions))]


def report(found) -> str:
    return f"{collections.Counter(row[0] for row in found)}\n" + "\n".join(map(repr, found[:20]))


def test_the_recorded_answers_are_the_reference_s(tmp_path):
    assert reference(ANSWERS, tmp_path) == list(ANSWERS.values())


@pytest.mark.parametrize(("seed", "following"), [(0, NEXT), (1, NEXT), (1, "5 x"), (2, "")])
def test_equals_the_reference_on_odd_captions(seed, following, tmp_path):
    found = disagreements(odd_captions(LINES, seed), tmp_path, following)
    assert not found, report(found)


def test_equals_the_reference_on_odd_captions_in_one_file():
    captions = [text for _, text in odd_captions(LINES, seed=3) if text.translate(_SPACES) == text]
    ends = ("a K.", "No.", "etc.", "they'll", "in '05", ":)", "L.A.  a.", "it's", "The", "5 x", "", "Inc.", "Two x")
    captions += [text for pair in itertools.product(ends, repeat=2) for text in pair]
    assert ptb_tokenize(captions) == in_one_file(captions)


@pytest.mark.parametrize(
    "caption", ["a K.", "No.", "etc.", "they'll", "in '05", "it's", "foo.jpg", "so :)", "Jan.", "U.S."]
)
def test_equals_the_reference_at_the_end_of_the_file(caption):
    assert ptb_tokenize([caption]) == in_one_file([caption])


def test_equals_the_reference_on_real_captions_with_odd_pieces(tmp_path, shared_data):
    rows = json.loads((shared_data / "coco-captions" / "captions_val2017.json").read_text())["annotations"]
    real = [row["caption"].replace("\n", " ") for row in rows]
    found = disagreements(odd_captions(LINES, seed=0, captions=real), tmp_path)
    assert not found, report(found)


CHARACTERS = [
    chr(code) for code in range(0x20, 0x10000) if not 0xD800 <= code < 0xE000 and code not in (0x2028, 0x2029)
]


def test_knows_the_kind_of_every_character(tmp_path):
    """Each of the first 65,536 characters alone, in a word, beside a digit, after "etc." and in a compound."""
    lines = [(f"U+{ord(c):04X}", f"{c} a{c}b {c}5 5{c} etc. {c}b a-{c}b") for c in CHARACTERS]
    found = disagreements(lines, tmp_path)
    assert not found, report(found)


def test_equals_the_reference_on_all_pairs_and_many_triples_of_signs(tmp_path):
    signs = [chr(code) for code in range(0x20, 0x7F)] + list("éÉ²½¼€£¢“”‘’‚„«»‹›–—…\u00a0\u00ad‐\u2009⁄٣✓Ⓐ\x01😀")
    rng = random.Random(0)
    lines = [("pair", first + second) for first in signs for second in signs]
    lines += [("triple", "".join(rng.choices(signs, k=3))) for _ in range(30_000)]
    found = disagreements(lines, tmp_path)
    assert not found, report(found)


# What still differs, by class: the caption, the reference's tokens, ours.
KNOWN = {
    "capital sigma beside a digit, hyphen or mark": ("E7Σ", "e7ς", "e7σ"),
    "an address whose last part is one emoji": ("http://😀", "http://😀", "http / /"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_differences_are_these(name, tmp_path):
    caption, theirs, ours = KNOWN[name]
    assert reference([caption], tmp_path) == [theirs]
    assert ptb_tokenize([caption]) == [ours]


@pytest.mark.parametrize(
    ("following", "theirs"), [("A x", "a k"), ("The x", "a k"), ("one x", "a k."), ("5 x", "a k.")]
)
def test_the_next_caption_decides_about_an_initial_at_the_end(following, theirs, tmp_path):
    assert reference(["a K."], tmp_path, following) == [theirs]
    assert ptb_tokenize(["a K.", following])[0] == theirs
