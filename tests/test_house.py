"""The size of the rooms: what reviewers would otherwise have to count."""

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).resolve().parents[1] / "src").rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, LONGEST_OBJECTIVE = 300, 40, 120


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(path.parents[2])))
def test_rooms_are_small(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            lines = code_lines(node)
            assert lines <= LONGEST_FUNCTION, f"{node.name} has {lines} lines"
        if path.parent.name == "objectives" and isinstance(node, ast.ClassDef):
            assert code_lines(node) <= LONGEST_OBJECTIVE


def code_lines(node) -> int:
    """Lines of a definition without its own docstring."""
    documented = ast.get_docstring(node, clean=False)
    return node.end_lineno - node.lineno + 1 - (len(documented.splitlines()) if documented else 0)


def test_test_files_have_names_of_their_own():
    """pytest imports test files by their bare names: two alike, in one process, are an error."""
    names = [path.name for path in Path(__file__).resolve().parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_the_list_of_sources_is_not_empty():
    assert len(SOURCES) > 50
