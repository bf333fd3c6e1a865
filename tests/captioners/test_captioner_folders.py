"""Saving, loading by plain transformers and peft, and the sentences for what cannot be loaded."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from pictures import images
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import LONGEST, UsageError, brief, printable
from tellapart.listeners.late import LateListener
from tellapart.processors import require_modest
from tellapart.types import Decoding
from tiny_models import batch_of, tiny_blip, tiny_ved

MAKERS = [tiny_ved, tiny_blip]
BEAMS = Decoding(num_beams=3, max_new_tokens=16)


def shaken(captioner):
    """The captioner with other weights wherever it trains."""
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    return captioner


def state(captioner):
    return {name: tensor.clone() for name, tensor in captioner.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("make", MAKERS)
def test_a_saved_folder_comes_back_exactly(make, tmp_path):
    captioner = shaken(make(train="all", max_caption_tokens=17))
    captioner.save(tmp_path / "saved")
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "saved").eval()
    assert same(state(loaded), state(captioner))
    assert loaded.max_caption_tokens == 17
    pixels = [model.process(images(3))["pixel_values"] for model in (captioner, loaded)]
    assert torch.equal(*pixels)
    batch = batch_of(captioner, 3)
    assert loaded.generate(batch, BEAMS).texts == captioner.generate(batch, BEAMS).texts
    texts = ["a red circle", "blue"]
    rows = [model.tokenize(batch, texts, torch.zeros(2)).tokens for model in (captioner, loaded)]
    assert torch.equal(*rows)


def test_plain_transformers_reads_an_encoder_decoder(tmp_path):
    from transformers import AutoImageProcessor, AutoTokenizer, VisionEncoderDecoderModel

    captioner = shaken(tiny_ved())
    captioner.save(tmp_path)
    model = VisionEncoderDecoderModel.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    pixels = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(images(3), return_tensors="pt")
    output = model.generate(**pixels, num_beams=3, max_new_tokens=16)
    texts = [text.strip() for text in tokenizer.batch_decode(output, skip_special_tokens=True)]
    assert texts == captioner.generate(batch_of(captioner, 3), BEAMS).texts


def test_plain_transformers_reads_blip_with_its_processor(tmp_path):
    from transformers import AutoProcessor, BlipForConditionalGeneration

    captioner = shaken(tiny_blip())
    captioner.save(tmp_path)
    model = BlipForConditionalGeneration.from_pretrained(tmp_path)
    processor = AutoProcessor.from_pretrained(tmp_path, backend="pil")
    pixels = processor(images=images(3), return_tensors="pt")
    output = model.generate(**pixels, num_beams=3, max_new_tokens=16)
    texts = [text.strip() for text in processor.batch_decode(output, skip_special_tokens=True)]
    assert texts == captioner.generate(batch_of(captioner, 3), BEAMS).texts


def test_an_adapter_folder_is_read_by_peft_and_by_us(tmp_path):
    from peft import PeftModel
    from transformers import VisionEncoderDecoderModel

    captioner = shaken(tiny_ved(tmp_path / "base", lora=LoraOptions(r=4)))
    captioner.save(tmp_path / "adapter")
    held = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tellapart.json"} <= held
    assert "model.safetensors" not in held
    batch = batch_of(captioner, 3)
    rollout = captioner.generate(batch, BEAMS)
    wanted = captioner(rollout).logprobs

    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path / "adapter").eval()
    assert same(state(loaded), state(captioner))
    assert torch.equal(loaded(rollout).logprobs, wanted)
    assert {n for n, p in loaded.named_parameters() if p.requires_grad} == {
        n for n, p in captioner.named_parameters() if p.requires_grad
    }

    base = VisionEncoderDecoderModel.from_pretrained(tmp_path / "base")
    plain = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    output = plain.generate(pixel_values=batch.inputs["captioner"]["pixel_values"], num_beams=3, max_new_tokens=16)
    assert [t.strip() for t in loaded.tokenizer.batch_decode(output, skip_special_tokens=True)] == rollout.texts

    shutil.move(tmp_path / "base", tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"adapter_config.json names .*base as its base, which does not exist"):
        HuggingFaceCaptioner.from_pretrained(tmp_path / "adapter")


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("lora", [None, LoraOptions(r=2)])
def test_weights_are_read_back_in_place_bit_for_bit(make, lora, tmp_path):
    captioner = shaken(make(tmp_path / "base", lora=lora))
    captioner.save(tmp_path / "saved")
    before, places = state(captioner), [p.data_ptr() for p in captioner.parameters()]
    trainable = [p.requires_grad for p in captioner.parameters()]
    assert not same(state(shaken(captioner)), before)
    captioner.load_weights(tmp_path / "saved")
    assert same(state(captioner), before)
    assert [p.data_ptr() for p in captioner.parameters()] == places
    assert [p.requires_grad for p in captioner.parameters()] == trainable


def test_weights_of_another_model_change_nothing(tmp_path):
    captioner = tiny_ved()
    before = state(captioner)
    tiny_ved(tmp_path / "other", width=16)
    tiny_blip(tmp_path / "blip")
    (tmp_path / "empty").mkdir()
    for name in ("other", "blip", "empty", "absent"):
        with pytest.raises(UsageError, match=f"folder .*{name} lacks the weights of this captioner"):
            captioner.load_weights(tmp_path / name)
        assert same(state(captioner), before)


def test_weights_are_read_into_the_model_as_it_is_not_as_its_folder_now_says(tmp_path):
    """With a quintillion layers in it, reading never ended."""
    captioner = tiny_ved(tmp_path / "saved")
    before = state(captioner)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    config["decoder"]["n_layer"] = 10**18
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    captioner.load_weights(tmp_path / "saved")
    assert same(state(captioner), before)


def refused(path, **options):
    with pytest.raises(UsageError) as caught:
        HuggingFaceCaptioner.from_pretrained(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_what_is_missing_is_named(tmp_path):
    tiny_ved(tmp_path / "whole")
    assert "folder /no/such/folder does not exist" in refused("/no/such/folder")
    assert "does not exist" in refused(tmp_path / "absent")
    assert "Hugging Face hub" in refused("nobody/nothing-at-all")
    assert "HF_HUB_OFFLINE" in refused("nothing-at-all")
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(tmp_path / "file")
    for name, what in {
        "config.json": "model configuration",
        "model.safetensors": "model",
        "preprocessor_config.json": "image processor",
        "tokenizer.json": "tokenizer",
    }.items():
        folder = tmp_path / f"without-{name}"
        shutil.copytree(tmp_path / "whole", folder)
        (folder / name).unlink()
        assert f"folder {folder} lacks a usable {what}" in refused(folder)


def test_a_tokenizer_without_its_vocabulary_or_of_another_model(tmp_path):
    tiny_blip(tmp_path / "blip")
    (tmp_path / "blip" / "tokenizer.json").unlink()
    assert "knows no word" in refused(tmp_path / "blip")
    small, large = tiny_ved(vocab=40), tiny_ved(vocab=64)
    with pytest.raises(UsageError, match="token 63 but the model only 40"):
        HuggingFaceCaptioner.from_parts(small.family.model, small.image_processor, large.tokenizer)


def test_damaged_and_unknown_folders(tmp_path):
    tiny_ved(tmp_path / "whole")
    broken = tmp_path / "broken"
    shutil.copytree(tmp_path / "whole", broken)
    (broken / "model.safetensors").write_bytes(b"\x00" * 100)
    assert "lacks a usable model" in refused(broken)
    (broken / "config.json").write_text("{")
    assert "lacks a usable model configuration" in refused(broken)

    shutil.copytree(tmp_path / "whole", tmp_path / "short")
    weights = load_file(tmp_path / "short" / "model.safetensors")
    del weights["decoder.transformer.h.0.crossattention.q_attn.weight"]
    from safetensors.torch import save_file

    save_file(weights, tmp_path / "short" / "model.safetensors", metadata={"format": "pt"})
    assert "has no weights for 'decoder.transformer.h.0.crossattention.q_attn.weight'" in refused(tmp_path / "short")

    shutil.copytree(tmp_path / "whole", tmp_path / "bert")
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert "write a CrossDecoder" in refused(tmp_path / "bert")
    assert "dtype='float8' is unknown" in refused(tmp_path / "whole", dtype="float8")


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ({"length_buckets": True}, "has length_buckets True, which cannot be"),
        ({"length_buckets": [4, "8"]}, "has length_buckets"),
        ({"prompt": 5}, "has prompt 5"),
        ({"max_caption_tokens": 10**30}, "has max_caption_tokens"),
        ({"max_caption_tokens": 0.5}, "has max_caption_tokens"),
        ({"num_frames": -1}, "has num_frames"),
        ({"changed_parts": "qformer"}, "has changed_parts"),
        ([], "holds no JSON object"),
        ("[" * 100_000, "is not readable JSON"),
    ],
)
def test_a_manifest_of_wrong_kinds_is_refused(tmp_path, manifest, says):
    tiny_ved(tmp_path / "captioner")
    path = tmp_path / "captioner" / "tellapart.json"
    path.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    with pytest.raises(UsageError, match=says) as refused:
        HuggingFaceCaptioner.from_pretrained(tmp_path / "captioner")
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("change", [{"rescale_factor": None}, {"image_mean": "x"}, {"size": []}])
def test_images_that_a_damaged_processor_cannot_prepare_are_one_sentence(tmp_path, change):
    tiny_ved(tmp_path / "captioner")
    path = tmp_path / "captioner" / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match=r"preprocessor_config\.json") as refused:
        HuggingFaceCaptioner.from_pretrained(tmp_path / "captioner").process(images(2))
    assert str(refused.value).endswith(".")


def test_images_of_another_size_than_the_models_are_refused(tmp_path):
    tiny_ved(tmp_path / "captioner")
    path = tmp_path / "captioner" / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"size": {"height": 16, "width": 16}}))
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path / "captioner")
    with pytest.raises(UsageError, match=r"Input image size \(16\*16\) doesn't match model \(\d+\*\d+\)\).*crop_size"):
        captioner.generate(batch_of(captioner, 2), BEAMS)


@pytest.mark.parametrize("name", ["eos_token_id", "decoder_start_token_id", "pad_token_id"])
@pytest.mark.parametrize("value", [True, 1.5, "", " ", "1", [], [[]], [None], {}, {"a": 1}])
def test_a_token_id_that_can_be_none_is_refused(tmp_path, name, value):
    tiny_ved(tmp_path / "captioner")
    for file in ("config.json", "generation_config.json"):
        path = tmp_path / "captioner" / file
        content = json.loads(path.read_text())
        if file == "config.json" or name in content:
            path.write_text(json.dumps(content | {name: value}))
    with pytest.raises(UsageError, match=rf"{name}|lacks a usable model") as refused:
        HuggingFaceCaptioner.from_pretrained(tmp_path / "captioner")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("change", [{"size": {"height": 10**6, "width": 32}}, {"size": 10**30}])
def test_a_processor_that_would_fill_the_memory_is_refused_when_it_is_read(tmp_path, change):
    tiny_ved(tmp_path / "captioner")
    path = tmp_path / "captioner" / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match=r"size asks for 1e\+(06|30) pixels.*preprocessor_config\.json"):
        HuggingFaceCaptioner.from_pretrained(tmp_path / "captioner")


def test_bounds_of_an_area_are_not_taken_for_a_side():
    """Processors that keep an image's shape bound its area: 16 million pixels are an image of 4,096 a side."""
    own = SimpleNamespace(size={"shortest_edge": 65_536, "longest_edge": 16_777_216}, merge_size=2)
    assert require_modest(own) is own
    with pytest.raises(ValueError, match=r"size asks for 6\.55e\+04 pixels"):
        require_modest(SimpleNamespace(size={"shortest_edge": 65_536}))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
