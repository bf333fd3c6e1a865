"""The captions of a start model: drawn once per image, kept in the cache batch by batch, resumed after a stop."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from tellapart.captioners.base import Captioner
from tellapart.data.center_crop import stored
from tellapart.data.corruptions import corrupt
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ImageFile, ImageSource, PackedImage
from tellapart.data.loader import TrainingData
from tellapart.draws import base_seed, mix_seeds, seed_torch, uniforms
from tellapart.evaluation.drawing import forked_generators
from tellapart.files import cache_dir, write_text
from tellapart.launch import is_main, processes
from tellapart.listeners.loading import model_digest
from tellapart.objectives.discriminator import Read
from tellapart.progress import bar
from tellapart.training.config import TrainConfig
from tellapart.training.devices import Devices
from tellapart.training.logs import read_lines
from tellapart.types import Batch, Decoding, Rollout

logger = logging.getLogger(__name__)

IMAGES_AT_ONCE = 64

_FORMAT = "batches"
"""Names the layout of the cache's files: one line per batch."""


@dataclass(frozen=True)
class StartCaptions:
    """Generated captions by image id, which become rollouts without drawing again.

    Args:
        texts: image id -> caption.
        finished: image id -> whether it ended with EOS.
        read: makes a rollout of strings.
    """

    texts: Mapping[str, str]
    finished: Mapping[str, bool]
    read: Read

    def __call__(self, batch: Batch) -> Rollout:
        """One caption of every image; its tokens are those of the string, which need not be those that were drawn."""
        rollout = self.read(batch, [self.texts[image_id] for image_id in batch.ids], torch.arange(len(batch)))
        ended = torch.tensor([self.finished[image_id] for image_id in batch.ids], device=rollout.finished.device)
        return replace(rollout, finished=rollout.finished & ended)


@dataclass(frozen=True)
class WithCorrupted:
    """Generated captions, some of them replaced by spoilt references (see ``tellapart.data.corruptions``).

    A start model writes few broken sentences, so a discriminator that saw only its captions may take any odd text for a
    person's. Which captions are replaced, by what, depends on image id and torch's global generator.

    Args:
        captions: the generated captions.
        read: makes a rollout of strings.
        share: how many are replaced, 0 to 1.
        vocabulary: words to insert.
    """

    captions: StartCaptions
    read: Read
    share: float
    vocabulary: Sequence[str]

    def __call__(self, batch: Batch) -> Rollout:
        """One caption of every image."""
        rollout, seed = self.captions(batch), base_seed()
        numbers = uniforms(batch.ids, 2, mix_seeds(seed, "corrupted"))
        replaced, choice = (numbers[:, 0] < self.share).tolist(), numbers[:, 1].tolist()
        texts, finished = list(rollout.texts), rollout.finished.clone()
        for row, references in enumerate(batch.references):
            if replaced[row] and references:
                rng = np.random.default_rng(mix_seeds(seed, "words", batch.ids[row]))
                texts[row] = corrupt(plain(references[int(choice[row] * len(references))]), rng, self.vocabulary).text
                finished[row] = True
        return replace(self.read(batch, texts, torch.arange(len(batch))), finished=finished)


def plain(text: str) -> str:
    """A reference without full stops, which spoiling would leave in the middle."""
    return text.replace(".", "").strip()


