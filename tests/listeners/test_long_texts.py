"""Listeners for long texts: Long-CLIP's positions, SigLIP 2, models that need remote code, and pooling over sentences."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import Siglip2Config, Siglip2ImageProcessorPil, Siglip2Model

from listeners.openai_clip import TEXT_WIDTH, OpenAIClip, Transformer
from listeners.tiny_listeners import clip_parts, siglip_parts, tokenizer
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.scorers import ListenerScorer
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.openai_layout import convert_openai_clip
from tellapart.listeners.texts import SiglipTexts
from tellapart.types import Batch

POSITIONS, KEPT = 248, 20
LONG = "a red dog runs on the sofa. the cat and the big blue bus. two cat"


class LongClip(OpenAIClip):
    """The text side of Long-CLIP's code: two tables of positions with masks."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary)
        self.transformer = Transformer(TEXT_WIDTH, torch.full((POSITIONS, POSITIONS), float("-inf")).triu(1))
        self.positional_embedding = nn.Parameter(torch.randn(POSITIONS, TEXT_WIDTH))
        self.positional_embedding_res = nn.Parameter(torch.randn(POSITIONS, TEXT_WIDTH))
        self.mask1, self.mask2 = torch.zeros(POSITIONS, 1), torch.zeros(POSITIONS, 1)
        self.mask1[:KEPT], self.mask2[KEPT:] = 1, 1

    def encode_text(self, ids):
        width = ids.shape[1]
        places = self.positional_embedding * self.mask1 + self.positional_embedding_res * self.mask2
        x = self.ln_final(self.transformer(self.token_embedding(ids) + places[:width]))
        return x[torch.arange(len(ids)), ids.argmax(dim=1)] @ self.text_projection


def test_long_clip_reads_248_tokens():
    torch.manual_seed(0)
    original = LongClip(20).eval()
    model = convert_openai_clip(original.state_dict())
    assert model.config.text_config.max_position_embeddings == POSITIONS
    ids = torch.randint(4, 19, (2, 240))
    ids[:, -1] = 19
    with torch.no_grad():
        torch.testing.assert_close(
            model.get_text_features(input_ids=ids).pooler_output, original.encode_text(ids), atol=1e-4, rtol=1e-4
        )
        short = ids[:, -12:]  # below the 20th position the first table counts
        torch.testing.assert_close(
            model.get_text_features(input_ids=short).pooler_output, original.encode_text(short), atol=1e-4, rtol=1e-4
        )
    words = tokenizer(("<pad>", "<bos>", "<unk>"))  # EOS is the highest id
    listener = ClipListener.from_parts(model, clip_parts()[1], words, prefix="")
    assert listener.too_long(["dog " * 240, "dog " * 300]) == [False, True]
    with pytest.raises(UsageError, match="Long-CLIP that do not fit together"):
        convert_openai_clip(original.state_dict() | {"positional_embedding_res": torch.ones(77, TEXT_WIDTH)})


def siglip2_parts():
    torch.manual_seed(0)
    words = tokenizer(("<pad>", "<bos>", "<unk>", "<start_of_turn>"), template="$A <eos>")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = sizes | {"vocab_size": len(words), "max_position_embeddings": 12, "projection_size": 16}
    vision = sizes | {"patch_size": 8, "num_patches": 16}
    model = Siglip2Model(Siglip2Config(text_config=text, vision_config=vision))
    return model, Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16), words


def pictures():
    pixels = np.random.default_rng(0).integers(0, 255, (3, 24, 40, 3), dtype=np.uint8)
    return [Image.fromarray(pixels[0]), Image.fromarray(pixels[1][:, :16]), Image.fromarray(pixels[2][:8])]


