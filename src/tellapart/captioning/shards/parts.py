"""What a shard leaves for the review of the whole collection: counts that add up, and the samples to look at."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tellapart.captioning.gate import SEVERITY
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.review import same_words

STEP = 0.001
"""Width of the bins that matches are counted in."""
CAPTIONS = 1000
"""Different captions that a part keeps, the most frequent ones."""
LISTED = 100
"""Flagged captions, captions of the lowest matches, and errors that a part lists."""


@dataclass
class Part:
    """The review of one shard. Its size does not depend on the number of images.

    Attributes:
        shard: name of the shard.
        images: samples of the shard, with and without an image.
        captioned: those with a caption.
        broken: those without.
        damaged: why a tar could not be read to its end.
        seconds: that it took.
        flags: fault -> how many captions have it.
        flagged: how many captions have a fault.
        captions: caption, without regard to case and punctuation -> how often, of the most frequent ones.
        left_out: at most how often any other caption occurs.
        matches: CLIP-S in units of ``STEP``, rounded down -> how many captions.
        listed: the worst captions with a fault.
        lowest: the captions of the lowest matches.
        errors: the first sentences about broken samples.
    """

    shard: str
    images: int = 0
    captioned: int = 0
    broken: int = 0
    damaged: str | None = None
    seconds: float = 0.0
    flagged: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    captions: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    matches: Counter[int] = field(default_factory=Counter)
    listed: list[dict[str, Any]] = field(default_factory=list)
    lowest: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, item: Item, caption: Caption) -> None:
        """Count a caption."""
        self.images += 1
        self.captioned += 1
        self.captions[same_words(caption.caption)] += 1
        row = {
            "photo": item.image.name,
            "id": item.id,
            "caption": caption.caption,
            "flags": list(caption.flags),
            "match": caption.match,
        }
        if caption.flags:
            self.flagged += 1
            self.flags.update(caption.flags)
            self.listed.append(row)
        if caption.match is not None:
            self.matches[math.floor(caption.match / STEP)] += 1
            self.lowest.append(row)
        if max(len(self.listed), len(self.lowest)) >= 2 * LISTED:
            self._trim()

    def fault(self, why: str) -> None:
        """Count a sample without a caption."""
        self.images += 1
        self.broken += 1
        if len(self.errors) < LISTED:
            self.errors.append(why)

    def _trim(self) -> None:
        self.listed = sorted(self.listed, key=badness)[:LISTED]
        self.lowest = sorted(self.lowest, key=lambda row: float(row["match"]))[:LISTED]

    def as_json(self) -> bytes:
        """As a file."""
        self._trim()
        frequent = self.captions.most_common(CAPTIONS + 1)
        left_out = frequent[CAPTIONS][1] if len(frequent) > CAPTIONS else self.left_out
        fields = vars(self) | {"captions": dict(frequent[:CAPTIONS]), "left_out": left_out}
        return json.dumps(fields, ensure_ascii=False).encode(errors="backslashreplace")

    @classmethod
    def from_json(cls, data: bytes) -> Part:
        """What ``as_json`` gave."""
        fields = json.loads(data)
        fields |= {"flags": Counter(fields["flags"]), "captions": Counter(fields["captions"])}
        return cls(**fields | {"matches": Counter({int(step): often for step, often in fields["matches"].items()})})


def badness(row: dict[str, Any]) -> tuple[int, int, float]:
    """Order of the captions to look at: by the worst fault, then by the number of faults, then by match."""
    worst = min(SEVERITY.index(flag) for flag in row["flags"])
    return worst, -len(row["flags"]), math.inf if row["match"] is None else float(row["match"])
