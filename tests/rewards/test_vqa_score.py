"""VQAScore: P(Yes) over the whole vocabulary, as reward and as metric."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer, LlavaProcessor

from pictures import CAPTIONS, images
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.vqa_score import VqaScorer
from tellapart.rewards.matchers import open_matcher
from tellapart.rewards.vqa_score import VQA_QUESTION, VqaScore, VqaScoreMatcher
from tellapart.types import Batch, Rollout
from tiny.llava import tiny_llava

IDS = ["x", "y"]
TEXTS = ["a red star on a table", "a moon"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("llava")
    words = ["Does this figure show ? Please answer yes or no . Yes No"] * 40
    tiny_llava(place, captions=[*CAPTIONS, *words], vocab=200)
    return place


@pytest.fixture
def matcher(folder) -> VqaScoreMatcher:
    found = open_matcher(folder, kind="vqa_score")
    found.know_images(Example(i, ArrayImage(np.asarray(image))) for i, image in zip(IDS, images(2), strict=True))
    return found


def plain_probability(folder, image, caption: str) -> float:
    """The softmax of the last position, of the model as transformers runs it."""
    question = f'Does this figure show "{caption}"? Please answer yes or no.'
    processor = LlavaProcessor.from_pretrained(folder)
    if processor.chat_template:
        content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
        turn = [{"role": "user", "content": content}]
        options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
        inputs = dict(processor.apply_chat_template(turn, **options))
    else:
        inputs = dict(processor(images=[image], text=[f"<image>{question}"], return_tensors="pt"))
    model, tokenizer = AutoModelForImageTextToText.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        chance = model(**inputs).logits[0, -1].double().softmax(dim=0)
    return float(chance[tokenizer("Yes", add_special_tokens=False).input_ids[0]])


def test_the_reward_and_the_metric_are_the_probability_of_yes(folder, matcher):
    assert VQA_QUESTION == 'Does this figure show "{caption}"? Please answer yes or no.'
    expected = [plain_probability(folder, image, text) for image, text in zip(images(2), TEXTS, strict=True)]
    metrics, columns = VqaScorer(matcher)(dict(zip(IDS, TEXTS, strict=True)), {})
    assert columns["VQAScore"] == pytest.approx(expected, abs=1e-5)
    assert metrics["VQAScore"] == pytest.approx(sum(expected) / 2, abs=1e-5)
    flat = torch.ones(2, 1, dtype=torch.long)
    rollout = Rollout(Batch(IDS, [[], []], {}), torch.tensor([0, 1]), TEXTS, flat, flat.bool(), flat[:, 0].bool())
    assert VqaScore(matcher)(rollout).tolist() == pytest.approx(expected, abs=1e-5)
    assert expected[0] != pytest.approx(expected[1], abs=1e-6)


def test_it_differs_from_yes_no(folder, matcher):
    other = open_matcher(folder, question=VQA_QUESTION)
    other.know_images(Example(i, ArrayImage(np.asarray(image))) for i, image in zip(IDS, images(2), strict=True))
    plain, odds = matcher.match_ids(["x"], [TEXTS])[0], other.match_ids(["x"], [TEXTS])[0]
    assert (odds[:, 1] > plain[:, 1]).all()  # more spellings
    assert matcher.describe()["scale"] == "probability of Yes"
    assert other.describe()["scale"] == "log-odds of yes"
    assert VqaScorer(matcher).measured_by["VQAScore"].startswith(f"{folder.name} [")
    with pytest.raises(UsageError, match=r"set matcher\.kind to vqa_score"):
        VqaScore(other)
