"""The world's data, start captioner, listener and judge, loaded once and put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.loader import TrainingData
from tellapart.evaluation.evaluate import Evaluation
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.types import Decoding
from tellapart.world import load_scenes, load_world
from tellapart.world.measures import measure_against
from tellapart.world.probe import require_probe
from tellapart.world.stages import resolve
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.rewards.language_model import LanguageModel


@dataclass
class World:
    """The parts of a training on the world; missing stages are built first.

    Args:
        size: ``full`` or ``small``.
        seed: which start captioner; data, listener and judge stay the same.
    """

    size: str
    seed: int
    datasets: dict[str, CaptionDataset] = field(default_factory=dict)

    @staticmethod
    def load(size: str = "full", seed: int = 0) -> World:
        """The parts, with the listener held to its probe.

        Raises:
            UsageError: the listener fails the probe, so no reward by it means anything.
        """
        require_probe(resolve("world/listener", size=size))
        return World(size, seed)

    def dataset(self, split: str) -> CaptionDataset:
        """A split, with its images known to listener and judge."""
        if split not in self.datasets:
            self.datasets[split] = load_world(split, size=self.size)
            for listener in (self.listener, self.judge):
                listener.cache_images(self.datasets[split])
        return self.datasets[split]

    @cached_property
    def captioner(self) -> HuggingFaceCaptioner:
        """The start captioner of this seed, whose vision tower stays frozen."""
        folder = resolve("world/xe", size=self.size, seed=self.seed)
        return HuggingFaceCaptioner.from_pretrained(folder, train="decoder")

    @cached_property
    def listener(self) -> ClipListener:
        """The reward listener."""
        return ClipListener.from_pretrained(resolve("world/listener", size=self.size), name="listener", prefix="")

    @cached_property
    def judge(self) -> LateListener:
        """The retriever kept for evaluation."""
        return LateListener.from_pretrained(resolve("world/judge", size=self.size), name="judge")

    @cached_property
    def language_model(self) -> LanguageModel:
        """Scores how likely a caption is among those of the training split."""
        from tellapart.rewards.language_model import LanguageModel

        return LanguageModel.from_pretrained(resolve("world/language_model", size=self.size))

    def training_data(self) -> TrainingData:
        """The training split as the loop reads it."""
        return TrainingData(self.dataset("train"), self.collate)

    @cached_property
    def collate(self) -> Collate:
        """Makes batches for the captioner."""
        return Collate({self.captioner.name: self.captioner.process})

    def evaluation(self, split: str) -> Evaluation:
        """All metrics on a split, one greedy caption per image."""
        return Evaluation(
            self.dataset(split),
            self.collate,
            listeners={"listener": self.listener, "judge": self.judge},
            decoding=Decoding(max_new_tokens=MAX_NEW_TOKENS),
            measures=(measure_against(load_scenes(split, size=self.size)),),
        )
