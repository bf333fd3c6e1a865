"""The world's data, start captioner, listener and judge, loaded once and put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.loader import TrainingData
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.measures import Measure
from tellapart.evaluation.scorers import Scorer
from tellapart.experiments.world_rows import LEARNS
from tellapart.listeners.clip import ClipListener
from tellapart.metrics.scores import CLIP_WEIGHT, PAC_WEIGHT
from tellapart.rewards.reference import CiderD, DocumentFrequencies
from tellapart.rewards.similarity import Similarity
from tellapart.types import Decoding
from tellapart.world import load_scenes, load_world
from tellapart.world.measures import measure_against
from tellapart.world.probe import require_probe
from tellapart.world.stages import resolve
from tellapart.world.vocabulary import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from tellapart.listeners.matcher import ItmMatcher
    from tellapart.listeners.soft_clip import SoftClip
    from tellapart.rewards.grammar import Grammar
    from tellapart.rewards.language_model import LanguageModel
    from tellapart.types import Reward


@dataclass
class World:
    """Everything a training on the world needs; missing stages are built first.

    Args:
        size: ``full`` or ``small``.
        seed: which start captioner; data, listener and judge stay the same.
        start: the start captioner, ``world/xe``, ``world/lstm`` or ``world/blip2``.
    """

    size: str
    seed: int
    start: str = "world/xe"
    datasets: dict[str, CaptionDataset] = field(default_factory=dict)

    @staticmethod
    def load(size: str = "full", seed: int = 0, start: str = "world/xe") -> World:
        """The parts, with the listener held to its probe.

        Raises:
            UsageError: the listener fails the probe, so no reward of its means anything.
        """
        parts = World(size, seed, start)
        require_probe(resolve("world/listener", size=size))
        return parts

    def dataset(self, split: str) -> CaptionDataset:
        """A split, with its images known to listener and judge."""
        if split not in self.datasets:
            self.datasets[split] = load_world(split, size=self.size)
            for listener in (self.listener, self.judge):
                listener.cache_images(self.datasets[split])
        return self.datasets[split]

    @cached_property
    def captioner(self) -> HuggingFaceCaptioner:
        """The start captioner of this seed; its vision tower, where it has one, stays frozen."""
        folder = resolve(self.start, size=self.size, seed=self.seed)
        return HuggingFaceCaptioner.from_pretrained(folder, train=LEARNS.get(self.start, "decoder"))

    @cached_property
    def listener(self) -> ClipListener:
        """The reward listener."""
        return ClipListener.from_pretrained(resolve("world/listener", size=self.size), name="listener", prefix="")

    @cached_property
    def judge(self) -> ClipListener:
        """The retriever kept for evaluation."""
        return ClipListener.from_pretrained(resolve("world/judge", size=self.size), name="judge", prefix="")

    @cached_property
    def own_listener(self) -> SoftClip:
        """A copy of the reward listener that belongs to the captioner and reads its words; it knows train and val."""
        from tellapart.listeners.soft_clip import SoftClip
        from tellapart.listeners.words import Words

        copy = ClipListener.from_pretrained(resolve("world/listener", size=self.size), name="own_listener", prefix="")
        for split in ("train", "val"):
            copy.cache_images(self.dataset(split))
        speaker = self.captioner
        return SoftClip(copy, Words(speaker.tokenizer, speaker.family.vocab_size, tuple(speaker.eos_token_ids)))

    @cached_property
    def pac(self) -> ClipListener:
        """The reward listener as positive-augmented training leaves it."""
        return ClipListener.from_pretrained(resolve("world/pac", size=self.size), name="pac", prefix="")

    @cached_property
    def negclip(self) -> ClipListener:
        """The reward listener as further training against false captions leaves it.

        Raises:
            UsageError: it fails the probe.
        """
        folder = resolve("world/negclip", size=self.size)
        require_probe(folder)
        return ClipListener.from_pretrained(folder, name="negclip", prefix="")

    def reward(self, name: str) -> Reward:
        """``clip_s``, ``pac_s``, ``negclip_s`` or ``cider_d``, over the training split."""
        train = self.dataset("train")

        def by(listener: ClipListener, weight: float = CLIP_WEIGHT) -> Reward:
            listener.cache_images(train)
            return Similarity(listener, weight=weight)

        makers: dict[str, Callable[[], Reward]] = {
            "clip_s": lambda: Similarity(self.listener),
            "pac_s": lambda: by(self.pac, PAC_WEIGHT),
            "negclip_s": lambda: by(self.negclip),
            "cider_d": lambda: CiderD(DocumentFrequencies.from_references(train.references)),
        }
        return makers[name]()

    @cached_property
    def grammar(self) -> Grammar:
        """The grammar head that some rewards read with."""
        from tellapart.rewards.grammar import Grammar

        return Grammar.from_pretrained(resolve("world/grammar", size=self.size))

    @cached_property
    def language_model(self) -> LanguageModel:
        """What tells how likely a caption is among those of the training split."""
        from tellapart.rewards.language_model import LanguageModel

        return LanguageModel.from_pretrained(resolve("world/language_model", size=self.size))

    @cached_property
    def matcher(self) -> ItmMatcher:
        """The image-text matching model, which knows the training images."""
        from tellapart.listeners.matcher import ItmMatcher

        matcher = ItmMatcher.from_pretrained(resolve("world/itm", size=self.size), batch_size=256)
        matcher.know_images(self.dataset("train"))
        return matcher

    def training_data(self) -> TrainingData:
        """The training split as the loop reads it."""
        return TrainingData(self.dataset("train"), self.collate)

    @cached_property
    def collate(self) -> Collate:
        """Makes batches for the captioner."""
        if self.captioner.feature_size is not None:
            from tellapart.world.lstm import feature_collate, world_features

            features = world_features(resolve("world/backbone", size=self.size), self.size)
            return feature_collate(self.captioner.name, features)
        return Collate({self.captioner.name: self.captioner.process})

    def evaluation(
        self,
        split: str,
        *,
        num_beams: int = 1,
        measures: Sequence[Measure] = (),
        own_listener: bool = False,
        pac: bool = False,
    ) -> Evaluation:
        """All metrics on a split, one caption an image; ``measures`` come beside the world's own, and on request what the
        captioner's own listener makes of the captions, and PAC-S."""
        dataset, scorers = self.dataset(split), list[Scorer]()
        if own_listener:
            from tellapart.evaluation.own_listener import OwnListenerScorer

            self.own_listener.cache_images(dataset)
            scorers.append(OwnListenerScorer(self.own_listener.listener, dataset))
        if pac:
            from tellapart.evaluation.scorers import PacScorer

            self.pac.cache_images(dataset)
            scorers.append(PacScorer(self.pac))
        return Evaluation(
            dataset,
            self.collate,
            listeners={"listener": self.listener, "judge": self.judge},
            decoding=Decoding(num_beams=num_beams, max_new_tokens=MAX_NEW_TOKENS),
            measures=(measure_against(load_scenes(split, size=self.size)), *measures),
            scorers=scorers,
        )
