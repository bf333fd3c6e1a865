"""Retrieval with several references an image, against plain Python; and what a training of a listener is watched by."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from listeners.tiny_listeners import clip_parts
from pictures import images
from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.listeners import ListenerEvaluation
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.trained import freeze_vision
from tellapart.metrics.retrieval import reference_ranks, retrieval_ranks
from tellapart.rewards.grammar import make_head
from tiny_models import redraw


def unit(rng, rows, width=4):
    values = rng.normal(size=(rows, width))
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def slow_ranks(texts, owner, images):
    t2i, i2t = [], []
    for text, own in zip(texts, owner, strict=True):
        scores = [float(text @ image) for image in images]
        t2i.append(1 + sum(score >= scores[own] for i, score in enumerate(scores) if i != own))
    for i, image in enumerate(images):
        scores = [float(text @ image) for text in texts]
        best = max(score for score, own in zip(scores, owner, strict=True) if own == i)
        i2t.append(1 + sum(score >= best for score, own in zip(scores, owner, strict=True) if own != i))
    return t2i, i2t


@pytest.mark.parametrize("block", [1, 3, 512])
def test_ranks_with_several_references(block):
    rng = np.random.default_rng(0)
    texts, pictures = unit(rng, 17), unit(rng, 6)
    owner = np.array([0, 1, 2, 3, 4, 5, *rng.integers(0, 6, 11)])
    t2i, i2t = reference_ranks(texts, owner, pictures, block=block)
    assert (t2i.tolist(), i2t.tolist()) == slow_ranks(texts, owner, pictures)


def test_one_reference_an_image_is_the_usual_retrieval():
    rng = np.random.default_rng(1)
    texts, pictures = unit(rng, 9), unit(rng, 9)
    for found, usual in zip(
        reference_ranks(texts, np.arange(9), pictures), retrieval_ranks(texts, pictures), strict=True
    ):
        assert found.tolist() == usual.tolist()


def test_ties_count_against():
    texts, pictures = np.ones((3, 1)), np.ones((2, 1))
    t2i, i2t = reference_ranks(texts, np.array([0, 0, 1]), pictures)
    assert t2i.tolist() == [2, 2, 2]
    assert i2t.tolist() == [2, 3]  # one text of the other image ties, and two


def dataset(references) -> CaptionDataset:
    arrays = [np.asarray(image) for image in images(len(references), size=16)]
    examples = [
        Example(str(i), ArrayImage(array), tuple(texts))
        for i, (array, texts) in enumerate(zip(arrays, references, strict=True))
    ]
    return CaptionDataset(examples, name="made")


REFERENCES = [["a red dog", " "], ["two cat on the sofa", "The big sofa."], ["the bus", "a blue bus", "a bus runs"]]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_figures_of_an_evaluation(frozen):
    listener = ClipListener.from_parts(*clip_parts(), prefix="")
    redraw(listener.model, std=0.3, seed=2)
    torch.manual_seed(0)
    data, head = dataset(REFERENCES), make_head(listener)
    if frozen:
        freeze_vision(listener)
        listener.cache_images(data)
    evaluation = ListenerEvaluation(data, listener, head=head, vocabulary=["dog", "cat", "two"])
    found = evaluation()
    texts = ["a red dog", "two cat on the sofa", "The big sofa.", "the bus", "a blue bus", "a bus runs"]
    pictures = torch.stack([listener.process([e.image.open()])["pixel_values"][0] for e in data])
    with torch.no_grad():
        embedded = listener.embed_images(pictures).numpy(), listener.embed_texts(texts).numpy()
    t2i, i2t = slow_ranks(embedded[1], [0, 1, 1, 2, 2, 2], embedded[0])
    for k in (1, 5):
        assert found[f"t2i_R@{k}"] == pytest.approx(100 * np.mean([rank <= k for rank in t2i]))
        assert found[f"i2t_R@{k}"] == pytest.approx(100 * np.mean([rank <= k for rank in i2t]))
    assert found["R@1_mean"] == pytest.approx((found["t2i_R@1"] + found["i2t_R@1"]) / 2)
    assert 0 <= found["grammar_accuracy"] <= 100
    assert evaluation() == found
    assert not any("grammar" in name for name in ListenerEvaluation(data, listener)())


def test_changed_weights_are_seen_where_images_are_trained_too():
    listener = ClipListener.from_parts(*clip_parts(), prefix="")
    redraw(listener.model, std=0.3, seed=2)
    evaluation = ListenerEvaluation(dataset(REFERENCES), listener)
    before = evaluation._images()
    redraw(listener.model.vision_model, std=0.3, seed=9)
    assert not torch.allclose(before, evaluation._images())


def test_every_image_needs_a_reference():
    with pytest.raises(UsageError, match="evaluation of a listener needs reference captions, but image '1'"):
        ListenerEvaluation(dataset([["a dog"], [" "]]), ClipListener.from_parts(*clip_parts()))
