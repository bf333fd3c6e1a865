"""What tower, start captioners, listeners, verifier and judge of the world see: the table that opens a page of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tellapart.sweep.claims import markdown_table
from tellapart.sweep.page_parts import folded
from tellapart.world.probes import OF_CLIPS, probe_all

EXPLAINED = {
    False: "The [page on the world](../explanation/world.md#what-each-model-sees) explains questions and models.",
    True: "The [page on the moving world](../explanation/world_video.md#probe) explains questions and models.",
}
"""Whether the images are clips -> where a page says more; pages of results lie in ``docs/results``."""

ORDER_AWARE = 80.0
"""Below this percentage of full descriptions preferred to their shuffled words, a listener is called order-blind. Not all of
the preference is for order: shuffling also parts "top" from "left", so that where things are is lost."""

TOWERS = {False: "world/backbone", True: "world/video-backbone"}
"""Whether the images are clips -> the vision tower of captioners and listeners."""

EVENTS = {"target": "direction or new colour", "turn": "first or second event"}

QUESTIONS = {
    "empty": "empty cell",
    "pairs": "pairs of attributes",
    **EVENTS,
    **{
        f"pooled_{name}": f"{EVENTS.get(name, name)}, by the pooled vector"
        for name in ("shape", "colour", "size", "texture", "verb", *EVENTS)
    },
    **{
        f"map_{name}": f"{name} of a cell, by CLS" for name in ("shape", "colour", "size", "texture", "object", "empty")
    },
}
"""Questions whose names in the probe do not say what is asked."""


def probed_stages(starts: Iterable[str], listeners: Iterable[str]) -> list[str]:
    """The stages that a page's table has as columns, in order."""
    columns = [*starts, *listeners]
    return [TOWERS[_of_clips(columns)], *columns]


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
    shown, clips = {_short(name): found[_short(name)] for name in listeners}, _of_clips(starts)
    judges = {name: one for name, one in shown.items() if "order" in one["probe"]}  # a tower reads no texts
    asked = dict.fromkeys(key for one in (*judges.values(), *found.values()) for key in one["probe"])
    lines = [
        [
            QUESTIONS.get(key, key),
            *(f"{one['probe'][key]:.1f}" if key in one["probe"] else "-" for one in found.values()),
        ]
        for key in asked
    ]
    for kind in dict.fromkeys(kind for one in judges.values() for kind in one["details"].get("recall", ())):
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
        EXPLAINED[clips]
        + (f" Order-blind: {', '.join(blind) or 'none'}." if judges else "")
        + "".join(sampled_sentence(name, found[_short(name)]["details"]["sampled"], clips=clips) for name in starts),
    ]


def _of_clips(stages: Iterable[str]) -> bool:
    return any(stage.startswith(OF_CLIPS) for stage in stages)


def sampled_sentence(name: str, faults: Mapping[str, float], *, clips: bool = False) -> str:
    """How true a start captioner's samples are.

    Args:
        name: of the captioner.
        faults: ``truthful``, ``grammatical`` and ``place`` of its samples, in percent.
        clips: whether it describes clips.
    """
    true, grammatical, place = (f"{faults[key]:.1f} %" for key in ("truthful", "grammatical", "place"))
    named = "an order" if clips else "a relation"
    return (
        f" Of the captions sampled from `{name}`, {true} are true and {grammatical} grammatical."
        f" Of those that name a place or {named} and are otherwise true, {place} name it correctly."
    )


def _short(stage: str) -> str:
    return stage.removeprefix("world/")
