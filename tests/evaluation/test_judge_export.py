"""Raters' answers become pairs of captions, one per image with a clear verdict."""

from __future__ import annotations

import json

import pytest
from judge_fakes import toy_study

from tellapart.cli.main import main
from tellapart.data.preferences import PreferencePair, read_preferences
from tellapart.evaluation.judge.answers import Answer, Answers
from tellapart.evaluation.judge.export import preferences
from tellapart.evaluation.judge.study import ANSWERS_FILE, READS_BETTER, WHICH_IMAGE, Item


def answered(item: Item, **votes: str) -> list[Answer]:
    return [
        Answer(0, rater, item.id, choice, choice, 1.0, "2026-01-01T00:00:00+00:00") for rater, choice in votes.items()
    ]


def test_the_better_caption_by_majority(tmp_path):
    study = toy_study(tmp_path / "s")
    first, second, third, *_ = study.items_of(READS_BETTER)
    answers = answered(first, ann="a", bob="a", eve="b") + answered(second, ann="b", bob="unsure", eve="b")
    answers += answered(third, ann="a", bob="b")
    one, two = preferences(study, answers).rows
    assert (one["chosen"], one["rejected"]) == first.captions
    assert (one["votes_chosen"], one["votes_rejected"]) == (2, 1)
    assert (two["chosen"], two["rejected"]) == second.captions[::-1]
    assert (two["votes_chosen"], two["votes_rejected"]) == (2, 0)
    assert one["images"] == [f"pictures/{study.pictures[first.images[0]]}"]
    assert (study.folder / one["images"][0]).is_file()
    assert set(one) >= {"images", "prompt", "chosen", "rejected"}  # TRL's columns


@pytest.mark.parametrize(("other", "rows"), [("distractor", 1), ("target", 0), ("unsure", 0), (None, 0)])
def test_the_caption_that_found_its_image(tmp_path, other, rows):
    study = toy_study(tmp_path / "s")
    image = study.items_of(WHICH_IMAGE)[0].images[0]
    own, others = (item for item in study.items_of(WHICH_IMAGE) if item.images[0] == image)
    answers = answered(own, ann="target") + (answered(others, ann=other) if other else [])
    found = preferences(study, answers).rows
    assert len(found) == rows
    if rows:
        assert (found[0]["image_id"], found[0]["chosen"], found[0]["rejected"]) == (
            image,
            *own.captions,
            *others.captions,
        )


def test_an_image_has_one_row_and_none_where_its_two_questions_disagree(tmp_path, capsys):
    study = toy_study(tmp_path / "s", images=4, count=4)  # both questions ask about all images
    agreed, opposed, undecided = study.items_of(READS_BETTER)[:3]
    which = {(item.images[0], item.runs[0]): item for item in study.items_of(WHICH_IMAGE)}
    answers = Answers(study.folder / ANSWERS_FILE)
    ann = answers.enter("Ann")
    for item, choice in ((agreed, "a"), (opposed, "b"), (undecided, "unsure")):
        answers.record(ann, item.id, choice, first="a")
        for run, pointed in enumerate(("target", "distractor")):
            answers.record(ann, which[item.images[0], run].id, pointed, first="target")
    rows, contradicted = preferences(study, answers.all())
    answers.close()
    assert contradicted == [opposed.images[0]]
    assert [(row["image_id"], row["chosen"], row["question"]) for row in rows] == [
        (agreed.images[0], agreed.captions[0], READS_BETTER),
        (undecided.images[0], undecided.captions[0], WHICH_IMAGE),
    ]
    assert main(["judge", str(study.folder), "--export", "preferences"]) == 0
    assert "note: 1 image left out, of which the two questions prefer opposite captions." in capsys.readouterr().err
    assert len((study.folder / "preferences.jsonl").read_text().splitlines()) == 2


def test_the_command_writes_what_training_reads(tmp_path, capsys):
    study = toy_study(tmp_path / "s")
    assert main(["judge", str(study.folder), "--export", "preferences"]) == 2
    assert "collect more answers" in capsys.readouterr().err
    item = study.items_of(READS_BETTER)[0]
    answers = Answers(study.folder / ANSWERS_FILE)
    answers.record(answers.enter("Ann"), item.id, "b", first="a")
    answers.close()
    assert main(["judge", str(study.folder), "--export", "preferences"]) == 0
    path = capsys.readouterr().out.strip()
    assert read_preferences(study.folder / "preferences.jsonl") == {
        item.images[0]: [PreferencePair(item.captions[1], item.captions[0])]
    }
    assert path.endswith("preferences.jsonl")
    assert main(["judge", "a", "b", "--export", "preferences"]) == 2
    assert json.loads((study.folder / "preferences.jsonl").read_text())["question"] == READS_BETTER
    assert main(["judge", str(study.folder), "--export", "preferences", "--port", "8001"]) == 2
    assert "--port does nothing to the study" in capsys.readouterr().err
