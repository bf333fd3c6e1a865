"""SPICE as a measure of an evaluation: a column where its program can run, else a sentence on what is missing."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.evaluation.measures import Measured, in_words
from tellapart.metrics.spice import Spice, SpiceProgram, spice_figures

METRIC = "SPICE"


class SpiceMeasure:
    """``SPICE``, its kinds, and a row per image, by the authors' program.

    Whatever keeps the program from running, from the first or later, costs this metric only: ``left_out`` then says what.

    Args:
        references: image id -> captions to compare with.
        jar: the program or its folder; null takes that of an installed pycocoevalcap.
        heap: most memory Java may take.
        timeout: seconds that one run of the program (500 captions) may take.
    """

    def __init__(
        self,
        references: Mapping[str, Sequence[str]],
        *,
        jar: Path | None = None,
        heap: str = "8G",
        timeout: float = 3600.0,
    ) -> None:
        self.references = references
        self.left_out: dict[str, str] = {}
        self.measured_by: dict[str, str] = {}
        self._spice: Spice | None = None
        try:
            self._spice = Spice(SpiceProgram.find(jar, heap=heap, timeout=timeout))
            self.measured_by[METRIC] = f"{self._spice.program.jar.name} [{self._spice.fingerprint[:12]}]"
        except UsageError as error:
            self.left_out[METRIC] = str(error)

    def against(self, references: Mapping[str, Sequence[str]]) -> SpiceMeasure:
        """The same measure with other references."""
        other = copy.copy(self)
        other.references, other.left_out = references, dict(self.left_out)
        return other

    def __call__(self, captions: Mapping[str, str]) -> Measured:
        """The metrics, fractions from 0 to 1, and a row per image; nothing where the program cannot run."""
        if self._spice is None:
            return {}, {}
        bare = next((image_id for image_id in captions if not self.references.get(image_id)), None)
        if bare is not None:
            self.left_out[METRIC] = (
                f"SPICE is left out, because image {bare!r} has no references: leave such images out."
            )
            return {}, {}
        try:
            metrics, columns = spice_figures(self._spice.score(*in_words(captions, self.references)))
        except UsageError as error:
            self.left_out[METRIC] = str(error)
            return {}, {}
        self.left_out.clear()
        return metrics, columns
