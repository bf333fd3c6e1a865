"""Matchers, against transformers' own forward pass of one pair at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pictures import images
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.listeners.matcher import MATCH, ItmMatcher
from tellapart.rewards.matching import Matching
from tellapart.types import Batch, Rollout
from tiny.matchers import LIMIT, TINY_MATCHERS

TEXTS = [["a red star on a table", "a dog"], [], ["a blue moon on a table", "a red star on a table", "photo"]]
IDS = ["x", "y", "z"]


@pytest.fixture(scope="module", params=list(TINY_MATCHERS))
def folder(request, tmp_path_factory):
    return TINY_MATCHERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def matcher(folder) -> ItmMatcher:
    found = ItmMatcher.from_pretrained(folder, batch_size=2)
    found.know_images(Example(i, ArrayImage(np.asarray(image))) for i, image in zip(IDS, images(3), strict=True))
    return found


def own_forward(matcher: ItmMatcher, picture: torch.Tensor, text: str) -> torch.Tensor:
    """``[2]`` by the class's own forward."""
    flag = {"blip": "use_itm_head", "blip-2": "use_image_text_matching_head"}[matcher.model.config.model_type]
    words = matcher.tokenizer([text], return_tensors="pt")
    inputs = {"pixel_values": picture[None], "input_ids": words.input_ids, "attention_mask": words.attention_mask}
    with torch.no_grad():
        out = matcher.model(**inputs, **{flag: True})
    return (out["itm_score"] if "itm_score" in out else out["logits_per_image"])[0]


def test_logits_equal_the_models_own_forward(matcher):
    pixels = matcher.process(images(3))["pixel_values"]
    found = matcher.match_ids(IDS, TEXTS)
    assert [tuple(rows.shape) for rows in found] == [(2, 2), (0, 2), (3, 2)]
    for picture, texts, rows in zip(pixels, TEXTS, found, strict=True):
        for text, row in zip(texts, rows, strict=True):
            torch.testing.assert_close(row, own_forward(matcher, picture, text), atol=1e-5, rtol=0)
    flat = torch.cat(found)
    assert (flat[:, 0] - flat[:, 1]).std() > 1e-3
    assert (found[0][0] - found[2][1]).abs().max() > 1e-3  # the same text with another image


def test_the_tower_runs_once_an_image(matcher, monkeypatch):
    rows = []
    forward = matcher.model.vision_model.forward
    monkeypatch.setattr(
        matcher.model.vision_model,
        "forward",
        lambda **inputs: rows.append(len(inputs["pixel_values"])) or forward(**inputs),
    )
    matcher.match_ids(IDS, [["a dog"] * 5] * 3)
    assert rows == [2, 1]


def test_a_rollout_gets_the_positive_logit_of_each_pair(matcher):
    pixels = matcher.process(images(3))["pixel_values"]
    owner = torch.tensor([2, 0, 2, 0])
    texts = ["a red star on a table", "a dog", "photo", "a cat"]
    flat = torch.ones(4, 1, dtype=torch.long)
    expected = [
        float(own_forward(matcher, pixels[i], text)[MATCH]) for i, text in zip(owner.tolist(), texts, strict=True)
    ]
    for inputs in ({}, {"matcher": {"pixel_values": pixels}}):
        batch = Batch(IDS, [[], [], []], inputs)
        rollout = Rollout(batch, owner, texts, flat, flat.bool(), flat[:, 0].bool())
        for score in (matcher.match, Matching(matcher)):
            found = score(rollout)
            assert found.dtype == torch.float32
            assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_callers_autocast_does_not_round(matcher):
    plain = torch.cat(matcher.match_ids(IDS, TEXTS))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(torch.cat(matcher.match_ids(IDS, TEXTS)), plain, atol=1e-6, rtol=0)
    matcher.autocast = "bfloat16"
    rounded = torch.cat(matcher.match_ids(IDS, TEXTS))
    assert 0 < (rounded - plain).abs().max() < 0.1 * plain.abs().max()


def test_long_texts_are_cut_and_counted(matcher):
    long = "a red star on a table " * 20
    assert matcher.too_long([long, "a dog"]) == [True, False]
    kept = " ".join(long.split()[: LIMIT - 2])  # [CLS] and [SEP] stay
    found = matcher.match_ids(["x"], [[long, kept]])[0]
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)


def test_what_cannot_be_matched_is_told(matcher, folder, tmp_path):
    with pytest.raises(UsageError, match="does not know image 'w'"):
        matcher.match_ids(["w"], [["a dog"]])
    with pytest.raises(UsageError, match=r"folder .*missing does not exist"):
        ItmMatcher.from_pretrained(tmp_path / "missing")
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(UsageError, match=r"'clip' model: a matcher must be one of BlipForImageTextRetrieval"):
        ItmMatcher.from_pretrained(tmp_path)


def test_a_description_tells_weights_apart(folder, tmp_path):
    kind = ItmMatcher.from_pretrained(folder)
    other = TINY_MATCHERS[kind.model.config.model_type](tmp_path / "other", seed=1)
    first, again, second = (ItmMatcher.from_pretrained(path).describe() for path in (folder, folder, other))
    assert first == again
    assert first["weights"] != second["weights"]
    assert second["model"] == "other"
