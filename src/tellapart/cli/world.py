"""``tellapart world``: build the stages of the built-in world, and print what each of its models can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tellapart.cli.command import options_of
from tellapart.cli.console import say, say_json, table
from tellapart.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class WorldOptions:
    """Options of ``tellapart world``.

    Args:
        size: size of the world; the small one is for a quick look.
        json: print everything that was measured as JSON instead of a table.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart world",
        "tellapart world --json",
    )
    size: Literal["full", "small"] = "full"
    json: bool = False


def run(argv: Sequence[str]) -> int:
    """Build what is missing, and print the probe."""
    chosen = options_of(
        argv,
        WorldOptions,
        usage="world",
        description="Build the stages of the built-in world that are missing, and print what its models can tell apart.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if words:
        raise UsageError(f"{words[0]!r} is not expected: tellapart world takes options only.")
    from tellapart.world.probes import failed_gates, probe_all
    from tellapart.world.stages import build_all

    build_all(options.size)
    found = probe_all(options.size)
    if options.json:
        say_json(found, indent=2)
        return 0
    stages = found["stages"]
    say(table([("stage", "seconds of CPU", "folder"), *_folders(stages)]))
    say("\nHow often the true text of several scores highest on val, in percent; towers answer by linear heads:\n")
    say(probe_table({name: stage["probe"] for name, stage in stages.items()}))
    captioner = stages["world/xe"]["details"]
    kinds = {name: captioner[name] for name in ("greedy", "sampled")}
    say("\nWhat world/xe writes for val, in percent:\n")
    say(probe_table(kinds))
    for missed in failed_gates(captioner) if options.size == "full" else []:
        say(f"\nworld/xe: {missed}.")
    return 0


def _folders(stages: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(name, f"{stage['cpu_seconds']:.0f}", stage["folder"]) for name, stage in stages.items()]


def probe_table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """One row per question, one column per model; a dash where it was not asked."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [
        (name, *(f"{column[name]:.1f}" if name in column else "-" for column in columns.values())) for name in names
    ]
    return table([("question", *columns), *rows])
