"""The models of the study ``nlvr``, all from configurations and all trained on NLVR's training split.

A listener, a verifier and a captioner share one image tower. The judge has a tower of its own, another architecture, other
seeds and other sentences, and is never a reward.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file

from nlvr_pictures import HELD_OUT, KINDS, TRAIN, Corpus, Group, Scene, prepare_pictures, read_scenes, scene_name
from nlvr_sentences import descriptions, first_wrong, read, statements
from nlvr_towers import (
    HEADS,
    READ,
    canvas_boxes,
    image_processor,
    make_matcher_tower,
    make_tower,
    matcher_processor,
    pixels,
    teach,
)
from tellapart.captioners.fresh import with_gpt2
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.modes import quiet
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ImageFile
from tellapart.data.load import load_dataset
from tellapart.data.loader import TrainingData
from tellapart.draws import base_seed, mix_seeds, seeded
from tellapart.files import first_folder, write_json
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.matcher import ItmMatcher
from tellapart.locks import in_turn
from tellapart.objectives.contrastive import Contrastive
from tellapart.objectives.first_wrong_word import NOTHING_WRONG, SOMEWHERE_WRONG, FirstWrongWord, Readings
from tellapart.objectives.matching_head import FALSE, OWN, Matches, MatchingHead
from tellapart.objectives.next_word import NextWord
from tellapart.objectives.xe import XE
from tellapart.types import Batch
from tellapart.world.itm import matcher_config
from tellapart.world.schedule import History, Schedule
from tellapart.world.verifier import late_listener
from tellapart.world.vocabulary import text_tower, tokenizer_of

MAX_LENGTH = 32
MAX_NEW_TOKENS = 24
"""The longest human sentence has 24 words."""

WIDTH = 128
REVISION = 1
"""To be raised when the code of a stage changes in a way that its schedule does not tell."""

SCHEDULES: dict[str, Schedule] = {
    "tower": Schedule(1500, 32, 1.5e-3, adam_beta2=0.98),
    "judge-tower": Schedule(1500, 32, 1.5e-3, adam_beta2=0.98),
    "listener": Schedule(600, 128, 2e-3, adam_beta2=0.98),
    "verifier": Schedule(1000, 48, 2e-3, adam_beta2=0.98),
    "judge": Schedule(1200, 32, 1e-3, adam_beta2=0.98),
    "language_model": Schedule(300, 128, 2e-3),
    "xe": Schedule(600, 64, 1e-3, adam_beta2=0.98),
}
"""Stage -> how it is trained."""

NEEDS = {"listener": ("tower",), "verifier": ("tower",), "judge": ("judge-tower",), "xe": ("tower",)}

SEEDS = {"tower": 1, "judge-tower": 2, "listener": 3, "verifier": 4, "judge": 5, "language_model": 6}

STATEMENTS = 4
"""Sentences at random per image and step that the matchers read, half of them false."""


@dataclass(frozen=True)
class Told:
    """The images of the groups of a split, true and false, in one order of the boxes.

    Args:
        data: of :func:`prepare_pictures`.
        groups: of the split.
        scenes: name -> what is in it.
    """

    data: Path
    groups: Sequence[Group]
    scenes: Mapping[str, Scene]

    @cached_property
    def group(self) -> dict[str, Group]:
        """File name -> its group."""
        return {name: group for group in self.groups for name in (*group.true, *group.false)}

    @property
    def names(self) -> list[str]:
        """File names."""
        return list(self.group)

    def scene(self, name: str) -> Scene:
        """What is in an image."""
        return self.scenes[scene_name(name)]

    def label(self, name: str) -> bool:
        """Whether the sentence of the image's group is true of it: by the scene where that decides, else by people."""
        group = self.group[name]
        reading = read(group.sentence)
        exact = None if reading is None else reading(self.scene(name))
        return name in group.true if exact is None else exact

    def dataset(self, texts: Callable[[str], Sequence[str]] = lambda name: ()) -> CaptionDataset:
        """The images, named by their files, with texts."""
        images = self.data.parent / "images"
        return CaptionDataset(
            [Example(name, ImageFile(images / name), tuple(texts(name))) for name in self.names], name="nlvr"
        )

    def pictures(self) -> list[Image.Image]:
        """The images, opened."""
        return [Image.open(self.data.parent / "images" / name).convert("RGB") for name in self.names]


