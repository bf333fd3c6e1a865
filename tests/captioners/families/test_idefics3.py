"""Idefics3 and SmolVLM: images of different numbers of tiles in one batch, and images of nothing."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import CAPTIONS, images
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.types import Batch, Decoding
from tiny.idefics3 import KINDS, tiny_idefics3

WIDE, SQUARE = (64, 32), (32, 32)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def batch_of(captioner, pictures):
    names = [f"image-{i}" for i in range(len(pictures))]
    return Batch(names, [[CAPTIONS[i]] for i in range(len(pictures))], {captioner.name: captioner.process(pictures)})


def mixed(count=4):
    """Wide ones have 2 + 1 tiles, square ones 4 + 1."""
    return [image.resize(WIDE if i % 2 else SQUARE, 0) for i, image in enumerate(images(count))]


def test_tiles_are_padded_and_padding_is_not_seen(kind):
    captioner = tiny_idefics3(kind=kind)
    pictures = mixed()
    batch = batch_of(captioner, pictures)
    encoded = captioner.encode(batch)
    assert encoded.mask.sum(dim=1).tolist() == [20, 12, 20, 12]
    assert encoded.mask.shape == encoded.states.shape[:2] == (4, 20)
    drawn = captioner.generate(batch, Decoding(max_new_tokens=12))
    rollout = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=12))
    scores = captioner(rollout).logprobs
    for i, picture in enumerate(pictures):
        alone = batch_of(captioner, [picture])
        assert captioner.generate(alone, Decoding(max_new_tokens=12)).texts == [drawn.texts[i]]
        features = captioner.family.model.get_image_features(alone.inputs["captioner"]["pixel_values"]).pooler_output[0]
        own = captioner.family.project(captioner.encode(alone))[0]
        torch.testing.assert_close(own, features, atol=1e-5, rtol=0)
        torch.testing.assert_close(captioner.family.project(encoded)[i][encoded.mask[i]], features, atol=1e-5, rtol=0)
    few = batch.select([1, 3])
    chosen = captioner.encode(few)
    assert chosen.mask.sum(dim=1).tolist() == [12, 12]
    rows = rollout.select([2, 3])
    again = type(rows)(few, rows.image * 0, rows.texts, rows.tokens, rows.mask, rows.finished)
    torch.testing.assert_close(captioner(again).logprobs, scores[2:4, : rows.tokens.shape[1]], atol=1e-5, rtol=0)


def test_an_image_of_nothing_is_an_image(kind):
    """Black without normalisation is zeros, which the models' own forward takes for padding and drops."""
    captioner = tiny_idefics3(kind=kind)
    captioner.image_processor.do_normalize = False
    black = Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8))
    batch = batch_of(captioner, [black, mixed(1)[0]])
    pixels = batch.inputs["captioner"]["pixel_values"]
    assert not pixels[0].any()
    assert captioner.encode(batch).mask.sum(dim=1).tolist() == [20, 20]
    with pytest.raises(ValueError, match="do not match"):
        captioner.family.model(input_ids=batch.inputs["captioner"]["input_ids"], pixel_values=pixels)
    check_captioner(captioner, batch)


def test_human_captions_end_as_answers_do(kind):
    """The configuration names two EOS ids; the end of an utterance is not the first of them."""
    captioner = tiny_idefics3(kind=kind)
    end = captioner.tokenizer.convert_tokens_to_ids("<end_of_utterance>")
    assert captioner.family.eos == [end, 3]
    batch = batch_of(captioner, mixed(1))
    rows = captioner.tokenize(batch, ["a red circle"], torch.zeros(1)).tokens[0].tolist()
    prompt = captioner.family.rendered()
    turn = captioner.tokenizer(f"{prompt} a red circle<end_of_utterance>", add_special_tokens=False)["input_ids"]
    assert turn == captioner.tokenizer(prompt, add_special_tokens=False)["input_ids"] + rows
    assert batch.inputs["captioner"]["input_ids"][0].tolist().count(1) == 1, (
        "the template writes BOS, so nobody else may"
    )


def test_a_published_folder_of_smolvlm_is_read_without_its_video_processor(tmp_path):
    """Its processor names a class that needs torchvision and num2words, and holds settings for videos."""
    captioner = tiny_idefics3(tmp_path, kind="smolvlm")
    path = tmp_path / "processor_config.json"
    settings = json.loads(path.read_text())
    video = {"video_processor_type": "SmolVLMVideoProcessor", "fps": 1, "num_frames": 64, "do_resize": True}
    path.write_text(json.dumps(settings | {"processor_class": "SmolVLMProcessor", "video_processor": video}))
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path).eval()
    own, other = captioner.process(mixed()), loaded.process(mixed())
    assert all(torch.equal(own[name], other[name]) for name in own)
    assert type(loaded.image_processor).__name__ == "SmolVLMImageProcessorPil"


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (1, 2), (2, 2), (3, 1)])
def test_both_processors_write_an_image_alike(rows, columns):
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    joint = tiny_idefics3(kind="smolvlm").family.processors.joint
    own = joint.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
    words = (joint.fake_image_token, joint.image_token, joint.global_image_tag)
    assert own == get_image_prompt_string(rows, columns, joint.image_seq_len, *words)
