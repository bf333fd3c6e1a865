"""VSE++ against a GRU and cosines in plain Python, and as a module, a retriever and a folder."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn.functional import one_hot
from transformers import AutoModel

from listeners.soft_batches import captions, check_gradients, soft
from listeners.tiny_listeners import clip_parts
from pictures import images
from tellapart.captioners.fresh import build_tokenizer
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.image_vectors import ClipVectors, StoredVectors
from tellapart.listeners.vse import Vse, VseConfig, images_of
from tellapart.listeners.words import Words
from tellapart.types import Batch
from tiny_models import redraw

TEXTS = ["the red dog runs", "a big blue bus and a dog on the sofa", "two", "a cat"]
WIDTH = 6


def table(*, regions: bool = False) -> StoredVectors:
    """Features of the images "0", "1", ..., of 1 to 3 regions each."""
    rows = torch.randn(9, 3, WIDTH, generator=torch.Generator().manual_seed(3))

    def read(ids):
        index = torch.tensor([int(name) for name in ids])
        if not regions:
            return {"features": rows[index, 0]}
        return {"features": rows[index], "mask": torch.arange(3) < (1 + index % 3)[:, None]}

    return StoredVectors(read, WIDTH)


def vse(vectors=None, *, vocabulary=TEXTS, words: Words | None = None, seed: int = 0, **options) -> Vse:
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(vocabulary, min_count=1)
    made = Vse.fresh(tokenizer, vectors or table(), word_size=5, hidden_size=7, words=words, **options)
    redraw(made.model, std=0.5, seed=seed)
    return made


def batch_of(count: int, **inputs) -> Batch:
    return Batch([str(i) for i in range(count)], [[] for _ in range(count)], inputs)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def linear(weight: list[list[float]], bias: list[float], x: list[float]) -> list[float]:
    return [b + sum(w * v for w, v in zip(row, x, strict=True)) for row, b in zip(weight, bias, strict=True)]


def slow_text(model, vectors: list[list[float]]) -> list[float]:
    """A GRU's last state by its three gates, one number at a time, scaled to unit norm."""
    size = model.config.hidden_size
    parts = {name: parameter.tolist() for name, parameter in model.gru.named_parameters()}
    state = [0.0] * size
    for word in vectors:
        new = linear(parts["weight_ih_l0"], parts["bias_ih_l0"], word)
        old = linear(parts["weight_hh_l0"], parts["bias_hh_l0"], state)
        reset = [sigmoid(new[i] + old[i]) for i in range(size)]
        update = [sigmoid(new[size + i] + old[size + i]) for i in range(size)]
        fresh = [math.tanh(new[2 * size + i] + reset[i] * old[2 * size + i]) for i in range(size)]
        state = [(1 - update[i]) * fresh[i] + update[i] * state[i] for i in range(size)]
    norm = math.sqrt(sum(value * value for value in state))
    return [value / norm for value in state]


def test_the_defaults_are_those_of_psst():
    config = VseConfig()
    assert (config.feature_size, config.word_size, config.hidden_size) == (2048, 512, 1024)


def test_texts_against_a_slow_gru():
    listener = vse()
    rows = listener.model.embedding.weight.tolist()
    for text, found in zip(TEXTS, listener.encode_texts(TEXTS).tolist(), strict=True):
        ids = [1, *(listener.tokenizer.get_vocab()[word] for word in text.split()), 2]
        assert found == pytest.approx(slow_text(listener.model, [rows[i] for i in ids]), abs=1e-5)


def test_distributions_against_a_slow_gru():
    """BOS, then mixtures of the embeddings, then the first EOS; the state there."""
    listener = vse()
    words, mask = soft(2, 5, listener.model.config.vocab_size, 2, [3, 5])
    found = listener.embed_words(words.float(), mask).tolist()
    rows = listener.model.embedding.weight.tolist()
    for row, length in enumerate([3, 5]):
        mixed = [
            [sum(p * rows[i][k] for i, p in enumerate(words[row, t].tolist())) for k in range(5)] for t in range(length)
        ]
        assert found[row] == pytest.approx(slow_text(listener.model, [rows[1], *mixed]), abs=1e-5)


