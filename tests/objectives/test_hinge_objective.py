"""The hinge objective: the loss of a listener on human captions, for CLIP and VSE."""

from __future__ import annotations

import pytest
import torch

from listeners.test_vse import table, vse
from objectives.test_contrastive import tiny_listener
from pictures import CAPTIONS
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.listeners.trained import TrainedListener, freeze_vision
from tellapart.objectives.hinge import Hinge
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.training.optim import trained_parts
from tellapart.types import Batch

TEXTS = ["a red star on a table", "a red ring on a table", "a red star on a table", "a green heart on a table"]


def learner(kind: str):
    if kind == "vse":
        return vse(vocabulary=CAPTIONS)
    return TrainedListener(tiny_listener(scale=5.0))


def batch_of(listener) -> Batch:
    inputs = {} if not isinstance(listener, TrainedListener) else {listener.name: pixels()}
    return Batch(["0", "1", "2", "3"], [[text] for text in TEXTS], inputs)


def pixels() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("kind", ["clip", "vse"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_loss_against_a_double_loop(kind, reduction):
    """Images 0 and 2 have the same caption and are no negatives of each other."""
    listener = learner(kind)
    objective, batch = Hinge(listener, margin=0.5, reduction=reduction), batch_of(listener)
    [output] = objective.losses(objective.collect(batch, 0))
    with torch.no_grad():
        images, texts = listener.embed_images(batch).double(), listener.embed_texts(TEXTS).double()
    total = 0.0
    for i in range(4):
        rivals = [j for j in range(4) if TEXTS[j] != TEXTS[i]]
        own = float(images[i] @ texts[i])
        total += max(0.0, 0.5 - own + max(float(images[i] @ texts[j]) for j in rivals))
        total += max(0.0, 0.5 - own + max(float(images[j] @ texts[i]) for j in rivals))
    assert total > 0.5
    assert float(output.loss.detach()) == pytest.approx(total, rel=1e-4)
    assert float(output.weight) == (1 if reduction == "sum" else 4)
    assert output.logs["hinge_cost"].sum() == pytest.approx(total, rel=1e-4)
    output.loss.backward()
    assert all(
        p.grad is not None for part in trained_parts(objective).values() for p in part.parameters() if p.requires_grad
    )


def test_the_first_steps_count_all_others():
    listener = learner("vse")
    objective, batch = Hinge(listener, margin=0.5, warmup_steps=3), batch_of(listener)
    assert [objective.collect(batch, step).every for step in (0, 2, 3)] == [True, True, False]
    [output] = objective.losses(objective.collect(batch, 2))
    with torch.no_grad():
        cosines = (listener.embed_images(batch) @ listener.embed_texts(TEXTS).T).double().tolist()
    pairs = [(i, j) for i in range(4) for j in range(4) if TEXTS[i] != TEXTS[j]]
    total = sum(max(0.0, 0.5 - cosines[i][i] + cosines[i][j]) for i, j in pairs)
    total += sum(max(0.0, 0.5 - cosines[i][i] + cosines[j][i]) for i, j in pairs)
    assert float(output.loss.detach()) == pytest.approx(total, rel=1e-4)
    [hardest] = objective.losses(objective.collect(batch, 3))
    assert float(hardest.loss) < total


def test_what_learns():
    text_only, both = learner("clip"), learner("clip")
    freeze_vision(text_only.listener)
    learns = {
        name: {n.split(".")[1] for n, p in Hinge(one).listener.named_parameters() if p.requires_grad}
        for name, one in (("text", text_only), ("all", both))
    }
    assert learns["text"] == {"text_model", "text_projection"}
    assert learns["all"] == learns["text"] | {"vision_model", "visual_projection"}


def test_the_same_captions_are_drawn_however_images_are_batched():
    objective = Hinge(learner("vse"))
    references = [CAPTIONS[4 * i : 4 * i + 4] for i in range(4)]
    torch.manual_seed(7)
    whole = objective.collect(Batch(["0", "1", "2", "3"], references), 0).texts
    torch.manual_seed(7)
    assert objective.collect(Batch(["2", "3"], references[2:]), 0).texts == whole[2:]
    assert all(text in own for text, own in zip(whole, references, strict=True))
    with pytest.raises(UsageError, match="'1' has no text"):
        objective.collect(Batch(["0", "1"], [["a"], []]), 0)


def test_a_vse_learns_to_tell_images_apart(tmp_path):
    """Seven images with a caption of their own each, over and over."""
    import numpy as np

    listener = vse(table(), vocabulary=CAPTIONS)
    blank = ArrayImage(np.zeros((8, 8, 3), dtype=np.uint8))
    dataset = CaptionDataset([Example(str(i), blank, (CAPTIONS[9 * i],)) for i in range(7)], name="seven")
    config = TrainConfig(
        output_dir=tmp_path, learning_rate=0.02, max_steps=40, per_device_train_batch_size=7, logging_steps=1, seed=0
    )
    before = found_by(listener, dataset)
    train(Hinge(listener), TrainingData(dataset, Collate({})), config)
    assert before != list(range(7))
    assert found_by(listener, dataset) == list(range(7))
    assert (tmp_path / "checkpoint-40" / "listener" / "listener.json").is_file()


def found_by(listener, dataset: CaptionDataset) -> list[int]:
    """The caption that is nearest to each image."""
    texts = listener.encode_texts([example.references[0] for example in dataset])
    return (listener.encode_ids(dataset.ids) @ texts.T).argmax(dim=1).tolist()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"margin": 0.0}, "margin=0.0 must be above 0"),
        ({"reduction": "max"}, "reduction='max' must be one of sum, mean"),
        ({"warmup_steps": -1}, "warmup_steps=-1 must be at least 0"),
        ({"buckets": 0}, "buckets=0 must be at least 1"),
    ],
)
def test_numbers_that_cannot_be_used(option, sentence):
    with pytest.raises(ValueError, match=sentence):
        Hinge(learner("vse"), **option)
