"""The constants of the built-in world: what can be in a scene, how often, and the words for it.

Everything that decides what the world looks like is in this module, and ``version`` hashes it: a changed constant names
another cache folder. A change of the code that draws or writes (and not of a constant) must raise ``REVISION``.
"""

from __future__ import annotations

import hashlib
import json

from tellapart.errors import UsageError

REVISION = 4
SEED = 20240229

SPLIT_SIZES = {
    "full": {"train": 6000, "web": 12000, "val": 1000, "test": 1000},
    "small": {"train": 400, "web": 800, "val": 100, "test": 100},
}
HELD_OUT = ("val", "test")
"""Splits whose scenes occur nowhere else."""

CLUSTER_SIZE = 4
"""Images 4i .. 4i+3 of a split are one cluster: a scene and three mutants of it."""

MUTATIONS = {"attributes": 0.5, "moved": 0.2, "cells": 0.15, "values": 0.15}
"""How a mutant differs from its scene -> probability: one or two attributes changed, one object moved to an empty cell, the
cells of two objects exchanged, or their values of one attribute. Where a change is impossible, attributes change."""

MUTATION_TWO = 0.5
"""Probability that two attributes change instead of one."""

# Pictures: sizes in pixels, colours in RGB.
CELL = 32
JITTER = 2
NOISE = 6.0
DARK = 0.3
"""The darker part of a stripe or a dot is the object's colour times this."""

SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "ring", "diamond")
COLOURS = {
    "red": (214, 39, 40),
    "orange": (255, 140, 0),
    "yellow": (248, 228, 44),
    "green": (44, 160, 44),
    "cyan": (60, 215, 225),
    "blue": (45, 80, 225),
    "purple": (140, 60, 190),
    "white": (248, 248, 248),
}
SIZES = {"small": 7, "large": 13}
"""Size -> radius in pixels."""

TEXTURES = {"plain": 0.5, "striped": 0.25, "dotted": 0.25}
"""Texture -> probability."""

BACKGROUNDS = {"black": (18, 18, 18), "gray": (125, 125, 125), "pink": (255, 178, 205), "brown": (105, 66, 38)}
OBJECT_COUNTS = {1: 0.3, 2: 0.45, 3: 0.25}
"""Number of objects in a scene -> probability."""

ROWS = ("top", "bottom")
COLUMNS = ("left", "right")

# Words.
SYNONYMS = {
    "circle": "disc",
    "square": "box",
    "small": "tiny",
    "large": "big",
    "striped": "stripy",
    "dotted": "spotted",
    "purple": "violet",
    "gray": "grey",
    "and": "with",
}
"""Word -> the other word an annotator may use for it."""

SYNONYM_RATE = 0.35
ANY_SHAPE = "shape"
IRREGULAR_PLURALS = {"box": "boxes", "cross": "crosses"}
NUMBERS = {"two": 2, "three": 3}
RELATIONS = ("and", "above", "below", "left of", "right of")
PREFIXES = ("a picture of", "an image of", "a drawing of", "a photo of", "we see")
PREFIX_RATE = 0.3

REFERENCES_PER_IMAGE = 5
HABITS = {"generic": 0.34, "colour": 0.25, "placed": 0.25, "medium": 0.11, "full": 0.05}
"""How much an annotator says -> probability. About one caption in five names a cell, and one in five a relation."""

RELATED = 0.65
"""Probability that a ``placed`` caption of several objects relates two of them instead of naming cells."""

ALT_TEXTS_PER_IMAGE = 3
ALT_TEXT_RATES = {"shape": 0.9, "colour": 0.9, "size": 0.7, "texture": 0.8, "plain": 0.3, "background": 0.7}
"""Probability that a keyword list names each attribute of an object; ``plain`` replaces ``texture`` on plain objects."""


def require_size(size: str) -> None:
    """Raise where there is no world of that size.

    Raises:
        UsageError: naming those that there are.
    """
    if size not in SPLIT_SIZES:
        raise UsageError(f"size={size!r} is not a size of the world: choose one of {', '.join(SPLIT_SIZES)}.")


def version() -> str:
    """Twelve hexadecimal digits that change with every constant of this module."""
    return _digits


_constants = {name: value for name, value in globals().items() if name.isupper()}
_digits = hashlib.sha256(json.dumps(_constants, sort_keys=True).encode()).hexdigest()[:12]
