"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL, on images of different sizes: against the plain models by ids and pixels."""

import json

import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, GenerationConfig

from pictures import CAPTIONS, images
from tellapart.captioners.adapters import LoraOptions, adapted_modules
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.families.qwen_vl import Qwen2VL, Qwen3VL
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.types import Batch, Decoding, Rollout
from tiny.qwen2_5_vl import tiny_qwen2_5_vl
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny.qwen3_vl import tiny_qwen3_vl

MAKERS = {
    tiny_qwen2_vl: "Qwen2VLForConditionalGeneration",
    tiny_qwen2_5_vl: "Qwen2_5_VLForConditionalGeneration",
    tiny_qwen3_vl: "Qwen3VLForConditionalGeneration",
}
SIZES = [(32, 32), (64, 48), (16, 64), (80, 30)]
"""Pixels of the pictures: 4, 12, 4 and 10 tokens."""
SAMPLES = Decoding(do_sample=True, num_return_sequences=3, max_new_tokens=12)
every_family = pytest.mark.parametrize("make", MAKERS)
# Qwen2-VL has no code of its own beside Qwen2.5-VL's.
every_class = pytest.mark.parametrize("make", [tiny_qwen2_5_vl, tiny_qwen3_vl])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A saved model of each."""
    made = {make: tmp_path_factory.mktemp(make.__name__) for make in MAKERS}
    for make, folder in made.items():
        make(folder)
    return made


def load(folder, **options):
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def pictures(count=4):
    sizes = [SIZES[i % len(SIZES)] for i in range(count)]
    return [image.resize(size, Image.Resampling.NEAREST) for image, size in zip(images(count), sizes, strict=True)]


def mixed(captioner, chosen=(0, 1, 2, 3)):
    """Pictures of different sizes, processed together."""
    shown = [pictures()[i] for i in chosen]
    references = [[CAPTIONS[2 * i], CAPTIONS[2 * i + 9]] for i in chosen]
    return Batch([str(i) for i in chosen], references, {captioner.name: captioner.process(shown)})


def ragged(captioner):
    """Drawn and human captions of different lengths, in no order; none with an image token: the plain model refuses it."""
    batch = mixed(captioner)
    drawn = captioner.generate(batch, Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=12))
    human = captioner.tokenize(batch, ["", "a", CAPTIONS[3], CAPTIONS[5] * 2], torch.tensor([3, 0, 2, 1]))
    both = Rollout.concat([drawn, human])
    config = captioner.family.model.config
    special = torch.tensor([config.image_token_id, config.video_token_id])
    kept = (~torch.isin(both.tokens, special).any(dim=1)).nonzero().squeeze(1)
    assert len(kept) > 8
    return both.select(kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))])


class ImageOnly:
    """The published processors without their video processor, which needs torchvision: built as tests need them."""

    def __new__(cls, folder, base):
        def init(self, image_processor=None, tokenizer=None, chat_template=None, **_):
            self.image_token, self.image_token_id = "<|image_pad|>", tokenizer.convert_tokens_to_ids("<|image_pad|>")
            self.video_token, self.video_token_id = "<|video_pad|>", tokenizer.convert_tokens_to_ids("<|video_pad|>")
            transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

        made = type("ImageOnly", (base,), {"__init__": init})
        tokenizer = AutoTokenizer.from_pretrained(folder)
        images = AutoImageProcessor.from_pretrained(folder, backend="pil")
        return made(images, tokenizer, tokenizer.chat_template)


def plain_model(folder, make):
    return getattr(transformers, MAKERS[make]).from_pretrained(folder).eval()


def published(folder, make):
    """Inputs by the published processor class: ``pictures -> tensors``."""
    name = MAKERS[make].replace("ForConditionalGeneration", "Processor")
    processor = ImageOnly(folder, getattr(transformers, name))
    content = [{"type": "image"}, {"type": "text", "text": "Describe this image."}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)

    def inputs(shown):
        return processor(images=shown, text=[text] * len(shown), padding=True, padding_side="left", return_tensors="pt")

    return inputs


def plain_logprobs(model, inputs, rollout):
    """``[N, T]`` by the plain model's forward on every caption alone, by ids and pixels."""
    rows = []
    for image, tokens, length in zip(rollout.image, rollout.tokens, rollout.lengths, strict=True):
        given = inputs([pictures()[image]])
        before = given["input_ids"].shape[1]
        for name, extra in {"input_ids": tokens[: length - 1], "mm_token_type_ids": 0, "attention_mask": 1}.items():
            old = given[name]
            tail = torch.as_tensor(extra, dtype=old.dtype).expand(length - 1)
            given[name] = torch.cat([old, tail[None]], dim=1)
        logprobs = model(**given).logits[0, before - 1 :].log_softmax(dim=-1)
        chosen = logprobs.gather(1, tokens[:length, None]).squeeze(1)
        rows.append(torch.nn.functional.pad(chosen, (0, rollout.tokens.shape[1] - length)))
    return torch.stack(rows)