def start_captions(
    captioner: Captioner,
    dataset: CaptionDataset,
    ids: Sequence[str],
    collate: Callable[[Sequence[Example]], Batch],
    decoding: Decoding,
    *,
    seed: int = 0,
) -> StartCaptions:
    """Draw the captions of some images, except the batches that the cache holds.

    A beam of a near tie may depend on the batch that it is drawn in. So batches are cut from ``ids``, whatever is in the
    cache, and are kept whole: a caption follows from the arguments alone. Calls share the batches that are equal.

    The cache is named by the captioner's weights, prompt and frames per clip, the decoding, the seed if it samples, and the
    data's ids, references, sizes of image files and sampling of frames. A batch is one line of its file, written as soon as it is
    drawn: a stopped process loses one batch at most.

    Args:
        captioner: the start model; not changed.
        dataset: the images.
        ids: the images that are wanted; their order decides the batches.
        collate: makes the captioner's batches.
        decoding: how captions are drawn, one per image.
        seed: of sampled captions.
    """
    decides = [captioner_digest(captioner), asdict(decoding), seed if decoding.do_sample else 0, data_digest(dataset)]
    path = cache_dir() / "discriminators" / "captions" / f"{digest(_FORMAT, *decides)}.jsonl"
    batches = [tuple(ids[first : first + IMAGES_AT_ONCE]) for first in range(0, len(ids), IMAGES_AT_ONCE)]
    with alone(path):
        lines = {tuple(line["ids"]): line for line in read_lines(path)}
        missing = [batch for batch in batches if batch not in lines]
        wait()  # all have read before one writes
        if missing:
            if is_main():
                # A line cut short by a kill would spoil the next one.
                write_text(path, "".join(json.dumps(line) + "\n" for line in lines.values()))
            wanted = [[dataset[dataset.position[image_id]] for image_id in batch] for batch in missing]
            lines |= _draw(captioner, wanted, collate, decoding, seed, path)
    texts, finished = dict[str, str](), dict[str, bool]()
    for batch in batches:
        texts |= zip(batch, lines[batch]["texts"], strict=True)
        finished |= zip(batch, lines[batch]["finished"], strict=True)
    return StartCaptions(texts, finished, captioner.tokenize)


def _draw(
    captioner: Captioner,
    batches: Sequence[Sequence[Example]],
    collate: Callable[[Sequence[Example]], Batch],
    decoding: Decoding,
    seed: int,
    path: Path,
) -> dict[tuple[str, ...], dict]:
    device = next(captioner.parameters()).device
    drawn: dict[tuple[str, ...], dict] = {}
    with bar("start model's captions", sum(map(len, batches))) as shown, forked_generators(device):
        for batch in batches:
            seed_torch(seed)
            rollout = captioner.generate(collate(batch).to(device), decoding)
            line = {"ids": rollout.ids(), "texts": rollout.texts, "finished": rollout.finished.tolist()}
            if is_main():
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            drawn[tuple(line["ids"])] = line
            shown.advance(len(batch))
    return drawn


def captioner_digest(captioner: Captioner) -> str:
    """A hash of a captioner's class, prompt and weights, and of its frames per clip unless they are its family's usual number."""
    family = getattr(captioner, "family", None)
    further = []
    if captioner.takes_frames and captioner.num_frames != getattr(type(family), "frames", None):
        further.append(captioner.num_frames)
    return model_digest(captioner, type(captioner).__name__, getattr(family, "prompt", ""), *further)


def data_digest(dataset: CaptionDataset) -> str:
    """A hash of ids and references, of the sizes of image files, and of the sampling of frames where it is not uniform."""
    images = [stored(example.image) for example in dataset]
    samplings = {getattr(image, "sampling", "uniform") for image in images}
    further = " ".join(sorted(samplings - {"uniform"}))
    if any(sizes := [_bytes_of(image) for image in images]):
        further += json.dumps(sizes)
    return TrainingData(dataset, lambda examples: Batch([], []), further=further).fingerprint()


def _bytes_of(image: ImageSource) -> int:
    """The size of an image's file; 0 where it is in none, or in one that is missing."""
    if isinstance(image, PackedImage):
        return image.size
    with suppress(OSError, ValueError):
        return image.path.stat().st_size if isinstance(image, ImageFile) else 0
    return 0


def digest(*decides: object) -> str:
    """A name for whatever these values decide."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold ``path`` against other runs, which wait. The main process of a launch holds it for all, which enter at once, and
    until all have left; a process that fails lets go at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f"{path.name}.lock")) if is_main() else None
    try:
        if lock is not None:
            _acquire(lock, path)
        wait()
        yield
        wait()
    finally:
        if lock is not None:
            lock.release()


def _acquire(lock: FileLock, path: Path) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.warning("waiting for another process, which makes %s.", path)
        lock.acquire()


def wait() -> None:
    """Return once every process of this launch has come here."""
    if processes() > 1:
        _launch().wait()


def on_any(flag: bool) -> bool:
    """Whether the flag is set in any process of this launch; every one gets the same answer."""
    return _launch().any(flag) if processes() > 1 else flag


def _launch() -> Devices:
    return Devices(TrainConfig(output_dir=cache_dir()))
