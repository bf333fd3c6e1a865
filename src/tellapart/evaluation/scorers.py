"""Scores of captions by models that see the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from tellapart.errors import UsageError
from tellapart.evaluation.listening import PAC_NAMES, listener_measures, read_images, read_texts, similarity_measures
from tellapart.evaluation.measures import Measured
from tellapart.listeners.matcher import MATCH
from tellapart.listeners.pairs import PairMatcher
from tellapart.listeners.remember import RememberingTexts
from tellapart.metrics.chair import ObjectNames
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.metrics.scores import CLIP_WEIGHT, PAC_WEIGHT
from tellapart.types import Listener

References = Mapping[str, Sequence[str]]

REJECTED_BELOW = 0.5
"""The probability of a match under which a probe is rejected."""


class Scorer(Protocol):
    """Measures captions of images that it knows."""

    name: str
    """Its main metric."""

    measured_by: dict[str, str]
    """Metric -> name, in brackets hash, and settings of the model that measures it."""

    def __call__(self, captions: Mapping[str, str], references: References) -> Measured:
        """Metrics, and a value per caption; references may be empty."""
        ...

    def describe(self, captions: Sequence[str]) -> dict[str, Any]:
        """Which model, with which settings, and ``truncated``: the share of ``captions`` (percent) that it had to cut."""
        ...


@runtime_checkable
class _Described(Protocol):
    def describe(self) -> dict[str, Any]: ...


@runtime_checkable
class _Fingerprinted(Protocol):
    def fingerprint(self) -> str: ...


@runtime_checkable
class _Limited(Protocol):
    def too_long(self, texts: Sequence[str]) -> list[bool]: ...


class ListenerScorer:
    """Retrieval, CLIPScore and RefCLIPScore by a dual encoder; see
    ``listener_measures``.

    Args:
        listener: knows the images by id. Its weights must not change: references are embedded once.
        key: name of its metrics.
        hard: N, to also retrieve among each image's N nearest ones; 0 does not.
    """

    def __init__(self, listener: Listener, key: str, *, hard: int = 0) -> None:
        self.name, self.listener, self._key, self._hard = f"{key}_CLIPScore", listener, key, hard
        self._reader = RememberingTexts(listener)
        self._described = identity(listener) | {"w": CLIP_WEIGHT}
        self.measured_by = {self.name: in_words(self._described)}

    @property
    def weights(self) -> str:
        """12 digits of the listener's fingerprint, or what replaces them."""
        return str(self._described["weights"])

    def __call__(self, captions: Mapping[str, str], references: References) -> Measured:
        """As the function."""
        self._reader.begin(_read(captions, references))
        return listener_measures(
            self.listener, self._key, captions, hard=self._hard, references=references, reader=self._reader
        )

    def describe(self, captions: Sequence[str]) -> dict[str, Any]:
        """With ``prefix`` and ``w``."""
        return self._described | _cut(self.listener, captions)


class PacScorer:
    """``PAC-S`` and ``RefPAC-S`` (Sarto et al. 2023): as CLIPScore with w = 2, by the encoder trained for it.

    Args:
        listener: that encoder (``ClipListener.from_pretrained`` reads the authors' file), which knows the images by id. Its
            weights must not change: references are embedded once.
    """

    def __init__(self, listener: Listener) -> None:
        self.name, self.listener = PAC_NAMES[0], listener
        self._reader = RememberingTexts(listener)
        self._described = identity(listener) | {"w": PAC_WEIGHT}
        self.measured_by = {self.name: in_words(self._described)}

    def __call__(self, captions: Mapping[str, str], references: References) -> Measured:
        """``PAC-S``, ``RefPAC-S`` where all images have references, ``PAC-S_sentences``."""
        self._reader.begin(_read(captions, references))
        embedded = read_images(self.listener, list(captions)), read_texts(self.listener, list(captions.values()))
        return similarity_measures(
            self.listener, captions, references, embedded, names=PAC_NAMES, weight=PAC_WEIGHT, reader=self._reader
        )

    def describe(self, captions: Sequence[str]) -> dict[str, Any]:
        """With ``prefix`` and ``w``."""
        return self._described | _cut(self.listener, captions)


