import math

import numpy as np
import pytest
import torch
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

from pictures import CAPTIONS, images
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.objectives.contrastive import Contrastive, Pairs
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.training.optim import trained_parts
from tellapart.types import Batch
from tiny_models import redraw, word_tokenizer


def tiny_listener(*, scale: float | None = None) -> ClipListener:
    tokenizer = word_tokenizer(CAPTIONS)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = sizes | {"vocab_size": len(tokenizer), "max_position_embeddings": 16, "eos_token_id": 3, "bos_token_id": 1}
    vision = sizes | {"image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text | {"pad_token_id": 0}, vision_config=vision, projection_dim=16))
    if scale is not None:
        redraw(model, std=0.25, seed=0)
        torch.nn.init.constant_(model.logit_scale, math.log(scale))
    processor = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    return ClipListener.from_parts(model, processor, tokenizer, prefix="")


def batch_of(listener: ClipListener, references: list[list[str]]) -> Batch:
    inputs = {listener.name: listener.process(images(len(references)))}
    return Batch([f"image-{i}" for i in range(len(references))], references, inputs)


def colour_changed(text: str, rng: np.random.Generator) -> str:
    return text.replace("red", "blue") if rng.random() < 2 else text


def slow_loss(images, texts, negatives, scale: float, own_weight: float) -> float:
    """The loss, one exponential at a time; arguments are embeddings by text, so equal texts are one candidate."""
    candidates = dict(texts) | dict(negatives)
    total = 0.0
    for i, image in enumerate(images):
        true, _ = texts[i]
        scores = {text: scale * float(image @ embedding) for text, embedding in candidates.items()}
        to_text = -math.log(math.exp(scores[true]) / sum(map(math.exp, scores.values())))
        rivals = [j for j in range(len(images)) if j == i or texts[j][0] != true]
        backwards = [math.exp(scale * float(images[j] @ texts[i][1])) for j in rivals]
        to_image = -math.log(math.exp(scores[true]) / sum(backwards))
        total += (to_text + to_image) / 2
        if negatives and negatives[i][0] != true:
            duel = math.exp(scores[true]), math.exp(scores[negatives[i][0]])
            total -= own_weight * math.log(duel[0] / sum(duel))
    return total


TEXTS = ["a red star on a table", "a red ring on a table", "a red star on a table", "a green heart on a table"]


@pytest.mark.parametrize("negatives", [[], ["a blue star on a table", TEXTS[1], "a blue star on a table", "a star"]])
def test_loss_is_symmetric_infonce_and_the_duels(negatives):
    listener = tiny_listener(scale=5.0)
    batch = batch_of(listener, [[text] for text in TEXTS])
    objective = Contrastive(listener, negative=colour_changed, own_weight=0.5)
    [output] = objective.losses(Pairs(batch, TEXTS, negatives))
    with torch.no_grad():
        pictures = listener.encode_images(batch).double()
        embed = lambda texts: list(zip(texts, listener.encode_texts(texts).double(), strict=True)) if texts else []  # noqa: E731
        expected = slow_loss(pictures, embed(TEXTS), embed(negatives), 5.0, 0.5)
    assert float(output.loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert float(output.weight) == 4
    if negatives:
        assert output.logs["negatives/accuracy"].shape == (3,)  # the second image's false text is its true one


@pytest.mark.parametrize("scale", [100.0, 117.0])
def test_the_temperature_learns_at_its_limit(scale):
    """CLIP's own weights are at the limit, where a limited exponential has no gradient."""
    listener = tiny_listener(scale=scale)
    batch = batch_of(listener, [[text] for text in TEXTS])
    [output] = Contrastive(listener).losses(Pairs(batch, TEXTS, []))
    assert float(output.logs["logit_scale"]) == pytest.approx(100, rel=1e-6)
    output.loss.backward()
    slope = float(listener.logit_scale.grad)
    with torch.no_grad():
        pictures, embed = listener.encode_images(batch).double(), listener.encode_texts(TEXTS).double()
        texts = list(zip(TEXTS, embed, strict=True))
        losses = [slow_loss(pictures, texts, [], 100 * math.exp(step), 0.0) for step in (-1e-4, 1e-4)]
    assert slope == pytest.approx((losses[1] - losses[0]) / 2e-4, rel=1e-2)
    assert abs(slope) > 0.1
    assert float(listener.logit_scale) == pytest.approx(math.log(100))


def test_buckets_only_save_padding():
    listener = tiny_listener(scale=5.0)
    texts = ["a star", "a red ring on a table", "a red star on", "a green"]
    pairs = Pairs(batch_of(listener, [[text] for text in texts]), texts, [])
    losses = [float(next(iter(Contrastive(listener, buckets=n).losses(pairs))).loss.detach()) for n in (1, 2, 4)]
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


def test_what_is_drawn_follows_from_the_image():
    listener = tiny_listener()
    batch = batch_of(listener, [[f"text {i} {j}" for j in range(9)] for i in range(6)])
    objective = Contrastive(listener, negative=lambda text, rng: f"{text} {rng.random()}")
    torch.manual_seed(3)
    whole = objective.collect(batch, 0)
    torch.manual_seed(3)
    part = objective.collect(batch.select([4, 1]), 0)
    assert part.texts == [whole.texts[4], whole.texts[1]]
    assert part.negatives == [whole.negatives[4], whole.negatives[1]]
    assert all(text in references for text, references in zip(whole.texts, batch.references, strict=True))
    torch.manual_seed(4)
    assert objective.collect(batch, 0).texts != whole.texts


def test_every_reference_is_drawn_about_equally_often():
    listener = tiny_listener()
    references = ["a", "b", "c", "a"]
    batch = Batch([str(i) for i in range(4000)], [references] * 4000)
    drawn = Contrastive(listener).collect(batch, 0).texts
    # "a" is two of four: expectation 2000, standard deviation sqrt(4000 / 4) = 31.6.
    assert abs(drawn.count("a") - 2000) < 130
    assert abs(drawn.count("b") - 1000) < 130


def test_an_image_without_text_is_refused():
    listener = tiny_listener()
    with pytest.raises(UsageError, match="'image-1' has no text"):
        Contrastive(listener).collect(batch_of(listener, [["a star"], []]), 0)
    with pytest.raises(ValueError, match="buckets=0"):
        Contrastive(listener, buckets=0)


def test_training_finds_the_pairs_with_a_rate_for_each_part(tmp_path):
    torch.manual_seed(0)
    listener = tiny_listener()
    objective = Contrastive(listener)
    assert list(trained_parts(objective)) == ["vision", "listener"]
    pictures = [np.asarray(image) for image in images(8)]
    examples = [Example(str(i), ArrayImage(array), (CAPTIONS[9 * i],)) for i, array in enumerate(pictures)]
    data = TrainingData(CaptionDataset(examples, name="eight"), Collate({listener.name: listener.process}))
    config = TrainConfig(
        output_dir=tmp_path,
        learning_rate={"vision": 1e-3, "listener": 3e-3},
        max_steps=40,
        per_device_train_batch_size=8,
        logging_steps=1,
    )
    history = train(objective, data, config).history
    assert history[0]["recall@1"] < 0.6
    assert history[-1]["recall@1"] == 1.0
    assert history[-1]["learning_rate/vision"] == 1e-3

    accumulating = TrainConfig(output_dir=tmp_path / "other", gradient_accumulation_steps=2)
    with pytest.raises(UsageError, match="gradient_accumulation_steps=2"):
        train(objective, data, accumulating)


def test_logits_are_exact_under_autocast(monkeypatch):
    """At scale 100, bfloat16 would round logits to halves; given the same embeddings the loss is the same."""
    listener = tiny_listener(scale=100.0)
    pairs = Pairs(batch_of(listener, [[text] for text in TEXTS]), TEXTS, [])
    with torch.no_grad():
        pictures = listener.encode_images(pairs.batch)
        monkeypatch.setattr(listener, "embed_images", lambda pixel_values: pictures)
        monkeypatch.setattr(listener, "embed_texts", listener.encode_texts)
        expected = next(Contrastive(listener).losses(pairs)).loss
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(next(Contrastive(listener).losses(pairs)).loss, expected)