def test_siglip2_sees_pictures_of_any_shape(tmp_path):
    parts = siglip2_parts()
    ClipListener.from_parts(*parts).save(tmp_path / "siglip2")
    listener = ClipListener.from_pretrained(tmp_path / "siglip2", prefix="", batch_size=2)
    model, processor, words = parts
    with torch.no_grad():
        alone = [
            model.get_image_features(**processor(images=[image], return_tensors="pt")).pooler_output
            for image in pictures()
        ]
    expected = nn.functional.normalize(torch.cat(alone), dim=-1)
    inputs = listener.process(pictures())
    assert set(inputs) == {"pixel_values", "pixel_attention_mask", "spatial_shapes"}
    ids = ["x", "y", "z"]
    torch.testing.assert_close(
        listener.encode_images(Batch(ids, [[]] * 3, {"listener": inputs})), expected, atol=1e-5, rtol=0
    )
    listener.cache_images(Example(i, ArrayImage(np.asarray(p))) for i, p in zip(ids, pictures(), strict=True))
    torch.testing.assert_close(listener.encode_ids(ids), expected, atol=1e-5, rtol=0)
    assert "patches" in listener.describe()["backbone"]
    padded = words("red dog")["input_ids"]
    padded += [0] * (12 - len(padded))
    with torch.no_grad():
        text = model.get_text_features(input_ids=torch.tensor([padded])).pooler_output
    written = ClipListener.from_parts(
        model, processor, words, prefix=""
    )  # transformers loads Gemma's tokenizer, not this one
    torch.testing.assert_close(
        written.encode_texts(["Red DOG"]), nn.functional.normalize(text, dim=-1), atol=1e-5, rtol=0
    )


def test_texts_are_lower_cased_for_gemmas_vocabulary_alone():
    _, _, plain = siglip_parts()
    model, _, gemma = siglip2_parts()
    config = model.config.text_config
    assert SiglipTexts(gemma, config).ids(["RED dog"]) == SiglipTexts(gemma, config).ids(["red dog"])
    assert SiglipTexts(plain, config).ids(["RED dog"]) != SiglipTexts(plain, config).ids(["red dog"])


def test_what_needs_remote_code_is_refused_in_a_sentence(tmp_path):
    code = {"AutoConfig": "configuration_clip.JinaCLIPConfig", "AutoModel": "modeling_clip.JinaCLIPModel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "jina_clip", "auto_map": code}))
    (tmp_path / "configuration_clip.py").write_text("raise SystemExit('was run')")
    with pytest.raises(UsageError, match="needs code of its own repository, which is never run here"):
        ClipListener.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", [clip_parts, siglip_parts])
def test_sentences_are_pooled(family):
    model, processor, words = family()
    whole = ClipListener.from_parts(model, processor, words, prefix="")
    parts = ["a red dog runs on the sofa.", "the cat and the big blue bus.", "two cat"]
    rows = [whole.encode_texts([part])[0].tolist() for part in parts]
    for pooling, pool in (("sentence_mean", lambda v: sum(v) / 3), ("sentence_max", max)):
        listener = ClipListener.from_parts(model, processor, words, prefix="", text_pooling=pooling)
        raw = [pool(values) for values in zip(*rows, strict=True)]
        length = sum(value * value for value in raw) ** 0.5
        expected = [value / length for value in raw]
        found = listener.encode_texts([LONG, "two cat", LONG])
        assert found[0].tolist() == pytest.approx(expected, abs=1e-5)
        torch.testing.assert_close(found[0], found[2])
        torch.testing.assert_close(found[1], whole.encode_texts(["two cat"])[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(listener.embed_texts([LONG])[0].detach(), found[0], atol=1e-5, rtol=0)
        assert listener.encode_texts([]).shape == (0, found.shape[1])
        assert listener.fingerprint() != whole.fingerprint()
        assert listener.describe()["text_pooling"] == pooling
        assert listener.too_long([LONG, "dog " * 30, ""]) == [False, True, False]
        assert whole.too_long([LONG]) == [True]
    assert "text_pooling" not in whole.describe()


def test_the_share_of_cut_captions_is_that_of_the_pooling():
    model, processor, words = clip_parts()
    captions = {"0": LONG, "1": "dog " * 30, "2": "two cat"}
    shares = {}
    for pooling in ("whole", "sentence_mean"):
        listener = ClipListener.from_parts(model, processor, words, prefix="", text_pooling=pooling)
        shares[pooling] = ListenerScorer(listener, "listener").describe(list(captions.values()))["truncated"]
        listener.encode_texts(list(captions.values()))
        assert 100 * listener.truncated == pytest.approx(shares[pooling])
    assert shares == {"whole": pytest.approx(200 / 3), "sentence_mean": pytest.approx(100 / 3)}
