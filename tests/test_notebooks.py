"""The notebooks of the tutorials run from top to bottom, on small data; what they show was written by a run of the same code."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).resolve().parents[1] / "docs" / "tutorials").glob("*.ipynb"))
}
SMALL = {
    "notebook_apart": ('SIZE = "full"', 'SIZE = "small"'),
    "notebook_hacking": ('SIZE, STEPS, IMAGES = "full", 30, 200', 'SIZE, STEPS, IMAGES = "small", 2, 8'),
}
"""Notebook -> its line of sizes, and what the test puts there."""


def code(notebook: dict) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_two():
    assert list(NOTEBOOKS) == list(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells, (written, small) = code(NOTEBOOKS[name]), SMALL[name]
    assert sum(cell.count(written) for cell in cells) == 1
    names: dict = {}
    for number, cell in enumerate(cells):
        exec(compile(cell.replace(written, small), f"{name}, cell {number}", "exec"), names)
    said = capsys.readouterr().out
    assert said.count("->") == {"notebook_apart": 8, "notebook_hacking": 4}[name]


@pytest.mark.parametrize("name", SMALL)
def test_every_cell_was_run_in_order_without_an_error(name):
    """An edit of a cell that is not run again shows outputs of other code: ``jupyter execute --inplace`` clears that."""
    cells = [cell for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    for cell in cells:  # whoever prints or ends in a value shows something
        last = ast.parse("".join(cell["source"])).body[-1]
        assert bool(cell["outputs"]) or not isinstance(last, ast.Expr)
