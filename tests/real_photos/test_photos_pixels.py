"""Captions are learned from pixels: 16 real photos by heart, and not a word of them when the photos are swapped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from real_photos.conftest import Once
from real_photos.photo_models import MAKERS, load
from tellapart.captioners.contract import check_captioner
from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.data.loader import TrainingData
from tellapart.evaluation.evaluate import Evaluation
from tellapart.objectives.xe import XE
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Decoding


def with_photos_swapped(dataset):
    """Every id and its reference with the photo of the next id."""
    images = [example.image for example in dataset]
    swapped = [replace(example, image=image) for example, image in zip(dataset, images[1:] + images[:1], strict=True)]
    return CaptionDataset(swapped, name="swapped photos")


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_sixteen_photos_are_told_apart_by_their_pixels(kind, sixteen, tmp_path):
    captions = [text for texts in sixteen.references.values() for text in texts]
    captioner = load(MAKERS[kind](tmp_path / "start", captions), train="all")
    collate = Collate({captioner.name: captioner.process})
    check_captioner(captioner, collate(sixteen[:2].examples))
    tower = [parameter.clone() for parameter in captioner.family.vision.parameters()]
    config = TrainConfig(
        output_dir=tmp_path / "run", learning_rate=2e-3, max_steps=60, per_device_train_batch_size=16, seed=0
    )
    # Document frequencies are those of the very references that are scored against: 16 images with one each.
    evaluation = Evaluation(sixteen, collate, decoding=Decoding(max_new_tokens=30))
    swapped = Evaluation(with_photos_swapped(sixteen), collate, decoding=Decoding(max_new_tokens=30))
    before = evaluation(captioner).metrics["CIDEr"]
    train(XE(captioner), TrainingData(sixteen, Once(collate)), config)

    own, other = evaluation(captioner).metrics["CIDEr"], swapped(captioner).metrics["CIDEr"]
    figures = f"{kind}: CIDEr {before:.2f} untrained, {own:.2f} on the photos, {other:.2f} with the photos swapped"
    assert own > 8 > 1.5 > max(before, other), figures
    said, of_others = evaluation.draw(captioner)[0], swapped.draw(captioner)[0]
    ids = sixteen.ids
    assert [of_others[id] for id in ids] == [said[id] for id in ids[1:] + ids[:1]], "a caption follows its photo"
    assert not all(map(torch.equal, tower, captioner.family.vision.parameters())), "the image tower trains too"
