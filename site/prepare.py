"""Sources of the site: the pages of ``docs``, with pages that are generated from commands, recipes and public names.

``python site/prepare.py`` writes ``build/site-docs``, which ``mkdocs build`` reads. Links that leave ``docs`` lead to the
repository.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import yaml

import tellapart
from tellapart.cli import main as commands

ROOT = Path(__file__).resolve().parents[1]
DOCS, WRITTEN = ROOT / "docs", ROOT / "build" / "site-docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```)", flags=re.DOTALL | re.MULTILINE)
TITLES = {
    "captioners": "Captioners",
    "captioning": "Captioning",
    "data": "Data",
    "evaluation": "Evaluation",
    "listeners": "Listeners",
    "metrics": "Metrics",
    "objectives": "Methods",
    "recipe": "Recipes and models",
    "rewards": "Rewards",
    "training": "Training",
    "types": "Records",
    "world": "The world",
}
"""Package -> title of its page."""


def repository() -> str:
    """Where files of the repository are read on the web."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return yaml.safe_load(re.search(r"^repo_url:.*$", config, flags=re.MULTILINE)[0])["repo_url"]  # type: ignore[index]


def relinked(text: str, page: Path, web: str) -> str:
    """A page whose links out of ``docs`` lead to the repository, and those to notebooks to their pages.

    Args:
        text: the page.
        page: its path in the checkout.
        web: the repository's address.
    """

    def lead(match: re.Match[str]) -> str:
        link = match[1]
        name, hash_, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / name))
        if "://" in link or not name or target.is_relative_to(DOCS):
            return match[0].replace(".ipynb", ".md") if target.suffix == ".ipynb" and "://" not in link else match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({web}/{kind}/main/{target.relative_to(ROOT).as_posix()}{hash_}{anchor})"

    parts = FENCED.split(text)
    return "".join(part if i % 2 else LINK.sub(lead, part) for i, part in enumerate(parts))


def notebook_page(notebook: Path, web: str) -> str:
    """A notebook as a page: its text, its code and what running it showed, with a link to the file itself.

    Args:
        notebook: the ``.ipynb``.
        web: the repository's address.
    """
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join("".join(data["image/png"]).split())
                parts.append(f"![What this cell shows](data:image/png;base64,{picture})")
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```text\n{text.rstrip()}\n```")
    where = f"{web}/blob/main/{notebook.relative_to(ROOT).as_posix()}"
    parts.insert(1, f"[This page as a notebook]({where})")
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """The help of every command."""
    parts = ["# Commands\n\nWhat `tellapart help COMMAND` prints.\n"]
    for name in commands.COMMANDS:
        said = StringIO()
        with redirect_stdout(said):
            commands.main([name, "--help"])
        parts.append(f"## `tellapart {name}`\n\n```text\n{said.getvalue().rstrip()}\n```\n")
    return "\n".join(parts)


def recipes_page() -> str:
    """Every shipped recipe as it stands."""
    parts = ["# Shipped recipes\n\n`tellapart recipes NAME` prints one, `tellapart train NAME` trains it.\n"]
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        parts.append(f"## `{path.stem}`\n\n```yaml\n{path.read_text(encoding='utf-8').rstrip()}\n```\n")
    return "\n".join(parts)


def api_pages() -> Mapping[str, str]:
    """Package -> its page of public names, for mkdocstrings; the modules that define them are named."""
    by_package: dict[str, list[str]] = defaultdict(list)
    for name, module in tellapart.public_names().items():
        package = module.split(".")[1]
        by_package["types" if package == "errors" else package].append(f"{module}.{name}")
    odd = by_package.keys() ^ TITLES.keys()
    if odd:
        raise SystemExit(f"Titles of API pages and packages with public names differ: {', '.join(sorted(odd))}.")
    return {
        package: "\n\n".join([f"# {TITLES[package]}", *(f"::: {name}" for name in sorted(names))]) + "\n"
        for package, names in by_package.items()
    }


def main() -> None:
    """Write all pages anew."""
    shutil.rmtree(WRITTEN, ignore_errors=True)
    shutil.copytree(DOCS, WRITTEN)
    web = repository()
    for notebook in sorted(DOCS.rglob("*.ipynb")):
        written = WRITTEN / notebook.relative_to(DOCS)
        written.with_suffix(".md").write_text(notebook_page(notebook, web), encoding="utf-8")
        written.unlink()
    for page in WRITTEN.rglob("*.md"):
        page.write_text(
            relinked(page.read_text(encoding="utf-8"), DOCS / page.relative_to(WRITTEN), web), encoding="utf-8"
        )
    reference = WRITTEN / "reference"
    (reference / "api").mkdir()
    (reference / "commands.md").write_text(commands_page(), encoding="utf-8")
    (reference / "shipped_recipes.md").write_text(recipes_page(), encoding="utf-8")
    for package, text in api_pages().items():
        (reference / "api" / f"{package}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
