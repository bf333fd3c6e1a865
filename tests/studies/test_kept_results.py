"""The results that are kept of a study are those of its page."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sweep.study_fakes import ROOT, STUDIES, loaded_once, module
from tellapart.sweep.kept import restore
from tellapart.sweep.notes import NOTES
from tellapart.sweep.run_study import known
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import read_study

__all__ = ["loaded_once"]

ARCHIVES = sorted((STUDIES / "kept").glob("*.tar.xz"))
KEPT = [path for path in ARCHIVES if (STUDIES / path.name.replace(".tar.xz", ".yaml")).is_file()]
FRONTIER = STUDIES / "kept" / "frontier.tar.xz"


def kind_of(made: ModuleType) -> type[Study]:
    """The kind of study that a study's program runs."""
    kinds = [one for one in vars(made).values() if isinstance(one, type) and issubclass(one, Study)]
    return next((one for one in kinds if one is not Study), Study)


@pytest.mark.parametrize("archive", KEPT, ids=lambda path: path.name.partition(".")[0])
def test_a_page_is_written_again_from_what_is_kept(archive: Path, tmp_path: Path, monkeypatch):
    """To the byte, by the study's program, with no training and no model of the world. The archive stays what it is."""
    name = archive.name.partition(".")[0]
    file, made = read_study(STUDIES / f"{name}.yaml"), module(name)
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    root, docs, ours = tmp_path / "study", tmp_path / "docs", Path(shutil.copy(archive, tmp_path))
    prepare = getattr(made, "prepare", None)
    prepared = file if prepare is None else prepare(file, "full", False)
    kept = restore(ours, root)
    study = kind_of(made)(prepared, root, common={"data.size": "full"}, kept=kept)
    tasks = known(study)
    assert all(task.done() for task in tasks), f"study {name} was stopped: its page shows what was measured before"
    stale = f"{archive} is of other recipes, in part: run the study, or delete what it has of them"
    assert {folder.name for folder in kept.iterdir()} <= {NOTES, *(task.folder.name for task in tasks)}, stale
    docs.mkdir()
    page = ROOT / "docs" / "results" / file.page
    shutil.copy(page, docs)  # what a person wrote
    words = [str(STUDIES / f"{name}.py"), "--output_dir", str(root), "--docs", str(docs), "--kept", str(ours)]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr("sys.path", [str(STUDIES), *sys.path])
    runpy.run_path(words[0], run_name="__main__")
    assert (docs / file.page).read_bytes() == page.read_bytes()
    assert ours.read_bytes() == archive.read_bytes()
    assert not [*(tmp_path / "cache").rglob("*.safetensors")], "a model of the world was built"


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in ("apart", "pac") if (STUDIES / "kept" / f"{name}.tar.xz").is_file()])
def test_a_page_without_trainings_is_written_again_from_what_is_kept(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    ours = Path(shutil.copy(STUDIES / "kept" / f"{name}.tar.xz", tmp_path))
    page = shutil.copy(ROOT / "docs" / "results" / f"world-{name}.md", tmp_path)
    module(name).main(["--output_dir", str(tmp_path / "study"), "--docs", str(tmp_path), "--kept", str(ours)])
    assert Path(page).read_bytes() == (ROOT / "docs" / "results" / f"world-{name}.md").read_bytes()
    assert ours.read_bytes() == (STUDIES / "kept" / f"{name}.tar.xz").read_bytes()
    assert not [*(tmp_path / "cache").rglob("*.safetensors")], "a model of the world was built"


def test_the_tables_of_the_frontier_are_written_again_from_what_is_kept(tmp_path: Path):
    """To the byte, with no training and no model; the pictures are drawn from the same numbers."""
    (tmp_path / "kept").mkdir()
    kept = Path(shutil.copy(FRONTIER, tmp_path / "kept"))
    words = ["--output_dir", str(tmp_path / "study"), "--docs", str(tmp_path / "docs"), "--kept", str(kept)]
    with pytest.raises(SystemExit) as ended:
        module("frontier").main([*words, "--images", "0"])
    assert ended.value.code == 0
    pages = ROOT / "docs" / "results"
    page = (pages / "frontier.md").read_text(encoding="utf-8")
    for label, (_, grid) in module("frontier").CURVES.items():
        assert f"| {grid.partition('=')[2].replace(',', ', ')} |" in page, f"{label} has other values on the page"
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {
        path.name for path in pages.glob("frontier*") if path.name != "frontier.md"
    }
    assert (tmp_path / "docs" / "frontier-tables.md").read_bytes() == (pages / "frontier-tables.md").read_bytes()
    assert kept.read_bytes() == FRONTIER.read_bytes()
