"""The constants of the moving world: what happens in a clip, how often, and the words for it.

Objects, colours and backgrounds are those of the still world (``tellapart.world.spec``). ``version`` hashes both. A
change of the code that draws or writes (and not of a constant) must raise ``REVISION``.
"""

from __future__ import annotations

import hashlib
import json

from tellapart.errors import UsageError
from tellapart.world import spec as still

REVISION = 1
SEED = 20160627

SPLIT_SIZES = {
    "full": {"train": 6000, "web": 8000, "val": 500, "test": 1000},
    "small": {"train": 240, "web": 320, "val": 60, "test": 60},
}

FRAMES = 8
"""Frames of a clip."""

SLOTS = ((1, 2), (4, 5))
"""Frames at which the first event of a clip, and the second, may begin. An event has ended after two frames, so events do
not overlap; a clip with one event has it in either slot."""

LASTS = 2
"""Frames that a move takes; other events happen at once."""

OBJECT_COUNTS = {1: 0.2, 2: 0.5, 3: 0.3}
"""Number of objects in a clip -> probability."""

EVENT_COUNTS = {0: 0.05, 1: 0.35, 2: 0.6}
"""Number of events in a clip -> probability; one per object at most."""

VERBS = {"moves": 0.44, "turns": 0.2, "appears": 0.18, "vanishes": 0.18}
"""What an object can do -> probability."""

STAYS = "stays"
"""The verb of an object to which nothing happens."""

DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
"""Direction -> change of row and column."""

MUTATIONS = {"motion": 0.4, "order": 0.25, "actors": 0.2, "attributes": 0.15}
"""How a mutant differs from its scene -> probability: another event, the two events in the other order, events exchanged
between objects, or one or two attributes changed. Where a change is impossible, the motion or the attributes change."""

# Words.
SYNONYMS = {
    **{word: other for word, other in still.SYNONYMS.items() if word != "and"},
    "moves": "goes",
    "turns": "becomes",
    "appears": "emerges",
    "vanishes": "disappears",
    "stays": "rests",
}
"""Word -> the other word an annotator may use for it."""

SYNONYM_RATE = 0.25
PREFIXES = ("in this clip", "here")
PREFIX_RATE = 0.15

HABITS = {"generic": 0.25, "events": 0.4, "medium": 0.25, "full": 0.1}
"""How much an annotator says -> probability."""

ORDERED = 0.75
"""Probability that an annotator who mentions two events gives their order."""

REFERENCES_PER_CLIP = 5


def require_size(size: str) -> None:
    """Raise where there is no moving world of that size.

    Raises:
        UsageError: naming those that there are.
    """
    if size not in SPLIT_SIZES:
        raise UsageError(f"size={size!r} is not a size of the moving world: choose one of {', '.join(SPLIT_SIZES)}.")


def version() -> str:
    """Twelve hexadecimal digits that change with every constant of this module and of the still world's."""
    return _digits


_constants = {name: value for name, value in globals().items() if name.isupper()}
_digits = hashlib.sha256(json.dumps([still.version(), _constants], sort_keys=True).encode()).hexdigest()[:12]
