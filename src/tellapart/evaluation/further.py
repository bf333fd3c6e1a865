"""Measures that need more than captions and references: annotated objects, training captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tellapart.evaluation.measures import Measure, Measured
from tellapart.evaluation.protocol import data_digest
from tellapart.metrics.chair import chair, load_instances
from tellapart.metrics.diversity import coverage, novel_captions
from tellapart.metrics.ptb import ptb_tokenize


def chair_measure(instances: Sequence[Path], references: Mapping[str, Sequence[str]]) -> Measure:
    """CHAIR (Rohrbach et al., EMNLP 2018) as ``CHAIRi``, ``CHAIRs`` and ``object_recall``, in percent.

    Args:
        instances: COCO instance files of the images.
        references: image id -> captions, whose objects count as in the image.

    Raises:
        UsageError: a file cannot be read, or lacks an image.
    """
    objects = load_instances(*instances)

    def measure(captions: Mapping[str, str]) -> Measured:
        words = dict(zip(captions, ptb_tokenize(captions.values()), strict=True))
        targets = {image_id: ptb_tokenize(references[image_id]) for image_id in captions}
        corpus, columns = chair(words, objects, targets)
        rows = {name: values.tolist() for name, values in columns.items()}
        rows["CHAIRs"] = [100.0 * value for value in rows["CHAIRs"]]
        return {name: 100 * value for name, value in corpus.items()}, rows

    return measure


def novelty_measure(
    training: Mapping[str, Sequence[str]], references: Mapping[str, Sequence[str]] | None = None
) -> Measure:
    """Share of captions that equal no training caption word for word, as ``novel_captions`` in percent; with references also
    ``word_coverage``: the share, in percent, of the words that occur in training captions and references that captions use.

    Args:
        training: image id -> training captions.
        references: image id -> human captions of the captioned images.

    Raises:
        UsageError: there are none.
    """
    known = frozenset(ptb_tokenize((text for texts in training.values() for text in texts), alone=True))
    own = ptb_tokenize((text for texts in (references or {}).values() for text in texts), alone=True)
    learnable = _words(known) & _words(own)

    def measure(captions: Mapping[str, str]) -> Measured:
        words = ptb_tokenize(captions.values(), alone=True)
        novel = 100 * novel_captions(words, known)
        metrics = {"novel_captions": float(novel.mean())}
        if learnable:
            metrics["word_coverage"] = 100 * coverage(words, learnable)
        return metrics, {"novel_captions": novel.tolist()}

    return _Named(measure, {"novel_captions": f"training captions [{data_digest(training)}]"})


@dataclass(frozen=True)
class _Named:
    """A measure, with what measured its metrics."""

    measure: Measure
    measured_by: dict[str, str]

    def __call__(self, captions: Mapping[str, str]) -> Measured:
        return self.measure(captions)


def _words(captions: Iterable[str]) -> set[str]:
    return {word for caption in captions for word in caption.split()}
