"""Questions that a model writes: read from its answers, and kept where the image is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pictures import images
from tellapart.cli.main import BAD_USAGE, INTERRUPTED, main
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ArrayImage
from tellapart.data.questions import MultipleChoice, read_questions
from tellapart.errors import UsageError
from tellapart.evaluation.question_writing import needing_the_image, parse_questions
from tellapart.recipe import models
from tellapart.recipe.questions import question_measure
from tiny.language_models import saved
from tiny.llava import tiny_llava

ANSWER = """Sure!
Question 1: What colour is the car?
A) red
B) dark blue
Answer: B

Question: Where is it? A) left B) right C) in the middle D) nowhere Answer: (C)
Question: And this?
A) one
Answer: A
Question: no options"""


def test_questions_are_read_from_an_answer():
    found, unlike = parse_questions(ANSWER)
    assert found == [
        MultipleChoice("What colour is the car?", ("red", "dark blue"), 1),
        MultipleChoice("Where is it?", ("left", "right", "in the middle", "nowhere"), 2),
    ]
    assert unlike == 2  # one option; none
    assert parse_questions("a red car") == ([], 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "Question: What colour is the car?\n(A) red\n(B) blue\n(C) green\nAnswer: (B)",
            MultipleChoice("What colour is the car?", ("red", "blue", "green"), 1),
        ),
        (
            "Question: why?\nA) vitamin C: good\nB) stop\nAnswer: B",
            MultipleChoice("why?", ("vitamin C: good", "stop"), 1),
        ),
        (
            "Question: What does plan A: show?\nA) x\nB) y\nAnswer: B",
            MultipleChoice("What does plan A: show?", ("x", "y"), 1),
        ),
        ("Question: where? A) left B) right Answer: B.", MultipleChoice("where?", ("left", "right"), 1)),
        ("Question: where?\nA) left\nB) right\nanswer: b", MultipleChoice("where?", ("left", "right"), 1)),
        ("Question: where? (A) left\n(B) right\nAnswer: B) right", MultipleChoice("where?", ("left", "right"), 1)),
        # what cannot be told is not guessed
        ("Question: which?\nA) x\nC) y\nD) z\nAnswer: C", None),
        ("Question: which?\nB) x\nA) y\nAnswer: A", None),
        ("Question: what?\nA) a dog\nB) a cat\nAnswer: a dog", None),
        ("Question: what?\nA) a dog\nB) a cat\nAnswer: C", None),
        ("Question: what? A) vitamin C: good B) stop Answer: B", None),
        ("Question: what?\nA) \nB) y\nAnswer: B", None),
        ("Question: A) x B) y Answer: B", None),
    ],
)
def test_options_are_lettered_in_order_or_the_question_is_not_read(text, wanted):
    assert parse_questions(text) == (([], 1) if wanted is None else ([wanted], 0))


RED_BLUE = MultipleChoice("What colour is it?", ("red", "blue"), 1)


@pytest.mark.parametrize(
    "text",
    [
        "**Question 1:** What colour is it?\nA) red\nB) blue\n**Answer: B**",
        "**Question 1: What colour is it?**\n\n**A)** red\n**B)** *blue*\n\n**Answer:** B\n\n---",
        "### Question 1\nWhat colour is it?\n\n* A) red\n* B) blue\n---\n> Answer: ***B***",
        "Question: What colour is it?\n- A) red\n- B) blue\n- Answer: **B**",
        "Question: What colour is it?\na) red\nb) blue\nThe correct answer: b",
        "Question: What colour is it?\nA) red\nB) blue\nCorrect Answer: B",
        "Question: What colour is it? A) red B) blue Correct Answer: B",
        "Here they are.\n\n**1. What colour is it?**\nA) red\nB) blue\nAnswer: B",
        "1) What colour is it?\nA) red\nB) blue\nAnswer: B",
    ],
)
def test_marks_of_markdown_are_no_part_of_a_question(text):
    assert parse_questions(text) == ([RED_BLUE], 0)
    assert parse_questions(f"{text}\n\n{text}") == ([RED_BLUE, RED_BLUE], 0)


def test_what_looks_like_markdown_and_is_none_stays():
    text = "Question: What is 2*3*4 or 2 * 3?\nA) *\nB) -\nC) is correct\nAnswer: B"
    assert parse_questions(text) == ([MultipleChoice("What is 2*3*4 or 2 * 3?", ("*", "-", "is correct"), 1)], 0)


@pytest.mark.parametrize(
    "text",
    [
        "Question: **What\ncolour** is it?\nA) red\nB) blue\nAnswer: B",
        "1. a red car",
        "What colour is it?\nA) red\nB) blue\nAnswer: B",
    ],
)
def test_what_is_not_understood_is_counted(text):
    assert parse_questions(text) == ([], 1)


class Knowing:
    """Answers everything that holds the word sky."""

    truncated = 0.0

    def answer(self, asked):
        return [
            [float(i == one.question.answer) if "sky" in one.question.question else 0.0 for i in range(len(one.order))]
            for one in asked
        ]

    def identity(self):
        return "knowing"


def test_questions_that_need_no_image_are_left_out():
    sky, car = (
        MultipleChoice("what colour has the sky?", ("blue", "red"), 0),
        MultipleChoice("car?", ("a", "b", "c"), 0),
    )
    assert needing_the_image({"x": [sky, car], "y": [sky]}, Knowing()) == {"x": [car]}


def test_a_reader_and_its_questions_are_named_together():
    dataset = CaptionDataset([Example("0", ArrayImage(np.asarray(images(1)[0])))], name="t")
    with pytest.raises(UsageError, match="name both"):
        question_measure("exact", None, dataset, data="t", split="", size="small")


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, image in enumerate(images(5)):
        image.save(folder / f"{i}.png")
    return folder


@pytest.fixture
def writer(tmp_path, monkeypatch):
    """A model that writes two questions about every image, one of them without an answer; the images it was asked about, batch by
    batch; and the batch in which it is interrupted."""
    captioner = tiny_llava(tmp_path / "llava")
    draw, asked, stop = captioner.generate, [], []

    def generate(batch, decoding):
        if stop and len(asked) == stop[0]:
            raise KeyboardInterrupt
        asked.append([Path(name).name for name in batch.ids])
        rollout = draw(batch, replace(decoding, max_new_tokens=2))
        said = "Question: which is {}?\nA) this\nB) that\nAnswer: B\nQuestion: and?"
        return replace(rollout, texts=[said.format(Path(name).name) for name in rollout.ids()])

    monkeypatch.setattr(captioner, "generate", generate)
    monkeypatch.setattr(models, "load_captioner", lambda section, *, size: captioner)
    return asked, stop


def test_a_stopped_model_resumes_its_questions(photos, writer, tmp_path, capsys):
    asked, stop = writer
    stop.append(2)
    words = ["questions", str(photos), "--output", str(tmp_path / "q.jsonl"), "--batch_size", "2", "--num_workers", "0"]
    assert main([*words, "--model", "a"]) == INTERRUPTED
    assert "stopped with 4 of 5 images answered: run the same command again to resume" in capsys.readouterr().err
    assert main([*words, "--model", "b"]) == BAD_USAGE  # another model's answers are not mixed in
    assert "begun with --model a, not --model b" in capsys.readouterr().err
    stop.clear()
    assert main([*words, "--model", "a"]) == 0
    assert asked == [["0.png", "1.png"], ["2.png", "3.png"], ["4.png"]]
    told = capsys.readouterr()
    assert "5 questions about 5 of 5 images" in told.out
    assert "5 questions of a have another form than asked for" in told.err
    found = read_questions(tmp_path / "q.jsonl")
    assert [own[0].question for own in found.values()] == [f"which is {i}.png?" for i in range(5)]
    assert not (tmp_path / "q.jsonl.work").exists()


def test_images_that_the_model_cannot_see_are_told_and_left_out(photos, writer, tmp_path, capsys):
    (photos / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n cut off")
    words = ["questions", str(photos), "--output", str(tmp_path / "q.jsonl"), "--model", "a"]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "1.png" in told.err
    assert "1 of 5 images could not be read and have no questions" in told.err
    assert len(read_questions(tmp_path / "q.jsonl")) == 4
    assert main([*words, "--strict"]) == BAD_USAGE
    assert main([*words, "--on_error", "fail"]) == BAD_USAGE
    images(1)[0].save(photos / "1.png")
    asked, _ = writer
    asked.clear()
    assert main(words) == 0
    assert asked == [["1.png"]]
    assert len(read_questions(tmp_path / "q.jsonl")) == 5


def test_the_command_writes_questions_of_references_that_score_reads(tmp_path, capsys):
    references = {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(3)],
        "annotations": [
            {"id": 2 * i + k, "image_id": i, "caption": text}
            for i, texts in enumerate(
                [["a red car", "a red car by a tree"], ["a cat", "one cat"], ["a dog", "a zebra dog"]]
            )
            for k, text in enumerate(texts)
        ],
    }
    path = tmp_path / "captions.json"
    path.write_text(json.dumps(references))
    questions = tmp_path / "q.jsonl"
    assert main(["questions", str(path), "--output", str(questions)]) == 0
    assert "3 questions about 2 of 3 images" in capsys.readouterr().out  # no three categories are absent from the last
    asked = {name: [one.question for one in own] for name, own in read_questions(questions).items()}
    assert asked == {
        "0": ["Which of these is in the image?", "What colour is the car?"],
        "1": ["Which of these is in the image?"],
    }

    captions = tmp_path / "captions_results.json"
    captions.write_text(json.dumps([{"image_id": i, "caption": "a red car"} for i in range(3)]))
    reader = saved(tmp_path / "reader", "gpt2", positions=512)
    words = ["score", str(captions), "--references", str(path), "--reader", str(reader), "--questions", str(questions)]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["metrics"]["QA_chance"] == 25.0
    assert {"QA", "QA_floor"} <= told["metrics"].keys()
    assert "reader [" in told["protocol"]["measured_by"]["QA"]
    assert main([*words, "--output_dir", str(tmp_path / "one")]) == 0
    others = tmp_path / "others" / questions.name
    others.parent.mkdir()
    others.write_text(questions.read_text().splitlines()[0] + "\n")
    assert main([*words[:-1], str(others), "--output_dir", str(tmp_path / "two")]) == 0
    capsys.readouterr()
    assert (
        main(["compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    )  # a file of the same name asks otherwise
    assert "were measured differently (measured_by" in capsys.readouterr().err
    assert main([*words, "--all_metrics"]) == 0
    assert "QA without caption" in capsys.readouterr().out
