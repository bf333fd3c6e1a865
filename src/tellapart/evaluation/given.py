"""Captions that were given, measured against references: text only, without images, models or torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.dataset import CaptionDataset, Example, PackedExamples
from tellapart.data.formats.names import Format
from tellapart.data.images import EncodedImage
from tellapart.data.load import load_references
from tellapart.data.results import PackedRows, Result, Results, read_results
from tellapart.errors import UsageError, count_of
from tellapart.evaluation.aggregate import Aggregate
from tellapart.evaluation.bootstrap import percentile_interval, resampled_sums
from tellapart.evaluation.matching import Matched, OnMismatch, among_references, match
from tellapart.evaluation.measures import Measure, left_out, measured_by, rows_in_words, token_measures, token_style
from tellapart.evaluation.meteor import MeteorMeasure
from tellapart.evaluation.protocol import OWN_FREQUENCIES, Protocol, data_digest, named_protocol, title_of
from tellapart.evaluation.results import EvaluationResult
from tellapart.metrics.frequencies import DocumentFrequencies, load_frequencies
from tellapart.packed import Keyed, TextLists, Texts

# Captions, references and document frequencies in whatever form they are given.

Captions = str | Path | Mapping[Any, str] | Sequence[Mapping[str, Any]]
"""A file or folder, image id -> caption, or rows of ``image_id`` and ``caption``."""

References = str | Path | Mapping[Any, str | Sequence[str]] | CaptionDataset
"""Data in any layout, image id -> captions, or a data set."""

CORPUS = "corpus"
"""Document frequencies of the references that are compared with."""


def as_results(captions: Captions, *, caption_column: str | None = None) -> Results:
    """Captions as rows.

    Raises:
        UsageError: there are none, or they cannot be read.
    """
    if isinstance(captions, str | Path):
        return read_results(Path(captions), caption_column=caption_column)
    if isinstance(captions, Mapping):
        pairs = list(captions.items())
    else:
        try:
            pairs = [(row["image_id"], row["caption"]) for row in captions]
        except (TypeError, KeyError) as error:
            raise UsageError(
                f"captions lack {error}: give rows of image_id and caption, or ids to captions."
            ) from error
    wrong = [value for _, value in pairs if not isinstance(value, str)]
    if wrong or not pairs:
        what = f"a caption is {wrong[0]!r}" if pairs else "there are no captions"
        raise UsageError(f"{what}: give one caption per image, as text.")
    return Results("captions", PackedRows(Result(caption, str(name)) for name, caption in pairs))


def as_references(
    references: References, *, split: str | None = None, prefer: str | None = None, format: Format | None = None
) -> CaptionDataset:
    """References as a data set, whose images need not be there; arguments and errors are those of
    ``load_references``."""
    if isinstance(references, CaptionDataset):
        return references
    if isinstance(references, str | Path):
        return load_references(references, split=split, prefer=prefer, format=format)
    examples = []
    for name, captions in references.items():
        texts = (captions,) if isinstance(captions, str) or not isinstance(captions, Iterable) else tuple(captions)
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(f"the references of image {name!r} are {captions!r}: give a list of text.")
        examples.append(Example(str(name), EncodedImage(b"", str(name)), texts))
    return CaptionDataset(examples, name="references")


def as_frequencies(
    given: str | Path | DocumentFrequencies, images: int | None = None
) -> tuple[DocumentFrequencies | None, str]:
    """Document frequencies, None for those of the references, and how a protocol calls them.

    Args:
        given: ``CORPUS``, a file, or a table.
        images: number of images counted, for files that do not tell.

    Raises:
        UsageError: the file is missing or no such table.
    """
    if isinstance(given, DocumentFrequencies):
        return given, f"a table of {given.images} images"
    if str(given) == CORPUS:
        return None, OWN_FREQUENCIES
    path = Path(given)
    table = load_frequencies(path, images=images)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return table, f"{path.name} ({table.images} images) [{digest}]"


CONFIDENCE = 0.95
LEFT_OUT = {
    "METEOR": "METEOR is left out: ask for it with --meteor, which needs the data of pip install 'tellapart[meteor]'."
}
RESAMPLING = (
    "images drawn again with replacement; BLEU computed again from the n-gram counts of each draw, CIDEr with document "
    "frequencies as they are"
)


def score(
    captions: Captions,
    references: References,
    *,
    name: str | None = None,
    split: str | None = None,
    format: Format | None = None,
    protocol: str | None = None,
    cider_df: str | Path | DocumentFrequencies = CORPUS,
    bootstrap: int = 0,
    seed: int = 0,
    on_mismatch: OnMismatch = "fail",
    meteor: bool = False,
) -> EvaluationResult:
    """Measure captions against references, as ``tellapart score`` does with files.

    Args:
        captions: image id -> caption, rows of ``image_id`` and ``caption``, or a file or folder of captions. Ids may be
            text or numbers; they are compared as text.
        references: image id -> captions, or data in any layout; their images need not be there.
        name: what tables call it.
        split: which split of the references.
        format: how to read the references, instead of telling by their look.
        protocol: a name of ``tellapart.evaluation.protocol.PROTOCOLS``, which the references must be of.
        cider_df: document frequencies of CIDEr: ``"corpus"`` for those of the references, a file, or a table.
        bootstrap: draws for 95 % intervals; 0 for none.
        seed: of these draws.
        on_mismatch: whether images that only one side names, or that have two captions, are an error or are left out
            (of two captions the first is taken).
        meteor: also METEOR, where its data are installed; the first use compiles them for a minute.

    Returns:
        Metrics as fractions (CIDEr 0 to 10; shares and Self-BLEU in percent), a row per image, and how it was measured.

    Raises:
        UsageError: something cannot be read, images do not fit, or the references are not the protocol's.
    """
    prefer = named_protocol(protocol).split if protocol else None
    given = Given.of(as_results(captions), as_references(references, split=split, prefer=prefer, format=format))
    if on_mismatch == "fail":
        given.require_fit('on_mismatch="skip"')
    frequencies, described = as_frequencies(cider_df)
    measures = (MeteorMeasure(given.references.references),) if meteor else ()
    result = given.measure(name=name, frequencies=frequencies, described=described, measures=measures)
    if protocol:
        result = under_protocol(result, given, protocol, strict=on_mismatch == "fail")
    return with_intervals(result, samples=bootstrap, seed=seed) if bootstrap else result


@dataclass(frozen=True)
class Given:
    """Captions, references, and which belong together."""

    results: Results
    references: CaptionDataset
    matched: Matched

    @staticmethod
    def of(results: Results, references: CaptionDataset) -> Given:
        """Find each caption's image.

        Raises:
            UsageError: no caption is of an image of the references.
        """
        return Given(results, references, match(results, references))

    def require_fit(self, remedy: str) -> None:
        """Raise unless every image has one caption and references.

        Args:
            remedy: what leaves out the images that do not.

        Raises:
            UsageError: with how many do not fit, and the first of them.
        """
        if not self.matched.fits:
            raise UsageError(
                f"{self.results.name} does not fit {self.references.name}, {self.matched.misfit()}: give one caption an "
                f"image, or {remedy} to score the {count_of(len(self.matched.captions), 'image')} "
                "that can be."
            )

    def measure(
        self,
        *,
        name: str | None = None,
        frequencies: DocumentFrequencies | None = None,
        described: str,
        measures: Sequence[Measure] = (),
    ) -> EvaluationResult:
        """The metrics of the captions whose images were found.

        Args:
            name: what tables call it.
            frequencies: document frequencies for CIDEr; by default those of the references.
            described: how the protocol calls these.
            measures: further measures of the captions.

        Raises:
            UsageError: none of the images has references.
        """
        captions = self.matched.captions
        if not captions:
            raise UsageError(f"{self.references.name} has no references of the captioned images: name other data.")
        references = self.compared()
        by_id = Keyed(Texts.of(captions), references)
        words, targets = rows_in_words(Texts.of(captions.values()), references)
        parts = [token_measures(words, targets, frequencies=frequencies)]
        del targets  # and the words, once they are used: a copy of all that is compared
        parts.append(token_style(words))
        del words
        parts += [measure(captions) for measure in measures]
        note = "; ".join(filter(None, [self.matched.left_out(), among_references(captions.values(), references)]))
        digest = data_digest(by_id)
        metrics = {key: value for part, _ in parts for key, value in part.items()}
        protocol = Protocol(self.references.name, len(captions), digest, frequencies=described, note=note)
        by = {key: what for key, what in measured_by(measures).items() if key in metrics}
        missing = {key: why for key, why in (LEFT_OUT | left_out(measures)).items() if key not in metrics}
        return EvaluationResult(
            name or self.results.name,
            replace(protocol, measured_by=by),
            metrics,
            captions,
            {key: rows for _, columns in parts for key, rows in columns.items()},
            details=self.details() | {"left_out": missing},
        )

    def compared(self) -> TextLists:
        """The references of the captioned images, in the order of the captions."""
        captions, examples = self.matched.captions, self.references.examples
        if isinstance(examples, PackedExamples) and examples.ids == Texts.of(captions):
            return examples.captions
        every = self.references.references
        return TextLists.of(every[image_id] for image_id in captions)

    def details(self) -> dict[str, Any]:
        """Counts for ``metrics.json``."""
        empty = sum(not text.strip() for text in self.matched.captions.values())
        left = {kind: len(ids) for kind, ids in self.matched.lists().items()}
        return {"images": len(self.matched.captions), "empty_captions": empty, **left}


def under_protocol(result: EvaluationResult, given: Given, name: str, *, strict: bool = True) -> EvaluationResult:
    """The result with the title of a named protocol in its line; errors are those of
    ``title_of``."""
    own = result.protocol.frequencies == OWN_FREQUENCIES
    references = Keyed(Texts.of(result.captions), given.compared())
    title = title_of(name, given.references.name, references, own_frequencies=own, strict=strict)
    return replace(result, protocol=replace(result.protocol, standard=title))


def with_intervals(result: EvaluationResult, *, samples: int = 1000, seed: int = 0) -> EvaluationResult:
    """The result with 95 % percentile intervals of what its rows determine, the images drawn again with replacement.

    BLEU is computed again from the n-gram counts of every draw. CIDEr's document frequencies stay as they are. A metric that some
    draw does not determine, such as the perplexity of empty captions only, has no interval.

    Args:
        result: with its rows.
        samples: draws.
        seed: of these.
    """
    aggregate = Aggregate(list(result.metrics), result.per_image)
    draws = aggregate(resampled_sums(aggregate.rows, samples=samples, seed=seed))
    low, high = percentile_interval(draws, CONFIDENCE)
    ends = dict(zip(aggregate.keys, zip(low.tolist(), high.tolist(), strict=True), strict=True))
    settings = {"samples": samples, "seed": seed, "confidence": CONFIDENCE, "how": RESAMPLING}
    intervals = {key: ends[key] for key in result.metrics if key in ends and np.isfinite(ends[key]).all()}
    return replace(result, intervals=intervals, details=result.details | {"bootstrap": settings})
