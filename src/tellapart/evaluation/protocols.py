"""The ways of measuring that papers share, by name: which images, how many, and what a captioner is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tellapart.errors import UsageError


@dataclass(frozen=True)
class NamedProtocol:
    """What numbers under one name have in common.

    Document frequencies of CIDEr-D are always those of the protocol's own references.

    Args:
        title: how a paper calls the images.
        split: their name in files that hold several splits.
        images: how many there are.
        references: captions of each image, at least.
        num_beams: beams of the search that most papers report; a recommendation.
        max_new_tokens: longest caption in tokens; a recommendation.
    """

    title: str
    split: str
    images: int
    references: int
    num_beams: int = 5
    max_new_tokens: int = 30

    def misfit(self, images: int, fewest: int) -> str | None:
        """What of data is not as the protocol has it, in a few words, or None.

        Args:
            images: how many there are.
            fewest: references of the image that has fewest.
        """
        if images != self.images:
            return f"{images:,} images instead of {self.images:,}"
        if fewest < self.references:
            return f"an image with {fewest} references instead of {self.references}"
        return None


PROTOCOLS = {
    "coco-karpathy-test": NamedProtocol("COCO captions, Karpathy test split", "test", 5000, 5),
    "coco-karpathy-val": NamedProtocol("COCO captions, Karpathy validation split", "val", 5000, 5),
    "coco-val2017": NamedProtocol("COCO captions, val2017", "val", 5000, 5),
    "flickr30k-1k": NamedProtocol("Flickr30k, Karpathy test split of 1,000 images", "test", 1000, 5),
    "nocaps-val": NamedProtocol("nocaps, validation set", "val", 4500, 10),
}
"""Name on the command line -> protocol."""


def named_protocol(name: str) -> NamedProtocol:
    """The protocol of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in PROTOCOLS:
        raise UsageError(f"{name!r} is no protocol: choose one of {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]


def title_of(
    name: str, data: str, references: Mapping[str, Sequence[str]], *, own_frequencies: bool = True, strict: bool = True
) -> str:
    """How a line of what was measured begins: the protocol's title, if it was kept to.

    Args:
        name: of the protocol.
        data: name of the data.
        references: image id -> captions, of the images that are measured.
        own_frequencies: whether document frequencies are theirs.
        strict: raise where the data are not the protocol's; else the title says so.

    Raises:
        UsageError: they are not, or there is no such protocol.
    """
    named = named_protocol(name)
    misfit = named.misfit(len(references), min(map(len, references.values())))
    if not own_frequencies:
        misfit = misfit or "document frequencies that are not those of its references"
    if misfit and strict:
        raise UsageError(
            f"{data} is not what protocol {name} is measured on ({misfit}): give its references, or leave the protocol out."
        )
    return f"NOT {named.title} ({misfit})" if misfit else named.title
