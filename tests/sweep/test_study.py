"""A study's bookkeeping: what is searched, chosen on val, measured, and said on its page. Nothing is trained."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import fields, replace
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest

from sweep.study_fakes import PROBES, ROOT, finish, note_measured, note_training, rate, refused
from tellapart.errors import UsageError
from tellapart.sweep import instruments, references, study_page
from tellapart.sweep.claims import Claim, Seeds, over_seeds
from tellapart.sweep.page_parts import FIGURES, READING
from tellapart.sweep.run_study import listed, run
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import Row, StudyFile, read_study
from tellapart.sweep.study_page import _grid, write_page
from tellapart.sweep.trainings import option

FILE = """
title: A page
page: p.md
measure: {num_beams: [1, 5], samples: 5, listener: world/listener}
tables: {"": {CIDEr: CIDEr}}
rows:
  xe: {start_of: world_ved_scst_cider}
  a: {recipe: world_ved_scst_cider, grid: {training.learning_rate: [1.0e-5, 1.0e-4]}}
  b: {recipe: world_ved_scst_clip, grid: {training.learning_rate: [1.0e-5, 1.0e-4]}}
  c: {recipe: world_ved_scst_pac, point_of: a, seeds: [0]}
  d: {recipe: world_ved_dico, curve: {objective.beta: [0.1, 0.2, 0.4]}, shown: false}
  tried: {recipe: world_ved_dico, overrides: {objective.beta: 0.3}, test: false}
  search: {start_of: world_ved_scst_cider, measure: {num_beams: 10, rerank: world_ved_scst_clip}}
"""
VAL = {("a", 1e-5): 30.0, ("a", 1e-4): 50.0, ("b", 1e-5): 40.0, ("b", 1e-4): 40.0}
TEST = {"search": 3.0, "xe": 1.0, "a": 2.0, "b": 0.5, "c": 1.2, "d (0.1)": 2.0, "d (0.2)": 1.8, "d (0.4)": 1.4}


@pytest.fixture
def study(tmp_path):
    return finished(tmp_path)


def finished(tmp_path, text=FILE):
    """CIDEr on test rises by 0.1 with every seed; of d's curve R@1 is 60, 50 and 20, and one more with every seed."""
    path = tmp_path / "p.yaml"
    path.write_text(text)
    (tmp_path / "p.md").write_text("Why.\n")
    made = Study(read_study(path), tmp_path / "runs")

    def on_val(row, task):
        metrics = {"listener_R@1": VAL.get((row, rate(task)), 1.0), "CIDEr": 1.0, "grammatical": 90.0}
        return {0: metrics | {"listener_R@1": 0.0}, 10: metrics, 60: metrics | {"listener_R@1": 2.0}}

    def on_test(shown, task, decoding, point):
        recall = {"d (0.1)": 60.0, "d (0.2)": 50.0, "d (0.4)": 20.0}.get(shown, 9.0) + task.seed
        return {"CIDEr": TEST[shown] + (0.0 if shown[0] == "d" else 0.1 * task.seed), "listener_R@1": recall}

    return finish(made, on_val, on_test, selected=10)


def test_the_best_point_on_val_is_chosen_and_the_lower_rate_on_a_tie(study):
    assert study.chosen("a").overrides == {"training.learning_rate": 1e-4}
    assert study.chosen("b").overrides == {"training.learning_rate": 1e-5}
    assert study.chosen("c").overrides == {"training.learning_rate": 1e-4}  # that of a
    assert (study.grid("c"), study.chosen("c").recipe) == ([], "world_ved_scst_pac")


def test_a_search_with_several_seeds_chooses_by_their_mean(tmp_path, monkeypatch):
    """R@1 on val by rate and seed: at 1e-4 60, 10 and 20, at 1e-5 40 with every seed. The first seed alone chooses 1e-4."""
    (tmp_path / "p.yaml").write_text("search_seeds: [0, 1, 2]\n" + FILE)
    study = Study(read_study(tmp_path / "p.yaml"), tmp_path / "runs")

    def on_val(row, task):
        recall = {1e-4: [60.0, 10.0, 20.0], 1e-5: [40.0, 40.0, 40.0]}.get(rate(task), [1.0] * 3)[task.seed]
        metrics = {"listener_R@1": recall, "CIDEr": 1.0, "grammatical": 90.0}
        return {0: metrics, 10: metrics, 60: metrics | {"listener_R@1": recall / 2}}

    finish(study, on_val, lambda *_: {"CIDEr": 1.0, "listener_R@1": 9.0}, selected=10)
    assert len(study.searching()) == 3 * (2 + 2 + 1)
    assert study.chosen("a").overrides == {"training.learning_rate": 1e-5}
    assert study.merit("a", study.grid("a")[1])[0] == pytest.approx(30.0)
    first = Study(replace(study.file, search_seeds=()), study.sweep.root)
    assert first.chosen("a").overrides == {"training.learning_rate": 1e-4}
    monkeypatch.setattr(study_page, "instruments", lambda study: ["probe"])
    text = write_page(study, tmp_path / "p.md").read_text()
    assert "Points are tried with seeds 0, 1, 2 and chosen on **val** by the mean of the metric" in text
    assert "<summary>The grid on val (seeds 0, 1, 2)<" in text
    assert f"| a | learning_rate 0.0001 | 10, 10, 10 | 30.0 ± {stdev([60, 10, 20]):.1f} | 100.0 ± 0.0 |" in text
    assert "| **a** | **learning_rate 1e-05** | **10, 10, 10** | **40.0 ± 0.0** |" in text
    one = Study(study.file.seeded([1]), study.sweep.root)
    assert {task.seed for task in one.searching()} == {1}


