"""What answers add up to, against plain counting."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from judge_fakes import RUNS, toy_study

from tellapart.evaluation.judge.answers import Answer
from tellapart.evaluation.judge.results import agreement, summarize
from tellapart.evaluation.judge.study import READS_BETTER, WHICH_IMAGE, Item, Study
from tellapart.evaluation.judge.tables import COLUMNS, to_csv, to_markdown
from tellapart.metrics.agreement import cohen_kappa, fleiss_kappa
from tellapart.metrics.proportions import sign_test, wilson_interval


def answered(item: Item, **votes: str) -> list[Answer]:
    return [
        Answer(0, rater, item.id, choice, choice, 1.25, "2026-01-01T00:00:00+00:00") for rater, choice in votes.items()
    ]


@pytest.fixture
def study(tmp_path) -> Study:
    """Six images a question; the runs wrote one caption of five of all 30 images alike."""
    return toy_study(tmp_path / "s", equal=(1, 4, 7, 10, 13, 16, 19, 22, 25, 28))


def test_accuracy_is_that_of_majorities(study):
    """Run a: always right by two of three; run b: never, by one right, one wrong and one unsure; shared captions: right."""
    answers = []
    for item in study.items_of(WHICH_IMAGE):
        votes = ("target", "target", "distractor") if 0 in item.runs else ("target", "distractor", "unsure")
        answers += answered(item, ann=votes[0], bob=votes[1], eve=votes[2])
    shared = sum(item.runs == (0, 1) for item in study.items_of(WHICH_IMAGE))
    assert 0 < shared < 6
    found = summarize(study, answers)[WHICH_IMAGE]
    a, b = found["runs"]
    assert (a["run"], a["items"], a["right"], a["wrong"], a["undecided"]) == (RUNS[0], 6, 6, 0, 0)
    assert (b["run"], b["items"], b["right"], b["wrong"], b["undecided"]) == (RUNS[1], 6, shared, 0, 6 - shared)
    assert (a["answers"], a["answers_right"], b["answers_right"]) == (18, 12, 2 * shared + (6 - shared))
    assert (a["share"], b["share"]) == (1.0, shared / 6)
    assert (a["interval"], b["interval"]) == (list(wilson_interval(6, 6)), list(wilson_interval(shared, 6)))
    assert found["paired"] == {"images": 6, "only_a": 6 - shared, "only_b": 0, "p_value": sign_test(6 - shared, 0)}
    assert (found["asked"], found["judged"]) == (12 - shared, 12 - shared)


def test_preference_leaves_undecided_images_out(study):
    items = study.items_of(READS_BETTER)
    said = ["b", "b", "b", "a", "unsure", None]
    answers = [
        answer for item, choice in zip(items, said, strict=True) if choice for answer in answered(item, ann=choice)
    ]
    answers += answered(items[0], bob="b") + answered(items[1], bob="a")  # the second is a draw now
    found = summarize(study, answers)[READS_BETTER]
    assert (found["a"], found["b"], found["undecided"], found["judged"], found["asked"]) == (1, 2, 2, 5, 6)
    assert found["share"] == 2 / 3
    assert found["interval"] == list(wilson_interval(2, 3))
    assert found["p_value"] == sign_test(1, 2) == 1.0
    assert found["answers"] == 7


def test_agreement_is_cohens_for_two_and_fleiss_for_more():
    two = [{"ann": "a", "bob": "a"}, {"ann": "b", "bob": "a"}, {"ann": "b", "bob": "b"}, {"ann": "a"}]
    found = agreement(two)
    assert (found["kind"], found["raters"], found["items"]) == ("Cohen", 2, 3)
    assert found["observed"] == pytest.approx(2 / 3)
    assert found["kappa"] == cohen_kappa(["a", "b", "b"], ["a", "a", "b"])
    three = [*two, {"ann": "a", "bob": "b", "eve": "b"}]
    found = agreement(three)
    assert (found["kind"], found["raters"], found["items"]) == ("Fleiss", 3, 4)
    assert found["kappa"] == fleiss_kappa([["a", "a"], ["b", "a"], ["b", "b"], ["a", "b", "b"]])
    assert agreement([{"ann": "a"}]) == {"raters": 1, "items": 0, "observed": None, "kappa": None, "kind": None}


def test_a_study_without_answers_has_tables_too(study):
    summary = summarize(study, [])
    assert summary[WHICH_IMAGE]["runs"][0]["share"] is None
    assert summary[READS_BETTER]["p_value"] is None
    page = to_markdown(summary)
    assert "none yet" in page
    assert f"| {RUNS[0]} | – | – | 0 | 0 | 0 | 0 | 0 of 0 |" in page


def test_the_page_says_the_numbers(study):
    answers = [
        answer for item in study.items for answer in answered(item, ann="b" if len(item.captions) > 1 else "target")
    ]
    page = to_markdown(summarize(replace(study, runs=("a|b", "<i>")), answers))
    assert "| a\\|b | 100.0 % | [61.0, 100.0] | 6 | 6 | 0 | 0 | 6 of 6 |" in page
    assert "| 100.0 % | [61.0, 100.0] | 0 | 6 | 0 |" in page
    assert "Sign test: p = 0.0312" in page  # 2 / 2**6
    assert "<i>" not in page
    assert "Toy images." in page
    assert "Wilson" in page


def test_every_answer_is_a_row_that_no_spreadsheet_runs(study):
    items = [replace(study.items_of(question)[0]) for question in (WHICH_IMAGE, READS_BETTER)]
    items[1] = replace(items[1], captions=('=HYPERLINK("http://x")', 'two\nlines, "quoted"'))
    changed = replace(study, items=tuple(items))
    answers = answered(items[0], ann="target", bob="unsure") + answered(items[1], ann="b")
    answers += answered(replace(items[0], id="gone"), ann="a")
    rows = list(csv.DictReader(io.StringIO(to_csv(changed, answers))))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["rater"], row["item"], row["choice"], row["right"]) for row in rows] == [
        ("ann", items[0].id, "target", "1"),
        ("bob", items[0].id, "unsure", "0"),
        ("ann", items[1].id, "b", ""),
    ]
    assert (rows[0]["image"], rows[0]["distractor"]) == items[0].images
    assert rows[0]["run"] == "".join("ab"[run] for run in items[0].runs)
    assert [rows[0][f"caption_{'ab'[run]}"] for run in items[0].runs] == [items[0].captions[0]] * len(items[0].runs)
    assert rows[2]["caption_a"] == '\'=HYPERLINK("http://x")'
    assert rows[2]["caption_b"] == 'two\nlines, "quoted"'
    assert (rows[2]["run"], rows[2]["distractor"], rows[2]["seconds"]) == ("ab", "", "1.250")
