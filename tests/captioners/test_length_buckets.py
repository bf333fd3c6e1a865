"""Length buckets: captions asked for a length, by a token or in words, drawn, scored, trained and saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from family_checks import make
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.contrastive import Contrast
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.lengths import LengthBuckets, WordRange
from tellapart.types import Decoding, Rollout
from tiny_models import batch_of

BY_TOKEN = ["CLIP + GPT-2", "BLIP", "GIT"]
IN_WORDS = ["BLIP-2 (OPT)", "InstructBLIP (Vicuna)", "LLaVA", "PaliGemma", "Idefics3", "Qwen2-VL", "Qwen3-VL"]
NEITHER = ["BLIP-2 (T5)", "Florence-2"]
SAMPLED = Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=6)


def bucketed(family: str, folder: Path, **options: object) -> HuggingFaceCaptioner:
    """The family's tiny model with three buckets."""
    make(family, folder)
    return HuggingFaceCaptioner.from_pretrained(folder, length_buckets=[2, 4], **options).eval()


@pytest.fixture(autouse=True)
def known_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny tokenizers know the words of captions only."""
    monkeypatch.setattr(LengthBuckets, "phrase", lambda self, bucket: ("a dog", "a red mat and a cat", "two")[bucket])


def drawn(captioner: HuggingFaceCaptioner, count: int = 3) -> tuple[Rollout, torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return captioner.draw(batch_of(captioner, count), SAMPLED)


@pytest.mark.parametrize("family", BY_TOKEN + IN_WORDS)
def test_what_is_asked_is_read_by_drawing_and_scoring_alike(family: str, tmp_path: Path) -> None:
    captioner = bucketed(family, tmp_path)
    check_captioner(captioner, batch_of(captioner, 3))
    scored = []
    for bucket in range(3):
        captioner.asked_bucket = bucket
        rollout, met = drawn(captioner)
        assert rollout.bucket is not None
        assert rollout.bucket.tolist() == [bucket] * 9
        assert not torch.isin(rollout.tokens[rollout.mask], torch.tensor(captioner.family.length_ids).long()).any()
        torch.testing.assert_close(captioner(rollout).logprobs, met, atol=2e-4, rtol=1e-4)
        same, _ = drawn(captioner)
        scored.append(captioner(Rollout(**{**vars(rollouts(captioner)), "bucket": torch.full((2,), bucket)})).logprobs)
        assert torch.equal(same.tokens, rollout.tokens)
    assert not torch.allclose(scored[0], scored[1])
    assert not torch.allclose(scored[1], scored[2])


def rollouts(captioner: HuggingFaceCaptioner) -> Rollout:
    return captioner.tokenize(batch_of(captioner, 2), ["a red dog", "a cat"], torch.arange(2))


@pytest.mark.parametrize("family", ["CLIP + GPT-2", "Qwen2-VL"])
def test_two_captions_of_an_image_are_scored_for_their_own_lengths(family: str, tmp_path: Path) -> None:
    captioner = bucketed(family, tmp_path)
    batch = batch_of(captioner, 2)
    texts, image = ["a dog", "a dog on a red mat", "a cat", "a dog"], torch.tensor([1, 0, 1, 0])
    together = captioner.tokenize(batch, texts, image)
    assert together.bucket is not None
    assert together.bucket.tolist() == [0, 2, 0, 0]  # 2, 6, 2 and 2 words; bounds 2 and 4
    assert together.select([1, 3]).bucket.tolist() == [2, 0]
    assert Rollout.concat([together, together]).bucket.tolist() == [0, 2, 0, 0] * 2
    logprobs = captioner(together).logprobs
    for row in range(4):
        alone = captioner.tokenize(batch.select(image[row : row + 1]), texts[row : row + 1], torch.tensor([0]))
        width = alone.tokens.shape[1]
        torch.testing.assert_close(captioner(alone).logprobs[0], logprobs[row, :width], atol=1e-5, rtol=1e-4)
    with torch.no_grad():  # gradients and none: whole captions and the shared prefix
        torch.testing.assert_close(captioner(together).logprobs, logprobs, atol=1e-5, rtol=1e-4)
    captioner.checkpoints_layers = True
    torch.testing.assert_close(captioner(together).logprobs, logprobs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["CLIP + GPT-2", "LLaVA"])
def test_buckets_are_keyed_by_image_not_by_batch(family: str, tmp_path: Path) -> None:
    captioner = bucketed(family, tmp_path)
    rollout, _ = drawn(captioner, 6)
    assert rollout.bucket is not None
    assert rollout.bucket.view(6, 3).eq(rollout.bucket.view(6, 3)[:, :1]).all()
    batch = batch_of(captioner, 6).select([4, 1])
    torch.manual_seed(0)
    with torch.no_grad():
        some, _ = captioner.draw(batch, SAMPLED)
    assert some.bucket is not None
    assert some.bucket.view(2, 3)[:, 0].tolist() == [rollout.bucket[12], rollout.bucket[3]]
    assert some.texts == rollout.texts[12:15] + rollout.texts[3:6]
    many = captioner.encode(batch_of(captioner, 2).select([0, 1] * 3))
    assert many.inputs["bucket"].view(3, 2).eq(many.inputs["bucket"][:2]).all()


@pytest.mark.parametrize("family", ["CLIP + GPT-2", "LLaVA"])
def test_distractors_are_asked_for_the_length_of_the_described_image(family: str, tmp_path: Path) -> None:
    """With a bucket drawn for each image, captions are those of asking every image for the described one's bucket."""
    captioner = bucketed(family, tmp_path)
    with torch.no_grad():  # an untrained token hardly matters
        captioner.family.embedding.weight[captioner.family.length_ids] *= 100
    batch = batch_of(captioner, 4)
    contrast, decoding = Contrast(torch.tensor([[1, 3], [0, 2]]), 20.0), Decoding(max_new_tokens=6)
    encoded = captioner.encode(batch)
    encoded.inputs["bucket"] = torch.tensor([0, 2, 1, 1])
    mixed = captioner.generate(batch, decoding, encoded=encoded, contrast=contrast)
    assert mixed.bucket is not None
    assert mixed.bucket.tolist() == [0, 2]
    for place, bucket in enumerate(mixed.bucket.tolist()):
        captioner.asked_bucket = bucket
        alike = captioner.generate(batch, decoding, contrast=contrast)
        assert alike.select([place]).tokens.tolist() == mixed.select([place]).tokens.tolist()