@pytest.mark.parametrize(
    ("options", "recall", "chosen"),
    [
        ({}, {1e-5: 40.0, 1e-4: 50.0}, 1e-4),
        (
            {"training.greater_is_better": False, "training.metric_for_best_model": "Self-BLEU"},
            {1e-5: 40.0, 1e-4: 50.0},
            1e-5,
        ),
        ({"training.metric_for_best_model": "eval_listener_R@1"}, {1e-5: 40.0, 1e-4: 50.0}, 1e-4),
        # logs have null for what was not finite, and a metric may be missing from one evaluation
        ({}, {1e-5: 40.0, 1e-4: None}, 1e-5),
        ({}, {1e-5: 40.0, 1e-4: ...}, 1e-5),
    ],
)
def test_a_point_is_chosen_as_its_trainings_select(tmp_path, options, recall, chosen):
    file = read_study(_written(tmp_path))
    rows = {
        name: replace(row, overrides={**row.overrides, **options}) for name, row in file.rows.items() if name == "a"
    }
    study = Study(replace(file, rows=rows), tmp_path / "runs")
    for task in study.searching():
        metrics = {
            "listener_R@1": recall[rate(task)],
            "Self-BLEU": recall[rate(task)],
            "CIDEr": 1.0,
            "grammatical": 90.0,
        }
        metrics = {name: value for name, value in metrics.items() if value is not ...}
        note_training(task, {0: metrics, 10: metrics, 60: metrics}, selected=10)
    assert study.chosen("a").overrides["training.learning_rate"] == chosen


def _written(folder):
    (folder / "p.yaml").write_text(FILE)
    return folder / "p.yaml"


def test_a_curve_may_be_of_words(tmp_path):
    text = FILE.replace("curve: {objective.beta: [0.1, 0.2, 0.4]}", "curve: {reward.clip_s.prefix: [a, an]}")
    (tmp_path / "p.yaml").write_text(text)
    study = Study(read_study(tmp_path / "p.yaml"), tmp_path / "runs")
    assert study.curve("d") == {"a": "d (a)", "an": "d (an)"}


def test_only_what_is_searched_or_tried_is_trained_before_choosing(study):
    assert len(study.searching()) == 2 + 2 + 1
    assert {task.seed for task in study.searching()} == {0}
    assert all(not task.measures for task in study.searching())  # val is in the training's own log, test is not touched


def test_a_row_may_be_measured_in_a_way_of_its_own(study):
    """Once, next to the first decoding of the others; what it chooses captions by decides where it is kept."""
    (task, *_), (start, *_) = study.measured["search"], study.measured["xe"]
    assert task.folder == start.folder
    (how,) = task.measures.values()
    assert how == {**study.file.measures[0], "num_beams": 10, "rerank": "world_ved_scst_clip"}
    assert not set(task.measures) & set(start.measures)
    assert [one["CIDEr"] for one in study.metrics("search")] == pytest.approx([3.0, 3.1, 3.2])
    assert study.metrics("search", decoding="beam 5") == []
    other = replace(study.file.rows["search"], measure={"num_beams": 10, "rerank": "world_ved_scst_pac"})
    changed = Study(replace(study.file, rows={"search": other}), study.sweep.root)
    assert not set(changed.measured["search"][0].measures) & set(task.measures)


