"""What tower, start captioners, listeners, verifier and judge of the world see: the table that opens a page of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tellapart.sweep.claims import markdown_table
from tellapart.sweep.page_parts import folded
from tellapart.world.probes import probe_all

EXPLAINED = "The [page on the world](../explanation/world.md#what-each-model-sees) explains questions and models."
"""Pages of results lie in ``docs/results``."""

ORDER_AWARE = 80.0
"""Below this percentage of full descriptions preferred to their shuffled words, a listener is called order-blind. Not all of
the preference is for order: shuffling also parts "top" from "left", so that where things are is lost."""

TOWER = "world/backbone"
"""The vision tower of captioners and listeners."""

QUESTIONS = {
    "empty": "empty cell",
    "pairs": "pairs of attributes",
    **{
        f"map_{name}": f"{name} of a cell, by CLS" for name in ("shape", "colour", "size", "texture", "object", "empty")
    },
}
"""Questions whose names in the probe do not say what is asked."""


def probed_stages(starts: Iterable[str], listeners: Iterable[str]) -> list[str]:
    """The stages that a page's table has as columns, in order."""
    return [TOWER, *starts, *listeners]


def probed(size: str, stages: Sequence[str]) -> dict[str, Any]:
    """What each stage sees, as the table needs it; missing stages are built.

    Args:
        size: of the world.
        stages: names.

    Returns:
        ``{name without "world/": {"probe": {question: percent right}, "details"}}``.
    """
    read = probe_all(size, stages=stages)["stages"].items()
    return {_short(name): {key: one[key] for key in ("probe", "details")} for name, one in read}


def instruments_parts(found: Mapping[str, Any], starts: Sequence[str], listeners: Sequence[str]) -> list[str]:
    """The folded table, and what is to be known of it without opening it.

    Args:
        found: what ``probed`` returned.
        starts: stages of start captioners, whose samples are described.
        listeners: stages that compare images with texts, and further towers.
    """
    shown = {_short(name): found[_short(name)] for name in listeners}
    judges = {name: one for name, one in shown.items() if "order" in one["probe"]}  # a tower reads no texts
    asked = dict.fromkeys(key for one in (*judges.values(), *found.values()) for key in one["probe"])
    lines = [
        [
            QUESTIONS.get(key, key),
            *(f"{one['probe'][key]:.1f}" if key in one["probe"] else "-" for one in found.values()),
        ]
        for key in asked
    ]
    for kind in next(iter(judges.values()))["details"]["recall"]:
        recalls = (one["details"].get("recall", {}).get(kind) for one in found.values())
        lines.append(
            [
                f"R@1 of the text *{kind}*",
                *("-" if recall is None else f"{recall['t2i_R@1']:.1f}" for recall in recalls),
            ]
        )
    blind = [name for name, one in judges.items() if one["probe"]["order"] < ORDER_AWARE]
    return [
        folded("## What each model sees (val, %)\n\n" + markdown_table(["asked", *found], lines)),
        f"{EXPLAINED} Order-blind: {', '.join(blind) or 'none'}."
        + "".join(_sampled(name, found[_short(name)]["details"]["sampled"]) for name in starts),
    ]


def _sampled(name: str, faults: Mapping[str, float]) -> str:
    """How true a start captioner's samples are."""
    true, grammatical, place = (f"{faults[key]:.1f} %" for key in ("truthful", "grammatical", "place"))
    return (
        f" Of the captions sampled from `{name}`, {true} are true and {grammatical} grammatical."
        f" Of those that name a place or a relation and are otherwise true, {place} name it correctly."
    )


def _short(stage: str) -> str:
    return stage.removeprefix("world/")
