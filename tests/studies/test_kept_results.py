"""The results that are kept of a study are those of its page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sweep.study_fakes import ROOT, STUDIES, loaded_once, module
from tellapart.sweep.kept import restore
from tellapart.sweep.run_study import known
from tellapart.sweep.study import Study
from tellapart.sweep.study_file import read_study
from tellapart.sweep.study_page import test_table as table_of  # under this name pytest would take it for a test
from tellapart.sweep.tasks import POINTS

__all__ = ["loaded_once"]

KEPT = sorted(path for path in (STUDIES / "kept").glob("*.tar.xz") if path.name != "frontier.tar.xz")
FRONTIER = STUDIES / "kept" / "frontier.tar.xz"


def kind_of(made: ModuleType) -> type[Study]:
    """The kind of study that a study's program runs."""
    kinds = [one for one in vars(made).values() if isinstance(one, type) and issubclass(one, Study)]
    return next((one for one in kinds if one is not Study), Study)


def tables_of(made: ModuleType, study: Study) -> Iterator[str]:
    """The tables of a study's page."""
    file = study.file
    if hasattr(made, "table_lines"):
        (columns,) = file.tables.values()
        for point in made.TITLES:
            yield made.table(made.table_lines(study, point), columns)
        return
    for decoding in file.decodings:
        for columns in file.tables.values():
            yield table_of(study, decoding, columns, {})
    if file.sets:
        yield table_of(study, file.decodings[0], file.sets, {})


@pytest.mark.parametrize("archive", KEPT, ids=lambda path: path.name.partition(".")[0])
def test_the_tables_of_a_page_are_those_of_what_is_kept(archive: Path, tmp_path: Path):
    name = archive.name.partition(".")[0]
    file, made = read_study(STUDIES / f"{name}.yaml"), module(name)
    prepare = getattr(made, "prepare", None)
    # Rows whose weights another row begins with are not kept, so what begins with them is known only once they are trained.
    begun = {row for row, description in file.rows.items() if description.captioner_of}
    file = file.keeping(set(file.rows) - set(file.sources) - begun)
    file = file if prepare is None else prepare(file, "full", False)
    study = kind_of(made)(file, tmp_path, common={"data.size": "full"})
    restore(archive, tmp_path)
    restored = {folder.name for folder in (tmp_path / POINTS).iterdir()}
    if name == "negclip":  # whose points are held against the rows of that table
        restore(archive.with_name("table.tar.xz"), tmp_path)
    asked = {task.folder.name for task in known(study)}
    stale = f"{archive} is of other recipes, in part: run the study, or delete what it has of them"
    assert len(restored - asked) <= len(begun) * len(file.seeds), stale
    if not all(task.done() for task in known(study)):
        pytest.skip(f"study {name} was stopped: its page shows what was measured before")
    page = (ROOT / "docs" / "results" / file.page).read_text(encoding="utf-8")
    for table in tables_of(made, study):
        rows = table.splitlines()[2:]
        assert rows
        assert not [row for row in rows if row not in page]


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
