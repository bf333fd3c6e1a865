"""Drawing one caption of every image and measuring it: the same way for every captioner, and for given captions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol as TypingProtocol
from typing import runtime_checkable

import torch

from tellapart.captioners.base import Captioner
from tellapart.captioners.modes import evaluating
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.errors import UsageError
from tellapart.evaluation.listening import listener_measures
from tellapart.evaluation.measures import Measure, Measured, reference_measures, style_measures
from tellapart.evaluation.protocol import Protocol, data_digest
from tellapart.evaluation.results import EvaluationResult
from tellapart.progress import track
from tellapart.types import Decoding, Listener

_SHOWN = 5


@runtime_checkable
class _Fingerprinted(TypingProtocol):
    def fingerprint(self) -> str: ...


class Evaluation:
    """One protocol: a data set, how captions are drawn and what is measured of them.

    Args:
        dataset: the images; reference metrics are left out if no image has references.
        collate: turns examples into what the captioner reads; given captions need none.
        listeners: name -> retriever that knows the data set's images by id. Those that served as a reward come first, a
            judge that did not comes last.
        decoding: how captions are drawn; one an image.
        batch_size: images captioned at once; it changes no caption.
        measures: further measures of the captions.
        seed: of sampled captions; the same for every batch, since draws are keyed by image id.
        num_workers: processes that read images.
        hard_gallery: also retrieve among each image's so many nearest ones; 0 does not.
        name: what the data is called in the protocol; default: the data set's name.

    Raises:
        UsageError: the decoding returns several captions an image.
    """

    def __init__(
        self,
        dataset: CaptionDataset,
        collate: Collate | None = None,
        *,
        listeners: Mapping[str, Listener] | None = None,
        decoding: Decoding | None = None,
        batch_size: int = 64,
        measures: Sequence[Measure] = (),
        seed: int = 0,
        num_workers: int = 0,
        hard_gallery: int = 0,
        name: str | None = None,
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
        self.protocol = Protocol(
            name or dataset.name,
            len(dataset),
            data_digest(dataset.references),
            describe_decoding(self.decoding, seed),
            {key: _identity(listener) for key, listener in self.listeners.items()},
        )

    def __call__(self, captioner: Captioner, *, name: str = "captioner") -> EvaluationResult:
        """Caption every image and measure the captions; weights, modes and random numbers stay as they are."""
        captions, finished = self.draw(captioner)
        result = self._measure(captions, name, self.protocol, None)
        cut = [100.0 * (not done) for done in finished]
        metrics = result.metrics | {"unfinished": sum(cut) / len(cut)}
        return replace(result, metrics=metrics, per_image=result.per_image | {"unfinished": cut})

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
                    "scored against each other: leave this row out, or use data with two or more an image."
                )
        first = {image_id: texts[0].strip() for image_id, texts in references.items()}
        others = {image_id: texts[1:] for image_id, texts in references.items()}
        note = "first reference of each image, scored against its others"
        return self.score(first, name=name, references=others, note=note)

    def empty(self, *, name: str = "empty caption") -> EvaluationResult:
        """Nothing said of any image: the floor."""
        return self.score(dict.fromkeys(self.dataset.ids, ""), name=name)

    def draw(self, captioner: Captioner) -> tuple[dict[str, str], list[bool]]:
        """``(captions by id, whether each ended by itself)`` in the data set's order.

        Raises:
            UsageError: the evaluation has no ``collate`` to feed a captioner with.
        """
        if self.collate is None:
            raise UsageError(
                "this evaluation was built without collate: give one to caption images, or score captions."
            )
        device = next(captioner.parameters()).device
        captions: dict[str, str] = {}
        finished: list[bool] = []
        with evaluating(captioner), forked_generators(device):
            loader: torch.utils.data.DataLoader = torch.utils.data.DataLoader(
                self.dataset,  # type: ignore[arg-type]  # a sequence serves
                batch_size=self.batch_size,
                collate_fn=self.collate,
                num_workers=self.num_workers,
            )
            for batch in track(loader, "captioning", total=len(loader)):
                torch.manual_seed(self.seed)
                rollout = captioner.generate(batch.to(device), self.decoding)
                captions.update(zip(rollout.ids(), rollout.texts, strict=True))
                finished += rollout.finished.tolist()
        return captions, finished

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
        for key, listener in self.listeners.items():
            parts.append(listener_measures(listener, key, captions, hard=self.hard_gallery))
        parts += [measure(captions) for measure in self.measures]
        parts.append(style_measures(list(captions.values())))
        metrics = {key: value for part, _ in parts for key, value in part.items()}
        columns = {key: column for _, part in parts for key, column in part.items()}
        return EvaluationResult(name, protocol, metrics, captions, columns)


def require_same_ids(captions: Mapping[str, str], dataset: CaptionDataset, name: str) -> None:
    """Raise unless ``captions`` are of exactly the data set's images.

    Raises:
        UsageError: with how many are missing or unknown, and the first of them.
    """
    missing = [image_id for image_id in dataset.ids if image_id not in captions]
    extra = [image_id for image_id in captions if image_id not in dataset.position]
    if missing or extra:
        parts = [
            f"{len(ids)} {kind} ({', '.join(map(repr, ids[:_SHOWN]))}{', ...' if len(ids) > _SHOWN else ''})"
            for kind, ids in (("images without a caption", missing), ("captions of unknown images", extra))
            if ids
        ]
        raise UsageError(f"{name} does not fit {dataset.name}, {' and '.join(parts)}: give one caption an image.")


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


@contextmanager
def forked_generators(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside the block, torch's generators on the CPU and ``device`` go on as if nothing was."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            yield


def _identity(listener: Listener) -> str:
    """Which model a retriever is."""
    return listener.fingerprint()[:12] if isinstance(listener, _Fingerprinted) else type(listener).__name__