@dataclass
class Models:
    """All models, each trained when it is first asked for and kept in a folder that is named by what decides it.

    Args:
        corpus: the folder of the data.
        root: where models go.
        schedules: stage -> how it is trained.
    """

    corpus: Corpus
    root: Path
    schedules: Mapping[str, Schedule] = field(default_factory=lambda: SCHEDULES)

    @cached_property
    def data(self) -> Path:
        """The data file of the canvases."""
        return prepare_pictures(self.corpus, self.root / "data")

    @cached_property
    def scenes(self) -> dict[str, Scene]:
        """Name -> what is in it."""
        return read_scenes(self.data.parent)

    def told(self, split: str) -> Told:
        """The images of the groups of a split."""
        groups = [group for group in self.corpus.groups.values() if group.split == split]
        return Told(self.data, groups, self.scenes)

    def dataset(self, split: str) -> CaptionDataset:
        """The captioned images of a split, as recipes read them."""
        return load_dataset(str(self.data), images=self.data.parent / "images", split=split)

    def folder(self, name: str, seed: int = 0) -> Path:
        """Where a stage is kept."""
        label = f"{name}-seed{seed}" if name not in SEEDS else name
        return self.root / "stages" / f"{label}-{self._key(name, seed)}"

    def _key(self, name: str, seed: int) -> str:
        needs = [self._key(need, 0) for need in NEEDS.get(name, ())]
        decides = [REVISION, name, seed, vars(self.schedules[name]), needs]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:10]

    def stage(self, name: str, seed: int = 0) -> Path:
        """The folder of a trained stage, trained now if it is not there."""
        folder = self.folder(name, seed)
        if folder.is_dir():
            return folder
        needs = {need: self.stage(need) for need in NEEDS.get(name, ())}
        folder.parent.mkdir(parents=True, exist_ok=True)
        with in_turn(folder.with_name(f".{folder.name}.lock"), folder):
            if not folder.is_dir():
                self._build(name, folder, needs, seed)
        return folder

    def _build(self, name: str, folder: Path, needs: Mapping[str, Path], seed: int) -> None:
        began = time.process_time()
        with first_folder(folder) as temporary, quiet():
            model = temporary / "model"
            model.mkdir()
            history = BUILDERS[name](self, model, needs, SEEDS.get(name, seed))
            for part in model.iterdir():
                part.rename(temporary / part.name)
            model.rmdir()
            seconds = time.process_time() - began
            write_json(
                temporary / "stage.json", {"stage": name, "seed": seed, "cpu_seconds": seconds, "history": history}
            )

    def fit(self, name: str, objective: Any, data: TrainingData, seed: int) -> History:
        """Train a stage by its schedule."""
        return self.schedules[name].fit(objective, data, seed=mix_seeds(name, seed) % 2**32)

    @cached_property
    def tokenizer(self) -> Any:
        """A word-level tokenizer of the training sentences."""
        words = {word for group in self.told(TRAIN).groups for word in group.sentence.split()}
        return tokenizer_of(sorted(words), MAX_LENGTH, keeps_marks=True)


def _gpt2_config(tokenizer: Any, width: int, **further: Any) -> Any:
    from transformers import GPT2Config

    sizes = {"n_positions": MAX_LENGTH + 8, "n_embd": width, "n_layer": 2, "n_head": 4, "n_inner": 4 * width}
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    return GPT2Config(vocab_size=len(tokenizer), **sizes, **ids, **further)


