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
from tellapart.evaluation.given import score, with_intervals
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


def test_a_metric_of_some_images_has_an_interval_and_the_caption_does_not_deny_it():
    first, other = (toy_result(name, seed=seed) for seed, name in enumerate(("xe", "dico")))
    values = [None, *map(float, range(1, len(first.captions)))]
    first, other = (
        replace(one, metrics={**one.metrics, "claim_recall": 1.0}, per_image={**one.per_image, "claim_recall": values})
        for one in (first, other)
    )
    found = compare_results([first, other])
    assert found.differences[1]["claim_recall"].low is not None
    assert "some images lack" not in found.caption()
    assert "do not determine (Self-BLEU, medians) have neither" in found.caption()


def test_a_figure_that_some_draws_do_not_determine_has_no_interval():
    """Of captions of which one has tokens: a draw without it has no perplexity, and the difference was called significant."""
    references = {str(i): [f"a dog {i} on grass"] for i in range(6)}
    nll, tokens = [4.0, 5.0, 4.0, 5.0, 4.0, 4.0], [2] * 6
    results = []
    for name, kept in (("good", 6), ("collapsed", 1)):
        result = score({key: "a dog" if int(key) < kept else "" for key in references}, references, name=name)
        own = {
            "perplexity_nll": [n if i < kept else 0.0 for i, n in enumerate(nll)],
            "perplexity_tokens": [n if i < kept else 0 for i, n in enumerate(tokens)],
        }
        results.append(replace(result, metrics=result.metrics | {"perplexity": 7.0}, per_image=result.per_image | own))
    difference = compare_results(results, samples=200).differences[1]["perplexity"]
    assert (difference.low, difference.high, difference.p_value, difference.clear) == (None, None, None, False)
    assert "perplexity" in with_intervals(results[0], samples=100).intervals
    assert "perplexity" not in with_intervals(results[1], samples=100).intervals


def test_bleu_of_captions_without_a_matched_n_gram_does_not_differ():
    """coco-caption's constants give 1e-5 and 1e-10 there, which were told as a clear difference of 0.0."""
    references = {str(i): [f"w{i} x{i} y{i} z{i} q{i}"] for i in range(200)}
    first = score({key: f"w{key} x{key} y{key} b c" for key in references}, references, name="a")
    second = score({key: f"w{key} x{key} d y{key} c" for key in references}, references, name="b")
    found = compare_results([first, second], samples=100).differences[1]
    assert (found["Bleu_4"].clear, found["Bleu_4"].p_value) == (False, 1.0)
    assert found["Bleu_2"].clear


def test_rows_are_paired_by_image_not_by_place():
    first, second = toy_result("xe", seed=0), toy_result("dico", seed=1)
    backwards = replace(
        second,
        captions=dict(reversed(second.captions.items())),
        per_image={key: column[::-1] for key, column in second.per_image.items()},
    )
    assert compare_results([first, backwards]).differences == compare_results([first, second]).differences


def test_a_column_without_a_value_gets_no_interval():
    first, second = toy_result("xe", seed=0), toy_result("dico", seed=1)
    gap = replace(second, per_image=second.per_image | {"CIDEr": [None] * len(second.captions)})
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