class MatchScorer:
    """``ITM``: how sure a matcher is that captions are of their images, and which of the objects they name it rejects.

    For every object that a caption names (the words of CHAIR's list, ``tellapart.metrics.chair``) the matcher reads the
    probe "a photo of a <word>" with the image; a probability under 0.5 rejects the object.

    Departs from CHAIR (Rohrbach et al. 2018): the image has no annotations. It knows no more than the matcher, which
    overlooks small things and believes likely ones.

    Args:
        matcher: knows the images by id.
        objects: also probe the objects.
    """

    name = "ITM"

    def __init__(self, matcher: PairMatcher, *, objects: bool = True) -> None:
        self.matcher, self._objects = matcher, ObjectNames() if objects else None
        self._described = matcher.describe()
        self.measured_by = {self.name: in_words(self._described)}

    def __call__(self, captions: Mapping[str, str], references: References) -> Measured:
        """Metrics ``ITM`` (mean probability of a match, percent), ``ITM_logit`` (mean of the matcher's own score: the positive
        logit before the softmax, or log-odds) and ``ITM_rejected_objects`` (rejected objects of all named, percent; 0 if none is
        named); columns ``ITM``, ``ITM_logit``, ``ITM_objects`` (number named, each word once per caption), ``ITM_rejected`` (the
        rejected words).

        Raises:
            UsageError: the matcher gives something that is not a number.
        """
        words = self.objects(list(captions.values()))
        texts = [[text, *map(probe, own)] for text, own in zip(captions.values(), words, strict=True)]
        logits = self.matcher.match_ids(list(captions), texts)
        if not all(rows.isfinite().all() for rows in logits):
            raise UsageError(
                f"the matcher {self.matcher.source} gives logits that are not numbers: its weights are damaged or its "
                "precision too low; fetch it again, or load it in float32."
            )
        sure = [torch.softmax(rows.double(), dim=1)[:, MATCH].tolist() for rows in logits]
        columns: dict[str, list[Any]] = {"ITM": [100.0 * own[0] for own in sure]}
        columns["ITM_logit"] = [float(self.matcher.score(rows[:1])) for rows in logits]
        metrics = {key: float(np.mean(rows)) for key, rows in columns.items()}
        if self._objects is not None:
            rejected = [
                [word for word, value in zip(own, values[1:], strict=True) if value < REJECTED_BELOW]
                for own, values in zip(words, sure, strict=True)
            ]
            columns |= {"ITM_objects": [len(own) for own in words], "ITM_rejected": rejected}
            metrics["ITM_rejected_objects"] = 100.0 * sum(map(len, rejected)) / max(sum(map(len, words)), 1)
        return metrics, columns

    def objects(self, captions: Sequence[str]) -> list[list[str]]:
        """The object words of each caption, each once, in order."""
        if self._objects is None:
            return [[] for _ in captions]
        return [
            list(dict.fromkeys(word for word, _ in self._objects.mentions(text)))
            for text in ptb_tokenize(captions, alone=True)
        ]

    def describe(self, captions: Sequence[str]) -> dict[str, Any]:
        """With the precision."""
        return self._described | _cut(self.matcher, captions)


def probe(word: str) -> str:
    """``a photo of a dog``, ``a photo of an airplane``, ``a photo of two-or-more things`` without an article."""
    plural = word.endswith(("men", "children", "people", "cattle", "oxen", "geese", "mice", "luggage")) or (
        word.endswith("s") and not word.endswith(("ss", "us"))
    )
    article = "" if plural else "an " if word[0] in "aeiou" else "a "
    return f"a photo of {article}{word}"


def in_words(described: Mapping[str, Any]) -> str:
    """A model's description for a line: the text in and after the brackets decides whether two are the same."""
    settings = [f"{key} {value!r}" if key == "prefix" else f"{key} {value}" for key, value in described.items()]
    rest = [text for text in settings if not text.startswith(("model ", "backbone ", "weights "))]
    return f"{described.get('model', 'a model')} [{', '.join([described['weights'], *rest])}]"


def cut_captions(models: Mapping[str, Mapping[str, Any]]) -> str:
    """The note about captions that models could not read in full; empty if there are none."""
    cut = {name: found["truncated"] for name, found in models.items() if found.get("truncated")}
    return ", ".join(f"{name} saw {share:.1f} % of the captions cut" for name, share in cut.items())


def identity(listener: Listener) -> dict[str, Any]:
    """Which model a retriever is: at least ``weights``."""
    if isinstance(listener, _Described):
        return listener.describe()
    known = isinstance(listener, _Fingerprinted)
    return {"weights": listener.fingerprint()[:12] if known else type(listener).__name__}  # type: ignore[attr-defined]


def _read(captions: Mapping[str, str], references: References) -> tuple[str, ...]:
    """The references in the order they are embedded.

    They are remembered only for the same references again, so that they are embedded in the same batches in any process.
    """
    return tuple(text for image_id in captions for text in references.get(image_id, ()))


def _cut(model: Any, captions: Sequence[str]) -> dict[str, float]:
    if not isinstance(model, _Limited):
        return {}
    return {"truncated": 100.0 * sum(model.too_long(captions)) / max(len(captions), 1)}