def test_every_seed_of_the_chosen_point_is_measured(study):
    assert list(study.measured) == ["xe", "a", "b", "c", "d (0.1)", "d (0.2)", "d (0.4)", "search"]
    assert [(task.seed, rate(task)) for task in study.measured["a"]] == [(0, 1e-4), (1, 1e-4), (2, 1e-4)]
    assert [task.seed for task in study.measured["c"]] == [0]
    starts = [task.recipe["captioner"]["model_name_or_path"] for task in study.measured["a"]]
    assert starts == ["world/xe", "world/xe-seed1", "world/xe-seed2"]
    assert len({task.folder for tasks in study.measured.values() for task in tasks}) == 3 * 6 + 1
    assert [task.folder for task in study.timings()] == [
        tasks[0].folder for name, tasks in study.measured.items() if name not in ("xe", "search")
    ]


def test_test_is_measured_once_per_decoding_and_sets_once(study):
    (greedy, beam) = study.measured["a"][0].measures.values()
    assert (greedy["split"], greedy["num_beams"], greedy["samples"]) == ("test", 1, 5)
    assert (beam["num_beams"], "samples" in beam) == (5, False)
    assert study.file.decodings == ["greedy", "beam 5"]


def test_a_training_is_found_again_by_another_study_and_another_setting_is_not(study, tmp_path):
    again = Study(study.file, study.sweep.root)
    assert again.measured["a"][0].folder == study.measured["a"][0].folder
    assert all(task.done() for task in again.searching())
    longer = Study(study.file, study.sweep.root, common={"training.max_steps": 61})
    assert not any(task.done() for task in longer.searching())


def test_the_page_has_means_spreads_and_verdicts(study, monkeypatch):
    monkeypatch.setattr(study_page, "instruments", lambda study: ["probe"])
    folders = {task.folder for task in study.searching() if task.trains}
    ours, start = study.read("a", "CIDEr"), study.read("xe", "CIDEr")
    claims = [Claim("a is above xe.", ours.above(start), f"{ours} against {start}.")]
    path = write_page(study, study.sweep.root / "p.md", claims=claims, sections=["## More"])
    text = path.read_text()
    spread = 100 * stdev([2.0, 2.1, 2.2])
    assert text.startswith("# A page\n\nWhy.\n")
    assert f"| a | selected | {100 * fmean([2.0, 2.1, 2.2]):.1f} ± {spread:.1f} |" in text
    assert "| xe | - | 110.0 ± 10.0 |" in text
    assert "| d (0.1) |" not in text
    assert "**Holds**: a is above xe. Measured: 210.0 ± 10.0 against 110.0 ± 10.0." in text
    assert "| **a** | **learning_rate 0.0001** | **10** | **50.0** | **100.0** | **90.0** | **2.0** |" in text
    assert "| tried | - | 10 |" in text
    count = len({task.folder for tasks in study.measured.values() for task in tasks if task.trains} | folders)
    assert (
        "Trainings have 60 steps of 48 images and are evaluated on val every 10 steps. "
        f"The {count} trainings took {count * 7200 / 3600:.1f} hours of one thread, without their evaluations."
    ) in text
    opened = ["<summary>Protocol<", "probe", READING, "## What was expected", "## Test, greedy", "<summary>More<"]
    assert sorted(opened, key=text.index) == opened
    assert text.index("<summary>More<") < text.index("<summary>The grid on val (seed 0)<")


def test_rows_with_other_steps_are_named(study):
    """The page of a study whose best row had 240 steps said that trainings have 160."""
    longer = [replace(task, recipe=deepcopy(task.recipe)) for task in study.measured["a"]]
    longer[0].recipe["training"]["max_steps"] = 240
    shown = study_page._budget(SimpleNamespace(measured=study.measured | {"a": longer}, trained=study.trained))
    assert shown.startswith("Trainings have 60 steps (`a`: 240) of 48 images and are evaluated on val every 10 steps. ")


def test_what_a_person_wrote_on_a_page_stays_when_its_figures_are_made_again(study, monkeypatch):
    monkeypatch.setattr(study_page, "instruments", lambda study: ["probe"])
    path = write_page(study, study.sweep.root / "p.md")
    new = path.read_text()
    assert f"{READING}\n\n{FIGURES}" in new
    path.write_text(new.replace(READING, f"{READING}\n\n## What it shows\n\nA person's words."))
    written = path.read_text()
    assert write_page(study, path).read_text() == written


def test_an_ordering_needs_every_seed():
    assert Seeds([3.0, 4.0]).above(Seeds([1.0, 2.9]))
    assert not Seeds([3.0, 9.0]).above(Seeds([1.0, 3.0]))


