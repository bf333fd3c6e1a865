"""What goes to a terminal: no escape sequences, no messages of thousands of letters."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tellapart.cli.console import note, say, say_json
from tellapart.cli.main import main, plain_warnings, told_remarks
from tellapart.errors import LONGEST, brief, printable

ESCAPE = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\u202e"
ESCAPED = "\\x1b[31mred\\x1b]0;title\\x07\\x9b2J\\x0d\\u202e"


def test_control_characters_are_written_out():
    assert printable(ESCAPE) == ESCAPED
    ordinary = "a dog\t1\nÉ 狗 😀 👩\u200d🚒 שלום"
    assert printable(ordinary) == ordinary
    assert printable(printable(ESCAPE)) == printable(ESCAPE)


def test_only_overlong_words_of_long_messages_are_cut():
    assert brief("one  sentence\n" + "w" * 100) == "one sentence " + "w" * 100
    assert brief(f"x {'w' * 70_000}: y") == f"x {'w' * 80}...{'w' * 79}: y"
    told = brief(f"{'word ' * 40}{'i' * 5000} and {'p' * 120}")
    assert f"{'i' * 20}...{'i' * 20} and {'p' * 120}" in told, (
        "an id is cut, the shorter the longer the rest is; a path is not"
    )
    assert len(brief(f"{'word ' * 30}{'i' * 5000}")) <= LONGEST
    assert len(brief(" ".join(["word"] * 100))) == 499, "ordinary words are left"


def test_nothing_that_is_printed_holds_an_escape_sequence(capsys):
    import warnings

    say(ESCAPE)
    note(ESCAPE)
    with plain_warnings(), told_remarks():
        warnings.warn(ESCAPE, stacklevel=1)
        logging.getLogger("tellapart.x").warning("%s", ESCAPE)
    said = capsys.readouterr()
    assert said.out == f"{ESCAPED}\n"
    assert said.err == f"{ESCAPED}\nwarning: {ESCAPED}\n{ESCAPED}\n"


@pytest.fixture
def odd(materials, tmp_path) -> Path:
    """Photos of which one is broken and named with an escape sequence."""
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "\x1b[31mred.jpg").write_bytes(b"no picture")
    (folder / "\x1b[32mgreen.png").write_bytes((materials.photos / "00.png").read_bytes())
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("caption", "{photos}", "--captioner", "{captioner}", "--num_beams", "1", "--max_new_tokens", "4"),
        ("data", "check", "{photos}"),
        ("train", "{photos}/\x1b[31m.yaml"),
        ("train", "world_ved_xe", "--output_dir", "\x1b[31m", "--\x1b[1m", "2"),
        ("compare", "{photos}/\x1b[31m"),
        ("\x1b[31m",),
    ],
)
def test_names_with_escape_sequences_reach_no_terminal(odd, materials, capsys, words):
    main([word.format(photos=odd, captioner=materials.captioner) for word in words])
    said = capsys.readouterr()
    assert "\\x1b[" in said.out + said.err
    assert "\x1b" not in said.out + said.err


def test_names_of_runs_in_tables(tmp_path, capsys):
    from tellapart.evaluation.compare import compare_results
    from tellapart.evaluation.protocol import Protocol
    from tellapart.evaluation.results import EvaluationResult

    result = EvaluationResult(f"run {ESCAPE}", Protocol("data", 1, "0"), {"CIDEr-D": 1.0}, {"1": "a"}, {})
    compare_results([result]).print(Console(file=sys.stdout, width=200, force_terminal=False))
    said = capsys.readouterr().out
    assert "run \\x1b[31mred" in said
    assert "\x1b" not in said


WRONG = {
    "null": '{"annotations": null, "images": [{"id": 1, "file_name": "0.png"}]}',
    "number": '{"annotations": 3, "images": [{"id": 1, "file_name": "0.png"}]}',
    "true": '{"annotations": true, "images": [{"id": 1, "file_name": "0.png"}]}',
    "no images": '{"annotations": null}',
    "images of a number": '{"annotations": [{"image_id": 1, "caption": "x"}], "images": 7}',
    "deep": '{"images": ' + "[" * 50_000 + "]" * 50_000 + "}",
    "digits": '{"annotations": [], "images": [{"id": ' + "9" * 5000 + ', "file_name": "0.png"}]}',
    "long id": '{"annotations": [{"image_id": "'
    + "i" * 70_000
    + '", "caption": "x"}], "images": [{"id": 1, "file_name": "x"}]}',
    "long name": '{"annotations": [], "images": [{"id": 1, "file_name": "' + "n" * 70_000 + '"}]}',
    "long caption": '{"annotations": [{"image_id": 1, "caption": ["'
    + "c " * 9000
    + '"]}], "images": [{"id": 1, "file_name": "x"}]}',
    "zero byte": '{"annotations": [], "images": [{"id": 1, "file_name": "a\\u0000b"}]}',
    "half a character": '{"images": [{"split": "\\ud800", "filename": "0.png", "imgid": 0, "sentences": [{"raw": "x"}]}]}',
    "half a caption": '{"images": [{"id": 1, "file_name": "0.png"}], "annotations": [{"image_id": 1, "caption": "\\udc00"}]}',
    "not finite": '{"annotations": [], "images": [{"id": NaN, "file_name": "0.png"}]}',
    "sentences": '{"images": [{"split": "train", "filename": "0.png", "imgid": 0, "sentences": null}]}',
    "list": "[1, null, {}]",
    "text": '"x"',
    "nothing": "null",
}


@pytest.mark.parametrize("command", ["check", "references", "convert"])
@pytest.mark.parametrize("kind", WRONG)
def test_json_of_a_wrong_shape_is_one_short_sentence(kind, command, tmp_path, capsys, monkeypatch):
    """``"annotations": null`` was a traceback in all commands; others printed ids of 70,000 characters."""
    monkeypatch.chdir(tmp_path)
    Path("d.json").write_text(WRONG[kind])
    Path("c.json").write_text('[{"image_id": 1, "caption": "a dog"}]')
    words = {
        "check": ["data", "check", "d.json"],
        "references": ["score", "c.json", "--references", "d.json"],
        "convert": ["data", "convert", "d.json", "o", "--to", "coco"],
    }[command]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    error = said.err.splitlines()[-1]
    assert error.startswith("error: ")
    assert len(error.removeprefix("error: ")) <= LONGEST, error
    assert not Path("o").exists()


@pytest.mark.parametrize(("command", "rank", "told"), [("train", "0", 1), ("train", "1", 0), ("caption", "1", 1)])
def test_warnings_of_a_training_are_given_by_one_of_its_processes(command, rank, told, monkeypatch, capsys):
    def dispatch(words):
        logging.getLogger("tellapart.x").warning("document frequencies are of few images")
        return 0

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("tellapart.cli.main.dispatch", dispatch)
    assert main([command]) == 0
    assert capsys.readouterr().err.count("of few images") == told


def test_json_has_no_numbers_that_are_not_finite(capsys):
    """NaN is no JSON, and other programs end at it."""
    say_json({"a": [float("nan"), (float("-inf"), 0.5)], "b": {"c": float("inf"), "d": "nan", "e": 2}})
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"a": [None, [None, 0.5]], "b": {"c": None, "d": "nan", "e": 2}}
