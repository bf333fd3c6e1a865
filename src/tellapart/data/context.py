"""Context of an image besides its pixels: titles, text around it, tags. It is untrusted, so it is cleaned and cut."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError

LONGEST = 300
"""Characters of a context; longer ones are cut between words."""

_READ = 64 * 1024


def clean_context(texts: Iterable[str]) -> str:
    """Texts as one line of at most ``LONGEST`` characters, without control, format and private-use characters.

    Example::

        clean_context(["Spring   sale", "red boots"])  # "Spring sale red boots"
    """
    joined = " ".join(texts)
    plain = "".join(" " if unicodedata.category(one)[0] == "C" else one for one in joined)
    line = " ".join(plain.split())
    if len(line) <= LONGEST:
        return line
    return line[: LONGEST + 1].rpartition(" ")[0] or line[:LONGEST]


def sidecar_context(image: Path, extension: str) -> str:
    """The context in the file next to an image that has its name and another ending; empty without such a file.

    Raises:
        UsageError: the file cannot be read.
    """
    path = image.with_suffix(extension)
    try:
        with path.open("rb") as file:
            return clean_context([file.read(_READ).decode("utf-8-sig", errors="replace")])
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): repair or remove it.") from error


def with_contexts(dataset: CaptionDataset, contexts: Mapping[str, str]) -> CaptionDataset:
    """The images with their contexts, by id; those that are not named have none."""
    return CaptionDataset(
        [replace(example, context=contexts.get(example.id, "")) for example in dataset], name=dataset.name
    )
