"""Scores of single captions by every metric that can be computed of them: ``[N]`` of N rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tellapart.evaluation.listening import Names, read_images, read_texts, similarity_measures
from tellapart.evaluation.measures import in_words, token_measures
from tellapart.evaluation.meteor import meteor_figures
from tellapart.listeners.pairs import PairMatcher
from tellapart.metrics.scores import CLIP_WEIGHT
from tellapart.types import Listener

Scores = dict[str, np.ndarray]

CLIP_SCORES = Names("CLIPScore", "RefCLIPScore", "CLIPScore_sentences")
LENGTH = "length"
"""Number of words. It is not a metric: it shows what length alone predicts."""


class Row(NamedTuple):
    """A caption to score."""

    image: str
    caption: str
    references: tuple[str, ...]


class Scorer(Protocol):
    """Scores rows."""

    needs_references: bool
    """Whether rows without references cannot be scored."""

    def __call__(self, rows: Sequence[Row]) -> Scores:
        """Metric -> ``[N]``, higher is better."""
        ...


class TextScorer:
    """BLEU-1 to 4, ROUGE-L, CIDEr, length, and METEOR if asked for, of rows with references.

    Each row is an item of its own: CIDEr's document frequencies come from the references of all rows, as in the published code.

    Args:
        meteor: also METEOR, which needs its data.
    """

    needs_references = True

    def __init__(self, *, meteor: bool = False) -> None:
        self._meteor = meteor

    def __call__(self, rows: Sequence[Row]) -> Scores:
        """Rows without references are an error of the caller.

        Raises:
            UsageError: METEOR's data are not installed.
        """
        names = [str(place) for place in range(len(rows))]
        captions = dict(zip(names, (row.caption for row in rows), strict=True))
        references = dict(zip(names, (row.references for row in rows), strict=True))
        candidates, targets = in_words(captions, references)
        _, columns = token_measures(candidates, targets)
        found = {f"Bleu_{n}": np.array(columns[f"sentence_Bleu_{n}"]) for n in (1, 2, 3, 4)}
        found |= {key: np.array(columns[key]) for key in ("ROUGE_L", "CIDEr") if key in columns}
        if self._meteor:
            found["METEOR"] = np.array(meteor_figures(candidates, targets)[1]["sentence_METEOR"])
        return found | {LENGTH: np.array([float(len(words.split())) for words in candidates])}


class SimilarityScorer:
    """CLIPScore and RefCLIPScore, or PAC-S and RefPAC-S with their names and weight.

    Args:
        listener: knows the images by name.
        names: of the two.
        weight: w.
    """

    needs_references = False

    def __init__(self, listener: Listener, *, names: Names = CLIP_SCORES, weight: float = CLIP_WEIGHT) -> None:
        self.listener, self._names, self._weight = listener, names, weight

    def __call__(self, rows: Sequence[Row]) -> Scores:
        """The score with references is left out unless every row has some."""
        captions = {str(place): row.caption for place, row in enumerate(rows)}
        references: Mapping[str, Sequence[str]] = {str(place): row.references for place, row in enumerate(rows)}
        embedded = (
            read_images(self.listener, [row.image for row in rows]),
            read_texts(self.listener, list(captions.values())),
        )
        _, columns = similarity_measures(
            self.listener,
            captions,
            references,
            embedded,
            names=self._names,
            weight=self._weight,
            by_sentence=False,
        )
        return {key: np.array(column) for key, column in columns.items()}


class MatcherScorer:
    """``ITM_logit``: the matcher's own score of each pair.

    Args:
        matcher: knows the images by name.
    """

    needs_references = False

    def __init__(self, matcher: PairMatcher) -> None:
        self.matcher = matcher

    def __call__(self, rows: Sequence[Row]) -> Scores:
        """Each distinct caption of an image is read once."""
        texts: dict[str, dict[str, int]] = {}
        for row in rows:
            texts.setdefault(row.image, {}).setdefault(row.caption, len(texts.get(row.image, {})))
        logits = self.matcher.match_ids(list(texts), [list(own) for own in texts.values()])
        scores = {image: self.matcher.score(own) for image, own in zip(texts, logits, strict=True)}
        return {"ITM_logit": np.array([float(scores[row.image][texts[row.image][row.caption]]) for row in rows])}
