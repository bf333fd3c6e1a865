"""Tables of runs as LaTeX and CSV, and runs that differ in the seed as one row."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from dataclasses import replace

import pytest
from evaluation_fakes import toy_result
from rich.console import Console

from tellapart.errors import UsageError
from tellapart.evaluation.columns import describe, explain_words, main_columns
from tellapart.evaluation.compare import compare_results
from tellapart.evaluation.pool import Pool, Pooled
from tellapart.evaluation.report.record import Record
from tellapart.evaluation.report.runs import RunView
from tellapart.evaluation.results import CHOSE
from tellapart.evaluation.sheet import Cell, Row, Sheet, latex_text
from tellapart.recipe.pooling import pool_seeds


def sheet(*rows: tuple[str, list[Cell]], keys=("CIDEr", "Self-BLEU")) -> Sheet:
    return Sheet([describe(key) for key in keys], [Row(name, cells) for name, cells in rows], "all of it", "how 100 %")


def test_latex_is_booktabs_with_the_best_printed_value_bold():
    found = sheet(("start_model", [Cell(1.2344), Cell(50.0)]), ("a & b", [Cell(1.2341, spread=0.011), Cell(40.0)]))
    assert found.to_latex() == (
        "% how 100 %\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "& CIDEr $\\uparrow$ & Self-BLEU $\\downarrow$ \\\\\n"
        "\\midrule\n"
        "start\\_model & \\textbf{123.4} & 50.0 \\\\\n"
        "a \\& b & \\textbf{123.4} {\\scriptsize $\\pm$ 1.1} & \\textbf{40.0} \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
    )


def test_latex_marks_no_winner_of_one_row_nor_what_was_not_measured():
    text = sheet(("x", [Cell(1.0), Cell(None)])).to_latex()
    assert "x & 100.0 & - \\\\" in text
    assert "textbf" not in text


def test_latex_stars_what_clearly_differs_from_the_first_run():
    """Exactly the values whose interval, as JSON has it, leaves 0 out."""
    first, other = toy_result("xe", seed=0), toy_result("dico", seed=1)
    better = [value + 1.0 for value in first.per_image["CIDEr"]]
    metrics, rows = {"CIDEr": statistics.fmean(better)}, {"CIDEr": better}
    results = [first, replace(other, metrics=other.metrics | metrics, per_image=other.per_image | rows)]
    found = compare_results(results)
    columns, text = found.columns(every_metric=True), found.sheet(every_metric=True).to_latex()
    told = found.to_json()["runs"][1]["difference"]
    clear = [
        told.get(c.key, {}).get("low") is not None and (told[c.key]["low"] > 0 or told[c.key]["high"] < 0)
        for c in columns
    ]
    assert any(clear)
    assert not all(clear)
    xe, dico = (line for line in text.splitlines() if line.startswith(("xe &", "dico &")))
    assert "*" not in xe
    assert ["$^{*}$" in cell for cell in dico.split("&")[1:]] == clear
    assert "% * differs from xe: the paired-bootstrap 95 % interval" in text
    assert "*" not in compare_results([results[0], replace(results[0], name="again")]).sheet().to_latex()


def test_special_characters_of_latex():
    assert latex_text("50 % of a_b\n#1 ~ ^ \\ {x} $") == (
        r"50 \% of a\_b \#1 \textasciitilde{} \textasciicircum{} \textbackslash{} \{x\} \$"
    )


def test_csv_has_stored_unrounded_numbers():
    results = [toy_result("xe", seed=0), toy_result('di"co, b', seed=1)]
    rows = list(csv.DictReader(io.StringIO(compare_results(results).sheet(every_metric=True).to_csv())))
    assert [row["run"] for row in rows] == ["xe", 'di"co, b']
    for row, result in zip(rows, results, strict=True):
        assert {key: float(row[key]) for key in result.metrics} == result.metrics


def view(name: str, seed: int, result_seed: int, **options) -> RunView:
    objective = {"beta": options.pop("beta", 0.2)}
    recipe = {
        "method": options.pop("method", "dico"),
        "captioner": {"model_name_or_path": options.pop("start", "world/xe")},
        "objective": objective,
        "training": {"seed": seed, "output_dir": f"runs/{name}", "learning_rate": 1e-5},
    }
    began = toy_result("start model", seed=9)
    record = Record(recipe, facts={"seed": seed}, **options)
    return RunView(name, toy_result(name, seed=result_seed), start=began, record=record)


def test_runs_of_several_seeds_are_one_row_with_mean_and_spread():
    views = [view("a", 0, 0), view("b", 1, 1, start="world/xe-seed1"), view("c", 0, 2, method="scst")]
    found = pool_seeds(views)
    assert [pool.name for pool in found.pools] == ["start model", "dico", "scst"]
    values = [toy_result("a", seed=0).metrics["CIDEr"], toy_result("b", seed=1).metrics["CIDEr"]]
    cell = found.pools[1].cell("CIDEr")
    mean = sum(values) / 2
    assert cell.value == pytest.approx(mean)
    assert cell.spread == pytest.approx(abs(values[0] - values[1]) / 2**0.5)  # n - 1 of two values
    assert cell.spread == pytest.approx(statistics.stdev(values))
    assert found.pools[2].cell("CIDEr").spread is None
    assert found.pools[0].cell("SPICE").value is None
    assert [pool.name for pool in pool_seeds(views, start=False).pools] == ["dico", "scst"]
    printed = found.sheet().to_markdown()
    assert f"| dico | {100 * mean:.1f} ± {100 * cell.spread:.1f} |" in printed
    assert "dico 2, scst 1" in printed


def test_start_models_that_no_seed_tells_apart_are_not_averaged():
    views = [view("a", 0, 0), view("b", 1, 1, start="world/xe-seed1"), view("c", 0, 2, start="runs/long")]
    for place, began in ((1, 7), (2, 8)):
        start = toy_result("start model", seed=began)
        said = {image_id: f"{caption} {began}" for image_id, caption in start.captions.items()}
        views[place] = replace(views[place], start=replace(start, captions=said))
    found = pool_seeds(views)
    assert [(pool.name, len(pool.results)) for pool in found.pools[:2]] == [
        ("start model world/xe", 2),
        ("start model runs/long", 1),
    ]
    assert found.pools[1].cell("CIDEr").value == toy_result("start model", seed=8).metrics["CIDEr"]


def test_pools_as_csv_json_and_on_the_screen():
    found = pool_seeds([view("a", 0, 0), view("b", 1, 1)])
    rows = list(csv.DictReader(io.StringIO(found.sheet().to_csv())))
    assert [row["runs"] for row in rows] == ["1", "2"]
    assert rows[0]["CIDEr_std"] == ""
    told = json.loads(json.dumps(found.to_json()))
    assert float(rows[1]["CIDEr_std"]) == told["pools"][1]["std"]["CIDEr"]
    assert told["pools"][1]["values"]["CIDEr"] == [
        toy_result(n, seed=s).metrics["CIDEr"] for n, s in (("a", 0), ("b", 1))
    ]
    assert told["protocol"].startswith("toy test: 5 images")
    console = Console(file=io.StringIO(), width=120)
    found.print(console)
    assert "±" in console.file.getvalue()


def test_a_metric_that_only_some_runs_of_a_pool_have_is_named_with_their_number():
    views = [view("a", 0, 0), view("b", 1, 1), view("c", 2, 2)]
    whole = pool_seeds(views).sheet()
    assert "NOTE" not in whole.caption
    metrics = {key: value for key, value in views[2].result.metrics.items() if key != "CIDEr"}
    found = pool_seeds([*views[:2], replace(views[2], result=replace(views[2].result, metrics=metrics))])
    for text in (found.sheet().to_markdown(), found.sheet().to_latex()):
        assert "CIDEr of dico 2 of 3" in text
        assert "BLEU-4 of dico" not in text
    assert found.to_json()["protocol"] == whole.caption.splitlines()[-1]


def test_rows_of_one_method_are_told_apart_by_what_differs():
    views = [view("a", 0, 0), view("b", 1, 1), view("c", 0, 2, beta=0.1), view("d", 1, 3, beta=0.1)]
    found = pool_seeds(views, start=False)
    assert [pool.name for pool in found.pools] == ["dico (objective.beta 0.2)", "dico (objective.beta 0.1)"]


def test_a_value_that_is_no_number_pools_to_none():
    """``statistics.stdev`` raised an AttributeError."""
    results = [
        replace(toy_result("a", seed=seed), metrics={"perplexity": value}) for seed, value in ((0, math.nan), (1, 3.0))
    ]
    cell = Pool("x", results).cell("perplexity")
    assert math.isnan(cell.value)
    assert math.isnan(cell.spread)


def test_what_cannot_be_pooled():
    with pytest.raises(UsageError, match="found no two runs that differ only in the seed"):
        pool_seeds([view("a", 0, 0), view("b", 1, 1, beta=0.1), RunView("file", toy_result("file", seed=3))])
    with pytest.raises(UsageError, match="a and b are one training with seed 0"):
        pool_seeds([view("a", 0, 0), view("b", 0, 1)])
    with pytest.raises(UsageError, match="measured differently"):
        Pooled.of([Pool("x", [toy_result("a", seed=0), toy_result("b", seed=1, decoding="beam 5")])])


def test_images_that_chose_a_checkpoint_are_named():
    plain, chosen = toy_result("xe", seed=0), toy_result("dico", seed=1)
    chosen = replace(chosen, details={CHOSE: "CIDEr"})
    assert "chose the checkpoint" not in compare_results([plain]).caption()
    note = "NOTE: these images chose the checkpoint of dico (by CIDEr), which flatters the numbers"
    assert note in compare_results([plain, chosen]).caption()
    assert note in compare_results([plain, chosen]).sheet().to_latex()
    assert note in Pooled.of([Pool("dico", [chosen])]).caption()


def test_what_was_asked_for_is_in_the_first_table():
    """A measure that was named is no detail, and was measured without being shown."""
    asked = ["PAC-S", "ITM", "VQAScore", "QA", "claim_precision", "CHAIRi", "grammatical_head", "novel_captions"]
    assert [column.key for column in main_columns([*asked, "ITM_logit", "CIDEr"])] == ["CIDEr", *asked]


def test_words_of_ours_are_explained_below_the_table():
    console = Console(file=io.StringIO(), width=200)
    compare_results([toy_result("xe", seed=0)]).print(console)
    said = console.file.getvalue()
    assert "judge: a second retriever, which should not be the reward's" in said
    assert "exact:" not in said  # no such column
    assert explain_words([describe("exact_recall@1"), describe("CIDEr")]).startswith("exact: ")
    assert explain_words([describe("CIDEr")]) == ""


def test_pools_that_differ_in_weights_or_options_of_rewards_have_names_of_their_own():
    def rewarded(name, weight, seed=0, **options):
        made = view(name, seed, seed)
        reward = [{"name": "clip_s", "weight": 1.0}, {"name": "cider_d", "weight": weight, **options}]
        return replace(made, record=replace(made.record, recipe=made.record.recipe | {"reward": reward}))

    views = [rewarded("a", 0.5), rewarded("again", 0.5, seed=1), rewarded("b", 1.0)]
    names = [pool.name for pool in pool_seeds(views, start=False).pools]
    assert names == ["dico (reward clip_s + 0.5 cider_d)", "dico (reward clip_s + cider_d)"]
    views = [rewarded("a", 0.5, sigma=6.0), rewarded("b", 0.5, sigma=3.0), rewarded("c", 1.0)]
    views.append(rewarded("again", 1.0, seed=1))
    names = [pool.name for pool in pool_seeds(views, start=False).pools]
    assert names == [
        "dico (reward clip_s + 0.5 cider_d (sigma 6))",
        "dico (reward clip_s + 0.5 cider_d (sigma 3))",
        "dico (reward clip_s + cider_d)",
    ]


def test_rounding_is_no_difference():
    """coco-caption's constant of 1e-9 leaves a perfect BLEU-1 of two lengths 3e-11 apart, which was starred."""
    first, other = toy_result("xe", seed=0), toy_result("dico", seed=0)
    nearly = [value + 3e-11 for value in first.per_image["CIDEr"]]
    other = replace(
        other,
        metrics=other.metrics | {"CIDEr": statistics.fmean(nearly)},
        per_image=other.per_image | {"CIDEr": nearly},
    )
    found = compare_results([first, other])
    difference = found.differences[1]["CIDEr"]
    assert not difference.clear
    assert difference.p_value == 1.0
    assert "*" not in found.sheet().to_latex()
