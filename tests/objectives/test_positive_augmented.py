"""The loss of PAC against one exponential at a time, and what of a listener it leaves alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from objectives.test_contrastive import TEXTS, batch_of, slow_loss, tiny_listener
from pictures import CAPTIONS, images
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.projections import ProjectionsListener
from tellapart.listeners.trained import TrainedListener
from tellapart.objectives.contrastive import Contrastive, Pairs
from tellapart.objectives.positive_augmented import GENERATED_IMAGES, PositiveAugmented, Positives
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.training.optim import trained_parts
from tellapart.types import Batch
from tiny_models import redraw

GENERATED = ["a red star", "a red star", "a star on a table", "a green heart on a table"]


def with_generated_images(listener: ClipListener, batch: Batch) -> Batch:
    pictures = listener.process(list(reversed(images(len(batch) + 2)))[: len(batch)])
    return replace(batch, inputs=batch.inputs | {GENERATED_IMAGES: pictures})


def embedded(listener: ClipListener, texts: list[str]):
    return list(zip(texts, listener.encode_texts(texts).double(), strict=True))


def test_the_loss_is_three_symmetric_infonce():
    """Two images share a generated caption, and one's generated caption is another one's human caption."""
    listener = tiny_listener(scale=5.0)
    batch = with_generated_images(listener, batch_of(listener, [[text] for text in TEXTS]))
    objective = PositiveAugmented(TrainedListener(listener), {}, caption_weight=0.3, image_weight=0.7)
    [output] = objective.losses(Positives(batch, TEXTS, GENERATED))
    with torch.no_grad():
        pictures = listener.encode_images(batch).double()
        drawn = listener.embed_images(batch.inputs[GENERATED_IMAGES]["pixel_values"]).double()
        human, generated = embedded(listener, TEXTS), embedded(listener, GENERATED)
    parts = {
        "human_loss": slow_loss(pictures, human, [], 5.0, 0.0),
        "generated_images_loss": slow_loss(drawn, human, [], 5.0, 0.0),
        "generated_captions_loss": slow_loss(pictures, generated, [], 5.0, 0.0),
    }
    for name, value in parts.items():
        assert float(output.logs[name].sum()) == pytest.approx(value, rel=1e-4), name
    total = sum(w * value for w, value in zip((1.0, 0.7, 0.3), parts.values(), strict=True))
    assert float(output.loss.detach()) == pytest.approx(total, rel=1e-4)
    assert len(set(parts.values())) == 3
    assert float(output.weight) == 4


def test_without_the_further_terms_it_is_contrastive_training():
    listener = tiny_listener(scale=5.0)
    batch = with_generated_images(listener, batch_of(listener, [[text] for text in TEXTS]))
    objective = PositiveAugmented(TrainedListener(listener), {}, caption_weight=0.0, image_weight=0.0)
    torch.manual_seed(0)
    drawn = objective.collect(batch, 0)
    assert (drawn.texts, drawn.generated) == (TEXTS, [])
    [ours] = objective.losses(drawn)
    [plain] = Contrastive(listener).losses(Pairs(batch, TEXTS, []))
    assert torch.equal(ours.loss, plain.loss)


def test_what_is_drawn_follows_from_the_image():
    captions = {f"image-{i}": [f"generated {i} {j}" for j in range(9)] for i in range(6)}
    objective = PositiveAugmented(TrainedListener(tiny_listener()), captions)
    batch = Batch(list(captions), [[f"text {i} {j}" for j in range(9)] for i in range(6)])
    torch.manual_seed(3)
    whole = objective.collect(batch, 0)
    torch.manual_seed(3)
    part = objective.collect(batch.select([4, 1]), 0)
    assert part.generated == [whole.generated[4], whole.generated[1]]
    assert all(text in captions[name] for text, name in zip(whole.generated, batch.ids, strict=True))
    # Which generated caption is drawn does not follow from which human one is.
    assert [text[-1] for text in whole.generated] != [text[-1] for text in whole.texts]
    torch.manual_seed(4)
    assert objective.collect(batch, 0).generated != whole.generated


def test_every_image_needs_a_generated_caption():
    objective = PositiveAugmented(TrainedListener(tiny_listener()), {"a": ["a star"]})
    with pytest.raises(UsageError, match="'b' has none"):
        objective.collect(Batch(["a", "b"], [["a star"], ["a ring"]]), 0)
    for option in ({"caption_weight": -0.1}, {"image_weight": -1.0}, {"buckets": 0}):
        with pytest.raises(ValueError, match=next(iter(option))):
            PositiveAugmented(TrainedListener(tiny_listener()), {}, **option)


def examples(count: int) -> list[Example]:
    pictures = [np.asarray(image) for image in images(count)]
    return [Example(str(i), ArrayImage(array), (CAPTIONS[9 * i],)) for i, array in enumerate(pictures)]


def test_only_the_projections_learn(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    listener = tiny_listener(scale=10.0)
    before = {name: value.clone() for name, value in listener.model.state_dict().items()}
    learner, dataset = ProjectionsListener(listener), CaptionDataset(examples(8), name="eight")
    learner.cache_images(dataset)
    objective = PositiveAugmented(learner, {str(i): [CAPTIONS[8 * i + 1]] for i in range(8)})
    assert list(trained_parts(objective)) == ["listener"]
    config = TrainConfig(
        output_dir=tmp_path / "run", learning_rate=1e-2, max_steps=20, per_device_train_batch_size=8, logging_steps=1
    )
    data = TrainingData(dataset, Collate({}))
    history = train(objective, data, config).history
    assert history[-1]["human_loss"] < 0.7 * history[0]["human_loss"]
    assert history[-1]["generated_captions_loss"] < 0.7 * history[0]["generated_captions_loss"]
    changed = {name for name, value in listener.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"visual_projection.weight", "text_projection.weight"}
    accumulating = TrainConfig(output_dir=tmp_path / "other", gradient_accumulation_steps=2)
    with pytest.raises(UsageError, match="gradient_accumulation_steps=2"):
        train(objective, data, accumulating)


def test_known_images_are_embedded_as_their_pixels_are(tmp_path, monkeypatch):
    """By the weights as they are now, with the same gradient; and the tower's cache does not know the projection."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    listener = tiny_listener(scale=10.0)
    learner, dataset = ProjectionsListener(listener), CaptionDataset(examples(3), name="three")
    learner.cache_images(dataset)
    redraw(listener.model.visual_projection, std=0.3, seed=5)
    learner.cache_images(dataset)
    assert len(list((tmp_path / "embeddings").iterdir())) == 1
    known, read = Collate({})(dataset.examples), Collate({listener.name: listener.process})(dataset.examples)
    plain = listener.embed_images(read.inputs[listener.name]["pixel_values"])
    for batch in (known, read):
        torch.testing.assert_close(learner.embed_images(batch), plain)
    torch.testing.assert_close(learner.encode_ids(dataset.ids), plain.detach())
    weight, gradients = listener.model.visual_projection.weight, []
    for found in (learner.embed_images(known), plain):
        [gradient] = torch.autograd.grad((found * torch.arange(found.shape[1])).sum(), weight)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)
    assert math.isclose(float(plain.detach().norm(dim=1).max()), 1.0, rel_tol=1e-5)
