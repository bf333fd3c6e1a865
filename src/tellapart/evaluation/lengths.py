"""Asked against given length: how far captions keep to the lengths they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tellapart.evaluation.measures import Measured
from tellapart.lengths import WordRange, count_words

KEPT, DISTANCE = "asked_length_kept", "asked_length_distance"


def length_measures(captions: Sequence[str], asked: Sequence[WordRange]) -> Measured:
    """Share of captions of the asked length in percent, and mean words too few or too many.

    Args:
        captions: N captions.
        asked: N ranges.

    Returns:
        The two metrics; columns of the same names, and ``asked_length`` (such as 9-14) and ``words`` of each caption.

    Example::

        metrics, columns = length_measures(["a red circle"], [WordRange(5, 8)])
        metrics  # {"asked_length_kept": 0.0, "asked_length_distance": 2.0}
    """
    words = [count_words(caption) for caption in captions]
    distances = [float(one.distance(length)) for one, length in zip(asked, words, strict=True)]
    kept = [100.0 * (distance == 0) for distance in distances]
    columns: dict[str, list[Any]] = {KEPT: kept, DISTANCE: distances, "asked_length": [str(one) for one in asked]}
    return {KEPT: float(np.mean(kept)), DISTANCE: float(np.mean(distances))}, columns | {"words": words}


def lengths_asked(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Per asked length, from the shortest: images, mean words given, share kept in percent and mean distance in words.

    Args:
        columns: of ``length_measures``.
    """
    names = sorted(set(columns["asked_length"]), key=lambda name: WordRange.parse(name).low)
    found = []
    for name in names:
        rows = [row for row, asked in enumerate(columns["asked_length"]) if asked == name]
        means = {key: float(np.mean([columns[key][row] for row in rows])) for key in ("words", KEPT, DISTANCE)}
        found.append({"asked": name, "images": len(rows), **means})
    return found