@pytest.mark.parametrize("regions", [False, True])
def test_images_are_projected_means_of_unit_norm(regions):
    vectors = table(regions=regions)
    listener = vse(vectors)
    given = vectors([str(i) for i in range(5)])
    weight, bias = (part.tolist() for part in listener.model.visual_projection.parameters())
    for i, found in enumerate(listener.embed_images(batch_of(5)).tolist()):
        rows = given["features"][i].tolist()
        rows = rows[: 1 + i % 3] if regions else [rows]
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        expected = linear(weight, bias, mean)
        norm = math.sqrt(sum(value * value for value in expected))
        assert found == pytest.approx([value / norm for value in expected], abs=1e-5)


def test_the_model_alone_gives_all_cosines():
    vectors = table(regions=True)
    listener, ids = vse(vectors), ["0", "1", "2"]
    tokens, mask = captions(TEXTS, listener.tokenizer)
    given = vectors(ids)
    found = listener.model(given["features"], tokens, mask.long(), given["mask"])
    torch.testing.assert_close(found, listener.encode_ids(ids) @ listener.encode_texts(TEXTS).T)


def test_features_of_a_batch_are_those_by_id():
    vectors = table(regions=True)
    listener = vse(vectors, reads="captioner")
    ids = [str(i) for i in range(5)]
    wide = {
        key: torch.nn.functional.pad(value, (0,) * (2 * value.ndim - 3) + (2,)) for key, value in vectors(ids).items()
    }
    assert wide["features"].shape == (5, 5, WIDTH)
    in_batch = listener.embed_images(batch_of(5, captioner=wide))
    torch.testing.assert_close(in_batch, listener.embed_images(batch_of(5)))
    assert in_batch.requires_grad
    assert torch.equal(listener.encode_images(batch_of(5)), listener.encode_ids(ids))
    assert not listener.encode_ids(ids).requires_grad
    assert vse(vectors).embed_images(batch_of(5, captioner={"features": torch.zeros(5, 99)})).shape == (5, 7)
    with pytest.raises(UsageError, match="the image features are 99 wide, but the listener vse was made for 6"):
        listener.embed_images(batch_of(5, captioner={"features": torch.zeros(5, 99)}))


def test_one_hot_words_are_tokens_to_the_bit_and_texts():
    listener = vse()
    tokens, mask = captions(TEXTS, listener.tokenizer, unfinished=(1,))
    vectors = one_hot(tokens, listener.model.config.vocab_size).float()
    found = listener.embed_tokens(tokens, mask)
    assert torch.equal(listener.embed_words(vectors, mask), found)
    whole = [0, 2, 3]
    torch.testing.assert_close(found[whole], listener.embed_texts([TEXTS[i] for i in whole]))


def test_another_numbering_of_the_words_is_mapped():
    """Words that only the listener has do no harm; one that it lacks is refused."""
    own = build_tokenizer([*TEXTS, "the dog the dog"], min_count=1)
    words = Words(own, len(own) + 2, (own.eos_token_id,))
    plain, mapped = vse(vocabulary=[*TEXTS, "zebra zebra"]), vse(vocabulary=[*TEXTS, "zebra zebra"], words=words)
    assert own("two dog")["input_ids"] != plain.tokenizer("two dog")["input_ids"]
    tokens, mask = captions(TEXTS, own)
    torch.testing.assert_close(mapped.embed_tokens(tokens, mask), plain.embed_texts(TEXTS))
    assert (plain.embed_tokens(tokens, mask) - plain.embed_texts(TEXTS)).abs().max() > 0.01
    with pytest.raises(UsageError, match="the VSE listener does not have 1 of the captioner's 13 words, first 'sofa'"):
        vse(vocabulary=[text.replace(" on the sofa", " on the") for text in TEXTS], words=words)


def test_padding_does_not_matter():
    listener = vse()
    tokens, mask = captions(TEXTS, listener.tokenizer)
    found = listener.embed_tokens(tokens, mask)
    wide = torch.nn.functional.pad(tokens, (0, 4), value=7), torch.nn.functional.pad(mask, (0, 4))
    torch.testing.assert_close(listener.embed_tokens(*wide), found)
    vectors = one_hot(tokens, listener.model.config.vocab_size).float()
    vectors[~mask] = torch.nan
    torch.testing.assert_close(listener.embed_words(vectors, mask), found)
    for row, text in enumerate(TEXTS):
        torch.testing.assert_close(listener.embed_tokens(*captions([text], listener.tokenizer))[0], found[row])


