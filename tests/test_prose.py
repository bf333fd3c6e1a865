"""Words that our style guide replaces, in docs pages and docstrings: idioms, and roles that the site does not render."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

BANNED = (
    r":(?:class|func|meth|data|mod|attr|exc):`",  # write ``Name``
    r"(?<![Tt]here )\b(?:is|are) no (?!more\b|longer\b|such\b|better\b)\w",  # is not a
    r"\bbeside\b",  # next to, besides
    r"\bbut for\b",  # except
    r"\bso many\b",  # N
    r"\bgo(?:es)? on\b",  # continue, resume
    r"\b(?:is|are) told(?! apart\b)|\btells of\b",  # reported, printed, said
    r"\bwhat stands\b|\bstands? (?:for|in|beside)\b",
    r"\b(?:nobody|crews?|anew|unlearns?|babble|hears?)\b",
    r"\bin (?:its|their) turn\b",
    r"\bby itself\b",  # automatically, on its own
    r"\b(?:one|once|rows?|lines?|values?|seconds) an? (?:caption|image (?!of)|score|row|step|second)\b",  # per
)
PATTERN = re.compile("|".join(BANNED))
"""Lower case: constants such as ``SPEAKS`` are names."""


def found(text: str) -> list[str]:
    plain = " ".join(text.split())
    return [plain[max(0, match.start() - 30) : match.end() + 30] for match in PATTERN.finditer(plain)]


def pages() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        if "results" not in path.parts and path.name.lower() != "changelog.md":
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def docstrings() -> Iterator[tuple[str, str]]:
    """Strings that are statements: docstrings of modules, classes and functions, and those below a constant."""
    for path in (ROOT / "src").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        yield str(path.relative_to(ROOT)), ""
        if not found(source):  # parsing takes most of the time
            continue
        for block in ast.walk(ast.parse(source)):
            for node in (
                getattr(block, "body", ()) if isinstance(block, ast.Module | ast.ClassDef | ast.FunctionDef) else ()
            ):
                if (
                    isinstance(node, ast.Expr)
                    and isinstance(node.value, ast.Constant)
                    and isinstance(node.value.value, str)
                ):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value.value


@pytest.mark.parametrize("texts", [pages, docstrings])
def test_prose_follows_the_style_guide(texts):
    read = dict(texts())
    assert len(read) > 20
    assert {where: words for where, text in read.items() if (words := found(text))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "See :class:`~a.B`.",
        "It is no image.",
        "one row a score",
        "A file\nbeside it.",
        "Nothing goes on.",
        "It is told twice.",
    ],
)
def test_the_guide_s_words_are_found(text):
    assert found(text)


def test_plain_words_pass():
    assert not found("There is no image; it is not a file, one row per score, is told apart, and says no more.")


LISTED = re.compile(r"^ *(\d+)[.)] ", re.MULTILINE)


def stray_numbers(text: str) -> list[str]:
    """Lines that Markdown takes for an item of a list, because a sentence was wrapped before its last number."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    items = [(int(item[1]), text[item.start() :].partition("\n")[0]) for item in LISTED.finditer(text)]
    before = [0, *(number for number, _ in items)]
    return [line for last, (number, line) in zip(before, items, strict=False) if number not in (1, last + 1)]


def test_no_wrapped_number_begins_a_list():
    found = {path: stray_numbers(path.read_text(encoding="utf-8")) for path in (ROOT / "docs").rglob("*.md")}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert stray_numbers("1. One\n2. Two\n\nIt rises from 163 to\n  242. Before, it was\n") == ["  242. Before, it was"]
