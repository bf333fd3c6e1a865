"""The site shows every page once; what is generated for it names every command, recipe and public name."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import tellapart
from tellapart.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def prepare():
    spec = importlib.util.spec_from_file_location("prepare_site", ROOT / "site" / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths(nav) -> Iterator[str]:
    for entry in nav.values() if isinstance(nav, dict) else nav:
        yield from [entry] if isinstance(entry, str) else paths(entry)


def test_the_navigation_holds_every_page_once(prepare):
    nav = list(paths(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    generated = {f"reference/api/{package}.md" for package in prepare.TITLES}
    generated |= {"reference/commands.md", "reference/shipped_recipes.md"}
    notebooks = (ROOT / "docs").rglob("*.ipynb")
    generated |= {str(path.relative_to(ROOT / "docs").with_suffix(".md")) for path in notebooks}
    assert sorted(nav) == sorted(written | generated)


def test_links_out_of_the_docs_lead_to_the_repository(prepare):
    page = ROOT / "docs" / "how-to" / "score.md"
    assert prepare.relinked("[n](../tutorials/a.ipynb#x) [o](https://x.org/a.ipynb)", page, "https://web") == (
        "[n](../tutorials/a.md#x) [o](https://x.org/a.ipynb)"
    )
    kept = "[b](judge.md) [c](https://x.org) [d](#here)\n```\n](../../f)\n```\n"
    text = f"[a](../../recipes/world_ved_xe.yaml#x) [e](../../recipes) {kept}"
    assert prepare.relinked(text, page, "https://web") == (
        f"[a](https://web/blob/main/recipes/world_ved_xe.yaml#x) [e](https://web/tree/main/recipes) {kept}"
    )


def test_a_notebook_becomes_a_page_with_its_outputs(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "ROOT", tmp_path)
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
                {"output_type": "execute_result", "data": {"image/png": "QUJD\n", "text/plain": ["<Image>"]}},
                {"output_type": "execute_result", "data": {"text/plain": ["2"]}},
            ],
        },
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert prepare.notebook_page(tmp_path / "a.ipynb", "https://web") == (
        "# Title\n\nText.\n\n[This page as a notebook](https://web/blob/main/a.ipynb)\n\n"
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        "![What this cell shows](data:image/png;base64,QUJD)\n\n```text\n2\n```\n"
    )


def test_every_command_recipe_and_public_name_has_its_place(prepare):
    commands = prepare.commands_page()
    assert re.findall(r"^## `tellapart ([a-z-]+)`", commands, flags=re.MULTILINE) == list(COMMANDS)
    assert commands.count("usage: tellapart") >= len(COMMANDS)
    names = {
        name.rpartition(".")[2] for page in prepare.api_pages().values() for name in re.findall("^::: (.*)", page, re.M)
    }
    assert names == set(tellapart.__all__) - {"__version__"}
    shown = re.findall(r"^## `(\w+)`", prepare.recipes_page(), flags=re.MULTILINE)
    assert shown == sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


def test_version_and_address_stand_once():
    """Other files repeat them in formats of their own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == tellapart.__version__
    assert citation["repository-code"] == project["urls"]["Source"]
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["repo_url"] == project["urls"]["Source"]
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
