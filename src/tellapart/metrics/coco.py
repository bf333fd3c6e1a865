"""The n-gram metrics of the COCO captioning challenge, corpus and per image, without Java."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from tellapart.errors import UsageError
from tellapart.metrics.bleu import Matches, bleu, bleu_of, matches_of
from tellapart.metrics.cider import cider_d_of
from tellapart.metrics.frequencies import DocumentFrequencies
from tellapart.metrics.pairs import Pairs
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.metrics.rouge import rouge_of
from tellapart.packed import Numbers

logger = logging.getLogger(__name__)

_SHOWN = 5

Scores = tuple[dict[str, float], dict[str, dict[str, float]]]


def coco_metrics(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    frequencies: DocumentFrequencies | None = None,
    tokenizer: Callable[[Iterable[str]], list[str]] = ptb_tokenize,
) -> Scores:
    """Bleu_1..4, ROUGE_L and CIDEr (that is CIDEr-D) of one caption per image; equal to pycocoevalcap's on equal tokens.

    CIDEr is left out for a single image, where it would be 0 whatever the caption.

    Args:
        captions: image id -> raw caption.
        references: image id -> raw references; exactly the same ids.
        frequencies: document frequencies without an end token for CIDEr; by default those of ``references``.
        tokenizer: makes captions words joined by a space; ``list`` where they are that already.

    Returns:
        ``(corpus, per_image)``: name -> value, and image id -> name -> value. Fractions, but CIDEr on 0 to 10
        (papers print all of them times 100).

    Raises:
        UsageError: the ids differ, or an image has no references.
    """
    check_same_images(captions, references)
    every = tokenizer([*captions.values(), *(text for name in captions for text in references[name])])
    rest = iter(every[len(captions) :])
    targets = [[next(rest) for _ in references[name]] for name in captions]
    columns, _ = coco_columns(every[: len(captions)], targets, frequencies=frequencies)
    corpus = {metric: value for metric, (value, _) in columns.items()}
    rows = zip(*(values for _, values in columns.values()), strict=True)
    return corpus, {name: dict(zip(columns, row, strict=True)) for name, row in zip(captions, rows, strict=True)}


Columns = dict[str, tuple[float, Numbers]]


def coco_columns(
    candidates: Sequence[str],
    targets: Sequence[Sequence[str]],
    *,
    frequencies: DocumentFrequencies | None = None,
) -> tuple[Columns, Matches]:
    """Metric -> its value for the corpus and its values for each image, of tokenised captions; and what BLEU counts of them.

    Args:
        candidates: N captions.
        targets: N lists of at least one reference.
        frequencies: as for ``coco_metrics``.
    """
    pairs = Pairs.of(candidates, targets, None if frequencies is None else frequencies.words)
    matches = matches_of(pairs)
    columns: Columns = {
        f"Bleu_{n}": (value, Numbers(values))
        for n, (value, values) in enumerate(zip(bleu(matches), bleu_of(matches), strict=True), 1)
    }
    rouge = Numbers(rouge_of(pairs, candidates, targets))
    columns["ROUGE_L"] = (sum(rouge) / len(rouge), rouge)
    if frequencies is None and len(targets) == 1:
        logger.warning("CIDEr is left out: of one image every n-gram has idf 0, so score more images together.")
        return columns, matches
    cider = Numbers(cider_d_of(pairs, frequencies))
    return columns | {"CIDEr": (sum(cider) / len(cider), cider)}, matches


def check_same_images(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> None:
    """Raise unless captions and references are of the same images and every image has a reference.

    Raises:
        UsageError: listing ids that are missing or too many.
    """
    if not captions:
        raise UsageError("there are no captions to score: give at least one.")
    missing, extra = [i for i in references if i not in captions], [i for i in captions if i not in references]
    if missing or extra:
        parts = [
            f"{len(ids)} {kind} ({', '.join(map(repr, ids[:_SHOWN]))}{', ...' if len(ids) > _SHOWN else ''})"
            for kind, ids in (("without a caption", missing), ("without references", extra))
            if ids
        ]
        raise UsageError(f"captions and references name different images: {' and '.join(parts)}: make the ids agree.")
    bare = [name for name, texts in references.items() if not texts]
    if bare:
        raise UsageError(f"image {bare[0]!r} has no references ({len(bare)} in all): remove it or add a caption of it.")