@pytest.mark.parametrize("name", ["tokenizer.json", "tellapart.json", "merges.txt"])
def test_a_folder_with_a_device_is_not_read(tmp_path, name):
    """Reading it would take all memory."""
    tiny_ved(tmp_path / "captioner")
    (tmp_path / "captioner" / name).unlink(missing_ok=True)
    (tmp_path / "captioner" / name).symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=f"{name} is a pipe or a device"):
        HuggingFaceCaptioner.from_pretrained(tmp_path / "captioner")
    with pytest.raises(UsageError, match=f"{name} is a pipe or a device"):
        LateListener.from_pretrained(tmp_path / "captioner")


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("{", "is not readable JSON"),
        ("[]", "holds no JSON object"),
        ('{"base_model_name_or_path": 7}', "names no base_model_name_or_path"),
    ],
)
def test_an_adapter_with_a_damaged_configuration_is_refused(tmp_path, written, says):
    (tmp_path / "adapter_config.json").write_text(written)
    with pytest.raises(UsageError, match=says):
        HuggingFaceCaptioner.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["group/a-captioner-with-an-ordinary-name", "\x1b[31mred"])
def test_what_the_hub_answers_at_length_stays_one_short_sentence(monkeypatch, name):
    def offline(*_, **options):
        raise OSError("We could not connect to the hub to load the files, and found none of them in the cache. " * 9)

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    with pytest.raises(UsageError, match="check the spelling") as refused:
        HuggingFaceCaptioner.from_pretrained(name)
    assert len(printable(brief(str(refused.value)))) <= LONGEST