def test_a_curve_is_read_on_each_seeds_own_points(study):
    # CIDEr 1.9 lies halfway between 2.0 and 1.8, where R@1 is 60 and 50; one more with every seed
    assert study.at_fixed("d", "CIDEr", 1.9, "listener_R@1").values == pytest.approx([55.0, 56.0, 57.0])
    # with the outer points alone: a sixth of the way from 2.0 to 1.4 and from 60 to 20
    outer = study.at_fixed("d", "CIDEr", 1.9, "listener_R@1", values=[0.1, 0.4])
    assert outer.values == pytest.approx([60 - 40 / 6, 61 - 40 / 6, 62 - 40 / 6])
    assert study.at_fixed("d", "CIDEr", 1.9, "CIDEr").values == pytest.approx([190.0] * 3)  # as printed
    assert study.at_fixed("d", "CIDEr", 2.1, "listener_R@1") is None
    # every seed encloses 22 to 60
    assert study.common_middle(["d"], "listener_R@1") == pytest.approx(41.0)
    assert study.common_middle(["d", "a"], "listener_R@1") is None  # a is one point, which encloses nothing
    assert study.common_middle(["d"], "judge_R@1") is None  # nothing measured it


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rows: {}", "has no rows: a study names its title, its page and its rows"),
        ("seed: [0]", "'seed' is not a key of .*: did you mean seeds?"),
        ("rows: {a: {recipe: x, grit: {}}}", "'grit' is not a key of a in .*: did you mean grid?"),
        ("rows: {a: {grid: {}}}", "must name either a recipe or start_of"),
        ("rows: {a: {recipe: x, point_of: b}}", "'b' is not a row that a in .* could take its point of"),
        ("rows: {a: x, b: {recipe: x, point_of: a, grid: {y: [1]}}}", "b in .* has both grid and point_of: leave one"),
        (
            "rows: {a: x, b: {recipe: x, point_of: a}, c: {recipe: x, point_of: b}}",
            "c in .* takes the point of b, which takes that of a: name a row with a grid",
        ),
        ("rows: {a: 3}", "a in .* is 3, but must be a mapping"),
        ("rows: [a]", r"rows in .* is \['a'\], but must be a mapping"),
        ("rows: {a: {recipe: x, grid: {y: 0.1}}}", "y in the grid of a in .* is 0.1, but must be a list"),
        ("rows: {a: {recipe: x, grid: {y: []}}}", "y in the grid of a in .* is empty"),
        ("rows: {a: {recipe: x, seeds: 1}}", "seeds of a in .* is 1, but must be a list"),
        ("seeds: 3", "seeds in .* is 3, but must be a list"),
        ("seeds: []", "seeds in .* is empty"),
        ("seeds: [0, 0]", r"seeds in .* is \[0, 0\], but must be a list of different whole numbers"),
        ("search_seeds: [-1]", "search_seeds in .*, but must be a list of different whole numbers"),
        ("probed: judge", "probed in .* is 'judge', but must be a list"),
        ("measure: 5", "measure in .* is 5, but must be a mapping"),
        ("measure: {num_beams: []}", "num_beams in the measure of .* is empty: list at least one value"),
        ("references: no", "references in .* is 'no', but must be true or false"),
        ("rows: {a: {recipe: x, shown: no}}", "shown of a in .* is 'no', but must be true or false"),
        ("rows: {a: {recipe: 3}}", "recipe of a in .* is 3, but must be text"),
        ("tables: {t: {CIDEr: [CIDEr, x]}}", r"CIDEr in table 't' in .* is \['CIDEr', 'x'\], but must be a heading"),
        ("sets: 3", "sets in .* is 3, but must be a mapping"),
        ("rows: {a: {recipe: x, curve: {y: [1], z: [2]}}}", r"the curve of a in .* has 2 options \(y, z\): name one"),
    ],
)
def test_mistakes_in_a_file_are_told_in_a_sentence(tmp_path, line, said):
    lines = {"title": "title: A", "page": "page: p.md", "rows": "rows: {a: x}"}
    lines[line.partition(":")[0]] = line
    (tmp_path / "p.yaml").write_text("\n".join(lines.values()))
    with pytest.raises(UsageError, match=said):
        read_study(tmp_path / "p.yaml")


