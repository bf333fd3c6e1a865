"""VLRM's penalised phrases in the world's words, and their number in captions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tellapart.metrics.phrases import EXEMPT, PhraseFinder
from tellapart.metrics.style import style_columns
from tellapart.world import spec
from tellapart.world.grammar import BACKGROUND_WORDS, COLOUR_WORDS, SIZE_WORDS, TEXTURE_WORDS

COLOURS = frozenset(COLOUR_WORDS) | frozenset(BACKGROUND_WORDS)
"""Every word of the world that names a colour, of objects or backgrounds."""

ATTRIBUTES = frozenset(SIZE_WORDS) | frozenset(TEXTURE_WORDS) | frozenset((*spec.ROWS, *spec.COLUMNS))
JOINING = frozenset(("and", spec.SYNONYMS["and"]))

EXEMPT_WORDS = EXEMPT | COLOURS | ATTRIBUTES | JOINING
"""What captions may say twice: as in the paper colours, prepositions and articles, and what in the world is like them. Three
objects have two sizes and four places: who describes them must repeat words, and would lose more by that than a matcher gives.
Shapes stay, as other nouns do."""


def world_phrases() -> list[str]:
    """The openers of the world's captions, which say nothing of the picture, and their bare words, as in the paper's list."""
    words = (word for opener in spec.PREFIXES for word in opener.split())
    return [*spec.PREFIXES, *(word for word in words if word not in ("a", "an", "of"))]


def wording(captions: Mapping[str, str]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """How captions of the world are worded.

    Args:
        captions: image id -> caption.

    Returns:
        Means and columns. ``color_coverage``: percent of captions with a colour word, of objects or background;
        ``distinct_colors``: different colour words per caption; ``listed_phrases``: percent of captions with a penalised phrase.
    """
    texts, find = list(captions.values()), PhraseFinder(world_phrases(), years=False)
    style = style_columns([text.lower() for text in texts], colors=COLOURS)
    columns = {
        "color_coverage": (100 * style["colored"]).tolist(),
        "distinct_colors": style["colors"].tolist(),
        "listed_phrases": [100.0 * bool(find(text)) for text in texts],
    }
    return {name: float(np.mean(rows)) for name, rows in columns.items()}, columns
