"""Rewards that read real photos, and the objectives that raise them."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from real_photos.conftest import Once
from real_photos.photo_models import MAKERS, clip, load
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.images import ImageFile
from tellapart.data.loader import TrainingData
from tellapart.listeners.clip import ClipListener
from tellapart.objectives.contrastive import Contrastive
from tellapart.objectives.dico import DiCO
from tellapart.objectives.scst import SCST
from tellapart.objectives.xe import XE
from tellapart.rewards.mix import Mix
from tellapart.rewards.reference import CiderD, DocumentFrequencies
from tellapart.rewards.similarity import Similarity
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Batch

METHODS = {"vit_gpt2": "scst", "blip": "dico"}
"""Of each family one: the recipes of all pairs are run by ``test_photos_commands``."""
OBJECTIVES = {
    "scst": (SCST, {"baseline": "beam_mean", "num_generations": 4, "reduction": "seq_mean", "max_new_tokens": 20}),
    "dico": (DiCO, {"num_beams": 4, "max_new_tokens": 20}),
}


@dataclass(frozen=True)
class CountedFile:
    """An image file that keeps count of how often it is decoded."""

    file: ImageFile
    opened: Counter

    def open(self):
        self.opened[self.file.path] += 1
        return self.file.open()

    def fingerprint(self):
        return self.file.fingerprint()


def captions_of(dataset):
    return [text for texts in dataset.references.values() for text in texts]


def settings(folder, rate, steps):
    return TrainConfig(
        output_dir=folder,
        learning_rate=rate,
        max_steps=steps,
        per_device_train_batch_size=16,
        logging_steps=1,
        seed=0,
    )


@pytest.fixture(scope="module")
def listener_folder(sixteen, tmp_path_factory):
    """A tiny CLIP that has learned which caption belongs to which photo."""
    folder = tmp_path_factory.mktemp("listener")
    listener = ClipListener.from_pretrained(clip(folder / "clip", captions_of(sixteen)))
    data = TrainingData(sixteen, Once(Collate({listener.name: listener.process})))
    train(Contrastive(listener), data, settings(folder / "run", 5e-3, 60))
    listener.save(folder / "trained")
    return folder / "trained"


@pytest.fixture(scope="module", params=MAKERS)
def half_taught(request, sixteen, tmp_path_factory):
    """A captioner that knows some of the photos, so that its candidates differ in worth."""
    folder = tmp_path_factory.mktemp(request.param)
    captioner = load(MAKERS[request.param](folder / "start", captions_of(sixteen)), train="all")
    data = TrainingData(sixteen, Once(Collate({captioner.name: captioner.process})))
    train(XE(captioner), data, settings(folder / "run", 2e-3, 10))
    captioner.save(folder / "taught")
    return request.param, folder / "taught"


def test_cached_embeddings_are_those_of_the_pixels_and_read_once(listener_folder, sixteen):
    opened = Counter()
    photos = CaptionDataset([replace(e, image=CountedFile(e.image, opened)) for e in sixteen], name="counted")
    listener = ClipListener.from_pretrained(listener_folder)
    listener.cache_images(photos)
    assert set(opened.values()) == {1}
    assert len(opened) == 16
    again = ClipListener.from_pretrained(listener_folder)
    again.cache_images(photos)
    assert opened.total() == 16, "the second listener finds them on disk"

    by_id = Batch(sixteen.ids, list(sixteen.references.values()), {})
    by_pixels = Collate({listener.name: listener.process})(sixteen.examples)
    cached = again.encode_images(by_id)
    torch.testing.assert_close(cached, listener.encode_images(by_pixels), atol=1e-5, rtol=0)
    cosines = cached @ listener.encode_texts(captions_of(sixteen)).T
    assert cosines.argmax(dim=1).tolist() == list(range(16)), "each photo finds its own caption"


@pytest.mark.slow
def test_rewards_rise_on_real_photos(half_taught, listener_folder, sixteen, tmp_path):
    listener = ClipListener.from_pretrained(listener_folder)
    listener.cache_images(sixteen)
    cider = CiderD(DocumentFrequencies.from_references(sixteen.references))
    reward = Mix({"clip_s": Similarity(listener), "cider_d": cider}, {"clip_s": 1.0, "cider_d": 0.5})
    kind, folder = half_taught
    method, captioner = METHODS[kind], load(folder)
    tower = [parameter.clone() for parameter in captioner.family.vision.parameters()]
    heard = [parameter.clone() for parameter in listener.model.parameters()]
    objective, options = OBJECTIVES[method]
    data = TrainingData(sixteen, Once(Collate({captioner.name: captioner.process})))
    run = train(objective(captioner, reward, **options), data, settings(tmp_path / method, 1e-4, 20))

    rewards = [line["reward"] for line in run.history]
    first, last = rewards[0], statistics.mean(rewards[-3:])
    assert last > first + 0.2, f"reward of {method}: {first:.2f} at the first step, {last:.2f} at the last three"
    for line in run.history:
        assert 0 <= line["rewards/clip_s"] <= 2.5
        assert 0 <= line["rewards/cider_d"] <= 0.5 * 10
        assert line["reward"] == pytest.approx(line["rewards/clip_s"] + line["rewards/cider_d"], abs=1e-4)
    assert all(map(torch.equal, tower, captioner.family.vision.parameters())), "the image tower is frozen"
    assert all(map(torch.equal, heard, listener.model.parameters())), "so is the listener"