def _tower(make: Callable[[], Any], processor: Callable[[], Any], stage: str) -> Any:
    def build(models: Models, folder: Path, needs: Mapping[str, Path], seed: int) -> History:
        train, unseen = (
            (canvas_boxes(told.pictures()), [told.scene(name) for name in told.names])
            for told in map(models.told, (TRAIN, HELD_OUT))
        )
        return teach(make, processor(), folder, models.schedules[stage], seed, train, unseen)

    return build


def _build_listener(models: Models, folder: Path, needs: Mapping[str, Path], seed: int) -> History:
    """A dual encoder: people's sentences that are true, and true sentences of detail. The tower is frozen."""
    from transformers import CLIPConfig, CLIPModel, CLIPVisionModel

    tower = CLIPVisionModel.from_pretrained(needs["tower"])
    with seeded("listener", seed):
        text = text_tower(models.tokenizer, longest=MAX_LENGTH)
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=tower.config.to_dict(), projection_dim=WIDTH))
        model.vision_model.load_state_dict(tower.state_dict())
        listener = ClipListener.from_parts(model, image_processor(), models.tokenizer, name="listener", prefix="")
    told = models.told(TRAIN)

    def texts(name: str) -> list[str]:
        rng = random.Random(f"listener-{name}")
        return [*([told.group[name].sentence] * 2 if told.label(name) else []), *descriptions(told.scene(name), rng, 8)]

    listener.model.vision_model.requires_grad_(False)  # its projection learns
    data = TrainingData(told.dataset(texts), Collate({listener.name: pixels}))
    history = models.fit("listener", Contrastive(listener), data, seed)
    listener.save(folder)
    return history


def drawn_texts(told: Told, name: str, seed: int, count: int) -> list[tuple[str, bool]]:
    """The sentence of an image's group, and sentences at random about its scene, each with whether it is true of it."""
    rng = random.Random(mix_seeds(seed, "statements", name))
    return [(told.group[name].sentence, told.label(name)), *islice(statements(told.scene(name), rng), count)]


def _build_verifier(models: Models, folder: Path, needs: Mapping[str, Path], seed: int) -> History:
    """A late-interaction listener on the tower. People's sentences are true or false as a whole; of sentences at random the first
    wrong word is known."""
    from transformers import CLIPVisionModel

    tower = CLIPVisionModel.from_pretrained(needs["tower"])
    heads = load_file(needs["tower"] / HEADS)
    reading = {part: torch.cat([heads[f"{name}.{part}"] for name in READ]) for part in ("weight", "bias")}
    tokenizer, told = models.tokenizer, models.told(TRAIN)
    with seeded("verifier", seed):
        listener = late_listener(
            tower, reading, list(READ.values()), image_processor(), tokenizer, _meanings(tokenizer), longest=MAX_LENGTH
        )

    def draw(ids: Sequence[str], drawn: int) -> Readings:
        found = Readings([], [], [], [])
        for name in ids:
            for number, (text, true) in enumerate(drawn_texts(told, name, drawn, STATEMENTS)):
                place = first_wrong(text, told.scene(name)) if number else SOMEWHERE_WRONG
                found.text.append(len(found.texts))
                found.images.append(name)
                found.first_wrong.append(NOTHING_WRONG if true or place is None else place)
                found.texts.append(text)
        return found

    objective = FirstWrongWord(listener, draw)
    dataset = told.dataset()
    objective.know_images(dataset)
    history = models.fit("verifier", objective, TrainingData(dataset, Collate({})), seed)
    listener.model.eval()
    listener.save(folder)
    return history


def _meanings(tokenizer: Any) -> torch.Tensor:
    """``[V, 13]``: 1 where a word names a colour or shape of a kind that the tower's heads read."""
    meanings = torch.zeros(len(tokenizer), sum(READ.values()))
    for i, (colour, shape) in enumerate(KINDS):
        names = (colour, shape, f"{shape}s", *(("block", "blocks") if shape == "square" else ()))
        for word in set(names) & set(tokenizer.get_vocab()):
            meanings[tokenizer.convert_tokens_to_ids(word), i] = 1.0
    return meanings