def gap(captioner, folder, make, rollout):
    """Largest difference in nats between our scores and the plain model's."""
    with torch.no_grad():
        plain = plain_logprobs(plain_model(folder, make), published(folder, make), rollout)
        return float((captioner(rollout).logprobs - plain).abs().max())


@every_family
def test_contract_on_images_of_different_sizes(folders, make):
    captioner = load(folders[make])
    batch = mixed(captioner, (1, 0, 2))
    tokens = batch.inputs["captioner"]["attention_mask"].sum(dim=1)
    assert len(set(tokens.tolist())) > 1
    check_captioner(captioner, batch)


@every_family
def test_inputs_are_those_of_the_published_processor(folders, make):
    captioner = load(folders[make])
    shown = pictures()
    ours, theirs = captioner.process(shown), published(folders[make], make)(shown)
    for name in ("input_ids", "attention_mask", "image_grid_thw"):
        assert torch.equal(ours[name], theirs[name]), name
    flat = torch.cat(
        [row[: grid.prod()] for row, grid in zip(ours["pixel_values"], ours["image_grid_thw"], strict=True)]
    )
    assert torch.equal(flat, theirs["pixel_values"])
    assert set(ours) == {"pixel_values", "image_grid_thw", "input_ids", "attention_mask"}
    assert {len(value) for value in ours.values()} == {len(shown)}


@every_family
def test_scores_are_those_of_the_plain_model(folders, make):
    captioner = load(folders[make])
    rollout = ragged(captioner)
    assert gap(captioner, folders[make], make, rollout) < 1e-5
    assert gap(load(folders[make], gradient_checkpointing=True), folders[make], make, rollout) < 1e-5


