"""Help, ``tellapart methods`` and completion in a shell."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tellapart.cli.caption_options import CaptionOptions
from tellapart.cli.compare import CompareOptions
from tellapart.cli.completion import SCRIPTS, Options, candidates
from tellapart.cli.data import CheckOptions
from tellapart.cli.features import FeaturesOptions
from tellapart.cli.frontier_words import FrontierOptions
from tellapart.cli.judge import JudgeOptions
from tellapart.cli.main import COMMANDS, main
from tellapart.cli.mine import MineOptions
from tellapart.cli.report import ReportOptions
from tellapart.objectives import METHODS
from tellapart.recipe.options import REQUIRED, Option, help_lines
from tellapart.recipe.score_options import ScoreOptions
from tellapart.recipe.shipped import is_recipe

VERBS = [[name] for name in COMMANDS if name not in ("data", "bench")]
VERBS += [["data", "check"], ["data", "convert"], ["bench", "people"]]


def shown(capsys, *words: str) -> str:
    capsys.readouterr()
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_is_narrow_has_examples_and_no_types_of_python(verb, capsys):
    text = shown(capsys, *verb)
    assert max(map(len, text.splitlines())) <= 100
    assert "\nexamples:\n  " in text
    assert "<class" not in text
    assert "Literal[" not in text


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_examples_use_commands_recipes_and_options_that_exist(verb, capsys):
    lines = shown(capsys, *verb).partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
    for line in filter(lambda line: "tellapart completion" not in line, lines):
        program, command, *rest = shlex.split(line)
        assert (program, [command, *rest][: len(verb)]) == ("tellapart", verb)
        recipes = [word for word in rest if is_recipe(word)]
        assert not command.startswith(("train", "frontier")) or recipes
        known = set(Options.of([command, *rest]).kinds) | (
            set(Options.of(["train", *recipes]).kinds) if recipes else set()
        )
        assert known >= {word for word in rest if word.startswith("--")}


GROUPED = (
    CaptionOptions,
    CheckOptions,
    CompareOptions,
    FeaturesOptions,
    FrontierOptions,
    JudgeOptions,
    MineOptions,
    ReportOptions,
    ScoreOptions,
)


@pytest.mark.parametrize("kind", GROUPED)
def test_groups_name_options_once_and_options_that_exist(kind):
    grouped = [name for names in kind.groups.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= {field.name for field in dataclasses.fields(kind)}


def test_an_option_of_no_group_is_still_listed(capsys, monkeypatch):
    monkeypatch.setattr(CompareOptions, "groups", {"output": ("format",)})
    text = shown(capsys, "compare")
    assert (
        text.index("\noutput:") < text.index("\n  --format ") < text.index("other options:") < text.index("\n  --pool ")
    )


def test_kinds_are_told_without_what_the_default_says():
    lines = help_lines(
        {
            name: Option(name, kind, default, "")
            for name, kind, default in (("limit", int | None, None), ("zeros", int | None, 3), ("path", Path, REQUIRED))
        }
    )
    assert lines == [
        "  --limit  (a whole number; default: null)",
        "  --zeros  (a whole number or null; default: 3)",
        "  --path  (a path; required)",
    ]


def test_help_before_the_command(capsys):
    assert main(["help", "compare"]) == 0
    first = capsys.readouterr().out
    assert first == shown(capsys, "compare")
    assert main(["help", "data", "check"]) == 0
    assert "tellapart data check" in capsys.readouterr().out
    assert main(["help", "comparee"]) == 2
    assert "did you mean compare?" in capsys.readouterr().err


def test_the_package_is_a_module():
    done = subprocess.run([sys.executable, "-m", "tellapart", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tellapart ")


def test_one_method_with_its_options_and_recipes(capsys):
    assert main(["methods", "dico"]) == 0
    text = capsys.readouterr().out
    assert METHODS["dico"].paper in text
    assert "--objective.beta  (a number above 0; default: 0.2)" in text
    assert "world_ved_dico," in text
    assert main(["methods", "dicoo"]) == 2
    assert "'dicoo' is not a method: did you mean dico?" in capsys.readouterr().err


def test_methods_as_json(capsys):
    assert main(["methods", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found] == list(METHODS)
    assert main(["methods", "rloo", "--json"]) == 0
    (rloo,) = json.loads(capsys.readouterr().out)
    assert rloo["fixed"]["baseline"] == "leave_one_out"
    assert rloo["needs"] == ["reward"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tr", ["train", "train-listener"]),
        ("hel", ["help"]),
        ("help jud", ["judge"]),
        ("data ch", ["check"]),
        ("train world_ved_dico_p", ["world_ved_dico_pac"]),
        ("train-listener world_listener_g", ["world_listener_grammar"]),
        ("train world_ved_dico --objective.b", ["--objective.beta"]),
        ("train --method dic", ["dico"]),
        ("caption photos --sty", ["--style"]),
        ("caption photos --style d", ["detailed"]),
        ("compare x --pool ", ["seeds"]),
        ("compare x --start ", ["true", "false"]),
        ("compare ru", []),  # a file name, which the shell completes
        ("caption photos --output ", []),
        ("data check --num", ["--num_workers"]),
        ("methods vlrm_", ["vlrm_rs"]),
        ("completion z", ["zsh"]),
        ("nonsense --x", []),
    ],
)
def test_candidates(line, found):
    assert candidates(line.split(" ")) == found


def test_completion_in_bash(tmp_path):
    program = tmp_path / "tellapart"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tellapart "$@"\n')
    program.chmod(0o755)
    script = f"""
        eval "$({program} completion bash)"
        COMP_WORDS=(tellapart compare x --format ""); COMP_CWORD=4; _tellapart {program}
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "table md latex csv json\n"


def test_scripts_are_printed_and_other_shells_refused(capsys):
    for shell, script in SCRIPTS.items():
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out.strip() == script.strip()
    assert main(["completion", "tcsh"]) == 2
    assert "write tellapart completion bash or zsh" in capsys.readouterr().err