def test_a_prompt_with_look_alikes_cannot_ask_for_a_length(tmp_path: Path) -> None:
    captioner = bucketed("LLaVA", tmp_path)
    with pytest.raises(UsageError, match="no place for a length or a context: leave lookalikes_in_prompt out"):
        captioner.encode_together(batch_of(captioner, 2), [[0, 1]], "a dog")


@pytest.mark.parametrize("family", [*BY_TOKEN, "LLaVA"])
def test_a_saved_captioner_remembers_its_buckets(family: str, tmp_path: Path) -> None:
    captioner = bucketed(family, tmp_path / "model")
    captioner.save(tmp_path / "saved")
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "saved").eval()
    assert loaded.buckets == LengthBuckets((2, 4))
    assert loaded.family.length_ids == captioner.family.length_ids
    for one in (captioner, loaded):
        assert one.ask_length(WordRange(3, 9)) == WordRange(5)  # shares 5 with 5 or more, 2 with 3 to 4
    assert drawn(loaded)[0].texts == drawn(captioner)[0].texts
    captioner.load_weights(tmp_path / "saved")
    if family in BY_TOKEN:
        with pytest.raises(UsageError, match=r"3 length buckets, but captioner\.length_buckets makes 2"):
            HuggingFaceCaptioner.from_pretrained(tmp_path / "saved", length_buckets=[5])


@pytest.mark.parametrize("family", NEITHER)
def test_a_family_that_cannot_be_asked_says_so(family: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be asked for a length: leave captioner\.length_buckets out"):
        bucketed(family, tmp_path)


def test_an_adapter_has_no_embeddings_for_tokens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which an adapter does not save"):
        bucketed("CLIP + GPT-2", tmp_path, lora=LoraOptions(r=2))


def test_a_captioner_without_buckets_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train one with captioner\.length_buckets"):
        make("CLIP + GPT-2", tmp_path).ask_length(WordRange(8))


@pytest.mark.parametrize("family", ["BLIP-2 (OPT)", "GIT"])
def test_what_is_before_a_caption_takes_places_too(family: str, tmp_path: Path) -> None:
    """As many tokens as are left can be drawn; one more is refused in a sentence. GIT's images have no places."""
    make(family, tmp_path)
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path)
    batch = batch_of(captioner, 2)
    with torch.no_grad():
        encoded = captioner.encode(batch)
    left = captioner.family.longest_after(encoded)
    text = captioner.family.model.config.get_text_config()
    before = len(captioner.family.start) if family == "GIT" else captioner.family.width(encoded)
    assert left == captioner.family.longest == text.max_position_embeddings - before + 1
    most = Decoding(max_new_tokens=left, min_new_tokens=left)
    assert captioner.generate(batch, most).tokens.shape[1] == left
    others = Contrast(torch.tensor([[1], [0]]), strength=0.5)
    with pytest.raises(UsageError, match=rf"the model can hold {left} tokens"):
        captioner.generate(batch, replace(most, max_new_tokens=left + 1), contrast=others)
    for draw in (captioner.generate, captioner.draw, captioner.generate_with_greedy):
        with pytest.raises(UsageError, match=rf"the model can hold {left} tokens: give at most {left}\."):
            draw(batch, replace(most, max_new_tokens=left + 1))


def test_a_context_takes_places_of_a_table_of_positions(tmp_path: Path) -> None:
    """The same number of tokens fits after a short context and not after a long one, however captions are drawn."""
    make("BLIP-2 (OPT)", tmp_path)
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path, prompt="{context}")
    batch = batch_of(captioner, 2)
    most = Decoding(max_new_tokens=captioner.family.longest - 3)
    captioner.generate(replace(batch, contexts=["a", "a"]), most)
    long = replace(batch, contexts=["a", "a dog and a cat"])
    for options in ({}, {"contrast": Contrast(torch.tensor([[1], [0]]), strength=0.5)}):
        with pytest.raises(UsageError, match="the model can hold"):
            captioner.generate(long, most, **options)


def test_a_prompt_that_leaves_no_place_is_refused(tmp_path: Path) -> None:
    make("BLIP-2 (OPT)", tmp_path)
    with pytest.raises(UsageError, match=r"the prompt is \d+ tokens longer than the model can read before a caption"):
        HuggingFaceCaptioner.from_pretrained(tmp_path, prompt="a dog " * 100)
