"""Models that are asked yes or no, against transformers' own forward of one question at a time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from pictures import CAPTIONS, images
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.rewards.matchers import open_matcher
from tellapart.rewards.matching import Matching
from tellapart.rewards.yes_no import YesNoMatcher, answers
from tellapart.types import Batch, Rollout
from tiny.blip2 import tiny_blip2
from tiny.idefics3 import tiny_idefics3
from tiny.llava import tiny_llava
from tiny.paligemma import tiny_paligemma
from tiny.prompted import byte_tokenizer
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny.qwen3_vl import tiny_qwen3_vl

QUESTION = "is this {caption} ? yes or no"
TEXTS = ["a red star on a table", "a moon", "a blue moon on a table a blue moon on a table", ""]
IDS = ["x", "y", "z"]
WORDS = [*CAPTIONS, *["is this it ? yes or no Yes No"] * 40]
TINY = {
    "llava": (tiny_llava, {"vocab": 160}),
    "paligemma": (tiny_paligemma, {"vocab": 160, "version": "gemma2"}),
    "idefics3": (tiny_idefics3, {"vocab": 400}),
    "qwen2_vl": (tiny_qwen2_vl, {"vocab": 320}),
    "qwen3_vl": (tiny_qwen3_vl, {"vocab": 320}),
}


def pictures():
    """Of several shapes, so that families that see shapes write rows of several lengths."""
    return [image.resize(size) for image, size in zip(images(3), [(32, 32), (64, 32), (32, 48)], strict=True)]


@pytest.fixture(scope="module", params=list(TINY))
def folder(request, tmp_path_factory):
    make, options = TINY[request.param]
    place = tmp_path_factory.mktemp(request.param)
    make(place, captions=WORDS, **options)
    return place


@pytest.fixture
def matcher(folder) -> YesNoMatcher:
    found = open_matcher(folder, question=QUESTION, batch_size=2)
    found.know_images(Example(i, ArrayImage(np.asarray(image))) for i, image in zip(IDS, pictures(), strict=True))
    return found


def plain_inputs(folder, model, image, question: str) -> dict:
    """What the family's own processor makes of one image and one question; of Qwen, whose cannot be built here, by hand."""
    if "qwen" not in model.config.model_type:
        import transformers

        kind = {"llava": "LlavaProcessor", "paligemma": "PaliGemmaProcessor", "idefics3": "Idefics3Processor"}
        processor = getattr(transformers, kind[model.config.model_type]).from_pretrained(folder)
        if not processor.chat_template:
            found = processor(images=[image], text=[f"<image>{question}"], return_tensors="pt")
            return {key: value for key, value in found.items() if key != "labels"}
        content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
        return dict(
            processor.apply_chat_template(
                [{"role": "user", "content": content}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        )
    from tellapart.captioners.families import family_class

    tokenizer = AutoTokenizer.from_pretrained(folder)
    seen = dict(AutoImageProcessor.from_pretrained(folder, backend="pil")(images=[image], return_tensors="pt"))
    tokens = int(seen["image_grid_thw"].prod()) // model.config.vision_config.spatial_merge_size**2
    turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
    else:
        text = family_class(model.config).plain_template.format(
            image="<|vision_start|><|image_pad|><|vision_end|>", prompt=question
        )
    ids = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * tokens), return_tensors="pt").input_ids
    types = (ids == model.config.image_token_id).int()
    return seen | {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types}


@lru_cache(maxsize=1)
def loaded(folder):
    return AutoModelForImageTextToText.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def plain_log_odds(folder, image, question: str) -> float:
    model, tokenizer = loaded(folder)
    with torch.no_grad():
        logits = model(**plain_inputs(folder, model, image, question)).logits[0, -1].double()
    said = [tokenizer.decode([i]).strip() for i in range(len(logits))]
    chance = logits.softmax(dim=0)
    yes, no = (sum(chance[i] for i, w in enumerate(said) if w in (a, a.title(), a.upper())) for a in ("yes", "no"))
    if not yes or not no:
        yes, no = (chance[tokenizer(word, add_special_tokens=False).input_ids[0]] for word in ("yes", "no"))
    return float(yes.log() - no.log())


