"""A listener's text tower trained together with its grammar head."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from given import double, vector
from listeners.tiny_listeners import PARTS
from pictures import images
from tellapart.data.corruptions import CORRUPTIONS, corrupt, vocabulary_of
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.evaluation.listeners import corruptions_of, head_accuracy
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.pooled import embed_and_pool, encode_pooled
from tellapart.listeners.trained import vision_parameters
from tellapart.objectives.contrastive_grammar import ContrastiveGrammar, Spoilt
from tellapart.rewards.grammar import Grammar, GrammarHead, make_head, plain
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.training.optim import trained_parts
from tellapart.types import Batch
from tiny_models import redraw

TEXTS = ["a red dog on the sofa", "two cat runs", "a red dog on the sofa", "the big blue bus"]
WRONG = ["sofa dog on a the red", "two cat cat runs", "a dog on the sofa", "the bus"]


def make(kind: str = "clip", *, std: float = 0.3, **options) -> tuple[ClipListener, GrammarHead]:
    listener = ClipListener.from_parts(*PARTS[kind](), **({"prefix": "a photo "} | options))
    redraw(listener.model, std=std, seed=1)
    nn.init.constant_(listener.model.logit_scale, math.log(5.0))
    torch.manual_seed(5)
    return listener, make_head(listener)


def batch_of(listener: ClipListener, references: list[list[str]]) -> Batch:
    inputs = {listener.name: listener.process(images(len(references), size=16))}
    return Batch([f"image-{i}" for i in range(len(references))], references, inputs)


class GivenEmbeddings(nn.Module):
    """A text tower whose pooled feature and embedding of each text are given; images are the unit vectors."""

    def __init__(self, embeddings: dict[str, list[float]], pooled: dict[str, list[float]]) -> None:
        super().__init__()
        self.text_projection, self.vision_model = nn.Identity(), nn.Identity()
        self.logit_scale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.embeddings, self.pooled = embeddings, pooled
        self.config = type("Config", (), {"model_type": "clip"})


class GivenEncoder:
    """A listener around them, without any normalising."""

    name, device, text_pooling = "listener", torch.device("cpu"), "whole"

    def __init__(self, model: GivenEmbeddings) -> None:
        self.model = model

    @property
    def logit_scale(self):
        return self.model.logit_scale

    def embed_texts(self, texts):
        self.model.text_projection(double([self.model.pooled[text] for text in texts]))
        return double([self.model.embeddings[text] for text in texts])

    def encode_images(self, batch):
        return torch.eye(len(batch), dtype=torch.float64)


def test_vector_of_the_loss():
    inputs, expected, tolerance = vector("grammar_head_finetune_loss")
    assert inputs["grammar_labels"] == [1, 1, 0, 0]
    texts, wrong = ["one", "two"], ["one one", "two two"]
    embeddings = dict(zip(texts + wrong, [*inputs["logits_per_text"], [9.0, 9.0], [9.0, 9.0]], strict=True))
    pooled = dict(zip(texts + wrong, inputs["grammar_logits"], strict=True))
    encoder = GivenEncoder(GivenEmbeddings(embeddings, pooled))
    head = GrammarHead(2).double()
    objective = ContrastiveGrammar(encoder, head, vocabulary=["one"])
    objective.listener.head.forward = lambda pooled: pooled  # the features given are logits already
    experience = Spoilt(Batch(["0", "1"], [["one"], ["two"]]), texts, wrong, torch.zeros(2, dtype=torch.bool))
    [output] = objective.losses(experience)
    weight = float(output.weight)
    assert float(output.logs["clip_loss"].mean()) == pytest.approx(expected["clip_loss"], abs=tolerance)
    assert float(output.logs["grammar_loss"].mean()) == pytest.approx(expected["grammar_loss"], abs=tolerance)
    assert float(output.loss.detach()) / weight == pytest.approx(expected["total"], abs=tolerance)


def slow_loss(listener, head, batch, weight, cut=()):
    """The loss one image and one exponential at a time, in double precision."""
    pictures = listener.encode_images(batch).double()
    texts = listener.encode_texts(TEXTS).double()
    logits = lambda rows: head(encode_pooled(listener, rows)).double()  # noqa: E731
    right, wrong = logits(TEXTS), logits(WRONG)
    scale, total = math.exp(float(listener.logit_scale)), 0.0
    for i in range(len(TEXTS)):
        candidates = {text: scale * float(pictures[i] @ texts[j]) for j, text in enumerate(TEXTS)}
        to_text = -math.log(math.exp(candidates[TEXTS[i]]) / sum(map(math.exp, candidates.values())))
        rivals = [j for j in range(len(TEXTS)) if j == i or TEXTS[j] != TEXTS[i]]
        backwards = [math.exp(scale * float(pictures[j] @ texts[i])) for j in rivals]
        total += (to_text - math.log(math.exp(candidates[TEXTS[i]]) / sum(backwards))) / 2
        if i not in cut:
            of_right = math.exp(right[i, 1]) / (math.exp(right[i, 0]) + math.exp(right[i, 1]))
            of_wrong = math.exp(wrong[i, 0]) / (math.exp(wrong[i, 0]) + math.exp(wrong[i, 1]))
            total -= weight * (math.log(of_right) + math.log(of_wrong)) / 2
    return total


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("cut", [(), (1,)])
def test_loss_is_infonce_and_the_heads_cross_entropy(kind, cut):
    listener, head = make(kind)
    batch = batch_of(listener, [[text] for text in TEXTS])
    objective = ContrastiveGrammar(listener, head, vocabulary=["dog"], weight=0.7)
    mask = torch.tensor([i in cut for i in range(4)])
    [output] = objective.losses(Spoilt(batch, TEXTS, WRONG, mask))
    with torch.no_grad():
        expected = slow_loss(listener, head, batch, 0.7, cut)
    assert float(output.loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert float(output.weight) == 4
    assert output.logs["grammar/corrupted_accuracy"].shape == (4 - len(cut),)


def test_buckets_only_save_padding():
    losses = []
    for buckets in (1, 2, 5):
        listener, head = make()
        batch = batch_of(listener, [[text] for text in TEXTS])
        objective = ContrastiveGrammar(listener, head, vocabulary=["dog"], buckets=buckets)
        [output] = objective.losses(Spoilt(batch, TEXTS, WRONG, torch.zeros(4, dtype=torch.bool)))
        losses.append(float(output.loss.detach()))
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


def test_what_is_drawn_follows_from_the_image():
    listener, head = make()
    references = [[f"A dog {i} {j}, on the Sofa." for j in range(6)] for i in range(5)] + [["dog"]]
    batch = batch_of(listener, references)
    objective = ContrastiveGrammar(listener, head, vocabulary=["bus", "cat"])
    torch.manual_seed(3)
    whole = objective.collect(batch, 0)
    torch.manual_seed(3)
    part = objective.collect(batch.select([4, 1]), 0)
    assert (part.texts, part.corrupted) == ([whole.texts[i] for i in (4, 1)], [whole.corrupted[i] for i in (4, 1)])
    for text, wrong, own in zip(whole.texts, whole.corrupted, references, strict=True):
        assert text in plain(own)
        assert wrong != text
    torch.manual_seed(4)
    assert objective.collect(batch, 0).corrupted != whole.corrupted


def test_a_reference_that_is_cut_is_left_to_infonce():
    listener, head = make(prefix="a photo depicts ")
    long = "the dog and the cat and the bus and the sofa and the dog"
    objective = ContrastiveGrammar(listener, head, vocabulary=["bus"])
    assert objective.collect(batch_of(listener, [["a dog"], [long]]), 0).cut.tolist() == [False, True]


@pytest.mark.parametrize("kind", PARTS)
def test_the_image_side_is_frozen(kind, tmp_path):
    listener, head = make(kind)
    objective = ContrastiveGrammar(listener, head, vocabulary=["bus", "cat"])
    assert list(trained_parts(objective)) == ["listener"]
    before = {name: value.clone() for name, value in objective.listener.state_dict().items()}
    pictures = batch_of(listener, [[text] for text in TEXTS])
    embedded = listener.encode_images(pictures)
    data = training_data(listener, 4)
    config = TrainConfig(output_dir=tmp_path, learning_rate=1e-2, max_steps=2, per_device_train_batch_size=4)
    train(objective, data, config)
    changed = {name for name, value in objective.listener.state_dict().items() if not torch.equal(value, before[name])}
    frozen = {name for name in before if ".vision_model." in name or ".visual_projection." in name}
    assert frozen
    assert not changed & frozen
    assert changed >= {"head.hidden.weight", "head.output.weight", "model.logit_scale"}
    assert any(".text_model." in name for name in changed)
    assert torch.equal(listener.encode_images(pictures), embedded)
    assert all(parameter.grad is None for parameter in vision_parameters(listener))


def training_data(listener, count, *, pixels=True):
    arrays = [np.asarray(image) for image in images(count, size=16)]
    texts = ["a red dog on the sofa", "two blue bus and the cat", "the big cat on a bus", "a photo of the two dog"]
    examples = [Example(str(i), ArrayImage(array), (texts[i % 4],)) for i, array in enumerate(arrays)]
    dataset = CaptionDataset(examples, name="made")
    return TrainingData(dataset, Collate({listener.name: listener.process} if pixels else {}))


def test_cached_embeddings_train_like_pixels(tmp_path):
    weights = []
    for pixels in (True, False):
        listener, head = make()
        data = training_data(listener, 8, pixels=pixels)
        if not pixels:
            listener.cache_images(data.dataset)
        objective = ContrastiveGrammar(listener, head, vocabulary=["bus", "cat"])
        config = TrainConfig(output_dir=tmp_path / str(pixels), max_steps=2, learning_rate=1e-3, seed=0)
        train(objective, data, config)
        weights.append(objective.listener.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-5)


def test_resuming_gives_the_same_weights(tmp_path):
    ends = []
    for folder, steps in (("whole", [4]), ("halves", [2, 4])):
        for stop in steps:
            listener, head = make()
            objective = ContrastiveGrammar(listener, head, vocabulary=["bus", "cat"])
            config = TrainConfig(
                output_dir=tmp_path / folder,
                max_steps=stop,
                learning_rate=1e-2,
                per_device_train_batch_size=4,
                resume_from_checkpoint="last" if stop > steps[0] else None,
            )
            train(objective, training_data(listener, 8), config)
        ends.append(objective.listener.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    again = Grammar.from_pretrained(tmp_path / "halves" / "checkpoint-4")
    assert torch.equal(again.head.output.weight, ends[0]["head.output.weight"])


def test_the_head_learns_to_tell_corrupted_texts(tmp_path):
    torch.manual_seed(0)
    listener = ClipListener.from_parts(*PARTS["clip"](), prefix="")
    head = make_head(listener)
    data = training_data(listener, 4, pixels=False)
    listener.cache_images(data.dataset)
    texts = plain([text for example in data.dataset for text in example.references])
    vocabulary = vocabulary_of(texts)
    corrupted = corruptions_of(texts * 25, vocabulary, seed=9)  # other corruptions than those of the training

    def accuracy():
        return head_accuracy(Grammar(listener, head).probabilities, texts, corrupted)["grammar_accuracy"]

    config = TrainConfig(
        output_dir=tmp_path, learning_rate=1e-2, max_steps=60, per_device_train_batch_size=4, logging_steps=1
    )
    before = accuracy()
    history = train(ContrastiveGrammar(listener, head, vocabulary=vocabulary), data, config).history
    assert before < 70
    assert accuracy() > 90
    assert history[-1]["grammar_loss"] < 0.5 * history[0]["grammar_loss"]
    assert {"clip_loss", "recall@1", "logit_scale"} <= set(history[-1])


def test_what_cannot_be_trained_is_refused(tmp_path):
    listener, head = make()
    for options, message in (
        ({"vocabulary": []}, "the vocabulary of the corruptions is empty"),
        ({"vocabulary": ["a"], "weight": -1.0}, "weight=-1.0"),
        ({"vocabulary": ["a"], "buckets": 0}, "buckets=0"),
    ):
        with pytest.raises(ValueError, match=message):
            ContrastiveGrammar(listener, head, **options)
    objective = ContrastiveGrammar(listener, head, vocabulary=["a"])
    with pytest.raises(UsageError, match="'image-1' has no text"):
        objective.collect(batch_of(listener, [["a dog"], []]), 0)
    config = TrainConfig(output_dir=tmp_path, gradient_accumulation_steps=2, per_device_train_batch_size=2)
    with pytest.raises(UsageError, match="gradient_accumulation_steps=2"):
        train(objective, training_data(listener, 8), config)


def test_corruptions_of_the_evaluation_are_always_the_same():
    first, again = (corruptions_of(TEXTS, ["bus"], seed=1) for _ in range(2))
    assert first == again
    assert {kind for kind, _ in corruptions_of(TEXTS * 30, ["bus", "dog"])} == set(CORRUPTIONS)
    rng = np.random.default_rng(0)
    assert corrupt(TEXTS[0], rng, ["bus"]).text != TEXTS[0]


def test_head_accuracy_counts_both_sides():
    said = {"good": 0.9, "poor": 0.4, "even": 0.5, "bad": 0.1}
    probabilities = lambda texts: torch.tensor([said[text] for text in texts])  # noqa: E731
    corrupted = [("swap", "bad"), ("swap", "good"), ("shuffle", "even")]
    found = head_accuracy(probabilities, ["good", "poor"], corrupted)
    assert found["grammar_accuracy_references"] == 50
    assert found["grammar_accuracy_corrupted"] == pytest.approx(200 / 3)
    assert found["grammar_accuracy"] == pytest.approx((50 + 200 / 3) / 2)
    assert (found["grammar_accuracy_swap"], found["grammar_accuracy_shuffle"]) == (50, 100)
    assert "grammar_accuracy_remove" not in found


def test_embeddings_and_features_come_from_one_pass():
    listener, _ = make()
    passes = []
    handle = listener.model.text_model.register_forward_hook(lambda *whatever: passes.append(1))
    embed_and_pool(listener, TEXTS)
    handle.remove()
    assert len(passes) == 1
