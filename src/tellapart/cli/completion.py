"""``tellapart completion``: scripts that complete commands, options, recipes and values in a shell.

The scripts ask ``tellapart completion candidates -- WORD ...`` at each TAB, so they know plugins and the options of the
recipe on the line. Options and their values are read from the help, the one place where all of them are.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from typing import ClassVar

from tellapart.cli.console import say
from tellapart.errors import UsageError

BASH = """\
_tellapart() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion candidates -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -o bashdefault -F _tellapart tellapart
"""

ZSH = """\
_tellapart() {
    local -a found
    found=("${(@f)$(${words[1]} completion candidates -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _tellapart tellapart
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH}

CANDIDATES = "candidates"
"""The word by which the scripts ask."""

USAGE = """\
usage: tellapart completion bash|zsh

Print a script that completes commands, options, recipes and values at TAB; elsewhere, file names.

examples:
  eval "$(tellapart completion bash)"   # this shell; in ~/.bashrc, every shell
  eval "$(tellapart completion zsh)"    # in ~/.zshrc, after compinit"""


def run(argv: Sequence[str]) -> int:
    """Print a script, or the candidates for the last word of a line.

    Raises:
        UsageError: the shell is not known.
    """
    if "-h" in argv[:1] or "--help" in argv[:1]:
        say(USAGE)
    elif argv[:1] == [CANDIDATES]:
        found = candidates(argv[2:])
        if found:
            say("\n".join(found))
    elif len(argv) == 1 and argv[0] in SCRIPTS:
        say(SCRIPTS[argv[0]].rstrip())
    else:
        raise UsageError(f"completion needs the name of a shell: write tellapart completion {' or '.join(SCRIPTS)}.")
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Completions of the last word after ``tellapart``; none where a file name is meant.

    Example:
        >>> candidates(["tr"])
        ['train', 'train-listener']
    """
    from tellapart.cli.main import COMMANDS

    *before, last = words or [""]
    if not before or before == ["help"]:
        found = [*COMMANDS, *([] if before else ["help"])]
    elif before in (["data"], ["bench"]):
        from tellapart.cli import bench, data

        found = list({"data": data.ACTIONS, "bench": bench.ACTIONS}[before[0]])
    elif before[0] == "completion":
        found = list(SCRIPTS)
    elif last.startswith("--"):
        found = list(Options.of(before).kinds)
    elif before[-1].startswith("--"):
        found = Options.of(before).values(before[-1])
    else:
        found = _names(before[0])
    return [word for word in found if word.startswith(last)]


def _names(command: str) -> list[str]:
    """Recipes or methods that a command takes as words."""
    if command == "methods":
        from tellapart.objectives import METHODS

        return list(METHODS)
    if command not in ("train", "train-listener", "frontier", "recipes"):
        return []
    from tellapart.recipe.shipped import describe, shipped_files

    wanted = {"frontier": "train"}.get(command, command)
    return [name for name in shipped_files() if wanted == "recipes" or describe(name).command == wanted]


class Options:
    """The options of a command line that is being written, with the kind of their values as the help words it."""

    PATTERN: ClassVar = re.compile(r"^  (--\S+)\s+\((.*?); (?:default: |required\))", flags=re.MULTILINE | re.DOTALL)

    def __init__(self, kinds: dict[str, str]) -> None:
        self.kinds = kinds

    @staticmethod
    def of(words: Sequence[str]) -> Options:
        """Those of a line; none where its help cannot be had."""
        from tellapart.cli.main import dispatch
        from tellapart.recipe.shipped import is_recipe

        method = [word for pair in pairwise(words) if pair[0] == "--method" for word in pair]
        kept = [
            *words[:1],
            *(word for word in words[1:] if is_recipe(word) or word in ("check", "convert", "people")),
            *method,
        ]
        shown = io.StringIO()
        try:
            with redirect_stdout(shown), redirect_stderr(io.StringIO()):
                dispatch([*kept, "--help"])
        except (UsageError, OSError):
            return Options({})
        return Options({name: " ".join(kind.split()) for name, kind in Options.PATTERN.findall(shown.getvalue())})

    def values(self, option: str) -> list[str]:
        """The words that an option may be followed by; none where these are free."""
        kind = self.kinds.get(option, "")
        if option == "--method":
            from tellapart.objectives import METHODS

            return list(METHODS)
        if kind.startswith("true or false"):
            return ["true", "false"]
        if kind.startswith("one of "):
            return kind.removeprefix("one of ").partition(" or ")[0].split(", ")
        return [] if kind == "text" or " " in kind else [kind]
