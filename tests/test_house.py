"""Rules of the tests' own files that no tool checks; size is ruff's: C901 in pyproject.toml."""

from pathlib import Path


def test_test_files_have_names_of_their_own():
    """pytest imports test files by their bare names: two alike, in one process, are an error."""
    names = [path.name for path in Path(__file__).resolve().parent.rglob("test_*.py")]
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))
