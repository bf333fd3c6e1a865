"""Several captions of each image: how good they are on the whole, and how different from one another.

SLE (Chen & Jin 2020, Table 4) draws five captions per image by random sampling (``rs``) and takes the five best beams
(``bs``); so do most papers on diverse captioning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tellapart.captioners.base import Captioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.errors import UsageError
from tellapart.evaluation.drawing import draw_rollouts
from tellapart.evaluation.measures import Measured
from tellapart.metrics.cider import CiderDScorer
from tellapart.metrics.diversity import div_n, mbleu_corpus
from tellapart.metrics.frequencies import DocumentFrequencies
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.types import Decoding

DIV = (1, 2)


def set_decodings(samples: int, decoding: Decoding) -> dict[str, Decoding]:
    """``rs<samples>`` and ``bs<samples>``: random sampling at temperature 1, and beam search that returns every beam.

    Args:
        samples: captions of each image.
        decoding: of the captions that are measured one by one; its lengths and restrictions hold here, too.

    Raises:
        UsageError: fewer than two captions, which have nothing to differ from.
    """
    if samples < 2:
        raise UsageError(
            f"samples is {samples}, but captions of an image are compared with one another: draw 2 or more."
        )
    sampled = replace(decoding.greedy(), do_sample=True, num_return_sequences=samples)
    beams = replace(decoding.greedy(), num_beams=samples, num_return_sequences=samples)
    return {f"rs{samples}": sampled, f"bs{samples}": beams}


def draw_sets(
    captioner: Captioner,
    dataset: CaptionDataset,
    collate: Collate,
    decoding: Decoding,
    *,
    batch_size: int = 64,
    seed: int = 0,
) -> dict[str, list[str]]:
    """Image id -> its captions, as ``decoding`` returns them."""
    found: dict[str, list[str]] = {image_id: [] for image_id in dataset.ids}
    rollouts = draw_rollouts(
        captioner, dataset, collate, decoding, batch_size=batch_size, seed=seed, description="captioning, sets"
    )
    for rollout in rollouts:
        for image_id, text in zip(rollout.ids(), rollout.texts, strict=True):
            found[image_id].append(text)
    return found


def set_measures(sets: Mapping[str, Sequence[str]], references: Mapping[str, Sequence[str]], name: str) -> Measured:
    """CIDEr (mean over all captions), Div-1, Div-2 and mBLEU-4 of several captions per image, in words as for the metrics.

    CIDEr is left out where no image or only one has references; its document frequencies are those of the references.

    Args:
        sets: image id -> equally many captions.
        references: image id -> captions to compare with.
        name: put before each metric: ``rs5`` gives ``rs5_CIDEr``, ``rs5_Div-1``, ``rs5_Div-2``, ``rs5_mBLEU-4``.

    Returns:
        Metrics, fractions but CIDEr on 0 to 10, and columns of those that are means over images.

    Raises:
        UsageError: images have different numbers of captions, or fewer than two.
    """
    rest = iter(ptb_tokenize(text for texts in sets.values() for text in texts))
    words = [[next(rest) for _ in texts] for texts in sets.values()]
    columns = {f"{name}_Div-{n}": [div_n([captions], n) for captions in words] for n in DIV}
    targets = [references.get(image_id, ()) for image_id in sets]
    if sum(map(bool, targets)) > 1 and all(targets):
        columns[f"{name}_CIDEr"] = _mean_cider(words, targets)
    metrics = {key: float(np.mean(values)) for key, values in columns.items()}
    metrics[f"{name}_mBLEU-4"] = mbleu_corpus(words)[-1]
    return metrics, columns


def _mean_cider(words: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> list[float]:
    """One value per image: the mean CIDEr-D of its captions."""
    rest = iter(ptb_tokenize(text for texts in references for text in texts))
    tokens = [[next(rest) for _ in texts] for texts in references]
    frequencies = DocumentFrequencies.from_tokens({str(i): texts for i, texts in enumerate(tokens)})
    scorer = CiderDScorer(frequencies, clipped=True)
    prepared = scorer.prepare([[text.split() for text in texts] for texts in tokens])
    count = len(words[0])
    image = np.arange(len(words)).repeat(count)
    values = scorer.score([caption.split() for captions in words for caption in captions], image, prepared)
    return values.reshape(-1, count).mean(axis=1).tolist()
