"""The commands of all pages are read as the programs read them, values included, up to the first file or model that they name.

``test_page_runs.py`` runs them every night.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from page_commands import (
    COMMANDS,
    FROM_OUTSIDE,
    OTHERS,
    PAGES,
    ROOT,
    Command,
    blocks,
    commands_in,
    files_of,
    inline_commands,
    listener_recipe_of,
    name_of,
    needed,
    write_own_recipes,
)
from tellapart.cli import caption, caption_options, caption_shards, frontier, judge, questions
from tellapart.cli.caption_options import CaptionOptions
from tellapart.cli.command import options_of
from tellapart.cli.compare import CompareOptions
from tellapart.cli.data import CheckOptions, ConvertOptions
from tellapart.cli.features import FeaturesOptions
from tellapart.cli.frontier_words import read_words as read_frontier
from tellapart.cli.judge import JudgeOptions
from tellapart.cli.main import COMMANDS as VERBS
from tellapart.cli.main import main
from tellapart.cli.mine import MineOptions
from tellapart.cli.push import PushOptions
from tellapart.cli.questions import QuestionsOptions
from tellapart.cli.report import ReportOptions
from tellapart.cli.train import recipe_of
from tellapart.errors import UsageError
from tellapart.objectives import METHODS
from tellapart.recipe.rewards import refuse_controls
from tellapart.recipe.score_options import ScoreOptions
from tellapart.recipe.shipped import find_recipe
from tellapart.sweep.run_study import run as run_study

ALL = [command for page in COMMANDS.values() for block in page for command in block]
FULL = [command for command in ALL if not command.synopsis and command.program not in OTHERS]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


class Read(Exception):
    """A command line was read: positional words and options."""

    def __init__(self, words: list[str], options: Any) -> None:
        super().__init__()
        self.words, self.options = words, options


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A reader's folder that holds nothing but recipes."""
    write_own_recipes(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def read(folder, monkeypatch) -> Callable[[Command], None]:
    """Reads a command as its program does; an error is the program's own."""

    def stopped(argv: Any, kind: type, **shown: str) -> None:
        found = options_of(argv, kind, **shown)
        raise Read(*found) if found else Read([], None)

    for module in {VERBS[verb][1].partition(":")[0] for verb in VERBS} | {caption_shards.__name__}:
        if hasattr(import_module(module), "options_of"):
            monkeypatch.setattr(f"{module}.options_of", stopped)
    parse = argparse.ArgumentParser.parse_known_args

    def parsed(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> None:
        found, rest = parse(self, args, namespace)
        assert not rest or self.prog != Path(sys.argv[0]).name or not self.add_help, rest
        raise Read(rest, found)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parsed)

    def of(command: Command) -> None:
        for name, text in files_of(ROOT / command.page).items():
            (folder / name).write_text(text)
        READERS[command.program](command.words[1:], monkeypatch)

    return of


def read_tellapart(argv: list[str], patch: pytest.MonkeyPatch) -> None:
    verb, *words = argv
    assert verb in VERBS, verb
    if verb in TRAININGS:
        TRAININGS[verb](words)
        return
    if "--help" in words:
        assert main(argv) == 0
        return
    module, _, function = VERBS[verb][1].partition(":")
    command = getattr(import_module(module), function)
    with pytest.raises(Read) as found:
        command(words)
    check(found.value.words, found.value.options)


def check(words: list[str], options: Any) -> None:
    """The checks of a command that come before it reads a file, and the number of its words."""
    if type(options) in CHECKS:
        CHECKS[type(options)](words, options)
    least, most = WORDS.get(type(options), (0, 99))
    assert least <= len(words) <= most, words


def check_caption(words: list[str], options: CaptionOptions) -> None:
    if options.by_shard:
        caption_shards._check(options)
    else:
        caption_shards.check_unsharded(options)
        caption_options.check(options)
        caption.decodings(options)
    assert words


def check_score(words: list[str], options: ScoreOptions) -> None:
    options.check()
    assert len(words) == (0 if options.protocols else 1)


def check_judge(words: list[str], options: JudgeOptions) -> None:
    if options.results is None:
        judge._check(words, options)
    else:
        assert not words


CHECKS: dict[type, Callable[[list[str], Any], None]] = {
    CaptionOptions: check_caption,
    ScoreOptions: check_score,
    JudgeOptions: check_judge,
    QuestionsOptions: lambda words, options: questions._check(options),
}
WORDS: dict[type, tuple[int, int]] = {
    QuestionsOptions: (1, 1),
    MineOptions: (1, 1),
    FeaturesOptions: (1, 1),
    PushOptions: (1, 1),
    ConvertOptions: (2, 2),
    CheckOptions: (1, 99),
    CompareOptions: (1, 99),
    ReportOptions: (1, 99),
}
"""Options of a command -> how many words it takes next to them."""


def read_train(words: list[str]) -> None:
    if words[0] in FROM_OUTSIDE:
        assert FROM_OUTSIDE[words[0]] not in METHODS
    else:
        refuse_controls(recipe_of(words)[0])


def read_grids(words: list[str]) -> None:
    """Every recipe with every value of its grid."""
    read_frontier(words)
    assert frontier.run([*words, "--seeds", "1", "--dry_run"]) == 0


TRAININGS = {"train": read_train, "train-listener": listener_recipe_of, "frontier": read_grids}


def read_python(words: list[str], patch: pytest.MonkeyPatch) -> None:
    """Scripts and modules up to their command line; a text of code up to its imports."""
    if words[0] == "-c":
        for node in ast.parse(words[1]).body:
            if isinstance(node, ast.ImportFrom):
                assert all(hasattr(import_module(str(node.module)), name.name) for name in node.names)
        return
    if words[:2] == ["-m", "tellapart.sweep.run_study"]:
        with pytest.raises(Read):
            run_study(words[2], argv=words[3:])
        return
    if words == ["app.py"]:  # of the space, which is a program without options; test_space.py runs it
        assert (ROOT / "space" / "app.py").is_file()
        return
    patch.chdir(ROOT)
    module, rest = (words[1], words[2:]) if words[0] == "-m" else (words[0], words[1:])
    patch.setattr(sys, "argv", [module, *rest])
    patch.syspath_prepend(str(ROOT / Path(module).parent))
    start = runpy.run_module if words[0] == "-m" else runpy.run_path
    with pytest.raises(Read):
        start(module, run_name="__main__")


def read_make(words: list[str], patch: pytest.MonkeyPatch) -> None:
    """What make would run is read, too."""
    targets = [word for word in words if "=" not in word]
    assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in targets), targets
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        if "/python studies/" in line:
            read_python(shlex.split(line)[1:], patch)


