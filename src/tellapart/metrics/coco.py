"""The metrics of the COCO captioning challenge, corpus and per image, without Java."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tellapart.errors import UsageError
from tellapart.metrics.cider import DocumentFrequencies, cider_d
from tellapart.metrics.tokenizer import tokenize

logger = logging.getLogger(__name__)

FEW_IMAGES = 100
"""Below so many images, document frequencies say little and CIDEr-D is hard to compare."""

_SHOWN = 5

Scores = tuple[dict[str, float], dict[str, dict[str, float]]]


def coco_metrics(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    frequencies: DocumentFrequencies | None = None,
) -> Scores:
    """Bleu_1..4, ROUGE_L and CIDEr (that is CIDEr-D) of one caption an image.

    Bleu and ROUGE_L are pycocoevalcap's; without it these columns are missing and a sentence is logged. CIDEr is ours
    and equals pycocoevalcap's. It is left out for a single image, where it would be 0 whatever the caption.

    Args:
        captions: image id -> raw caption.
        references: image id -> raw references; exactly the same ids.
        frequencies: document frequencies without an end token for CIDEr; by default those of ``references``.

    Returns:
        ``(corpus, per_image)``: name -> value, and image id -> name -> value. Fractions, but CIDEr on 0 to 10
        (papers print all of them times 100).

    Raises:
        UsageError: the ids differ, or an image has no references.
    """
    check_same_images(captions, references)
    candidates = dict(zip(captions, tokenize(captions.values()), strict=True))
    targets = {name: tokenize(references[name]) for name in captions}
    columns = _bleu_and_rouge(candidates, targets) | _cider(candidates, targets, frequencies)
    corpus = {metric: value for metric, (value, _) in columns.items()}
    per_image = {
        name: {metric: float(values[i]) for metric, (_, values) in columns.items()} for i, name in enumerate(candidates)
    }
    return corpus, per_image


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


Columns = dict[str, tuple[float, Sequence[float]]]


def _bleu_and_rouge(candidates: Mapping[str, str], targets: Mapping[str, list[str]]) -> Columns:
    try:
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.rouge.rouge import Rouge
    except ImportError:
        logger.warning(
            "Bleu and ROUGE_L are left out because pycocoevalcap is not installed: pip install tellapart[coco]"
        )
        return {}
    hypotheses = {name: [caption] for name, caption in candidates.items()}
    bleu, per_image = Bleu(4).compute_score(targets, hypotheses, verbose=0)
    rouge, rouge_per_image = Rouge().compute_score(targets, hypotheses)
    columns: Columns = {f"Bleu_{n + 1}": (float(bleu[n]), per_image[n]) for n in range(4)}
    return columns | {"ROUGE_L": (float(rouge), rouge_per_image)}


def _cider(
    candidates: Mapping[str, str], targets: Mapping[str, list[str]], frequencies: DocumentFrequencies | None
) -> Columns:
    if frequencies is None and len(targets) == 1:
        logger.warning("CIDEr is left out: of one image every n-gram has idf 0, so score more images together.")
        return {}
    if frequencies is None and len(targets) < FEW_IMAGES:
        logger.warning(
            "CIDEr takes its document frequencies from only %d images: do not compare it with values of larger sets.",
            len(targets),
        )
    values = list(cider_d(candidates, targets, frequencies).values())
    return {"CIDEr": (sum(values) / len(values), values)}
