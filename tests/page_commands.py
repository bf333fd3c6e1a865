"""The commands that pages show: in which line, with which words, and whether they are marked as needing a download.

A block of code in no language that begins with a command holds commands only, in the order in which a reader types them.
A comment with one of the words in ``MARK`` marks a command: on its own line, or above it in the block, where it marks all
commands down to the next comment or blank line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart.cli.train import recipe_of
from tellapart.cli.train_listener import PAC
from tellapart.recipe.listener import load_listener
from tellapart.recipe.words import read_words

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", ".github/**/*.md", "benchmarks/*.md", "docs/**/*.md", "space/*.md", "studies/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"  # it names what came when
)

MARK = re.compile(r"\b(downloads|uploads|needs)\b")
ENVIRONMENT = re.compile(r"^(?:[A-Z_]+=\S+\s+)+")
PROGRAMS = ("tellapart", "make", "python", "pip", "torchrun")
"""Programs whose words are checked."""
OTHERS = ("hf", "ray", "vllm", "export", ".venv/bin/pre-commit")
"""Programs of other projects."""
FENCE = re.compile(r"^\s*```(\w*)")
SLURM = "#SBATCH"
FILES = re.compile(
    r"`([\w.]+\.(?:yaml|py|toml))`[^`]*?:\n\n```(?:yaml|python|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL
)


OWN_RECIPE = """
method: xe
captioner: {model_name_or_path: world/xe}
data: {path: world, split: train}
evaluation: {split: null}
training: {output_dir: runs/own, max_steps: 2, per_device_train_batch_size: 8}
"""
OWN_RECIPES = ("recipe.yaml", "my_recipe.yaml")
"""Recipes of the reader's, on pages that show none."""
FROM_OUTSIDE = {"best_of_n.yaml": "best_of_n"}
"""Recipe -> its method, of a package that the page has its reader install; ``test_add_a_method.py`` follows that page."""

HUB = re.compile(r"[A-Za-z][\w-]*/[\w.-]+|gpt2|clip_ViT-B-32\.pth")
HERE = (
    "clips",
    "features",
    "images",
    "judgements",
    "logs",
    "new",
    "out",
    "photos",
    "recipes",
    "runs",
    "scored",
    "shards",
    "shared",
    "bucket",
    "world",
)
"""First part of paths of the reader's, and of names of the built-in world, which look like names of the hub otherwise."""
COCO = "data/"
"""Where published data are."""


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Args:
        page: path below the repository.
        line: number of its first line.
        text: without comments, in one line.
        mark: the comment that says what it needs; empty where it needs nothing.
    """

    page: str
    line: int
    text: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def words(self) -> list[str]:
        """The program and what follows it."""
        return shlex.split(ENVIRONMENT.sub("", self.text))

    @property
    def program(self) -> str:
        return self.words[0]

    @property
    def synopsis(self) -> bool:
        """Whether it describes a command (``[--option VALUE]``) instead of being one."""
        return "[--" in self.text


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[list[tuple[int, str]]]:
    """Numbered lines of each block in no language."""
    language, block = None, list[tuple[int, str]]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if fence is None:
            block.append((number, line))
        elif language is None:
            language, block = fence[1], []
        else:
            if not language:
                yield block
            language = None


def is_command(line: str) -> bool:
    return ENVIRONMENT.sub("", line).split(" ")[0] in (*PROGRAMS, *OTHERS)


def without_comment(line: str) -> tuple[str, str]:
    """A line of a shell, and the comment at its end."""
    found = re.search(r"(?:^|\s)#(?!SBATCH)\s*(.*)$", line)
    return (line, "") if found is None else (line[: found.start()].rstrip(), found[1])


def commands_in(block: list[tuple[int, str]], page: str) -> list[Command]:
    """The commands of a block; none where it begins with something else.

    Raises:
        ValueError: one of its lines is no command.
    """
    found, above, begun = list[Command](), "", list[tuple[int, str]]()
    if not any(is_command(line) for _, line in block):
        return []
    for number, line in block:
        text, comment = without_comment(line)
        if not text.strip() or text.startswith(SLURM):
            above = comment if MARK.search(comment) else ""
            continue
        begun.append((number, text.removesuffix("\\")))
        if text.endswith("\\"):
            continue
        joined = " ".join(part.strip() for _, part in begun)
        if not is_command(joined):
            raise ValueError(f"{page}:{number}: {joined!r} is no command that is known, in a block of commands")
        mark = comment if MARK.search(comment) else above
        found.append(Command(page, begun[0][0], joined, mark))
        begun = []
    return found


def commands_of(page: Path) -> list[list[Command]]:
    """The commands of each block of commands."""
    return [found for block in blocks(page) if (found := commands_in(block, name_of(page)))]


def inline_commands(page: Path) -> list[Command]:
    """Commands in sentences and tables; ``...`` and brackets describe instead of being words."""
    text = re.sub(
        r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), page.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    return [
        Command(name_of(page), number, code)
        for number, line in enumerate(text.splitlines(), start=1)
        for code in re.findall(r"`([^`]+)`", line)
        if re.match(r"(tellapart|make|python|torchrun|pip install) \S", code)
    ]


def files_of(page: Path) -> dict[str, str]:
    """Files that a page has its reader write: each is named in the line above its block."""
    return dict(FILES.findall(page.read_text(encoding="utf-8")))


COMMANDS = {name_of(page): found for page in PAGES if (found := commands_of(page))}
"""Page -> the commands of each of its blocks."""


def write_own_recipes(folder: Path) -> None:
    for name in OWN_RECIPES:
        (folder / name).write_text(OWN_RECIPE)


def listener_recipe_of(words: list[str]) -> Any:
    """The recipe of a command ``train-listener``."""
    argv = [part for word in words for part in (PAC if word == "--pac" else (word,))]
    return read_words(argv, lambda source, asked, options, plugins: load_listener(source, options))[0]


def needed(command: Command, folder: Path) -> set[str]:
    """Models and data of the hub that a command names, itself or in its recipe, and published data.

    Args:
        command: of a page.
        folder: the current one, where the files that the page shows are written.
    """
    for name, text in files_of(ROOT / command.page).items():
        (folder / name).write_text(text)
    words = command.words[command.words.index("tellapart") :]
    named = set(words[1:])
    if words[1] == "train" and words[2] not in FROM_OUTSIDE:
        named |= set(_leaves(recipe_of(words[2:])[0].resolved))
    if words[1] == "train-listener":
        named |= set(_leaves(listener_recipe_of(words[2:]).resolved))
    hub = {word for word in named if HUB.fullmatch(word) and word.partition("/")[0] not in HERE}
    return hub | {word for word in named if word.startswith(COCO)}


def _leaves(value: Any) -> Iterator[str]:
    """Every text in a resolved recipe."""
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _leaves(each)
