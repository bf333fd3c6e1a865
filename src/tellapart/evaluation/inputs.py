"""Captions, references and document frequencies in whatever form they are given."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.formats.names import Format
from tellapart.data.images import EncodedImage
from tellapart.data.load import load_references
from tellapart.data.results import Result, Results, read_results
from tellapart.errors import UsageError
from tellapart.evaluation.protocol import OWN_FREQUENCIES
from tellapart.metrics.frequencies import DocumentFrequencies

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
    wrong = next((value for _, value in pairs if not isinstance(value, str)), None)
    if wrong is not None or not pairs:
        what = f"a caption is {wrong!r}" if pairs else "there are no captions"
        raise UsageError(f"{what}: give one caption an image, as text.")
    return Results("captions", [Result(caption, str(name)) for name, caption in pairs])


def as_references(
    references: References, *, split: str | None = None, prefer: str | None = None, format: Format | None = None
) -> CaptionDataset:
    """References as a data set, whose images need not be there; arguments and errors are those of
    :func:`tellapart.data.load.load_references`."""
    if isinstance(references, CaptionDataset):
        return references
    if isinstance(references, str | Path):
        return load_references(references, split=split, prefer=prefer, format=format)
    examples = []
    for name, captions in references.items():
        texts = (captions,) if isinstance(captions, str) else tuple(captions)
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(f"the references of image {name!r} are {captions!r}: give a list of text.")
        examples.append(Example(str(name), EncodedImage(b"", str(name)), texts))
    return CaptionDataset(examples, name="references")


def as_frequencies(
    given: str | Path | DocumentFrequencies, images: int | None = None
) -> tuple[DocumentFrequencies | None, str]:
    """Document frequencies, None for those of the references, and how a protocol calls them.

    Args:
        given: :data:`CORPUS`, a file, or a table.
        images: number of images counted, for files that do not tell.

    Raises:
        UsageError: the file is missing or no such table.
    """
    if isinstance(given, DocumentFrequencies):
        return given, f"a table of {given.images} images"
    if str(given) == CORPUS:
        return None, OWN_FREQUENCIES
    from tellapart.metrics.frequencies import load_frequencies

    path = Path(given)
    table = load_frequencies(path, images=images)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return table, f"{path.name} ({table.images} images) [{digest}]"