def test_an_unknown_recipe_or_option_is_told_before_anything_trains(tmp_path, capsys):
    (tmp_path / "p.yaml").write_text("title: A\npage: p.md\nrows: {a: {recipe: world_ved_nothing, test: false}}")
    with refused(capsys, r"'world_ved_nothing' is not a file or a shipped recipe"):
        run(tmp_path / "p.yaml", argv=["--dry_run", "--output_dir", str(tmp_path)])
    with refused(capsys, r"'b' is not a row of p\.md"):
        run(tmp_path / "p.yaml", argv=["--rows", "b", "--output_dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a: {recipe: world_ved_sll, overrides: {training.lerning_rate: 0.1}}", "did you mean learning_rate"),
        ("a: {recipe: world_ved_sll, overrides: {training.learning_rate: fast}}", "fast"),
        ("a: {recipe: world_ved_sll, curve: {objective.tempratur: [1.0]}}", "did you mean objective.temperature"),
        ("a: {recipe: world_ved_sll, measure: {num_beam: 5}}", "'num_beam' is not an option of tellapart score"),
        ("a: {recipe: world_ved_sll, measure: {num_beams: 0}}", "num_beams"),
        (
            "a: {recipe: world_ved_sll, measure: {num_beams: [1, 5]}}",
            r"num_beams in measure is \[1, 5\], but must be a whole",
        ),
        ("a: world_ved_sll\nmeasure: {num_beams: five}", "num_beams in measure is 'five', but must be a whole number"),
        ("a: world_ved_sll\nmeasure: {judge: world/juge}", "'world/juge' is not part of the built-in world"),
        ("a: world_ved_sll\nmeasure: {split: tst}", r"'tst' is not a split of world: did you mean test\?"),
        (
            "a: {recipe: world_ved_sll, measure: {split: tests}}",
            r"'tests' is not a split of world: did you mean test\?",
        ),
        ("a: world_ved_sll\nprobed: [listner]", "'listner' is not a model of .*: did you mean listener"),
        (
            "a: {recipe: world_ved_sll, overrides: {training.metric_for_best_model: CIDErr}}",
            "metric_for_best_model: 'CIDErr' is",
        ),
        ("a: {recipe: world_ved_sll, overrides: {reward: [{name: truth, weight: 1.0}]}}", "matcher"),
        (
            "a: {recipe: world_ved_xe, overrides: {listener.path: null}, grid: {training.seed: [0, 1]}}",
            r"points of a are chosen by listener_R@1 on val, .* set training\.metric_for_best_model",
        ),
        ("a: world_ved_sll\ntables: {t: {CIDErr: CIDEr}}", "'CIDErr' is not a metric: did you mean CIDEr"),
    ],
)
def test_a_wrong_option_of_a_row_is_told_before_another_row_is_searched(tmp_path, capsys, rows, said):
    grid = "x: {recipe: world_ved_sll, grid: {training.learning_rate: [1.0e-5, 1.0e-4]}}"
    (tmp_path / "p.yaml").write_text(f"title: A\npage: p.md\nrows:\n  {grid}\n  {rows}\n")
    with refused(capsys, said):
        run(tmp_path / "p.yaml", argv=["--dry_run", "--output_dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps is 0"),
        (["--rows", " ; "], "--rows names no row"),
        (["--seeds", "-1"], r"--seeds is \[-1\], but must be a list of different whole numbers"),
        (["--seeds", "1", "1"], r"--seeds is \[1, 1\], but must be a list of different"),
    ],
)
def test_a_wrong_word_of_the_command_line_is_told(study, tmp_path, words, said, capsys):
    with refused(capsys, said):
        run(tmp_path / "p.yaml", argv=["--dry_run", "--output_dir", str(tmp_path), *words])


def test_steps_of_the_command_line_are_those_of_every_row(tmp_path, capsys):
    """Rows with steps of their own kept them."""

    class Looking(Study):
        def check(self):
            loaded = [self.sweep.load(row.setting)[1] for row in self.file.rows.values()]
            raise UsageError(f"steps {[option(recipe, 'training.max_steps') for recipe in loaded]}")

    own = "{recipe: world_ved_sll, overrides: {max_steps: 480}}"
    (tmp_path / "p.yaml").write_text(f"title: A\npage: p.md\nrows: {{a: world_ved_sll, b: {own}}}\n")
    for words, said in (([], r"steps \[\d+, 480\]"), (["--steps", "3"], r"steps \[3, 3\]")):
        with refused(capsys, said):
            run(tmp_path / "p.yaml", kind=Looking, argv=["--dry_run", "--output_dir", str(tmp_path), *words])


def test_a_single_num_beams_may_stand_without_a_list(tmp_path):
    (tmp_path / "p.yaml").write_text("title: A\npage: p.md\nrows: {a: x}\nmeasure: {num_beams: 5}")
    assert read_study(tmp_path / "p.yaml").measures == [{"split": "test", "num_beams": 5}]


@pytest.mark.parametrize("name", ["p.md", "p.yaml"])
def test_a_page_does_not_replace_what_its_study_is_read_from(tmp_path, name, capsys):
    """Else a second run would print the first one's page as the introduction."""
    file = tmp_path / "p.yaml"
    file.write_text(FILE.replace("page: p.md", f"page: {name}"))
    with pytest.raises(SystemExit) as ended:
        run(file, argv=["--dry_run", "--output_dir", str(tmp_path / "runs"), "--docs", str(tmp_path)])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"error: {file} writes its page to {tmp_path / name}, which is " in told
    assert "name another page, or another folder as --docs." in told


