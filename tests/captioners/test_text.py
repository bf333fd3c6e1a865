"""Human captions as rollouts, and processing of images."""

import logging

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import images
from tiny_models import batch_of, tiny_blip, tiny_ved

MAKERS = [tiny_ved, tiny_blip]


@pytest.mark.parametrize("make", MAKERS)
def test_human_captions_end_in_one_eos_and_start_with_a_word(make):
    captioner = make()
    batch = batch_of(captioner, 3)
    texts = ["  a red circle \n", "", "A blue star on a table"]
    rollout = captioner.tokenize(batch, texts, torch.tensor([2, 0, 2]))
    words = captioner.tokenizer.convert_tokens_to_ids(["a", "red", "circle"])
    assert rollout.tokens[0, :4].tolist() == [*words, 3]
    assert rollout.tokens[1].tolist() == [3, 0, 0, 0, 0, 0, 0]
    assert rollout.lengths.tolist() == [4, 1, 7]
    assert rollout.finished.all()
    assert ((rollout.tokens == 3) & rollout.mask).sum(dim=1).tolist() == [1, 1, 1]
    assert rollout.texts == ["a red circle", "", "A blue star on a table"]
    assert rollout.image.tolist() == [2, 0, 2]


@pytest.mark.parametrize("make", MAKERS)
def test_a_caption_of_400_words_is_cut_and_counted(make, caplog):
    captioner = make()
    batch = batch_of(captioner, 1)
    long = " ".join(["red"] * 400)
    with caplog.at_level(logging.WARNING, logger="tellapart"):
        rollout = captioner.tokenize(batch, [long, "red", long], torch.zeros(3))
        captioner.tokenize(batch, [long], torch.zeros(1))
    assert rollout.lengths.tolist() == [64, 2, 64]
    assert rollout.finished.tolist() == [False, True, False]
    assert not (rollout.tokens[0] == 3).any()
    assert rollout.texts[0] == " ".join(["red"] * 64)
    assert captioner.text.cut == 3
    assert len(caplog.records) == 1
    assert captioner(rollout).logprobs.shape == (3, 64)
    exact = captioner.tokenize(batch, [" ".join(["red"] * 63)], torch.zeros(1))
    assert exact.finished.all()
    assert exact.lengths.tolist() == [64]


def test_special_tokens_typed_by_people_do_not_end_a_caption():
    captioner = tiny_ved()
    batch = batch_of(captioner, 1)
    rollout = captioner.tokenize(batch, ["a </s> red circle"], torch.zeros(1))
    plain = captioner.tokenize(batch, ["a red circle"], torch.zeros(1))
    assert rollout.tokens.tolist() == plain.tokens.tolist()


def test_no_captions_at_all():
    captioner = tiny_ved()
    rollout = captioner.tokenize(batch_of(captioner, 2), [], torch.zeros(0))
    assert len(rollout) == 0
    assert captioner(rollout).logprobs.shape == rollout.mask.shape == (0, 1)


def test_drawn_texts_decode_back_to_their_tokens():
    from tellapart.types import Decoding

    captioner = tiny_ved()
    batch = batch_of(captioner, 6)
    rollout = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=12))
    names = captioner.tokenizer.convert_ids_to_tokens(range(64))
    for text, tokens, length in zip(rollout.texts, rollout.tokens.tolist(), rollout.lengths.tolist(), strict=True):
        kept = [names[token] for token in tokens[:length] if token > 3]
        assert text.split() == kept


@pytest.mark.parametrize("make", MAKERS)
def test_process_gives_one_row_an_image_whatever_its_size(make):
    captioner = make()
    pictures = [*images(2), Image.new("RGB", (7, 90), "red"), Image.new("RGB", (1, 1))]
    pixels = captioner.process(pictures)["pixel_values"]
    assert pixels.shape == (4, 3, 32, 32)
    assert pixels.dtype == torch.float32
    mean, std = captioner.image_processor.image_mean, captioner.image_processor.image_std
    wanted = np.asarray(pictures[0]).transpose(2, 0, 1) / 255 - np.array(mean)[:, None, None]
    np.testing.assert_allclose(pixels[0].numpy(), wanted / np.array(std)[:, None, None], atol=1e-5)


def test_a_batch_without_the_captioners_tensors_is_an_error():
    captioner = tiny_ved()
    batch = batch_of(captioner, 1)
    batch.inputs["listener"] = batch.inputs.pop("captioner")
    with pytest.raises(KeyError, match="no inputs named 'captioner'"):
        captioner.encode(batch)
