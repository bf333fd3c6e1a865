"""SPICE (Anderson, Fernando, Johnson and Gould, ECCV 2016), by the authors' own program: Java and Stanford CoreNLP.

A caption is parsed into objects, attributes and relations; the score is the F measure of these against those of all
references together, with WordNet synonyms counted as equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tellapart.files import cache_dir
from tellapart.metrics.spice_cache import ScoreStore
from tellapart.metrics.spice_java import ALL, PARTS, Scores, SpiceProgram
from tellapart.progress import bar


class Spice:
    """Scores captions with the program, some hundred a run, and none that was scored before.

    Scores are kept under the cache folder by the program, the caption and its references, run by run: what is stopped
    goes on where it was.

    Args:
        program: see :meth:`SpiceProgram.find`.
        images_a_run: captions of a run. Each run reads the parser's models anew, some seconds, and the bar moves when one
            has ended.
    """

    def __init__(self, program: SpiceProgram, *, images_a_run: int = 500) -> None:
        self.program, self.images_a_run = program, images_a_run
        self.fingerprint = program.fingerprint()

    def score(self, captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[Scores]:
        """The scores of N captions.

        Args:
            captions: N texts in words joined by spaces, as ``ptb_tokenize`` gives them.
            references: N lists of such texts, none empty.

        Raises:
            UsageError: Java fails, or takes too long.
            ValueError: a caption has no references.
        """
        if not all(references):
            raise ValueError("SPICE needs references of every caption")
        pairs = {_key(pair): pair for pair in zip(captions, references, strict=True)}
        store = ScoreStore(cache_dir() / "spice" / f"scores-{self.fingerprint[:16]}.sqlite")
        known: dict[str, Scores] = store.load(list(pairs))
        missing = [key for key in pairs if key not in known]
        with bar("SPICE (Java)", len(pairs), done=len(pairs) - len(missing)) as running:
            for start in range(0, len(missing), self.images_a_run):
                keys = missing[start : start + self.images_a_run]
                some, targets = zip(*(pairs[key] for key in keys), strict=True)
                found = dict(zip(keys, self.program.run(some, targets), strict=True))
                store.add(found)
                known |= found
                running.advance(len(keys))
        return [known[_key(pair)] for pair in zip(captions, references, strict=True)]


def spice_figures(scores: Sequence[Scores]) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """The metrics of a set, and a column an image: fractions from 0 to 1.

    ``SPICE`` is the mean F over images, as pycocoevalcap 1.2 has it. ``SPICE_Object`` and the other kinds are means over
    the images whose references have something of that kind, as the program's own summary has them.

    Args:
        scores: of each image.
    """
    columns: dict[str, list[Any]] = {
        "SPICE": [found[ALL]["f"] for found in scores],
        "SPICE_precision": [found[ALL]["pr"] for found in scores],
        "SPICE_recall": [found[ALL]["re"] for found in scores],
    }
    columns |= {f"SPICE_{part}": [found[part]["f"] for found in scores] for part in PARTS}
    averaged = [name for name in columns if name not in ("SPICE_precision", "SPICE_recall")]
    defined = {name: [value for value in columns[name] if value is not None] for name in averaged}
    return {name: float(np.mean(values)) for name, values in defined.items() if values}, columns


def _key(pair: tuple[str, Sequence[str]]) -> str:
    """What tells a caption with its references from all others."""
    caption, references = pair
    return hashlib.sha256(json.dumps([caption, *references]).encode()).hexdigest()