@every_family
@pytest.mark.parametrize(("beams", "size"), [(1, 0), (3, 0), (3, 2)])
def test_captions_are_those_of_the_plain_generate(folders, make, beams, size):
    captioner, given = load(folders[make]), published(folders[make], make)(pictures())
    with torch.no_grad():
        output = plain_model(folders[make], make).generate(
            **given,
            generation_config=GenerationConfig(
                num_beams=beams, max_new_tokens=12, eos_token_id=[2, 0], pad_token_id=0, no_repeat_ngram_size=size
            ),
        )
    theirs = captioner.tokenizer.batch_decode(output[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    ours = captioner.generate(
        mixed(captioner), Decoding(num_beams=beams, max_new_tokens=12, no_repeat_ngram_size=size)
    ).texts
    assert ours == [text.strip() for text in theirs]
    assert len(set(ours)) > 1


def gradients(captioner, rollout, score=None):
    captioner.zero_grad()
    weights = torch.linspace(-1, 1, rollout.mask.numel()).view(rollout.mask.shape)
    ((captioner(rollout).logprobs if score is None else score(rollout)) * weights).sum().backward()
    return {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}


@every_class
def test_gradients_are_those_of_the_plain_model_also_in_the_image_tower(folders, make):
    captioner, inputs = load(folders[make], train="all"), published(folders[make], make)
    rollout = captioner.tokenize(mixed(captioner), CAPTIONS[:4], torch.tensor([3, 0, 2, 1]))
    ours = gradients(captioner, rollout)
    plain = gradients(captioner, rollout, lambda rollout: plain_logprobs(captioner.family.model, inputs, rollout))
    assert ours.keys() == plain.keys()
    for name, value in plain.items():
        assert (ours[name] - value).abs().max() <= 1e-4 * max(1.0, float(value.abs().max())), name


@every_class
@pytest.mark.parametrize("count", [1, 3])
def test_drawing_scoring_and_checkpointing_agree(folders, make, count):
    cached, whole = (load(folders[make], train="all", gradient_checkpointing=on) for on in (False, True))
    batch = mixed(cached)
    decoding = Decoding(do_sample=True, num_return_sequences=count, max_new_tokens=12)
    rollout, met = cached.draw(batch, decoding)
    torch.testing.assert_close(cached(rollout).logprobs, met, atol=1e-5, rtol=0)
    torch.testing.assert_close(whole(rollout).logprobs, met, atol=1e-5, rtol=0)
    first, second = gradients(cached, rollout), gradients(whole, rollout)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert (value - second[name]).abs().max() <= 1e-4 * max(1.0, float(value.abs().max())), name


@every_family
@pytest.mark.parametrize("train", ["decoder", "all"])
def test_everything_that_trains_gets_a_gradient(folders, make, train):
    captioner = load(folders[make], train=train)
    found = gradients(captioner, ragged(captioner))
    assert found.keys() == {name for name, p in captioner.named_parameters() if p.requires_grad}
    assert all(bool(value.any()) for name, value in found.items() if "k_proj.bias" not in name and "qkv" not in name)
    tower = {name for name, _ in captioner.named_parameters() if ".visual." in name and "merger" not in name}
    assert tower
    assert (tower <= found.keys()) == (train == "all")
    assert (tower & found.keys() == set()) == (train == "decoder")
    assert {name for name, _ in captioner.named_parameters() if "merger" in name} <= found.keys()


@every_class
def test_mergers_train_on_images_that_were_encoded_once(folders, make):
    captioner = load(folders[make])
    rollout = ragged(captioner)
    encoded = captioner.encode(rollout.batch)
    assert not encoded.states.requires_grad
    assert captioner.reusable(encoded) is encoded
    with torch.no_grad():
        for name, parameter in captioner.named_parameters():
            if "merger" in name:
                parameter += 0.1
        torch.testing.assert_close(captioner(rollout, encoded=encoded).logprobs, captioner(rollout).logprobs)
        assert (captioner(rollout).logprobs - load(folders[make])(rollout).logprobs).abs().max() > 1e-2


@every_class
def test_lora_is_on_the_text_side_and_comes_back(folders, make, tmp_path):
    from peft import PeftModel

    base = load(folders[make])
    rollout = ragged(base)
    captioner = load(folders[make], lora=LoraOptions(r=2))
    names = list(adapted_modules(captioner.family.model))
    assert len(names) == 3 * 4
    assert all(name.startswith("model.language_model.layers.") for name in names)
    with torch.no_grad():
        for name, parameter in captioner.named_parameters():
            if "lora_B" in name:
                parameter += 0.1 * torch.randn_like(parameter)
        trained, untrained = captioner(rollout).logprobs, base(rollout).logprobs
        assert (trained - untrained).abs().max() > 1e-2
        with captioner.network.disable_adapter():
            assert torch.equal(captioner(rollout).logprobs, untrained)
    assert all(bool(value.any()) for name, value in gradients(captioner, rollout).items() if "lora_A" in name)
    captioner.save(tmp_path / "adapter")
    assert torch.equal(load(tmp_path / "adapter")(rollout).logprobs, trained)
    plain = PeftModel.from_pretrained(plain_model(folders[make], make), str(tmp_path / "adapter"))
    with torch.no_grad():
        wanted = plain_logprobs(plain, published(tmp_path / "adapter", make), rollout)
    torch.testing.assert_close(trained, wanted, atol=2e-5, rtol=0)


@every_family
def test_a_trained_folder_is_read_by_plain_transformers(folders, make, tmp_path):
    captioner = load(folders[make], train="all")
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    captioner.save(tmp_path)
    held = {path.name for path in tmp_path.iterdir()}
    assert {"preprocessor_config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"} <= held
    rollout = ragged(captioner)
    assert gap(captioner, tmp_path, make, rollout) < 2e-5
    assert gap(captioner, folders[make], make, rollout) > 1e-2
    again = load(tmp_path)
    assert torch.equal(again(rollout).logprobs, captioner(rollout).logprobs)
    assert (
        again.generate(mixed(again), Decoding(num_beams=2)).texts
        == captioner.generate(mixed(captioner), Decoding(num_beams=2)).texts
    )
    # Penalties of the published decoding defaults would leak into anybody's generate.
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved["eos_token_id"] == [2, 0]
    assert not {"repetition_penalty", "do_sample"} & saved.keys()


# Traps: each is set, and must be seen by what is compared above.


def flat_positions(self, encoded, image, first, count):
    """Captions go on from the number of tokens, as in models with one axis."""
    plain = super(Qwen2VL, self).caption_positions(encoded, image, first, count)
    return plain.expand(3, -1, -1)


def one_axis(self, encoded):
    """Image tokens one after the other."""
    return super(Qwen2VL, self).prefix_positions(encoded).expand(3, -1, -1)


def no_deepstack(self, encoded, image, width, cache):
    return {}


def window_order(self, patches, grid):
    """The states as the tower orders them inside."""
    found = []
    hook = self.mergers[0].register_forward_pre_hook(lambda module, given: found.append(given[0]))
    self.model.model.visual(patches, grid_thw=grid)
    hook.remove()
    return [found[0].reshape(-1, found[0].shape[-1] * self._group)]


def by_row(self, states, mask):
    """Flat states dealt out evenly, as if all images had as many."""
    wide = torch.zeros(mask.numel(), states.shape[-1])
    wide[: len(states)] = states
    return wide.view(*mask.shape, -1)


@pytest.mark.parametrize(
    ("make", "target", "name", "fault"),
    [
        (tiny_qwen2_vl, Qwen2VL, "caption_positions", flat_positions),
        (tiny_qwen2_5_vl, Qwen2VL, "prefix_positions", one_axis),
        (tiny_qwen3_vl, Qwen2VL, "prefix_positions", one_axis),
        (tiny_qwen3_vl, Qwen2VL, "_rows", by_row),
        (tiny_qwen3_vl, Qwen3VL, "further", no_deepstack),
        (tiny_qwen3_vl, Qwen3VL, "beginning", Qwen2VL.beginning),
        (tiny_qwen2_5_vl, Qwen2VL, "_tower", window_order),
    ],
)
def test_faults_are_seen(folders, make, target, name, fault, monkeypatch):
    captioner = load(folders[make])
    captioner.family.reads_parts = name != "further"  # which modules are given
    rollout = captioner.tokenize(mixed(captioner), CAPTIONS[:4], torch.tensor([3, 0, 2, 1]))
    assert gap(captioner, folders[make], make, rollout) < 1e-5
    monkeypatch.setattr(target, name, fault)
    assert gap(captioner, folders[make], make, rollout) > 1e-2


@every_class
def test_positions_left_in_the_model_are_neither_read_nor_written(folders, make):
    captioner = load(folders[make])
    inner, rollout = captioner.family.model.model, ragged(captioner)
    texts, logprobs = captioner.generate(mixed(captioner), Decoding()).texts, captioner(rollout).logprobs
    assert inner.rope_deltas is None
    inner.rope_deltas = torch.full((1, 1), 17)
    assert captioner.generate(mixed(captioner), Decoding()).texts == texts
    assert torch.equal(captioner(rollout).logprobs, logprobs)
    assert inner.rope_deltas.tolist() == [[17]]


@every_class
def test_an_image_is_read_alike_alone_and_beside_larger_ones(folders, make):
    captioner = load(folders[make])
    together = mixed(captioner, (0, 1, 2, 3))
    rollout = captioner.generate(together, SAMPLES)
    logprobs = captioner(rollout).logprobs
    for i in range(4):
        of = (rollout.image == i).nonzero().squeeze(1)
        alone = Rollout(mixed(captioner, (i,)), torch.zeros(3).long(), *rest(rollout.select(of)))
        mask = rollout.select(of).mask
        wanted = logprobs[of, : mask.shape[1]]
        torch.testing.assert_close(captioner(alone).logprobs, wanted, atol=1e-5, rtol=0)
        chosen = Rollout(together.select([i]), torch.zeros(3).long(), *rest(rollout.select(of)))
        torch.testing.assert_close(captioner(chosen).logprobs, wanted, atol=1e-5, rtol=0)
        assert captioner.generate(mixed(captioner, (i,)), Decoding()).texts == [
            captioner.generate(together, Decoding()).texts[i]
        ]


def rest(rollout):
    return rollout.texts, rollout.tokens, rollout.mask, rollout.finished


@every_class
def test_image_tokens_in_a_caption_are_words(folders, make):
    """By ids they would be counted as places for states."""
    cached, whole = load(folders[make]), load(folders[make], gradient_checkpointing=True)
    batch, image = mixed(cached, (0, 1)), cached.family.image_token
    tokens = torch.tensor([[image, 40, image, 2], [40, image, 41, 2]])
    rollout = Rollout(batch, torch.tensor([0, 1]), ["", ""], tokens, tokens >= 0, torch.ones(2).bool())
    first, second = cached(rollout).logprobs, whole(rollout).logprobs
    assert bool((first < 0).all())
    torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


def test_deeper_layers_of_the_tower_matter_and_only_through_the_prefix(folders):
    captioner = load(folders[tiny_qwen3_vl])
    encoded = captioner.encode(mixed(captioner))
    assert encoded.inputs["deepstack"].shape == (4, 2, *encoded.states.shape[1:])
    family, cache = captioner.family, captioner.family.new_cache()
    images = torch.arange(4)
    given = family.further(encoded, images, 60, None)
    assert given["visual_pos_masks"].sum(dim=1).tolist() == encoded.mask.sum(dim=1).tolist()
    assert not given["visual_pos_masks"][:, encoded.inputs["input_ids"].shape[1] :].any()
    assert [len(part) for part in given["deepstack_visual_embeds"]] == 2 * [int(encoded.mask.sum())]
    family.prefix(encoded, cache)
    assert family.further(encoded, images, 1, cache) == {}
