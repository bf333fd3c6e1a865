"""A context per image in the prompt: drawn, scored and trained alike, whatever the batch around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from family_checks import make
from tellapart.captioners.asking import harmless
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.contrastive import Contrast
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.objectives.xe import XE
from tellapart.types import Batch, Decoding, Rollout
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_word_of_an_images_own_prompt_is_not_repeated(family: str, tmp_path: Path) -> None:
    captioner = asked(family, tmp_path)
    batch, apart = told(captioner), {"no_repeat_ngram_size": 1, "min_new_tokens": 3, "max_new_tokens": 6}
    samples = Decoding(do_sample=True, num_return_sequences=2, **apart)

    def drawn(batch: Batch) -> list[Rollout]:
        torch.manual_seed(0)
        sampled, greedy = captioner.generate_with_greedy(batch, samples)
        beams, _ = captioner.generate_with_greedy(batch, Decoding(num_beams=3, **apart))
        return [sampled, greedy, beams, captioner.continue_from(greedy, samples).rollout]

    whole = drawn(batch)
    for rollout in whole:
        encoded, row = captioner.requested(rollout, captioner.encode(batch))
        before = captioner.family.before_captions(encoded)[row].tolist()
        for prompt, tokens, real in zip(before, rollout.tokens, rollout.mask, strict=True):
            said = tokens[real].tolist()
            assert len({*said} - {*prompt}) == len(said)
    for rollout, alone in zip(whole, drawn(batch.select([1])), strict=True):
        assert [text for text, image in zip(rollout.texts, rollout.image, strict=True) if image == 1] == alone.texts


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_caption_that_its_prompt_leaves_no_room_for_is_refused(checkpointing: bool, tmp_path: Path) -> None:
    """The model reads 128 tokens; a long caption of another image is scored as it is without that prompt."""
    captioner = asked("BLIP-2 (OPT)", tmp_path, "{context}", gradient_checkpointing=checkpointing)
    long = told(captioner, [" ".join(["dog"] * 121), "a cat"])

    def scored(texts: list[str], batch: Batch = long) -> torch.Tensor:
        return captioner(captioner.tokenize(batch, texts, torch.arange(2))).logprobs

    wanted = scored(["a dog", "a red dog on a mat"], told(captioner, ["a dog", "a cat"]))[1]
    torch.testing.assert_close(scored(["a dog", "a red dog on a mat"])[1], wanted)
    with pytest.raises(UsageError, match="a caption has 4 tokens, but the model can hold 3 after its prompt"):
        scored(["a red dog", "a cat"])
    with pytest.raises(UsageError, match="the prompt is 57 tokens longer than the model can read"):
        scored(["a red dog", "a cat"], told(captioner, ["a red dog " * 60, "a cat"]))


def test_a_look_alike_is_asked_with_the_context_of_the_image_that_is_described(tmp_path: Path) -> None:
    """Own contexts told images apart by what was known of them; here both are one picture, which nothing tells apart."""
    captioner = asked("LLaVA", tmp_path, prompt="a {context} picture")
    twice = replace(batch_of(captioner, 1).select([0, 0]), ids=["x", "y"])
    decoding, contrast = Decoding(num_beams=3, max_new_tokens=6), Contrast(torch.tensor([[1]]), strength=3.0)
    with torch.no_grad():
        for contexts in (["red", "red"], ["red", "circle"]):
            batch = replace(twice, contexts=contexts)
            plain = captioner.generate(batch.select([0]), decoding)
            assert captioner.generate(batch, decoding, contrast=contrast).texts == plain.texts


@pytest.mark.parametrize("options", [{"prompt": "a {context}"}, {"length_buckets": [2, 4]}])
def test_a_batch_without_a_caption_teaches_nothing(options: dict[str, object], tmp_path: Path) -> None:
    captioner = asked("LLaVA", tmp_path, **options)
    batch = replace(told(captioner, ["a dog", "a cat"]), references=[[], []])
    objective = XE(captioner)
    pieces = list(objective.losses(objective.collect(batch, 0)))
    assert sum(float(piece.loss.detach()) for piece in pieces) == 0
    assert sum(float(piece.weight) for piece in pieces) == 0
