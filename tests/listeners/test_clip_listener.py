import logging

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_listeners import LIMIT, PARTS, clip_parts, tokenizer
from torch import nn

from tellapart.errors import UsageError
from tellapart.listeners.clip import PREFIX, ClipListener
from tellapart.types import Batch

TEXTS = ["a dog", "the red bus and two big dog on a sofa", "a dog", "", "a cat"]


def pictures(count: int, seed: int = 0) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 255, (20, 16, 3), np.uint8)) for _ in range(count)]


@pytest.fixture(params=["clip", "siglip"])
def listener(request) -> ClipListener:
    return ClipListener.from_parts(*PARTS[request.param](), prefix="")


def by_hand(listener: ClipListener, text: str) -> torch.Tensor:
    """One text alone, through the model's own projections, as the model's documentation prescribes."""
    words = listener.tokenizer
    kind = listener.model.config.model_type
    padding = {"clip": False, "siglip": "max_length"}[kind]
    ids = words(text, padding=padding, max_length=LIMIT, truncation=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        state = listener.model.text_model(input_ids=ids).last_hidden_state[0]
        position = {"clip": ids[0].tolist().index(words.eos_token_id) if kind == "clip" else 0, "siglip": -1}[kind]
        head = {"clip": "text_projection", "siglip": "text_model.head"}[kind]
        features = listener.model.get_submodule(head)(state[position])
    return features / features.norm()


def test_texts_are_pooled_where_the_model_expects(listener):
    found = listener.encode_texts(TEXTS)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    for text, row in zip(TEXTS, found, strict=True):
        torch.testing.assert_close(row, by_hand(listener, text), atol=1e-6, rtol=0)


def test_neither_batches_nor_neighbours_move_an_embedding(listener):
    together = listener.encode_texts(TEXTS)
    listener.batch_size = 1
    torch.testing.assert_close(listener.encode_texts(TEXTS), together, atol=1e-6, rtol=0)
    torch.testing.assert_close(listener.embed_texts(TEXTS).detach(), together, atol=1e-6, rtol=0)
    assert listener.encode_texts([]).shape == (0, together.shape[1])


def test_each_distinct_text_is_embedded_once(listener, monkeypatch):
    rows = []
    forward = listener.model.get_text_features
    monkeypatch.setattr(
        listener.model, "get_text_features", lambda **inputs: rows.append(len(inputs["input_ids"])) or forward(**inputs)
    )
    listener.batch_size = 3
    listener.encode_texts(TEXTS * 5)
    assert rows == [3, 1]


@pytest.mark.parametrize("template", ["<bos> $A <eos>", "<bos> $A"])
def test_long_texts_keep_their_end(template, caplog):
    words = tokenizer(template=template)
    listener = ClipListener.from_parts(*clip_parts(words=words), prefix="")
    long = ["a dog " * 20, "the cat " * 20]
    found = listener.encode_texts([*long, "a dog"])
    assert listener.truncated == pytest.approx(2 / 3)
    assert "2 of 3 texts are too long" in caplog.text
    # without EOS both would be pooled at BOS, whose state does not depend on the words
    assert (found[0] - found[1]).norm() > 1e-3
    kept = listener.encode_texts([" ".join(("a dog " * 20).split()[: LIMIT - 2])])
    torch.testing.assert_close(found[:1], kept, atol=1e-6, rtol=0)
    assert listener.truncated == 0
    caplog.clear()
    listener.encode_texts(long)
    assert caplog.text == ""  # said once


def test_long_texts_with_siglip():
    listener = ClipListener.from_parts(*PARTS["siglip"](), prefix="")
    found = listener.encode_texts(["a dog " * 20, "a cat"])
    assert listener.truncated == 0.5
    ids = listener.tokenizer("a dog " * 20)["input_ids"]
    with torch.no_grad():
        cut = torch.tensor([ids[: LIMIT - 1] + ids[-1:]])
        features = listener.model.get_text_features(input_ids=cut).pooler_output[0]
    torch.testing.assert_close(found[0], features / features.norm(), atol=1e-6, rtol=0)


def test_legacy_eos_2_pools_at_the_highest_id():
    with pytest.raises(UsageError, match="EOS is 3 of 19"):
        ClipListener.from_parts(*clip_parts(eos=2))
    words = tokenizer(("<pad>", "<bos>", "<unk>"))  # EOS comes after all words, as with OpenAI's vocabulary
    assert words.eos_token_id == len(words) - 1
    listener = ClipListener.from_parts(*clip_parts(eos=2, words=words), prefix="")
    for text, row in zip(TEXTS, listener.encode_texts(TEXTS), strict=True):
        torch.testing.assert_close(row, by_hand(listener, text), atol=1e-6, rtol=0)


def test_model_and_tokenizer_must_agree_on_the_end():
    with pytest.raises(UsageError, match="pools texts at token 5"):
        ClipListener.from_parts(*clip_parts(eos=5))


def test_the_prefix_is_the_listeners(listener):
    listener.prefix = PREFIX
    with_prefix = listener.encode_texts(["red dog"])
    listener.prefix = ""
    torch.testing.assert_close(with_prefix, listener.encode_texts(["A photo depicts red dog"]))
    assert (with_prefix - listener.encode_texts(["red dog"])).norm() > 1e-3


def test_images_from_the_batch(listener):
    images = pictures(5)
    inputs = listener.process(images)
    listener.batch_size = 2
    found = listener.encode_images(Batch(list("abcde"), [[]] * 5, {"listener": inputs}))
    with torch.no_grad():
        features = listener.model.get_image_features(**inputs).pooler_output
    torch.testing.assert_close(found, features / features.norm(dim=1, keepdim=True), atol=1e-6, rtol=0)
    with pytest.raises(UsageError, match="no embedding of image 'a'"):
        listener.encode_images(Batch(list("abcde"), [[]] * 5))


def test_training_goes_through_embed_and_leaves_modes_alone(listener):
    assert not isinstance(listener, nn.Module)
    listener.model.train()
    images, texts = (
        listener.embed_images(listener.process(pictures(2))["pixel_values"]),
        listener.embed_texts(["a", "dog"]),
    )
    torch.testing.assert_close(images.norm(dim=1), torch.ones(2))
    ((images @ texts.T) * listener.logit_scale.exp()).diagonal().sum().backward()
    grads = {name: p.grad for name, p in listener.model.named_parameters() if p.grad is not None}
    assert any(name.startswith("vision_model") and g.abs().sum() > 0 for name, g in grads.items())
    assert any(name.startswith("text_model") and g.abs().sum() > 0 for name, g in grads.items())
    assert listener.logit_scale.grad is not None
    listener.encode_texts(["a"])
    assert listener.model.training


def test_fingerprint_tells_weights_preprocessing_and_prefix():
    def fingerprint(change=lambda listener: None, **options):
        listener = ClipListener.from_parts(*clip_parts(), **options)
        change(listener)
        return listener.fingerprint()

    base = fingerprint()
    assert fingerprint() == base
    assert fingerprint(name="judge", batch_size=3) == base

    def nudge(listener):
        next(listener.model.parameters()).data.view(-1)[0] += 1e-6

    def gelu(listener):
        listener.model.config.text_config.hidden_act = "gelu"

    def mean(listener):
        listener.image_processor.image_mean = [0.5, 0.5, 0.5]

    others = [fingerprint(nudge), fingerprint(gelu), fingerprint(mean), fingerprint(prefix="")]
    assert len({base, *others}) == 5


def test_save_and_load(listener, tmp_path):
    listener.prefix = "a photo of "
    listener.save(tmp_path / "saved")
    again = ClipListener.from_pretrained(tmp_path / "saved", name="judge")
    assert (again.prefix, again.name) == ("a photo of ", "judge")
    assert again.fingerprint() == listener.fingerprint()
    torch.testing.assert_close(again.encode_texts(TEXTS), listener.encode_texts(TEXTS), atol=0, rtol=0)
    torch.testing.assert_close(again.process(pictures(2)), listener.process(pictures(2)), atol=0, rtol=0)
    assert ClipListener.from_pretrained(str(tmp_path / "saved"), prefix="").prefix == ""
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    half = ClipListener.from_pretrained(tmp_path / "saved", dtype="bfloat16")
    assert half.encode_texts(TEXTS).dtype == torch.float32
    assert half.fingerprint() != listener.fingerprint()


def test_a_folder_that_is_none(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(UsageError, match="nowhere does not exist"):
        ClipListener.from_pretrained(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty cannot be loaded"):
        ClipListener.from_pretrained(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UsageError, match="'bert' model: a listener must be one of clip, siglip"):
        ClipListener.from_pretrained(str(tmp_path / "empty"))


def test_embeddings_do_not_depend_on_the_callers_autocast(listener):
    batch = Batch(["a", "b"], [[], []], {listener.name: listener.process(pictures(2))})
    texts, images = listener.encode_texts(TEXTS), listener.encode_images(batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(listener.embed_texts(TEXTS), texts), "while training, autocast has its say"
        torch.testing.assert_close(listener.encode_texts(TEXTS), texts, atol=0, rtol=0)
        torch.testing.assert_close(listener.encode_images(batch), images, atol=0, rtol=0)


def test_a_checkpoint_without_one_of_its_sides_is_refused(listener, tmp_path):
    listener.save(tmp_path / "saved")
    weights = load_file(tmp_path / "saved" / "model.safetensors")
    half = {name: tensor for name, tensor in weights.items() if not name.startswith("text_model")}
    save_file(half, tmp_path / "saved" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks \d+ weights, first 'text_model\."):
        ClipListener.from_pretrained(tmp_path / "saved")
