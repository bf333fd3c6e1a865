"""What the report says first, computed by hand on toy results."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from evaluation_fakes import toy_dataset, toy_result

from tellapart.evaluation.report import RunView, write_report
from tellapart.evaluation.report.summary import best_of, deciding, pairs, verdict

IDS = ("1", "2", "3", "4", "5")
HACKED = {"eval_CIDEr": [(0, 1.0), (10, 0.4)]}


def run(
    name: str, recall: float, *, captions=None, curves=None, ranks=(1, 1, 1, 1, 1), truthful=(100.0,) * 5
) -> RunView:
    result = toy_result(name, seed=0, captions=captions or {i: f"{name} {i}" for i in IDS})
    metrics = {"judge_R@1": recall, "truthful": sum(truthful) / 5, "CIDEr": 1.25, "mean_length": 6.0}
    per_image = {"judge_rank": list(ranks), "truthful": list(truthful)}
    return RunView(name, replace(result, metrics=metrics, per_image=per_image), curves or {})


def test_the_metrics_that_decide_are_one_of_each_kind():
    assert [column.key for column in deciding([run("xe", 20.0)])] == ["judge_R@1", "truthful", "CIDEr", "mean_length"]
    one = run("xe", 20.0)
    exact = replace(one, result=replace(one.result, metrics=one.result.metrics | {"exact_recall@1": 10.0}))
    assert deciding([exact])[0].key == "exact_recall@1"
    assert deciding([exact, one])[0].key == "judge_R@1"  # all rows must have it


def test_the_best_has_no_lasting_warning_if_anybody_has_none():
    start, clean, hacked = run("xe", 20.0), run("clean", 40.0), run("hacked", 90.0, curves=HACKED)
    assert best_of([start, clean, hacked]) == 1
    assert best_of([start, hacked]) == 1
    given = run("human", 99.0)
    protocol = replace(given.result.protocol, decoding=None)
    given = replace(given, result=replace(given.result, protocol=protocol))
    assert best_of([start, given]) is None
    assert best_of([start]) is None


def test_the_sentence():
    start, clean, hacked = run("xe", 20.0), run("clean", 40.0), run("hacked", 90.0, curves=HACKED)
    figures = "judge R@1 40.0 (xe: 20.0), truthful % 100.0 (100.0), CIDEr 125.0 (125.0), words 6.0 (6.0)"
    assert verdict([start, clean]) == f"clean tells images apart best: {figures}."
    warned = verdict([start, clean, hacked])
    assert re.fullmatch(
        re.escape(f"clean tells images apart best: {figures}.") + r" Warnings .*: hacked \(\d\)\.", warned
    )
    shade = run("shade", 20.04)
    assert verdict([start, shade]).startswith(
        "No captioner tells more images apart than xe; best of the others shade: "
    )
    assert verdict([start]) == "xe: judge R@1 20.0, truthful % 100.0, CIDEr 125.0, words 6.0."


@pytest.fixture
def alike():
    """Images 1, 2 and 3 share a caption; later 3 is false, and 4 and 5, which share another, are told apart in more words."""
    before = {"1": "a shape", "2": "a shape", "3": "A shape", "4": "a thing", "5": "a thing"}
    after = {
        "1": "a red shape",
        "2": "a blue shape",
        "3": "a green shape",
        "4": "one big thing here",
        "5": "one small thing there",
    }
    later = run("dico", 80.0, captions=after, truthful=(100.0, 100.0, 0.0, 100.0, 100.0))
    return [run("xe", 20.0, captions=before), later]


def test_pairs_shared_a_caption_and_are_told_apart_without_fault(alike):
    found = pairs(alike, toy_dataset())
    assert [(pair.before, [side.id for side in pair.sides]) for pair in found] == [
        ("a shape", ["1", "2"]),
        ("a thing", ["4", "5"]),
    ]
    assert found[0].sides[1].pieces == [("a", False), ("blue", True), ("shape", False)]
    assert pairs(alike, None) == []


def test_what_the_judge_does_not_find_is_no_example(alike):
    later = replace(alike[1].result, per_image=alike[1].result.per_image | {"judge_rank": [1, 2, 1, 1, 1]})
    found = pairs([alike[0], replace(alike[1], result=later)], toy_dataset())
    assert [pair.before for pair in found] == ["a thing"]


def test_the_page_shows_them_and_offers_the_table(alike, tmp_path):
    text = write_report(tmp_path / "report.html", alike, dataset=toy_dataset()).read_text(encoding="utf-8")
    assert "dico tells images apart best: judge R@1 80.0 (xe: 20.0)" in text
    assert text.count('<article class="pair">') == 2
    assert "a <ins>blue</ins> shape</figcaption>" in text
    assert re.search(r'download="results.csv" href="data:text/csv;charset=utf-8,', text)
    assert len(text) < 6e6


@pytest.mark.parametrize("recall", [16.7, 20.0])
def test_a_page_does_not_praise_who_is_no_better_than_the_first(recall):
    start, worse = run("xe", 20.0, captions=dict.fromkeys(IDS, "a star")), run("worse", recall)
    said = verdict([start, worse])
    assert said.startswith(
        f"No captioner tells more images apart than xe; best of the others worse: judge R@1 {recall}"
    )
    assert pairs([start, worse], toy_dataset()) == []
    assert verdict([start, worse, run("better", 20.1)]).startswith("better tells images apart best")
