"""Drawing one caption of every image and measuring it: the same way for every captioner, and for given captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tellapart.captioners.base import Captioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.errors import UsageError, count_of, quoted
from tellapart.evaluation.drawing import draw_rollouts
from tellapart.evaluation.late_scorer import LateScorer
from tellapart.evaluation.lengths import length_measures, lengths_asked
from tellapart.evaluation.matching import among_references
from tellapart.evaluation.measures import (
    Measure,
    Measured,
    compared_with,
    left_out,
    measured_by,
    reference_measures,
    style_measures,
)
from tellapart.evaluation.protocol import OWN_FREQUENCIES, Protocol, data_digest
from tellapart.evaluation.rerank import Rerank, Together
from tellapart.evaluation.results import EvaluationResult
from tellapart.evaluation.scorers import ListenerScorer, Scorer, cut_captions
from tellapart.evaluation.sets import draw_sets, set_decodings, set_measures
from tellapart.lengths import WordRange
from tellapart.listeners.late import LateListener
from tellapart.types import Decoding, Listener, Rollout

_SHOWN = 5


class Evaluation:
    """One protocol: a data set, how captions are drawn and what is measured of them.

    Args:
        dataset: the images; reference metrics are left out if no image has references.
        collate: turns examples into what the captioner reads; given captions need none.
        listeners: name -> retriever that knows the data set's images by id. Those that served as a reward come first, a
            judge that did not comes last.
        decoding: how captions are drawn; one per image.
        batch_size: images captioned at once; it changes no caption.
        measures: further measures of the captions.
        scorers: further models that see the images, which they know.
        seed: of sampled captions; the same for every batch, since draws are keyed by image id.
        num_workers: processes that read images.
        hard_gallery: N, to also retrieve among each image's N nearest ones; 0 does not.
        samples: N, to also draw N captions per image at random and N by beam search, and measure them as sets
            (``tellapart.evaluation.sets``); 0 does not.
        words: the length in words to ask for; none draws one for each image if the captioner has length buckets.
        rerank: keep, of all beams of an image, the caption with the highest reward; the sets of ``samples`` are not reranked.
        together: captions all images in one call, in place of the search, which ``decoding`` then only describes.
        name: name of the data in the protocol; default: the data set's name.

    Raises:
        UsageError: the decoding returns several captions per image, or ``rerank`` is given without beam search.
    """

    def __init__(
        self,
        dataset: CaptionDataset,
        collate: Collate | None = None,
        *,
        listeners: Mapping[str, Listener | LateListener] | None = None,
        decoding: Decoding | None = None,
        batch_size: int = 64,
        measures: Sequence[Measure] = (),
        scorers: Sequence[Scorer] = (),
        seed: int = 0,
        num_workers: int = 0,
        hard_gallery: int = 0,
        samples: int = 0,
        rerank: Rerank | None = None,
        together: Together | None = None,
        name: str | None = None,
        words: WordRange | None = None,
    ) -> None:
        self.dataset, self.collate = dataset, collate
        self.listeners, self.measures = dict(listeners or {}), tuple(measures)
        self.decoding, self.seed = decoding or Decoding(), seed
        self.batch_size, self.num_workers, self.hard_gallery = batch_size, num_workers, hard_gallery
        if self.decoding.num_return_sequences != 1:
            raise UsageError(
                f"num_return_sequences is {self.decoding.num_return_sequences}, but an evaluation measures one caption "
                "an image: set it to 1."
            )
        self.rerank, self.words = rerank, words
        drawn = describe_decoding(self.decoding, seed)
        drawn += "" if words is None else f", {words} words asked for"
        if rerank is not None:
            rerank.decoding(self.decoding)
            drawn += f", best of these by {rerank.name}"
        self.together = together
        if together is not None:
            drawn += f", {together.name}"
        self.sets = set_decodings(samples, self.decoding) if samples else {}
        listening = {key: _listening(one, key, hard_gallery) for key, one in self.listeners.items()}
        self.scorers: list[Scorer] = [*listening.values(), *scorers]
        self.protocol = Protocol(
            name or dataset.name,
            len(dataset),
            data_digest(dataset.references),
            drawn,
            {key: scorer.weights for key, scorer in listening.items()},
            measured_by(self.measures) | {key: what for one in self.scorers for key, what in one.measured_by.items()},
            frequencies=_frequencies(dataset.references),
        )

    def __repr__(self) -> str:
        retrievers = f", listeners {', '.join(self.listeners)}" if self.listeners else ""
        return (
            f"Evaluation({self.protocol.data!r}, {self.protocol.images:,} images, {self.protocol.decoding}{retrievers})"
        )

    def __call__(self, captioner: Captioner, *, name: str = "captioner") -> EvaluationResult:
        """Caption every image and measure the captions; weights, modes and random numbers stay as they are."""
        captions, finished, asked = self._draw(captioner)
        result = self._measure(captions, name, self.protocol, None)
        if asked:
            result = _with_lengths(result, list(captions.values()), asked)
        metrics, columns = dict(result.metrics), dict(result.per_image)
        if finished:
            cut = [100.0 * (not done) for done in finished]
            metrics, columns = metrics | {"unfinished": sum(cut) / len(cut)}, columns | {"unfinished": cut}
        for key, decoding in self.sets.items():
            figures, rows = self._measure_sets(captioner, key, decoding)
            metrics, columns = metrics | figures, columns | rows
        return replace(result, metrics=metrics, per_image=columns)

    def _measure_sets(self, captioner: Captioner, name: str, decoding: Decoding) -> Measured:
        """Several captions of each image, which are kept as a column ``<name>_captions``."""
        assert self.collate is not None, "draw asks for it"
        size = max(1, self.batch_size // decoding.num_return_sequences)
        drawn = draw_sets(captioner, self.dataset, self.collate, decoding, batch_size=size, seed=self.seed)
        metrics, columns = set_measures(drawn, self.dataset.references, name)
        captions: list[Any] = list(drawn.values())
        return metrics, columns | {f"{name}_captions": captions}

    def score(
        self,
        captions: Mapping[str, str],
        *,
        name: str,
        references: Mapping[str, Sequence[str]] | None = None,
        note: str = "",
    ) -> EvaluationResult:
        """Measure captions that were given: human ones, full descriptions, empty ones, a file's.

        Args:
            captions: image id -> caption, of exactly the data set's images.
            name: the row's name in tables.
            references: what to compare with; default: the data set's.
            note: what a reader must know of them, added to the protocol.

        Raises:
            UsageError: captions are missing, or are of images that the data set lacks.
        """
        require_same_ids(captions, self.dataset, name)
        ordered = {image_id: captions[image_id] for image_id in self.dataset.ids}
        if references is None:
            own = self.dataset.references
            copied = among_references(list(ordered.values()), (own[image_id] for image_id in ordered))
            note = "; ".join(filter(None, [note, copied]))
        return self._measure(ordered, name, replace(self.protocol, decoding=None, note=note), references)

    def human(self, *, name: str = "human") -> EvaluationResult:
        """The first reference of each image as its caption, scored against the others.

        Raises:
            UsageError: an image has fewer than two references.
        """
        references = self.dataset.references
        for image_id, texts in references.items():
            if len(texts) < 2:
                raise UsageError(
                    f"image {image_id!r} of {self.dataset.name} has {len(texts)} references, but human captions are "
                    "scored against each other: leave this row out, or use data with two or more per image."
                )
        first = {image_id: texts[0].strip() for image_id, texts in references.items()}
        others = {image_id: texts[1:] for image_id, texts in references.items()}
        note = "first reference of each image, scored against its others"
        return self.score(first, name=name, references=others, note=note)

    def empty(self, *, name: str = "empty caption") -> EvaluationResult:
        """Nothing said of any image: the floor."""
        return self.score(dict.fromkeys(self.dataset.ids, ""), name=name)

    def draw(self, captioner: Captioner) -> tuple[dict[str, str], list[bool]]:
        """``(captions by id, whether each ended with EOS)`` in the data set's order; ``together`` does not say the latter.

        Raises:
            UsageError: the evaluation has no ``collate`` to feed a captioner with.
        """
        captions, finished, _ = self._draw(captioner)
        return captions, finished

    def _draw(self, captioner: Captioner) -> tuple[dict[str, str], list[bool], list[WordRange]]:
        """The same, and the lengths that captions were asked for, if any."""
        if self.together is not None:
            found = self.together.caption(captioner, self.dataset)
            asked = [] if self.words is None else [self.words] * len(self.dataset)
            return {image_id: found[image_id] for image_id in self.dataset.ids}, [], asked
        if self.collate is None:
            raise UsageError(
                "this evaluation was built without collate: give one to caption images, or score captions."
            )
        captions: dict[str, str] = {}
        finished: list[bool] = []
        asked = []
        rollouts = draw_rollouts(
            captioner,
            self.dataset,
            self.collate,
            self.decoding if self.rerank is None else self.rerank.decoding(self.decoding),
            batch_size=self.batch_size,
            seed=self.seed,
            num_workers=self.num_workers,
        )
        for drawn in rollouts:
            rollout = drawn if self.rerank is None else self.rerank.best(drawn)
            captions.update(zip(rollout.ids(), rollout.texts, strict=True))
            finished += rollout.finished.tolist()
            asked += self._asked(captioner, rollout)
        return captions, finished, asked

    def _asked(self, captioner: Captioner, rollout: Rollout) -> list[WordRange]:
        if self.words is not None:
            return [self.words] * len(rollout)
        if captioner.buckets is None or rollout.bucket is None:
            return []
        return [captioner.buckets.range(bucket) for bucket in rollout.bucket.tolist()]

    def _measure(
        self,
        captions: dict[str, str],
        name: str,
        protocol: Protocol,
        references: Mapping[str, Sequence[str]] | None,
    ) -> EvaluationResult:
        compared = self.dataset.references if references is None else references
        parts: list[Measured] = []
        if any(compared.values()):
            parts.append(reference_measures(captions, compared))
        parts += [scorer(captions, compared) for scorer in self.scorers]
        measures = [one if references is None else compared_with(one, compared) for one in self.measures]
        parts += [measure(captions) for measure in measures]
        parts.append(style_measures(list(captions.values())))
        metrics = {key: value for part, _ in parts for key, value in part.items()}
        columns = {key: column for _, part in parts for key, column in part.items()}
        by = {key: what for key, what in protocol.measured_by.items() if key in metrics}
        models = {scorer.name: scorer.describe(list(captions.values())) for scorer in self.scorers}
        found = {"left_out": left_out(measures), "models": models}
        details = {key: value for key, value in found.items() if value}
        protocol = replace(
            protocol,
            measured_by=by,
            frequencies=_frequencies(compared),
            note="; ".join(filter(None, [protocol.note, cut_captions(models)])),
        )
        return EvaluationResult(name, protocol, metrics, captions, columns, details=details)


def _frequencies(references: Mapping[str, Sequence[str]]) -> str:
    """What a protocol says of document frequencies: nothing where no image has references."""
    return OWN_FREQUENCIES if any(references.values()) else ""


def _with_lengths(result: EvaluationResult, captions: Sequence[str], asked: Sequence[WordRange]) -> EvaluationResult:
    """The result with how far captions keep to the lengths they were asked for."""
    metrics, columns = length_measures(captions, asked)
    return replace(
        result,
        metrics=result.metrics | metrics,
        per_image=result.per_image | columns,
        details=result.details | {"lengths": lengths_asked(columns)},
    )


def _listening(listener: Listener | LateListener, key: str, hard: int) -> ListenerScorer | LateScorer:
    """The measure of retrieval: by cosines, or by the words of a late-interaction listener."""
    if isinstance(listener, LateListener):
        return LateScorer(listener, key, hard=hard)
    return ListenerScorer(listener, key, hard=hard)


def require_same_ids(captions: Mapping[str, str], dataset: CaptionDataset, name: str) -> None:
    """Raise unless ``captions`` are of exactly the data set's images.

    Raises:
        UsageError: with how many are missing or unknown, and the first of them.
    """
    missing = [image_id for image_id in dataset.ids if image_id not in captions]
    extra = [image_id for image_id in captions if image_id not in dataset.position]
    if missing or extra:
        parts = [
            f"{count_of(len(ids), what)} {why} ({', '.join(map(quoted, ids[:_SHOWN]))}{', ...' if len(ids) > _SHOWN else ''})"
            for what, why, ids in (("image", "without a caption", missing), ("caption", "of unknown images", extra))
            if ids
        ]
        raise UsageError(f"{name} does not fit {dataset.name}, {' and '.join(parts)}: give one caption per image.")


def describe_decoding(decoding: Decoding, seed: int) -> str:
    """The decoding in words, with every setting that is not its default."""
    if decoding.num_beams > 1:
        kind = f"beam {decoding.num_beams}"
    else:
        kind = f"sampled, seed {seed}" if decoding.do_sample else "greedy"
    default = Decoding()
    silent = {"num_beams", "do_sample", "num_return_sequences"}
    changed = [f"{k}={v}" for k, v in vars(decoding).items() if k not in silent and v != vars(default)[k]]
    limit = [] if decoding.max_new_tokens != default.max_new_tokens else [f"max_new_tokens={decoding.max_new_tokens}"]
    return ", ".join([kind, *limit, *changed])
