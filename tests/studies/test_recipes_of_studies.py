"""A recipe has the point that its study chose on val."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies.test_kept_results import KEPT, kind_of
from sweep.study_fakes import STUDIES, loaded_once, module
from tellapart.sweep.kept import restore
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import Row, read_study
from tellapart.sweep.tasks import Setting
from tellapart.sweep.trainings import option

__all__ = ["loaded_once"]

VARIED = {"world_ved_dico_truth"}
"""Recipes that studies only vary: `truth` explains this one, and its grid has more steps."""


def study_from(name: str, root: Path, kept: Path | None = None) -> Study:
    made, file = module(name), read_study(STUDIES / f"{name}.yaml")
    prepare = getattr(made, "prepare", None)
    file = file if prepare is None else prepare(file, "full", False)
    return kind_of(made)(file, root, common={"data.size": "full"}, kept=kept)


def recipes_as_they_stand(study: Study) -> dict[str, dict[str, Any]]:
    """The rows with a grid that change nothing else of their recipe, and whose grid has the recipe's values -> that recipe."""
    searched = {name: row for name, row in study.file.rows.items() if row.grid}
    recipes = {name: study.sweep.load(Setting(row.recipe))[1] for name, row in searched.items()}
    return {name: recipe for name, recipe in recipes.items() if not varied(searched[name], recipe)}


def varied(row: Row, recipe: dict[str, Any]) -> bool:
    """Whether a row changes options of its recipe other than its curve's, or tries an option without the recipe's value."""
    changed = {key: value for key, value in row.overrides.items() if key not in (*row.curve, "data.features")}
    return any(option(recipe, key) != value for key, value in changed.items()) or any(
        option(recipe, key) not in values for key, values in row.grid.items()
    )


@pytest.mark.parametrize("archive", KEPT, ids=lambda path: path.name.partition(".")[0])
def test_a_recipe_has_the_point_that_its_study_chose(archive: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    study = study_from(archive.name.partition(".")[0], tmp_path, restore(archive, tmp_path))
    assert all(task.done() for task in study.searching()), "the study was stopped before its points were chosen"
    for name, recipe in recipes_as_they_stand(study).items():
        row, chosen = study.file.rows[name], study.chosen(name).overrides
        assert {key: option(recipe, key) for key in row.grid} == {key: chosen[key] for key in row.grid}, name


def test_a_recipe_that_is_searched_is_searched_as_it_stands(tmp_path: Path):
    """By one of the studies; else the test above would hold for any of its values."""
    searched, standing = set[str](), set[str]()
    for archive in KEPT:
        study = study_from(archive.name.partition(".")[0], tmp_path)
        searched |= {row.recipe for row in study.file.rows.values() if row.grid}
        standing |= {study.file.rows[name].recipe for name in recipes_as_they_stand(study)}
    assert searched - standing == VARIED
