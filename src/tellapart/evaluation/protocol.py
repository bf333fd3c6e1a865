"""How something was measured: in one line to paste into a paper, and as fields that can be compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tellapart import __version__
from tellapart.errors import UsageError, quoted
from tellapart.packed import Keyed

WORDS = "Penn Treebank tokens, lower-cased, punctuation dropped, as pycocoevalcap 1.2 makes them (no Java)"
"""How captions become words for every n-gram metric (``tellapart.metrics.ptb_tokenize``)."""

OWN_FREQUENCIES = "these references"


def software() -> str:
    """The package and its version."""
    return f"tellapart {__version__}"


def data_digest(references: Mapping[str, Sequence[str]]) -> str:
    """8 hex digits of the image ids and their references; the order of the images does not matter."""
    digest = hashlib.sha256()
    for image_id, texts in _in_order(references):
        digest.update("\x1f".join([image_id, *(text.strip() for text in texts)]).encode(errors="surrogatepass"))
        digest.update(b"\x1e")
    return digest.hexdigest()[:8]


def _in_order(references: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, Sequence[str]]]:
    """Ids and references in the order of the ids."""
    if isinstance(references, Keyed):
        return references.sorted_items()
    return ((image_id, references[image_id]) for image_id in sorted(references))


@dataclass(frozen=True)
class Protocol:
    """The settings that two evaluations must share for their numbers to be compared.

    Args:
        data: name of the data set and split.
        images: how many images, which is also the size of the retrieval gallery.
        digest: of image ids and references (see ``data_digest``).
        decoding: how captions were drawn, in words; None for captions that were given (human ones, a file).
        listeners: name of each retriever -> which model it is.
        measured_by: metric -> name and, in brackets, hash of the model or program that measured it. Only metrics that both
            evaluations have are compared, by the text in the brackets.
        words: how captions were cut into words for the n-gram metrics.
        frequencies: of what CIDEr-D's document frequencies are; empty where no image has references.
        standard: title of the named protocol that was kept to (``tellapart.evaluation.protocol``), if any; shown, not
            compared.
        note: what else a reader must know; shown, not compared.
        software: package and version; shown, not compared.
    """

    data: str
    images: int
    digest: str
    decoding: str | None = None
    listeners: dict[str, str] = field(default_factory=dict)
    measured_by: dict[str, str] = field(default_factory=dict)
    words: str = WORDS
    frequencies: str = OWN_FREQUENCIES
    standard: str = ""
    note: str = ""
    software: str = field(default_factory=software)

    def line(self) -> str:
        """One line, "how measured"."""
        drawn = f"one caption each ({self.decoding})" if self.decoding else "one given caption each"
        parts = [self.standard] if self.standard else []
        parts.append(f"{self.data}: {self.images} images [{self.digest}], {drawn}")
        if self.frequencies:
            parts.append(f"n-gram metrics on {self.words}, CIDEr-D's document frequencies from {self.frequencies}")
        if self.listeners:
            named = ", ".join(f"{name} = {model}" for name, model in self.listeners.items())
            parts.append(f"retrieval among these {self.images} images, ties count against the caption, by {named}")
        parts += [f"{metric} by {what}" for metric, what in self.measured_by.items()]
        return "; ".join([*parts, *([self.note] if self.note else []), self.software])

    def slug(self) -> str:
        """A folder name: data, number of images, decoding."""
        words = f"{self.data} {self.images} {self.decoding or 'given'}"
        return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")[:100].rstrip("-.")

    def differences(self, other: Protocol) -> list[str]:
        """The names of fields that make the two incomparable; given captions go with any decoding, and a retriever that only
        one of them has adds metrics that the other lacks."""
        compared = ("data", "images", "digest", "words", "frequencies")
        names = [name for name in compared if vars(self)[name] != vars(other)[name]]
        if any(self.listeners[name] != other.listeners[name] for name in self.listeners.keys() & other.listeners):
            names.append("listeners")
        if self.decoding and other.decoding and self.decoding != other.decoding:
            names.append("decoding")
        if self.measured_otherwise(other):
            names.append("measured_by")
        return names

    def measured_otherwise(self, other: Protocol) -> list[str]:
        """The metrics of both that different models measured."""
        both = [metric for metric in self.measured_by if metric in other.measured_by]
        return [metric for metric in both if _hash(self.measured_by[metric]) != _hash(other.measured_by[metric])]

    def to_json(self) -> dict[str, Any]:
        """The fields, and the line."""
        return {**asdict(self), "line": self.line()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Protocol:
        """Read the output of ``to_json``, also that of earlier versions, which had fewer fields.

        Raises:
            ValueError: a value is of a wrong kind.
        """
        given = {name: value[name] for name in Protocol.__dataclass_fields__ if name in value}
        for name, found in given.items():
            if name in ("listeners", "measured_by"):
                fits = isinstance(found, dict) and all(isinstance(text, str) for text in found.values())
            else:
                fits = type(found) is int if name == "images" else isinstance(found, str)
            if not fits and not (name == "decoding" and found is None):
                raise ValueError(f"{name} of its protocol is {quoted(found)}")
        return Protocol(**given)


def joint_line(protocols: Sequence[Protocol]) -> str:
    """One line for several evaluations that can be compared: how captions were drawn, with the retrievers and models of all.

    Args:
        protocols: at least one; the first that draws captions says how.
    """
    drawn = next((protocol for protocol in protocols if protocol.decoding), protocols[0])
    listeners, measured_by = dict(drawn.listeners), dict(drawn.measured_by)
    for protocol in protocols:
        listeners = {**listeners, **protocol.listeners, **listeners}  # in the order first met
        measured_by = {**measured_by, **protocol.measured_by, **measured_by}
    return replace(drawn, listeners=listeners, measured_by=measured_by).line()


def _hash(what: str) -> str:
    """Identity of a model, independent of its folder and name."""
    return what.partition("[")[2] or what


# The ways of measuring that papers share, by name: which images, how many, and what a captioner is asked for.


@dataclass(frozen=True)
class NamedProtocol:
    """Settings shared by all numbers under one name.

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
        """The difference between data and protocol in a few words, or None.

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
        raise UsageError(f"{name!r} is not a protocol: choose one of {', '.join(PROTOCOLS)}.")
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
