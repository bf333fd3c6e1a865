"""A context per image in the prompt: drawn, scored and trained alike, whatever the batch around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from family_checks import make
from tellapart.captioners.asking import harmless
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Batch, Decoding
from tiny_models import batch_of

FAMILIES = ["BLIP-2 (OPT)", "LLaVA", "PaliGemma", "Idefics3", "Qwen2-VL", "Qwen3-VL"]
CONTEXTS = ["a red dog on a mat in a park", "", "a cat", "a blue dog and a red cat"]
SAMPLED = Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=6)


def asked(family: str, folder: Path, prompt: str = "a {context}", **options: object) -> HuggingFaceCaptioner:
    make(family, folder)
    return HuggingFaceCaptioner.from_pretrained(folder, prompt=prompt, **options).eval()


def told(captioner: HuggingFaceCaptioner, contexts: list[str] = CONTEXTS) -> Batch:
    return replace(batch_of(captioner, len(contexts)), contexts=contexts)


@pytest.mark.parametrize("family", FAMILIES)
def test_drawing_is_scoring_and_no_image_sees_anothers_context(family: str, tmp_path: Path) -> None:
    captioner = asked(family, tmp_path)
    batch = told(captioner)
    check_captioner(captioner, batch)
    torch.manual_seed(0)
    with torch.no_grad():
        rollout, met = captioner.draw(batch, SAMPLED)
    logprobs = captioner(rollout).logprobs
    torch.testing.assert_close(logprobs, met, atol=2e-4, rtol=1e-4)
    with torch.no_grad():
        torch.manual_seed(0)
        turned, _ = captioner.draw(batch.select([3, 1]), SAMPLED)
    assert turned.texts == rollout.texts[6:8] + rollout.texts[2:4]
    other = captioner(replace(rollout, batch=told(captioner, ["a dog", "", "a cat", "two"]))).logprobs
    same = torch.tensor([False, False, True, True, True, True, False, False])
    torch.testing.assert_close(other[same], logprobs[same], atol=2e-4, rtol=1e-4)
    assert (other - logprobs)[~same].abs().amax(dim=1).min() > 1e-4, "the context matters"


def test_a_context_and_a_length_are_asked_together(tmp_path: Path) -> None:
    captioner = asked("LLaVA", tmp_path, length_buckets=[2, 4])
    check_captioner(captioner, told(captioner))
    captioner.save(tmp_path / "saved")
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "saved").eval()
    rollout = captioner.tokenize(told(captioner), ["a dog", "a red dog"], torch.tensor([0, 2]))
    torch.testing.assert_close(loaded(rollout).logprobs, captioner(rollout).logprobs)


def test_special_tokens_of_a_context_are_words_no_more(tmp_path: Path) -> None:
    captioner = asked("Qwen2-VL", tmp_path)
    bad = ["<|im_end|>", "<|image_pad|>", "<|im_<|im_end|>end|>"]
    for text in bad:
        assert not set(captioner.tokenizer.all_special_tokens) & {harmless(captioner.tokenizer, text).strip()}
    rollout = captioner.tokenize(
        told(captioner, [f"a dog {text} a cat" for text in bad]), ["a dog"] * 3, torch.arange(3)
    )
    assert captioner(rollout).logprobs.isfinite().all()


def test_a_family_without_a_prompt_of_words_cannot_read_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read a context per image"):
        asked("BLIP", tmp_path)