def read_pip(words: list[str], patch: pytest.MonkeyPatch) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[0] == "install"
    for extra in re.findall(r"tellapart\[(.*?)\]", " ".join(words)):
        assert set(extra.split(",")) <= extras.keys()


def read_torchrun(words: list[str], patch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    at = words.index("-m")
    with pytest.raises(Read) as found:
        get_args_parser().parse_args(words)
    assert found.value.options.training_script == words[at + 1]
    assert words[at + 1] in ("tellapart", "tellapart.cli")
    read_tellapart(words[at + 2 :], patch)


READERS: dict[str, Callable[[list[str], pytest.MonkeyPatch], None]] = {
    "tellapart": read_tellapart,
    "python": read_python,
    "make": read_make,
    "pip": read_pip,
    "torchrun": read_torchrun,
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_of_commands_holds_nothing_else(page):
    for block in blocks(page):
        commands_in(block, name_of(page))


@pytest.mark.parametrize("command", FULL, ids=str)
def test_the_program_reads_every_command(command, read):
    read(command)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_the_program_reads_the_commands_that_recipes_name(recipe, read):
    lines = [line.removeprefix("#") for line in recipe.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "")
    block = [(0, line.strip()) for line in joined.splitlines() if re.match(" {3}(tellapart|torchrun) ", line)]
    for command in commands_in(block, name_of(recipe)):
        read(command)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tellapart train world_ved_dico --objective.beta much", "beta"),
        ("tellapart train world_ved_diko", "did you mean world_ved_dico"),
        ("tellapart caption photos/ --captioner x --do_sample --num_beams 3", "num_beams"),
        ("tellapart caption photos/ --captioner x --n 2", "--rerank"),
        ("tellapart score a b", "a"),
        ("tellapart compare runs/x --format tex", "format"),
        ("tellapart frontier world_ved_dico --grid objective.beta=0.1,much", "beta"),
        ("python -m tellapart.sweep.run_study beta.yaml --workers many", "2"),
        ("make studies", "studies"),
    ],
)
def test_a_wrong_value_is_found(text, said, read, capsys):
    with pytest.raises((AssertionError, UsageError, SystemExit), match=re.escape(said)):
        read(Command("README.md", 1, text))


OFFLINE = {"train": "--print_config", "push": "--dry_run", "caption": "--endpoint"}
"""Command -> the option with which it downloads and uploads nothing."""


@pytest.mark.parametrize("command", [c for c in FULL if c.program in ("tellapart", "torchrun")], ids=str)
def test_a_command_is_marked_if_and_only_if_it_needs_a_download(command, folder):
    """So that a reader knows what waits for the network, and that the commands without a mark can run every night."""
    found = needed(command, folder)
    offline = OFFLINE.get(command.words[1]) in command.words
    assert bool(command.mark) == (bool(found) and not offline), found


@cache
def help_of(*words: str) -> str:
    """What a command prints with ``--help``."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert main([*words, "--help"]) == 0
    return said.getvalue()


def unknown_options(line: str) -> list[str]:
    """The options of a tellapart command that its help does not name; rewards and methods of other packages may have any."""
    _, verb, *rest = shlex.split(line, comments=True)
    assert verb in VERBS, line
    asked, own = ([rest[0]] if verb in ("data", "bench") and rest and rest[0].isalpha() else []), "--reward."
    if verb in ("train", "frontier") and rest:
        try:
            asked = [rest[0]] if find_recipe(rest[0]) else []
        except UsageError:  # a recipe of the reader's
            own = ("--reward.", "--objective.")
    shown = help_of(verb, *asked)
    options = [word.partition("=")[0] for word in rest if word.startswith("--") and word != "--help"]
    return [
        o
        for o in options
        if o not in shown and not o.startswith(own) and f".{o.rpartition('.')[2].lstrip('-')}" not in shown
    ]


DESCRIBED = [c for page in PAGES for c in inline_commands(page) if c.program == "tellapart"] + [
    c for c in ALL if c.synopsis
]


@pytest.mark.parametrize("page", sorted({command.page for command in DESCRIBED}))
def test_verbs_and_options_in_sentences_exist(page):
    """Commands within sentences leave words out; of lines that describe one, what is in brackets is not checked."""
    lines = [command.text for command in DESCRIBED if command.page == page]
    assert {line: found for line in lines if (found := unknown_options(line))} == {}


@pytest.mark.parametrize(
    "command", [c for page in PAGES for c in inline_commands(page) if c.program in ("make", "python")], ids=str
)
def test_programs_in_sentences_read_their_words(command, read):
    if not re.search(r"\b[A-Z]{4,}\b(?!=)|\[", command.text):
        read(command)