def test_gradients_reach_words_and_all_weights():
    listener = vse().double()
    words, mask = soft(3, 5, listener.model.config.vocab_size, 2, [3, 5, 4])
    check_gradients(listener.embed_words, words, mask, [(0, 0, 5), (0, 2, 9), (1, 4, 4), (2, 1, 2), (2, 3, 12)])
    leaf = words.clone().requires_grad_()
    cosines = listener.embed_words(leaf, mask) @ listener.embed_images(batch_of(3)).T
    (cosines * torch.eye(3)).sum().backward()
    assert leaf.grad[~mask].abs().max() == 0
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in listener.parameters())


def test_the_gru_can_be_differentiated_in_eval_mode():
    """cuDNN's can not, so that part stays in train mode, whatever is asked of the whole."""
    listener = vse()
    assert not listener.eval().training
    assert listener.model.gru.training


def test_saving_and_loading_gives_the_same_bits(tmp_path):
    listener = vse(table(regions=True))
    listener.save(tmp_path / "listener")
    again = Vse.from_pretrained(tmp_path / "listener", table(regions=True))
    ids = [str(i) for i in range(5)]
    assert torch.equal(again.encode_texts(TEXTS), listener.encode_texts(TEXTS))
    assert torch.equal(again.encode_ids(ids), listener.encode_ids(ids))
    assert again.tokenizer.get_vocab() == listener.tokenizer.get_vocab()
    assert again.fingerprint() == listener.fingerprint()
    assert again.describe()["backbone"] == "vse, GRU of width 7, image features 6 wide"
    assert images_of(tmp_path / "listener") == {}
    assert torch.equal(
        AutoModel.from_pretrained(tmp_path / "listener").gru.weight_hh_l0, listener.model.gru.weight_hh_l0
    )
    other = vse(seed=4)
    assert other.fingerprint() != listener.fingerprint()
    other.load_weights(tmp_path / "listener")
    assert torch.equal(other.encode_texts(TEXTS), listener.encode_texts(TEXTS))
    with pytest.raises(UsageError, match="lacks the weights of this listener"):
        other.load_weights(tmp_path)
    with pytest.raises(UsageError, match="the image features are 5 wide, but the listener was made for 6"):
        Vse.from_pretrained(tmp_path / "listener", StoredVectors(table().read, 5))
    blind = Vse.from_pretrained(tmp_path / "listener")
    with pytest.raises(UsageError, match=r"of image '3' there are none: name them \(data.features in recipes"):
        blind.encode_ids(["3"])
    (tmp_path / "listener" / "tokenizer.json").unlink()
    with pytest.raises(UsageError):
        Vse.from_pretrained(tmp_path / "listener")


def test_image_embeddings_of_a_clip_stand_in_for_features(tmp_path):
    model, processor, tokenizer = clip_parts()
    clip = ClipListener.from_parts(model, processor, tokenizer, name="images")
    examples = [Example(str(i), ArrayImage(picture), ()) for i, picture in enumerate(arrays(3))]
    vectors = ClipVectors(clip, "world/listener")
    listener = vse(vectors)
    listener.cache_images(examples)
    assert listener.model.config.feature_size == 8
    ids = ["2", "0"]
    expected = listener.model.get_image_features(clip.encode_ids(ids))
    assert torch.equal(listener.encode_ids(ids), expected.detach())
    assert listener.embed_images(Batch(ids, [[], []])).requires_grad
    assert not any(parameter is own for parameter in listener.parameters() for own in model.parameters())
    listener.save(tmp_path / "listener")
    about = images_of(tmp_path / "listener")
    assert about["listener"] == "world/listener"
    vectors.require(about, tmp_path)
    with torch.no_grad():
        model.visual_projection.weight.add_(1)
    with pytest.raises(UsageError, match="whose weights have changed since"):
        ClipVectors(clip, "world/listener").require(about, tmp_path)
    (tmp_path / "listener" / "listener.json").write_text(json.dumps({}))
    with pytest.raises(UsageError, match="is missing or damaged"):
        images_of(tmp_path / "listener")


def arrays(count: int) -> list:
    import numpy as np

    return [np.asarray(picture) for picture in images(count)]
