"""The comparison table: its differences, its intervals and what it refuses."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from evaluation_fakes import toy_result
from rich.console import Console

from tellapart.errors import UsageError
from tellapart.evaluation.bootstrap import paired_bootstrap
from tellapart.evaluation.compare import compare_results
from tellapart.evaluation.results import find_result


def compare(runs, **options):
    return compare_results([find_result(run) for run in runs], **options)


def printed(comparison, **options) -> str:
    console = Console(file=io.StringIO(), width=120)
    comparison.print(console, **options)
    return console.file.getvalue()


def test_differences_and_intervals_are_those_of_the_rows(tmp_path):
    first, second = toy_result("xe", seed=0), toy_result("dico", seed=1)
    for result in (first, second):
        result.save(tmp_path / result.name)
    found = compare([tmp_path / "xe", tmp_path / "dico"], samples=300, seed=4).differences
    assert found[0] == {}
    a, b = (np.array(result.per_image["CIDEr"]) for result in (first, second))
    expected = [float(x) for x in paired_bootstrap(a, b, samples=300, seed=4)]
    got = found[1]["CIDEr"]
    assert [got.value, got.low, got.high] == pytest.approx(expected)
    assert got.value == pytest.approx(second.metrics["CIDEr"] - first.metrics["CIDEr"])


def test_a_metric_of_the_whole_set_has_no_interval():
    difference = compare_results([toy_result("xe", seed=0), toy_result("dico", seed=1)]).differences[1]["Bleu_4"]
    assert difference.value == pytest.approx(0.1)
    assert (difference.low, difference.high, difference.clear) == (None, None, False)


def test_rows_are_paired_by_image_not_by_place():
    first, second = toy_result("xe", seed=0), toy_result("dico", seed=1)
    backwards = replace(
        second,
        captions=dict(reversed(second.captions.items())),
        per_image={key: column[::-1] for key, column in second.per_image.items()},
    )
    assert compare_results([first, backwards]).differences == compare_results([first, second]).differences


def test_a_column_with_gaps_gets_no_interval():
    first, second = toy_result("xe", seed=0), toy_result("dico", seed=1)
    gap = replace(second, per_image=second.per_image | {"CIDEr": [None, *second.per_image["CIDEr"][1:]]})
    differences = compare_results([first, gap]).differences[1]
    assert differences["CIDEr"].low is None
    assert differences["judge_MRR"].low is not None


def test_printed_table_scales_cider_and_keeps_percent(tmp_path):
    results = [toy_result("xe", seed=0), toy_result("dico [bold]", seed=1)]
    text = printed(compare_results(results))
    cider = results[0].metrics["CIDEr"]
    assert f"{100 * cider:.1f}" in text
    assert f"{results[1].metrics['judge_R@1']:.1f}" in text
    assert "dico [bold]" in text  # a name is no markup
    assert "toy test: 5 images" in text.replace("\n", " ")
    assert "judge MRR" not in text
    assert "judge MRR" in printed(compare_results(results), every_metric=True)


def test_markdown_has_a_row_a_run_and_escapes_pipes():
    comparison = compare_results([toy_result("xe", seed=0), toy_result("a|b\nc", seed=1)])
    lines = comparison.sheet().to_markdown().splitlines()
    assert lines[0] == "| run | CIDEr | BLEU-4 | judge R@1 |"
    assert lines[2].startswith("| xe | ")
    assert lines[3].startswith("| a\\|b c | ")
    assert "(+10.0)" in lines[3]  # Bleu_4 0.1 -> 0.2, times 100
    assert len({line.replace("\\|", "").count("|") for line in lines[:4]}) == 1


def test_json_keeps_stored_scales():
    comparison = compare_results([toy_result("xe", seed=0), toy_result("dico", seed=1)])
    value = json.loads(json.dumps(comparison.to_json()))
    assert value["runs"][0]["metrics"] == toy_result("xe", seed=0).metrics
    assert value["runs"][1]["difference"]["Bleu_4"] == {"value": pytest.approx(0.1), "low": None, "high": None}


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    toy_result("xe", seed=0).save(tmp_path / "xe")
    toy_result("beam", seed=1, decoding="beam 5").save(tmp_path / "beam")
    with pytest.raises(UsageError, match="decoding 'greedy' and 'beam 5'"):
        compare([tmp_path / "xe", tmp_path / "beam"])
    with pytest.raises(UsageError, match="does not exist"):
        compare([tmp_path / "xe", tmp_path / "gone"])
    with pytest.raises(UsageError, match="no runs were given"):
        compare([])