def test_a_dry_run_lists_what_is_done(study, tmp_path, capsys):
    file = tmp_path / "p.yaml"
    run(file, argv=["--dry_run", "--output_dir", str(study.sweep.root)])
    said = capsys.readouterr().out
    assert said.endswith("27 of 27 are done\n")  # 5 searched or tried, 19 measured
    run(file, argv=["--dry_run", "--output_dir", str(tmp_path / "other"), "--rows", "a"])
    said = capsys.readouterr().out
    assert "to do  a (learning_rate 1e-05, seed 0)" in said
    assert "to do  xe (seed 2)" in said  # whose one point is known before that of a is chosen
    assert said.endswith("0 of 5 are done\n")


def test_a_failed_training_keeps_the_rest_and_is_named(study, monkeypatch):
    monkeypatch.setattr("tellapart.sweep.tasks.build_stages", lambda named: None)
    broken = study.searching()[0]
    (broken.folder / "trained.json").unlink()
    monkeypatch.setattr("tellapart.sweep.tasks.JOB_MODULE", "no_such_module")
    monkeypatch.setattr("tellapart.sweep.jobs.POLL_SECONDS", 0.05)
    with pytest.raises(
        UsageError, match=r"1 of the trainings failed, first a \(learning_rate 1e-05, seed 0\): .*no_such"
    ):
        study.run(workers=1)
    assert json.loads((study.searching()[1].folder / "trained.json").read_text())["selected"] == 10


def test_a_metric_that_a_seed_lacks_is_not_averaged_over_the_others():
    metrics = [{"CIDEr": 1.0, "mean_length": 9.0}, {"CIDEr": 1.2}]
    assert str(over_seeds(metrics, "CIDEr")) == "110.0 ± 14.1"
    assert over_seeds(metrics, "CIDEr", 1).values == [1.0, 1.2]
    assert over_seeds(metrics, "mean_length") is None


def test_metrics_of_saved_captions_are_added(study):
    study.derive = lambda captions: {"stars": float(len(captions))}
    assert study.read("a", "stars").values == [1.0] * 3


def test_of_a_start_captioner_val_is_measured(study):
    task = study.task("xe", study.file.rows["xe"].setting, 1)
    ((place, how),) = task.measures.items()
    assert how["split"] == "val"
    note_measured(task, place, {"start": {"CIDEr": 1.7}})
    assert task.on_val() == {"CIDEr": 1.7}


def test_a_resumed_log_counts_its_later_line(study):
    setting = study.chosen("a")
    task = study.task("a", setting, 0)
    note_training(task, {0: {"CIDEr": 1.0}, 10: {"CIDEr": 2.0}}, selected=10, further=[{"step": 10, "eval_CIDEr": 3.0}])
    fresh = Study(study.file, study.sweep.root).task("a", setting, 0)
    assert (fresh.on_val()["CIDEr"], fresh.on_val("last")["CIDEr"]) == (3.0, 3.0)


def test_every_key_of_a_study_file_is_documented():
    text = (ROOT / "docs" / "how-to" / "studies.md").read_text(encoding="utf-8")
    for kind, heading in ((StudyFile, "key of the file"), (Row, "key of a row")):
        table = text.partition(f"| {heading} |")[2].partition("\n\n")[0]
        listed = re.findall(r"^\| `(\w+)", table, flags=re.MULTILINE)
        assert set(listed) | {"introduction"} == {field.name for field in fields(kind)} | {"introduction"}


def test_seeds_of_the_command_line_are_those_of_every_row(study, tmp_path, capsys):
    asked = Study(study.file.seeded([0, 1]), study.sweep.root)
    assert {task.seed for task in asked.searching()} == {0}
    assert all([task.seed for task in tasks] == [0, 1] for tasks in asked.measured.values())
    run(tmp_path / "p.yaml", argv=["--dry_run", "--output_dir", str(study.sweep.root), "--seeds", "0", "1"])
    said = capsys.readouterr().out
    assert "to do  c (learning_rate 0.0001, seed 1)" in said, "the file gives c the seed 0 alone"
    assert said.endswith("20 of 21 are done\n")


