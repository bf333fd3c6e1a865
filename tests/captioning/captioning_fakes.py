"""Stations without models, which new processes can import: a caption says which image it is of."""

from __future__ import annotations

import io
import os
import signal
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pictures import images
from tellapart.captioners.base import Captioner
from tellapart.captioning.collection import Pace
from tellapart.captioning.read import Read
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.serve import Station
from tellapart.captioning.shards.samples import Reading
from tellapart.captioning.shards.shard import ShardJob
from tellapart.data.images import EncodedImage
from tellapart.errors import UsageError
from tellapart.types import Batch, Rollout


def items(count: int) -> list[Item]:
    """Images that nobody opens."""
    return [Item(f"i{number}", EncodedImage(b"", f"i{number}.png"), f"i{number}.png") for number in range(count)]


def read(some: Sequence[Item]) -> Read:
    """All but those whose number ends in 7 can be read."""
    good = [item for item in some if not item.id.endswith("7")]
    errors = {item.id: f"{item.id} is broken: repair it." for item in some if item.id.endswith("7")}
    return Read(good, Batch([item.id for item in good], [[] for _ in good]) if good else None, errors)


def draw(batch: Batch, described: int) -> list[Caption]:
    return [Caption(name, f"caption of {name}", raw=f"caption of {name}") for name in batch.ids]


@dataclass(frozen=True)
class Build:
    """Makes a station whose drawing may be slow, fail, or kill its process.

    Args:
        folder: where each process notes its id.
        seconds: that a batch takes.
        dies: id of the image at which the process kills itself, the first time.
        always: the process dies at every batch.
        fails: id of the image at which a sentence is raised.
    """

    folder: Path
    seconds: float = 0.0
    dies: str | None = None
    always: bool = False
    fails: str | None = None

    def __call__(self, rank: int, processes: int) -> Station:
        (self.folder / f"pid-{os.getpid()}").write_text(f"{rank} of {processes}")
        (self.folder / f"begun-{rank}").write_text(f"{os.getppid()} {os.environ.get('CAPTIONING_TEST')}")

        def slow_draw(batch: Batch, described: int) -> list[Caption]:
            time.sleep(self.seconds)
            died = self.folder / "died"
            if self.always or (self.dies in batch.ids and not died.exists()):
                died.write_text("once")
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fails in batch.ids:
                raise UsageError("the model is too large: choose a smaller one.")
            return draw(batch, described)

        return Station(read, slow_draw)


class Scripted(Captioner):
    """Says given texts: for each image a list by try, of which a try takes as many as are asked for.

    Each try is recognised by torch's seed, in the order in which seeds are first seen.
    """

    def __init__(self, texts: dict[str, list[list[str]]], *, unfinished: Sequence[str] = ()) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.texts, self.unfinished, self.seeds, self.calls = texts, set(unfinished), [], []

    def generate(self, batch, decoding, *, encoded=None):
        seed = torch.initial_seed()
        if seed not in self.seeds:
            self.seeds.append(seed)
        attempt = self.seeds.index(seed)
        self.calls.append((attempt, list(batch.ids), decoding))
        count = decoding.num_return_sequences
        texts = [text for name in batch.ids for text in self.texts[name][attempt][:count]]
        image = torch.arange(len(batch)).repeat_interleave(count)
        tokens = torch.ones(len(texts), 1, dtype=torch.long)
        finished = torch.tensor([text not in self.unfinished for text in texts])
        return Rollout(batch, image, texts, tokens, tokens.bool(), finished)

    def process(self, images):
        return {}

    def encode(self, batch):
        raise NotImplementedError

    def reusable(self, encoded):
        raise NotImplementedError

    def tokenize(self, batch, texts, image):
        raise NotImplementedError

    def forward(self, rollout, *, encoded=None, want=()):
        raise NotImplementedError

    def reference(self):
        raise NotImplementedError

    def save(self, folder):
        raise NotImplementedError

    def load_weights(self, folder):
        raise NotImplementedError


# Shards of pictures, and stations that open them.


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    images(3)[number % 3].resize((16, 16)).save(buffer, "png")
    return buffer.getvalue()


def tar(samples: dict[str, dict[str, bytes]]) -> bytes:
    """A tar in WebDataset's manner."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for key, members in samples.items():
            for ending, data in members.items():
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def plain(first: int, count: int) -> bytes:
    return tar({f"{number:05}": {"png": png(number), "cls": b"7"} for number in range(first, first + count)})


def opening(items) -> Read:
    """Opens every image, as a station with models does."""
    errors = {}
    for item in items:
        try:
            item.image.open()
        except UsageError as error:
            errors[item.id] = str(error)
    good = [item for item in items if item.id not in errors]
    return Read(good, Batch([item.id for item in good], [[] for _ in good]) if good else None, errors)


OPENING = Station(opening, draw)


def shard_job(kind: str = "webdataset", **pace) -> ShardJob:
    return ShardJob(Reading(), kind, False, Pace(**{"batch_size": 4, "threads": 1, **pace}))


def build_opening(rank: int, processes: int) -> Station:
    return OPENING


@dataclass(frozen=True)
class Deadly:
    """A station whose process dies once at one image, and always at another."""

    folder: Path
    once: str
    always: str

    def __call__(self, rank: int, processes: int) -> Station:
        def deadly(batch: Batch, described: int) -> list[Caption]:
            died = self.folder / "died"
            if self.always in batch.ids or (self.once in batch.ids and not died.exists()):
                if self.once in batch.ids:
                    died.write_text("")
                os.kill(os.getpid(), signal.SIGKILL)
            return draw(batch, described)

        return Station(opening, deadly)
