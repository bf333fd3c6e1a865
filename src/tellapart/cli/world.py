"""``tellapart world``: build the stages of the built-in world, and show what its listeners can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tellapart.cli.command import options_of
from tellapart.cli.console import say, table
from tellapart.errors import UsageError

STAGES = ("world/backbone", "world/listener", "world/judge", "world/xe")
LISTENERS = ("world/listener", "world/judge")


@dataclass(frozen=True, kw_only=True)
class WorldOptions:
    """Options of ``tellapart world``.

    Args:
        size: size of the world; the small one is for a quick look.
    """

    size: Literal["full", "small"] = "full"


def run(argv: Sequence[str]) -> int:
    """Build what is missing, say where it is, and print the probe."""
    chosen = options_of(
        argv,
        WorldOptions,
        usage="world",
        description="Build the stages of the built-in world that are missing, and probe its listeners.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if words:
        raise UsageError(f"{words[0]!r} is one word too many: tellapart world takes options only.")
    from tellapart.world.probe import require_probe
    from tellapart.world.stages import build_all, resolve

    build_all(options.size)
    folders = {stage: resolve(stage, size=options.size) for stage in STAGES}
    say(table([("stage", "folder"), *((stage, str(folder)) for stage, folder in folders.items())]))
    probes = {stage: require_probe(folders[stage]) for stage in LISTENERS}
    say("\nHow often the right one of several texts scores highest, in percent:\n")
    say(probe_table(probes, "accuracy"))
    say("\nRecall among the val pictures by kind of text, in percent:\n")
    say(probe_table(probes, "recall"))
    for stage, probe in probes.items():
        if probe["order_blind"]:
            say(f"\n{stage} is order-blind: it hardly prefers a description to its shuffled words.")
    return 0


def probe_table(probes: dict[str, dict[str, Any]], part: str) -> str:
    """One row a figure, one column a listener."""
    columns = {stage: _flat(probe[part]) for stage, probe in probes.items()}
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [(name, *(f"{column.get(name, float('nan')):.1f}" for column in columns.values())) for name in names]
    return table([(part, *columns), *rows])


def _flat(figures: dict[str, Any]) -> dict[str, float]:
    """Nested figures under joined names."""
    flat: dict[str, float] = {}
    for name, value in figures.items():
        inner = (
            {f"{name}, {key}": number for key, number in value.items()} if isinstance(value, dict) else {name: value}
        )
        flat.update(inner)
    return flat