def test_where_no_metric_selects_the_last_step_counts(tmp_path, monkeypatch):
    lines = (
        FILE.partition("rows:")[0]
        + """
rows:
  d:
    recipe: world_ved_dico
    overrides: {training.metric_for_best_model: null, training.best_floor: {}}
    curve: {objective.beta: [0.1, 0.2]}
"""
    )
    (tmp_path / "p.yaml").write_text(lines)
    study = Study(read_study(tmp_path / "p.yaml"), tmp_path / "runs")
    for value, tasks in zip((1.0, 2.0), study.measured.values(), strict=True):
        for task in tasks:
            note_training(task, {0: {"CIDEr": 0.0}, 60: {"CIDEr": value}}, selected=None)
            for place in task.measures:
                note_measured(task, place, {"last": {"CIDEr": value + 0.1 * task.seed}})
    assert study.read("d (0.1)", "CIDEr") == study.read("d (0.1)", "CIDEr", point="last")
    assert study.read("d (0.2)", "CIDEr").above(study.read("d (0.1)", "CIDEr"))
    assert study.at_fixed("d", "CIDEr", 1.5, "CIDEr", point="selected").values == pytest.approx([150.0] * 3)
    monkeypatch.setattr(study_page, "instruments", lambda study: ["probe"])
    text = write_page(study, tmp_path / "p.md").read_text()
    assert "| d (0.1) | selected | 110.0 ± 10.0 |\n| d (0.1) | last | 110.0 ± 10.0 |" in text


def test_a_page_about_other_images_says_nothing_of_the_world(study, monkeypatch):
    monkeypatch.setattr(study_page, "on_world", lambda recipe: False)
    text = write_page(study, study.sweep.root / "p.md").read_text()
    assert "What each model sees" not in text
    assert "A seed redraws\nthe training; data, start captioner, listeners and judge stay fixed." in text


def test_a_page_may_be_about_another_split(tmp_path, monkeypatch):
    monkeypatch.setattr(study_page, "instruments", lambda study: [])
    study = finished(tmp_path, FILE.replace("samples: 5", "samples: 5, split: val"))
    assert {how["split"] for how in study.file.measures} == {study.file.split} == {"val"}
    text = write_page(study, study.sweep.root / "p.md").read_text()
    assert "## Val, greedy" in text
    assert "Tables are on **val**. CIDEr" in text
    assert "Test" not in text


def test_rows_of_given_captions_of_other_images_have_no_full_descriptions(monkeypatch):
    asked = []
    given = SimpleNamespace(human=lambda: "human", empty=lambda: "empty", score=lambda texts, **about: about["name"])
    monkeypatch.setattr(
        references, "evaluation_of", lambda recipe, *, meteor=False, split: asked.append(split) or given
    )
    monkeypatch.setattr(references, "option", lambda recipe, name: {"data.path": recipe, "data.size": "small"}[name])
    assert references.reference_rows("photos.json", "val") == ["human", "empty"]
    assert references.reference_rows("world", "val") == ["human", "full description", "empty"]
    assert asked == ["val", "val"]


def test_a_page_opens_with_what_its_models_see(study, monkeypatch):
    asked = []
    monkeypatch.setattr(
        instruments, "probe_all", lambda size, *, stages: asked.append((size, stages)) or {"stages": PROBES}
    )
    text = write_page(study, study.sweep.root / "p.md").read_text()
    assert asked == [("full", [*PROBES])]
    assert text.index("<summary>What each model sees (val, %)<") < text.index("## Test, greedy")
    assert "| asked | backbone | xe | listener | judge |" in text
    assert "| shape | 99.3 | 99.6 | 98.6 | 99.5 |" in text
    assert "| object of a cell, by CLS | 81.5 | - | - | - |" in text
    assert "| R@1 of the text *full* | - | - | 67.4 | 67.4 |" in text
    assert (
        "Order-blind: listener. Of the captions sampled from `world/xe`, 85.6 % are true and 98.2 % grammatical."
        in text
    )
    assert "otherwise true, 92.8 % name it correctly." in text


def test_a_damaged_measurement_says_what_to_delete(study):
    task = study.measured["a"][0]
    place = task.folder / next(iter(task.measures))
    damaged = study.checkpoints(task)["selected"].folder / "metrics.json"
    kept = damaged.read_text()
    damaged.write_text("{")
    with pytest.raises(
        UsageError, match=f"holds no readable evaluation .*: delete {place / 'done.json'} and run the same"
    ):
        study.read("a", "CIDEr")
    assert task.done(), "as long as that file is there"
    damaged.write_text(kept)
    (place / "done.json").write_text("{")
    with pytest.raises(UsageError, match=f"done.json is damaged .*: delete {place / 'done.json'} and run the same"):
        study.read("a", "CIDEr")


CHAIN = """
title: Chain
page: chain.md
rows:
  luo: {recipe: world_ved_luo2018, grid: {training.learning_rate: [3.0e-5, 1.0e-4]}}
  own: {recipe: world_ved_listener_only, grid: {training.learning_rate: [3.0e-5, 1.0e-4]}}
  after: {recipe: world_ved_listener_only, captioner_of: luo, point_of: own, seeds: [0, 1]}
"""


