"""METEOR as a measure of an evaluation: a column where its data are installed, else a sentence on what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tellapart.evaluation.measures import Measured, in_words
from tellapart.metrics.meteor import STATISTICS, meteor_of, meteor_statistics
from tellapart.metrics.meteor_data import MISSING, source

METRIC = "METEOR"


class MeteorMeasure:
    """``METEOR`` of the set, from its summed statistics; a row per image has ``sentence_METEOR`` and the statistics.

    Args:
        references: image id -> captions to compare with.
    """

    def __init__(self, references: Mapping[str, Sequence[str]]) -> None:
        self.references = references
        self.left_out: dict[str, str] = {} if source() is not None else {METRIC: MISSING}

    def against(self, references: Mapping[str, Sequence[str]]) -> MeteorMeasure:
        """The same measure with other references."""
        return MeteorMeasure(references)

    def __call__(self, captions: Mapping[str, str]) -> Measured:
        """The metric, a fraction, and its columns; nothing where the data are not installed or an image has no references."""
        if source() is None:
            return {}, {}
        bare = next((image_id for image_id in captions if not self.references.get(image_id)), None)
        if bare is not None:
            self.left_out[METRIC] = (
                f"METEOR is left out, because image {bare!r} has no references: leave such images out."
            )
            return {}, {}
        self.left_out.clear()
        return meteor_figures(*in_words(captions, self.references))


def meteor_figures(candidates: Sequence[str], targets: Sequence[Sequence[str]]) -> Measured:
    """The same of captions cut into words.

    Raises:
        UsageError: METEOR's data are not installed.
    """
    statistics = meteor_statistics(candidates, targets)
    columns = dict(zip(STATISTICS, statistics.T.tolist(), strict=True))
    corpus = float(meteor_of(statistics.sum(axis=0)))
    return {METRIC: corpus}, {f"sentence_{METRIC}": meteor_of(statistics).tolist()} | columns
