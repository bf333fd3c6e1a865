"""Every row of every results page that a study makes is a row of its file, and every row's recipe loads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sweep.study_fakes import ROOT, STUDIES, module
from tellapart.recipe.shipped import find_recipe
from tellapart.sweep.page_parts import FIGURES
from tellapart.sweep.run_study import run
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import read_study
from tellapart.sweep.trainings import option

FILES = sorted(STUDIES.glob("*.yaml"))
TABLE = read_study(STUDIES / "table.yaml")
GIVEN = {"*human*", "*full description*", "*empty caption*"}


def names_in(page: str) -> set[str]:
    """The rows of the tables on test: those with a checkpoint, or those of the table over everything."""
    path = ROOT / "docs" / "results" / page
    text = path.read_text(encoding="utf-8")
    if page == TABLE.page:
        head = text.partition("<summary>Where each row's point was chosen")[0].partition(
            "<summary>The recipe of each row"
        )[0]
        cells = re.findall(r"^\| ([^|]+?)(?: \*)? \| [\d.]+ ± ", head, flags=re.MULTILINE)
        return {cell.partition(" (from ")[0] for cell in cells}
    return (
        set(re.findall(r"^\| ([^|]+) \| (?:selected|last|-) \|", text.partition(FIGURES)[2], flags=re.MULTILINE))
        - GIVEN
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_rows_of_a_page_are_those_of_its_study(file: Path, tmp_path: Path):
    study = Study(read_study(file), tmp_path)
    shown = {
        name
        for row, values in study.file.rows.items()
        if values.test and values.shown
        for name in study.curve(row).values()
    }
    assert names_in(study.file.page) == shown


def test_the_published_setting_of_vlrm_is_a_row_over_three_seeds(tmp_path, capsys):
    """Temperature 2, top-k 6 and the mean over each caption at once, tried at every rate of the row it is held against."""
    file = read_study(STUDIES / "vlrm.yaml")
    row = file.rows["vlrm, published"]
    assert row.overrides == {"objective.temperature": 2.0, "objective.top_k": 6, "objective.reduction": "seq_mean"}
    assert (row.grid, row.seeds or file.seeds) == (file.rows["vlrm"].grid, (0, 1, 2))
    words = ["--dry_run", "--rows", "vlrm, published", "--output_dir", str(tmp_path)]
    run(STUDIES / "vlrm.yaml", derive=lambda captions: {}, argv=words)
    listed = capsys.readouterr().out
    assert "to do  vlrm, published (learning_rate 0.001, seed 0)" in listed
    assert "vlrm, no language model" not in listed


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_row_is_a_recipe(file: Path, tmp_path: Path):
    """The first and the last point of each row, with the row's options."""
    study = Study(read_study(file), tmp_path)
    for name, row in study.file.rows.items():
        for setting in {0: row.setting, **dict(enumerate(study.grid(name)[:1] + study.grid(name)[-1:], 1))}.values():
            _, recipe = study.sweep.load(setting)
            for key, value in setting.overrides.items():
                value = weighted(value, setting.overrides) if key == "reward" else value
                assert said(option(recipe, key), value) == value, f"{name}: {key}"


def weighted(rewards: Any, overrides: Mapping[str, Any]) -> Any:
    """A list of rewards with the weights that are asked for by themselves, as a grid does it."""
    return [part | {"weight": overrides.get(f"reward.{part['name']}", part["weight"])} for part in rewards]


def said(found: Any, asked: Any) -> Any:
    """What a recipe has, without the options of its rewards that were not asked for."""
    if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        return found
    return [
        {key: said_of(one[key], value) for key, value in part.items()} for one, part in zip(found, asked, strict=True)
    ]


def said_of(found: Any, asked: Any) -> Any:
    return {key: found[key] for key in asked} if isinstance(asked, dict) else found


def test_nothing_is_built_to_list_a_study_or_for_rows_that_are_left_out(tmp_path, monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise AssertionError("nothing is to be built")

    sle = module("sle")
    monkeypatch.setattr("tellapart.world.lstm.world_features", refuse)
    monkeypatch.setattr("tellapart.world.stages._build", refuse)
    run(STUDIES / "sle.yaml", prepare=sle.prepare, argv=["--dry_run", "--output_dir", str(tmp_path)])
    assert "to do  lstm sle (alpha 0.5, learning_rate 1e-05, seed 0)" in capsys.readouterr().out
    kept = read_study(STUDIES / "sle.yaml").keeping({"sll"})
    assert list(kept.rows) == ["xe", "sll"]
    assert sle.prepare(kept, "full", True) == kept
    assert list(read_study(STUDIES / "sle.yaml").keeping({"lstm sll"}).rows) == ["lstm xe", "lstm sll"]


def test_the_table_is_recipes_as_they_stand():
    assert len(TABLE.rows) == 51
    assert not [name for name, row in TABLE.rows.items() if row.overrides or row.grid or row.point_of or row.curve]
    searched = {name: row for name, row in TABLE.rows.items() if row.measure}
    assert list(searched) == ["xe, 20 beams", *(name for name in TABLE.rows if "apart" in name)]
    trained = [row.recipe for name, row in TABLE.rows.items() if row.recipe and name not in searched]
    assert len(trained) == len(set(trained)) == 40
    assert {row.recipe for row in searched.values() if row.recipe} <= set(trained), "trained once, drawn twice"


def test_every_method_of_the_table_has_one_start(tmp_path: Path):
    study = Study(TABLE, tmp_path)
    starts = {option(study.sweep.load(row.setting)[1], "captioner.model_name_or_path") for row in TABLE.rows.values()}
    assert starts == {"world/xe", "world/xe-sharp", "world/blip2"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_study_has_its_text_and_its_program(file: Path):
    study = read_study(file)
    assert study.introduction
    more = "" if file.stem == "world" else f" STUDY={file.stem}"
    assert re.search(rf"make study{more}( DATA=\w+)?`", study.introduction)
    program = file.with_suffix(".py").read_text(encoding="utf-8")
    assert "run(__file__" in program
    pages = {read_study(other).page for other in FILES}
    for link in re.findall(r"\]\((?!http)([^)\s#]+)", study.introduction):
        assert link in pages or (ROOT / "docs" / "results" / link).exists(), link


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recipes_are_named_by_files_of_the_folder(file: Path):
    for row in read_study(file).rows.values():
        assert find_recipe(row.setting.recipe).parent.name == "recipes"