class TrueOrFalse(MatchingHead):
    """Image-text matching with texts that are known to be true or false of their image, in place of other images' texts.

    Args:
        matcher: what learns.
        told: the images.
    """

    def __init__(self, matcher: ItmMatcher, told: Told) -> None:
        super().__init__(matcher)
        self.told = told

    def collect(self, batch: Batch, step: int) -> Matches:
        """The sentence of each image's group, and some at random."""
        seed = base_seed()
        drawn = [
            (i, *pair) for i, name in enumerate(batch.ids) for pair in drawn_texts(self.told, name, seed, STATEMENTS)
        ]
        image, texts, true = zip(*drawn, strict=True)
        return Matches(batch, torch.tensor(image), list(texts), [OWN if one else FALSE for one in true])


def _build_judge(models: Models, folder: Path, needs: Mapping[str, Path], seed: int) -> History:
    """BLIP's matching head on a tower of its own: every word looks at the image."""
    from transformers import Blip2VisionModel, BlipForImageTextRetrieval

    tokenizer, given = models.tokenizer, Blip2VisionModel.from_pretrained(needs["judge-tower"])
    shape = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "image_size",
        "patch_size",
        "layer_norm_eps",
    )
    vision = {name: getattr(given.config, name) for name in shape} | {"initializer_range": 0.02}
    with seeded("judge", seed):
        model = BlipForImageTextRetrieval(matcher_config(tokenizer, vision, longest=MAX_LENGTH))
    model.vision_model.load_state_dict(given.state_dict())
    matcher, told = ItmMatcher(model, matcher_processor(), tokenizer, batch_size=256), models.told(TRAIN)
    data = TrainingData(told.dataset(), Collate({matcher.name: pixels}))
    history = models.fit("judge", TrueOrFalse(matcher, told), data, seed)
    matcher.model.eval()
    for part in (matcher.model, matcher.tokenizer, matcher.image_processor):
        part.save_pretrained(folder)
    return history


def _build_language_model(models: Models, folder: Path, needs: Mapping[str, Path], seed: int) -> History:
    """A GPT-2 without images, of the training sentences: each group counts once."""
    from transformers import GPT2LMHeadModel

    told, tokenizer = models.told(TRAIN), models.tokenizer
    with seeded("language_model", seed):
        model = GPT2LMHeadModel(_gpt2_config(tokenizer, WIDTH))
    images = told.data.parent / "images"
    examples = [
        Example(group.name, ImageFile(images / (*group.true, *group.false)[0]), (group.sentence,))
        for group in told.groups
    ]
    data = TrainingData(CaptionDataset(examples, name="sentences"), Collate({}))
    history = models.fit("language_model", NextWord(model, tokenizer), data, seed)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return history


def _build_xe(models: Models, folder: Path, needs: Mapping[str, Path], seed: int) -> History:
    """The tower, frozen, and a GPT-2, taught people's sentences."""
    from transformers import CLIPVisionModel

    tokenizer = models.tokenizer
    with seeded("xe", seed):
        config = _gpt2_config(tokenizer, 192, add_cross_attention=True)
        model = with_gpt2(CLIPVisionModel.from_pretrained(needs["tower"]), config, tokenizer)
    captioner = HuggingFaceCaptioner.from_parts(model, image_processor(), tokenizer, max_caption_tokens=MAX_LENGTH)
    data = TrainingData(models.dataset(TRAIN), Collate({captioner.name: pixels}))
    history = models.fit("xe", XE(captioner, captions_per_image=1), data, seed)
    captioner.eval().save(folder)
    return history


Build = Callable[[Models, Path, Mapping[str, Path], int], History]

BUILDERS: dict[str, Build] = {
    "tower": _tower(make_tower, image_processor, "tower"),
    "judge-tower": _tower(make_matcher_tower, matcher_processor, "judge-tower"),
    "listener": _build_listener,
    "verifier": _build_verifier,
    "judge": _build_judge,
    "language_model": _build_language_model,
    "xe": _build_xe,
}
"""Stage -> what trains it."""
