"""LLaVA: which layers are read, how its prompt and captions are written, and what must be refused."""

import pytest
import torch

from pictures import images
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.families.llava import Llava
from tellapart.errors import UsageError
from tellapart.types import Decoding, Rollout
from tiny.llava import TEMPLATE, tiny_llava
from tiny_models import batch_of


def rollout_of(captioner, count=3):
    return captioner.generate(batch_of(captioner, count), Decoding(do_sample=True, max_new_tokens=10))


@pytest.mark.parametrize(
    ("layers", "strategy", "unread"),
    [(-2, "default", {2}), (-1, "default", set()), ([1, -3], "default", {1, 2}), ([-2, -1], "full", set())],
)
def test_states_are_those_of_the_layers_that_the_configuration_names(layers, strategy, unread):
    """-2 of three layers is what leaves the second; the third and the pooling get no gradient, so they are frozen."""
    captioner = tiny_llava(layers=layers, strategy=strategy, train="all")
    batch = batch_of(captioner, 2)
    features = captioner.family.model.get_image_features(batch.inputs["captioner"]["pixel_values"]).pooler_output
    encoded = captioner.encode(batch)
    assert encoded.states.shape[1] == (4 if strategy == "default" else 5)
    torch.testing.assert_close(captioner.family.project(encoded), torch.stack(list(features)), atol=1e-5, rtol=0)
    frozen = {name for name, parameter in captioner.family.model.named_parameters() if not parameter.requires_grad}
    tower = "model.vision_tower."
    assert {int(name.split("layers.")[1].split(".")[0]) for name in frozen if "layers." in name} == unread
    assert {name for name in frozen if "layers." not in name} == {
        f"{tower}post_layernorm.{n}" for n in ("weight", "bias")
    }
    captioner(rollout_of(captioner)).logprobs.sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in captioner.parameters())


def test_bare_names_of_projections_would_adapt_the_image_tower(tmp_path):
    with pytest.raises(UsageError, match=r"vision_tower.*in the image tower: anchor them"):
        tiny_llava(tmp_path, lora=LoraOptions(r=2, target_modules=r".*\.(q_proj|v_proj)"))


def test_captions_are_tokenized_as_they_follow_the_prompt():
    """Llama's tokenizer writes every text as if a space stood before it: one more would be another token."""
    captioner = tiny_llava()
    family, tokenizer = captioner.family, captioner.tokenizer
    prompt = family.rendered()
    assert prompt == f"USER: <image>\n{Llava.default_prompt} ASSISTANT:"
    rows = captioner.tokenize(batch_of(captioner, 1), ["a red circle"], torch.zeros(1)).tokens[0].tolist()
    whole = tokenizer(f"{prompt} a red circle", add_special_tokens=False)["input_ids"]
    assert whole == tokenizer(prompt, add_special_tokens=False)["input_ids"] + rows[:-1]
    assert rows[-1] == family.eos[0] == 3
    assert tokenizer(" a red circle", add_special_tokens=False)["input_ids"] != rows[:-1]
    assert family.process(images(1))["input_ids"][0].tolist().count(1) == 1


def test_a_processor_without_a_chat_template_gets_the_published_prompt():
    plain, chat = tiny_llava(template=None), tiny_llava(template=TEMPLATE)
    assert plain.family.rendered() == chat.family.rendered()
    assert plain.family.caption_lead == chat.family.caption_lead == ""
    assert tiny_llava(template=None, prompt="").family.rendered() == "USER: <image>\n ASSISTANT:"


def test_an_image_token_that_was_drawn_is_a_word_like_any_other():
    """By ids the model would look for another image there."""
    captioner = tiny_llava()
    token = captioner.family.image_token
    rollout = rollout_of(captioner, 2)
    tokens = rollout.tokens.clone()
    tokens[:, 0] = token
    marked = Rollout(rollout.batch, rollout.image, rollout.texts, tokens, rollout.mask, rollout.finished)
    scores = captioner(marked).logprobs
    inputs, length = rollout.batch.inputs["captioner"], int(rollout.lengths[0])
    model, width = captioner.family.model, inputs["input_ids"].shape[1]
    with pytest.raises(ValueError, match="do not match"):
        model(input_ids=torch.cat([inputs["input_ids"], tokens], dim=1), pixel_values=inputs["pixel_values"])
    words = model.get_input_embeddings()(torch.cat([inputs["input_ids"][:1], tokens[:1, :length]], dim=1))
    words[0, :width][inputs["input_ids"][0] == token] = model.get_image_features(
        inputs["pixel_values"][:1]
    ).pooler_output[0]
    logprobs = model(inputs_embeds=words).logits[0, width - 1 : -1].log_softmax(dim=-1)
    wanted = logprobs.gather(1, tokens[0, :length, None]).squeeze(1)
    torch.testing.assert_close(scores[0, :length], wanted, atol=1e-5, rtol=0)


def test_prompts_of_different_length_are_padded_on_the_left_and_scored_alike():
    captioner = tiny_llava()
    rollout = rollout_of(captioner, 3)
    inputs = dict(rollout.batch.inputs["captioner"])
    wanted = captioner(rollout).logprobs
    inputs["input_ids"] = torch.nn.functional.pad(inputs["input_ids"], (5, 0), value=captioner.tokenizer.pad_token_id)
    inputs["attention_mask"] = torch.nn.functional.pad(inputs["attention_mask"], (5, 0))
    rollout.batch.inputs["captioner"] = inputs
    torch.testing.assert_close(captioner(rollout).logprobs, wanted, atol=1e-5, rtol=0)
    captioner.checkpoints_layers = True
    torch.testing.assert_close(captioner(rollout).logprobs, wanted, atol=1e-5, rtol=0)


def test_what_must_be_refused():
    with pytest.raises(UsageError, match="has 2 places for an image instead of one: leave <image> out"):
        tiny_llava(prompt="what is <image>?")
    with pytest.raises(UsageError, match="has 0 places for an image instead of one"):
        tiny_llava(template="{{ messages[0]['content'][1]['text'] }}")
    with pytest.raises(UsageError, match=r"cannot write a turn with an image and words \(can only concatenate str"):
        tiny_llava(template="{{ 'USER: ' + messages[0]['content'] }}")
    captioner = tiny_llava()
    parts = (captioner.family.model, captioner.image_processor, captioner.tokenizer)
    with pytest.raises(UsageError, match="needs its processor to write the prompt"):
        type(captioner).from_parts(*parts)
    # One image token too few: without a check each image's last state would begin the next image.
    captioner.family.processors.joint.num_additional_image_tokens = 0
    with pytest.raises(UsageError, match="writes 3 image tokens and the model has 4 states"):
        captioner.encode(batch_of(captioner, 2))
    captioner.family.processors.joint.patch_size = None
    with pytest.raises(UsageError, match="patch_size to 16, vision_feature_select_strategy to 'default'"):
        type(captioner).from_parts(*parts, processor=captioner.family.processors.joint)
    captioner.family.processors.joint.patch_size = 16
    captioner.tokenizer.pad_token = None
    with pytest.raises(UsageError, match="no padding token"):
        type(captioner).from_parts(*parts, processor=captioner.family.processors.joint)
    captioner.family.model.config.vision_config.model_type = "pixtral"
    with pytest.raises(UsageError, match="no fixed size"):
        type(captioner).from_parts(*parts, processor=captioner.family.processors.joint)