def test_options_that_exclude_each_other(tmp_path):
    tiny_ved(tmp_path / "base", lora=LoraOptions(r=2)).save(tmp_path / "adapter")
    assert "already is a LoRA adapter" in refused(tmp_path / "adapter", lora=LoraOptions())
    assert "train='all' and lora" in refused(tmp_path / "base", train="all", lora=LoraOptions())
    assert "train='vision' is unknown" in refused(tmp_path / "base", train="vision")
    with pytest.raises(UsageError, match="found again"):
        tiny_ved(lora=LoraOptions())


def test_dtype_of_the_weights(tmp_path):
    tiny_blip(tmp_path)
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path, dtype="bfloat16").eval()
    assert {p.dtype for p in captioner.parameters()} == {torch.bfloat16}
    batch = batch_of(captioner, 2)
    rollout = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=8))
    assert captioner(rollout).logprobs.dtype == torch.float32


def test_a_checkpoint_may_lack_what_no_caption_needs(tmp_path):
    """ViT-GPT2 checkpoints made from Flax have no pooler: nothing reads it, so it is no reason to refuse them."""
    sound = tiny_ved(tmp_path, tower="vit")
    weights = load_file(tmp_path / "model.safetensors")
    pooler = {name for name in weights if "pooler" in name}
    assert pooler
    torch.save({name: weights[name] for name in weights if name not in pooler}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    loaded = HuggingFaceCaptioner.from_pretrained(tmp_path).eval()
    batch = batch_of(sound, 2)
    assert loaded.generate(batch, BEAMS).texts == sound.generate(batch, BEAMS).texts
    kept = {name: weights[name] for name in weights if "ln_f" not in name}
    torch.save(kept, tmp_path / "pytorch_model.bin")
    assert "has no weights for 'decoder.transformer.ln_f.bias'" in refused(tmp_path)