def test_log_odds_equal_a_plain_forward_of_each_question(folder, matcher):
    found = matcher.match_ids(IDS, [TEXTS, [], TEXTS[:2]])
    assert [tuple(rows.shape) for rows in found] == [(4, 2), (0, 2), (2, 2)]
    pairs = [(0, text) for text in TEXTS] + [(2, text) for text in TEXTS[:2]]
    expected = [plain_log_odds(folder, pictures()[i], QUESTION.replace("{caption}", text)) for i, text in pairs]
    scores = matcher.score(torch.cat(found))
    assert scores.tolist() == pytest.approx(expected, abs=1e-4)
    assert scores.std() > 1e-3
    assert (scores[:2] - scores[4:]).abs().max() > 1e-3  # the same texts with another image


def test_a_rollout_is_scored_from_its_batch_or_by_ids(matcher):
    owner, texts = torch.tensor([2, 0, 2, 0, 2]), [*TEXTS, TEXTS[0]]
    flat = torch.ones(5, 1, dtype=torch.long)
    inputs = {"matcher": matcher.process(pictures())}
    one = {
        (i, text): float(matcher.score(matcher.match_ids([IDS[i]], [[text]])[0])) for i in (0, 2) for text in set(texts)
    }
    for given in ({}, inputs):
        rollout = Rollout(Batch(IDS, [[], [], []], given), owner, texts, flat, flat.bool(), flat[:, 0].bool())
        found = Matching(matcher)(rollout)
        assert found.dtype == torch.float32
        assert found.tolist() == pytest.approx(
            [one[pair] for pair in zip(owner.tolist(), texts, strict=True)], abs=1e-4
        )


def test_special_tokens_in_a_caption_are_words_of_no_image(matcher):
    special = next(iter(matcher.tokenizer.all_special_tokens))
    place = matcher.tokenizer.convert_ids_to_tokens(matcher._family.image_token)
    asked, plain = matcher.match_ids(["x"], [[f"a {special}{place}moon", "a   moon"]])[0]
    torch.testing.assert_close(asked, plain, atol=1e-4, rtol=0)


def test_precision_and_description(folder, matcher):
    plain = matcher.match_ids(["x"], [TEXTS])[0]
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(matcher.match_ids(["x"], [TEXTS])[0], plain, atol=1e-5, rtol=0)
    matcher.autocast = "bfloat16"
    assert 0 < (matcher.match_ids(["x"], [TEXTS])[0] - plain).abs().max() < 1.0
    assert not any(parameter.requires_grad for parameter in matcher.model.parameters())
    other = open_matcher(folder, question="{caption}?").describe()
    first = open_matcher(folder, question=QUESTION).describe()
    assert first["question"] == QUESTION
    assert first["weights"] != other["weights"]
    assert first == matcher.describe() | {"autocast": "float32"}


def test_spellings_of_an_answer():
    tokenizer = byte_tokenizer(["yes no Yes No YES NO not yesterday " * 3], 400)
    said = [[tokenizer.decode([i]) for i in ids] for ids in answers(tokenizer)]
    assert sorted(said[0]) == sorted(
        [w + a for w in ("", " ") for a in ("yes", "Yes", "YES") if _one(tokenizer, w + a)]
    )
    assert {text.strip().lower() for text in said[1]} == {"no"}
    letters = byte_tokenizer(["a red star"], 262)
    assert [[letters.decode([i]) for i in ids] for ids in answers(letters)] == [["y"], ["n"]]


def _one(tokenizer, text: str) -> bool:
    return text.replace(" ", "Ġ") in tokenizer.get_vocab()


def test_what_cannot_be_asked_is_told(tmp_path):
    tiny_llava(tmp_path / "llava")
    with pytest.raises(UsageError, match=r"no place for the caption: write \{caption\}"):
        open_matcher(tmp_path / "llava", question="yes or no?")
    tiny_blip2(tmp_path / "blip2")
    with pytest.raises(UsageError, match="'blip-2' cannot be asked"):
        open_matcher(tmp_path / "blip2", kind="yes_no")
    with pytest.raises(UsageError, match=r"folder .*missing does not exist"):
        open_matcher(tmp_path / "missing")