def chain(tmp_path, text=CHAIN):
    (tmp_path / "chain.yaml").write_text(text, encoding="utf-8")
    return Study(read_study(tmp_path / "chain.yaml"), tmp_path / "runs")


def test_a_row_may_begin_with_the_captioner_of_another_one(tmp_path, monkeypatch):
    """Its key is known once that is trained: of the same seed, at the chosen point, after the last step."""
    study, ran = chain(tmp_path), []

    def on_val(task):
        return {60: {"listener_R@1": 1e4 * rate(task), "own_listener_R@1": -1e4 * rate(task), "CIDEr": 1.0}}

    def run(tasks, description, *, workers):
        ran.append(sorted({task.name for task in tasks}))
        for task in tasks:
            note_training(task, on_val(task), selected=60)
            for place in task.measures:
                note_measured(task, place, {"selected": {"CIDEr": 1.0}, "last": {"CIDEr": 1.0}})
        return []

    monkeypatch.setattr(study.sweep, "run", run)
    study.run()
    assert [sum("after" in name for name in names) for names in ran] == [0, 0, 2]
    for seed, task in enumerate(study.measured["after"]):
        speaker = study.measured["luo"][seed]
        assert option(speaker.recipe, "training.learning_rate") == 1e-4
        assert option(task.recipe, "training.learning_rate") == 3e-5
        named = option(task.recipe, "captioner.model_name_or_path")
        assert named == str((speaker.folder / "checkpoint-60" / "captioner").resolve())
        assert task.name == f"after (learning_rate 3e-05, seed {seed})", "no path of this machine in what is kept"
    assert set(read_study(tmp_path / "chain.yaml").keeping({"after"}).rows) == {"luo", "own", "after"}


def test_rows_are_kept_with_all_that_they_depend_on(tmp_path):
    """One step of the way was followed, and the last row was looked for in vain."""
    text = CHAIN + "  last: {recipe: world_ved_psst, captioner_of: between}\n"
    text += "  between: {recipe: world_ved_luo2018, point_of: luo}\n"
    (tmp_path / "chain.yaml").write_text(text, encoding="utf-8")
    kept = read_study(tmp_path / "chain.yaml").keeping({"last"})
    assert {"last", "between", "luo"} <= set(kept.rows)
    Study(kept, tmp_path / "runs").check()


def test_a_dry_run_leaves_out_what_begins_with_a_captioner_that_is_not_trained(tmp_path):
    study = chain(tmp_path)
    for task in study.searching():
        note_training(task, {60: {"listener_R@1": 1.0, "own_listener_R@1": 1.0, "CIDEr": 1.0}}, selected=60)
    assert "after" not in listed(study)
    with pytest.raises(FileNotFoundError):
        _ = study.measured


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("captioner_of: nobody", "nobody"),
        ("captioner_of: luo, grid: {training.learning_rate: [1.0e-4]}", "leave start_of and grid out"),
        ("captioner_of: start", "which must train"),
    ],
)
def test_a_row_cannot_begin_with_what_is_not_trained_before_it(tmp_path, row, said):
    text = CHAIN.replace("captioner_of: luo, point_of: own", row) + "  start: {start_of: world_ved_luo2018}\n"
    with pytest.raises(UsageError, match=said):
        chain(tmp_path, text)


def test_the_program_has_help():
    found = subprocess.run(
        [sys.executable, "-m", "tellapart.sweep.run_study", "--help"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0
    assert all(option in found.stdout for option in ("--dry_run", "--output_dir", "--rows"))


def test_a_grid_of_rows_without_a_retriever_has_no_column_of_recall():
    """The page ended in a traceback, after all trainings."""
    task = SimpleNamespace(steps_of={"selected": 3}, on_val=lambda checkpoint: {"CIDEr": 1.0})
    other = SimpleNamespace(steps_of={"selected": 3}, on_val=lambda checkpoint: {"Self-BLEU": 1.0})
    row = SimpleNamespace(start_of=None, grid={"a": [1, 2]}, curve={}, test=True)
    points = [SimpleNamespace(recipe="xe", overrides={"a": value}) for value in (1, 2)]
    file = SimpleNamespace(rows={"xe": row, "photos": row}, search_seeds=[0], heading=str)
    study = SimpleNamespace(
        file=file,
        seeds=[0],
        search_seeds=[0],
        tried=lambda name, setting: [task if name == "xe" else other],
        grid=lambda name: points,
        chosen=lambda name: points[0],
    )
    told = "\n".join(_grid(study))
    assert "| row | point | selected step | CIDEr | last: CIDEr |" in told
    assert "| photos | a 2 | 3 | - | - |" in told  # a metric that a row's trainings lack
