"""Prompts and pixels of the Qwen-VL families: templates, sizes of images, and the sentences for what cannot be read."""

import json
import shutil

import pytest
import torch
from PIL import Image

from pictures import CAPTIONS, images
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Batch, Decoding
from tiny.qwen2_5_vl import tiny_qwen2_5_vl
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny.qwen3_vl import tiny_qwen3_vl
from tiny_models import batch_of

every_family = pytest.mark.parametrize("make", [tiny_qwen2_vl, tiny_qwen2_5_vl, tiny_qwen3_vl])
load = HuggingFaceCaptioner.from_pretrained
TURN = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tiny_qwen2_5_vl(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy to change."""
    return shutil.copytree(saved, tmp_path / "copy")


def grid(captioner, width, height):
    return captioner.process([Image.new("RGB", (width, height))])["image_grid_thw"].tolist()[0]


def rewrite(folder, **changes):
    path = folder / "preprocessor_config.json"
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


def refused(folder, **options):
    with pytest.raises(UsageError) as caught:
        load(folder, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


@every_family
def test_a_tokenizer_without_a_template_gets_the_published_format(make, tmp_path):
    captioner = make(tmp_path)
    written = captioner.family.rendered()
    assert written.endswith(TURN.format("Describe this image."))
    assert ("system" in written) == (make is not tiny_qwen3_vl)
    (tmp_path / "chat_template.jinja").unlink()
    bare = load(tmp_path)
    assert bare.tokenizer.chat_template is None
    assert bare.family.rendered() == written
    assert bare.family.start == captioner.family.start


def test_a_template_of_ones_own_is_used(folder):
    template = folder / "chat_template.jinja"
    template.write_text("{% for part in messages[0].content %}{{ part.text or '<|image_pad|>' }} {% endfor %}Caption:")
    captioner = load(folder, prompt="Say {it}.")
    assert captioner.family.rendered() == "<|image_pad|> Say {it}. Caption:"
    assert captioner.family.caption_lead == " "
    template.write_text("{{ messages[0]['content'] + 'x' }}")
    assert "chat template cannot write an image and a prompt (can only concatenate list" in refused(folder)
    template.write_text("{{ messages[0]['role'] }}")
    assert "has 0 places for an image instead of one" in refused(folder)


def test_prompts(folder):
    assert load(folder, prompt="").family.rendered().endswith(TURN.format(""))
    assert "has 2 places for an image instead of one" in refused(folder, prompt="two <|image_pad|>")
    captioner = load(folder, prompt="a red circle").eval()
    batch = batch_of(captioner, 2)
    rollout = captioner.tokenize(batch, CAPTIONS[:2], torch.arange(2))
    default = load(folder).eval()
    other = default(default.tokenize(batch_of(default, 2), CAPTIONS[:2], torch.arange(2)))
    assert (captioner(rollout).logprobs - other.logprobs).abs().max() > 1e-2
    captioner.save(folder / "again")
    assert torch.equal(load(folder / "again").eval()(rollout).logprobs, captioner(rollout).logprobs)


def test_sizes_of_images_are_kept(tmp_path):
    """Sides are rounded to 16 pixels, areas scaled into what the image processor allows; the grid counts 8 x 8 patches."""
    captioner = tiny_qwen2_5_vl(max_pixels=48 * 48)
    assert grid(captioner, 32, 48) == [1, 6, 4]
    assert grid(captioner, 640, 640) == [1, 6, 6]
    assert grid(captioner, 4, 4) == [1, 2, 2]
    captioner.save(tmp_path)
    again = load(tmp_path)
    assert again.image_processor.size.longest_edge == 48 * 48
    assert again.image_processor.size.shortest_edge == 16 * 16
    assert grid(again, 640, 640) == [1, 6, 6]
    assert grid(tiny_qwen2_5_vl(max_pixels=32 * 32), 640, 640) == [1, 4, 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"size": {"shortest_edge": 256, "longest_edge": 1024}, "image_processor_type": "Qwen2VLImageProcessorFast"},
        {"size": None, "min_pixels": 256, "max_pixels": 1024},
        {"size": {"min_pixels": 256, "max_pixels": 1024}, "min_pixels": 256, "max_pixels": 1024},
    ],
)
def test_published_ways_to_write_sizes(folder, tmp_path, changes):
    rewrite(folder, **changes)
    captioner = load(folder)
    assert grid(captioner, 640, 640) == [1, 4, 4]
    captioner.save(tmp_path / "saved")
    assert grid(load(tmp_path / "saved"), 640, 640) == [1, 4, 4]


def test_a_processor_saved_as_one_is_read_in_parts(folder):
    """As the published class saves itself where torchvision is installed."""
    single = folder / "preprocessor_config.json"
    joint = {"image_processor": json.loads(single.read_text()), "processor_class": "Qwen2_5_VLProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(joint))
    single.unlink()
    assert grid(load(folder), 32, 48) == [1, 6, 4]


def test_processors_of_another_model_are_refused(folder):
    rewrite(folder, patch_size=14)
    assert "the image processor has patch_size=14 and the model 8" in refused(folder)
    rewrite(folder, patch_size=8, merge_size=1)
    assert "the image processor has merge_size=1 and the model 2" in refused(folder)


def test_images_too_long_are_refused_in_a_sentence(saved):
    captioner = load(saved)
    with pytest.raises(UsageError, match=r"an image of 9 x 3000 pixels cannot be processed \(absolute aspect ratio"):
        captioner.process([Image.new("RGB", (32, 32)), Image.new("RGB", (9, 3000))])


def test_padding_that_stands_in_the_prompt_is_read(saved):
    """Padding is <|endoftext|>; a mask made by comparing ids would hide one in the prompt."""
    captioner = load(saved, prompt="a <|endoftext|> red").eval()
    mask, ids = (captioner.process(images(1))[name] for name in ("attention_mask", "input_ids"))
    assert bool((ids == captioner.family.pad).any())
    assert bool(mask.all())


@every_family
def test_half_precision(make, tmp_path):
    make(tmp_path)
    captioner = load(tmp_path, dtype="bfloat16").eval()
    batch = Batch(["0", "1"], [[], []], {"captioner": captioner.process([images(1)[0], Image.new("RGB", (64, 32))])})
    rollout, met = captioner.draw(batch, Decoding(do_sample=True, max_new_tokens=8))
    scored = captioner(rollout).logprobs
    assert scored.dtype == torch.float32
    assert (scored - met).abs().mean() < 0.1
