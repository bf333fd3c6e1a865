"""Decoders read by their parts: the same states, gradients and captions as through their own modules."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from accelerate import dispatch_model
from torch.nn.functional import scaled_dot_product_attention as attend
from transformers import (
    Gemma2Config,
    Gemma2Model,
    GemmaConfig,
    GemmaModel,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    OPTConfig,
    OPTModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
)

from tellapart import products
from tellapart.captioners import decoder, drawing, scoring
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.blocks import Opt, decoder_of
from tellapart.captioners.decoder import Beginning, DecoderSteps, Heads, _by_image, additive, read_captions
from tellapart.captioners.drawing import largest
from tellapart.captioners.families.base import Family
from tellapart.captioners.fused import fuse
from tellapart.captioners.linear import Linear
from tellapart.captioners.reading import States, Tree, one_by_one
from tellapart.captioners.scoring import token_logprobs
from tellapart.captioners.steps import CachedSteps
from tellapart.types import Decoding, Rollout
from tiny.blip2 import tiny_blip2
from tiny.florence2 import tiny_florence2
from tiny.git import tiny_git
from tiny.idefics3 import tiny_idefics3
from tiny.instructblip import tiny_instructblip
from tiny.llava import tiny_llava
from tiny.paligemma import tiny_paligemma
from tiny.qwen2_5_vl import tiny_qwen2_5_vl
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny.qwen3_vl import tiny_qwen3_vl
from tiny_models import batch_of, tiny_blip, tiny_ved

DECODINGS = [
    Decoding(max_new_tokens=20),
    Decoding(max_new_tokens=20, do_sample=True, num_return_sequences=5),
    Decoding(max_new_tokens=20, num_beams=4, num_return_sequences=4),
    Decoding(max_new_tokens=20, num_beams=3, no_repeat_ngram_size=2, min_new_tokens=4),
]


def through_modules(monkeypatch):
    """Let families draw and score as those do that are not read by their parts."""

    def steps(family, encoded, count, longest, *, beams=False):
        cache = family.new_cache()
        first = family.prefix(encoded, cache)
        return CachedSteps(family, encoded, cache, first, count=count, longest=longest)

    monkeypatch.setattr(Family, "steps", steps)
    monkeypatch.setattr(Family, "read_captions", lambda *given: None)


def makers(tmp_path):
    lora = tiny_ved(tmp_path / "lora", lora=LoraOptions(r=4))
    with torch.no_grad():
        for name, parameter in lora.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    lora.eval()
    return {
        "plain": tiny_ved(),
        "prompt": tiny_ved(prompt="a red"),
        "projection": tiny_ved(vision_width=16, layers=3),
        "lora": lora,
    }


OTHERS = {
    "BLIP": tiny_blip,
    "BLIP, prompt": partial(tiny_blip, prompt="a red"),
    "BLIP-2 (OPT)": partial(tiny_blip2, prompt="a photo of", eos_logit=1.5),
    "GIT": tiny_git,
    "Florence-2": tiny_florence2,
    "LLaVA": tiny_llava,
    "InstructBLIP (Vicuna)": partial(tiny_instructblip, language="llama"),
    "Idefics3": tiny_idefics3,
    "Qwen2-VL": tiny_qwen2_vl,
    "Qwen2.5-VL": tiny_qwen2_5_vl,
    "Qwen3-VL": tiny_qwen3_vl,
    "PaliGemma": tiny_paligemma,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_draw_and_score_as_through_their_modules(name, monkeypatch):
    monkeypatch.setattr(drawing, "FEW", 0.9)
    captioner = OTHERS[name]()
    batch = batch_of(captioner, 6)
    assert captioner.family.by_parts(Linear()) is not None

    def run():
        drawn = []
        for decoding in DECODINGS:
            torch.manual_seed(1)
            drawn.append(captioner.generate(batch, decoding))
        return drawn, scored(captioner, drawn[1])

    drawn, (logprobs, gradients) = run()
    through_modules(monkeypatch)
    others, (before, wanted) = run()
    for one, other, decoding in zip(drawn, others, DECODINGS, strict=True):
        assert torch.equal(one.tokens, other.tokens), decoding
    assert len(set(drawn[1].lengths.tolist())) > 2
    torch.testing.assert_close(logprobs, before, rtol=0, atol=2e-5)
    assert gradients.keys() == wanted.keys()
    ours, theirs = (torch.cat([found[key].flatten() for key in sorted(wanted)]) for found in (gradients, wanted))
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_prompts_of_several_lengths_are_padded_unseen(monkeypatch):
    captioner = tiny_blip2(prompt="a photo of", eos_logit=1.5)
    family, batch = captioner.family, batch_of(captioner, 3)
    encoded = captioner.encode(batch)
    rows = family.prompt_rows(encoded.inputs, [0, 1, 2], ["a red circle on a", "", "a photo of"])
    assert not rows["attention_mask"].bool().all()
    asked = family.with_prompts(encoded, encoded.inputs, torch.arange(3), rows)

    def run():
        drawn = []
        for decoding in DECODINGS:
            torch.manual_seed(1)
            drawn.append(captioner.generate(batch, decoding, encoded=asked))
        return drawn, captioner(drawn[1], encoded=asked).logprobs

    drawn, logprobs = run()
    through_modules(monkeypatch)
    others, before = run()
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(drawn, others, strict=True))
    torch.testing.assert_close(logprobs, before, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "sizes", [{"do_layer_norm_before": False, "word_embed_proj_dim": 16}, {"activation_function": "gelu"}]
)
def test_opt_of_either_kind_of_norm_and_width(sizes, monkeypatch):
    """OPT-350m has its norms after the sums, and embeddings narrower than its layers."""
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=40, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, dropout=0.0,
        max_position_embeddings=32, **{"word_embed_proj_dim": 32} | sizes,
    )  # fmt: skip
    model = OPTModel(config).decoder.eval()
    fuse(model)
    opt, words = Opt(model, Linear()), torch.randint(4, 40, (3, 9))
    hidden = opt.placed(model.embed_tokens(words[:, :4]), torch.arange(4))
    image, mask = torch.tensor([0, 2, 2, 1]), torch.arange(5) < torch.tensor([5, 2, 1, 4])[:, None]
    tokens, whole = words[image, 4:], model(input_ids=words).last_hidden_state[image, 3:-1]
    begin = partial(Beginning, hidden, 4)
    for read in (one_by_one(image, mask), Tree(image, tokens, mask).reading()):
        states = read_captions(opt, lambda embed: begin(), model.embed_tokens, image, tokens, mask, read)
        torch.testing.assert_close(states.each(), whole[states.place], rtol=0, atol=1e-5)


SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8,
    "max_position_embeddings": 64,
}  # fmt: skip
LLAMAS = {
    "Llama": (LlamaModel, LlamaConfig(**SIZES, num_key_value_heads=8, attention_bias=True, mlp_bias=True)),
    "Llama, one head of keys": (LlamaModel, LlamaConfig(**SIZES, num_key_value_heads=1, head_dim=6)),
    "Llama 3": (
        LlamaModel,
        LlamaConfig(
            **SIZES,
            num_key_value_heads=2,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
            },
        ),
    ),
    "Mistral": (MistralModel, MistralConfig(**SIZES, num_key_value_heads=4, sliding_window=None)),
    "Qwen2": (Qwen2Model, Qwen2Config(**SIZES, num_key_value_heads=2)),
    "Qwen3": (Qwen3Model, Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=12)),
    "Gemma": (GemmaModel, GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=8)),
}  # fmt: skip


@pytest.mark.parametrize("name", LLAMAS)
def test_llamas_of_every_kind(name):
    kind, config = LLAMAS[name]
    torch.manual_seed(0)
    model = kind(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    fuse(model)
    llama, words = decoder_of(model, Linear()), torch.randint(4, 40, (3, 9))
    assert llama is not None
    hidden, places = model.embed_tokens(words[:, :4]), torch.arange(4).expand(3, -1)
    image, mask = torch.tensor([0, 2, 2, 1]), torch.arange(5) < torch.tensor([5, 2, 1, 4])[:, None]
    tokens, whole = words[image, 4:], model(input_ids=words).last_hidden_state[image, 3:-1]
    begin = Beginning(hidden, torch.full((3,), 4), angles=llama.angles(places, hidden))
    for read in (one_by_one(image, mask), Tree(image, tokens, mask).reading()):
        states = read_captions(llama, lambda embed: begin, model.embed_tokens, image, tokens, mask, read)
        torch.testing.assert_close(states.each(), whole[states.place], rtol=1e-5, atol=2e-5)


def test_decoders_that_see_or_turn_otherwise_are_read_through_their_modules():
    dynamic = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    others = [
        MistralModel(MistralConfig(**SIZES, sliding_window=4)),
        Qwen2Model(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1)),
        LlamaModel(LlamaConfig(**SIZES, rope_parameters=dynamic)),
        Gemma2Model(Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=4)),
    ]
    assert [decoder_of(model, Linear()) for model in others] == [None] * 4


@pytest.mark.parametrize(("share", "short"), [(0.0, 32), (0.5, 0), (1.0, 0), (1.0, 32)])
def test_captions_are_those_of_its_modules_whenever_ended_ones_leave(tmp_path, monkeypatch, share, short):
    """With keys and values word by word and head by head."""
    monkeypatch.setattr(decoder, "SHORT", short)
    found = {}
    for few in (share, 0.75):
        monkeypatch.setattr(drawing, "FEW", few)
        for name, captioner in makers(tmp_path).items():
            batch = batch_of(captioner, 9)
            for number, decoding in enumerate(DECODINGS):
                torch.manual_seed(1)
                drawn = captioner.generate(batch, decoding)
                if few == share:
                    found[name, number] = drawn
                else:
                    assert torch.equal(drawn.tokens, found[name, number].tokens), (name, decoding)
                    assert len(set(drawn.lengths.tolist())) > 2
        through_modules(monkeypatch)


@pytest.mark.parametrize("prefix", [False, True])
def test_keys_and_values_of_all_layers_have_one_memory_while_captions_are_drawn(prefix, monkeypatch):
    captioner = tiny_git() if prefix else tiny_ved(layers=3)
    if prefix:
        monkeypatch.setattr(decoder, "SHORT", 0)
    with torch.no_grad():
        steps = captioner.family.steps(captioner.encode(batch_of(captioner, 2)), 3, 20)
        kept = steps._words
        steps.keep(torch.tensor([0, 2, 4]))
    for words in (kept, steps._words):
        assert len({layer.untyped_storage().data_ptr() for layer in words}) == 1
        assert len({layer.data_ptr() for layer in words}) == len(words) > 1
        # groups and heads of keys, and of values, lie as one dimension
        assert all(part.stride(0) == part.stride(1) * part.shape[1] for layer in words for part in layer.unbind(1))


@pytest.mark.parametrize("short", [0, 32])
def test_steps_with_gradients_read_the_same(short, monkeypatch):
    """Keys and values of all layers could not be written where the first ones had gradients."""
    monkeypatch.setattr(decoder, "SHORT", short)
    captioner, words = tiny_ved(prompt="a red", layers=3), torch.tensor([4, 5, 6, 7])
    encoded = captioner.encode(batch_of(captioner, 2))
    steps = captioner.family.steps(encoded, 2, 5)
    assert steps.first.requires_grad
    found = steps.read(words)
    with torch.no_grad():
        torch.testing.assert_close(found, captioner.family.steps(encoded, 2, 5).read(words), rtol=0, atol=1e-5)


def test_words_are_read_in_inference_mode_where_nothing_else_needs_them():
    captioner = tiny_ved()
    family = captioner.family
    with torch.no_grad():
        encoded = captioner.encode(batch_of(captioner, 2))
        assert family.steps(encoded, 1, 5).read(torch.tensor([4, 5])).is_inference()
        begun = family.beginning(parts := family.decoder(Linear()), encoded, family.embed)
        kept = DecoderSteps(parts, begun, family.embedding, count=1, longest=5, beams=False, kept=True)
        assert not kept.read(torch.tensor([4, 5])).is_inference()
        with torch.autocast("cpu", torch.bfloat16):
            assert not family.steps(encoded, 1, 5).read(torch.tensor([4, 5])).is_inference()


def test_what_is_drawn_in_inference_mode_may_be_used_with_gradients():
    captioner = tiny_ved()
    with torch.no_grad():
        encoded, numbers = captioner.encode(batch_of(captioner, 2)), torch.rand(4, 12)
        greedy, beams = Decoding(max_new_tokens=12), Decoding(max_new_tokens=12, num_beams=3)
        samples = Decoding(max_new_tokens=12, do_sample=True, num_return_sequences=2)
        drawn = [
            *drawing.draw(captioner.family, encoded, samples, numbers, logprobs=True),
            drawing.draw(captioner.family, encoded, greedy, None)[0],
            drawing.beam_search(captioner.family, encoded, beams),
            *drawing.beams_with_greedy(captioner.family, encoded, beams, greedy),
        ]
    assert not any(part.is_inference() for part in drawn)


def test_words_are_chosen_in_inference_mode_too(monkeypatch):
    seen = []
    choose, advance = drawing.Chooser.__call__, drawing._advance
    monkeypatch.setattr(
        drawing.Chooser, "__call__", lambda *a: (seen.append(torch.is_inference_mode_enabled()), choose(*a))[1]
    )
    monkeypatch.setattr(
        drawing, "_advance", lambda *a: (seen.append(torch.is_inference_mode_enabled()), advance(*a))[1]
    )
    captioner = tiny_ved()
    for decoding in DECODINGS[1:3]:
        captioner.generate(batch_of(captioner, 2), decoding)
        assert len(seen) > 1
        assert all(seen)
        seen.clear()


def scored(captioner, rollout):
    """Log-probabilities, and gradients of all that trains."""
    captioner.zero_grad()
    logprobs = captioner(rollout).logprobs
    (logprobs * torch.linspace(-1, 1, logprobs.numel()).view_as(logprobs)).sum().backward()
    return logprobs.detach(), {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}


def test_scores_and_gradients_are_those_of_its_modules_for_any_lengths_and_order_of_images(tmp_path, monkeypatch):
    """Captions of 1 to 20 words, one of none; three, none and one of an image, in no order."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 20, 1, 0, 8, 8, 2])
    mask = torch.arange(20) < lengths[:, None]
    image = torch.tensor([2, 0, 3, 0, 2, 4, 2])
    before = {}
    for whole in (True, False):
        for name, captioner in makers(tmp_path).items():
            batch = batch_of(captioner, 5)
            tokens = torch.randint(4, captioner.family.vocab_size, mask.shape, generator=generator.manual_seed(1))
            ended = torch.ones(len(mask), dtype=torch.bool)
            rollout = Rollout(batch, image, [""] * len(mask), tokens * mask, mask, ended)
            logprobs, gradients = scored(captioner, rollout)
            if whole:
                before[name] = logprobs, gradients
                continue
            torch.testing.assert_close(logprobs, before[name][0], rtol=0, atol=2e-5)
            assert gradients.keys() == before[name][1].keys()
            for key, gradient in gradients.items():
                other = before[name][1][key]
                assert (gradient - other).norm() <= 2e-5 * (other.norm() + 1e-3), (name, key)
        through_modules(monkeypatch)


@pytest.mark.skipif(not products.RULES, reason="this torch has no oneDNN on this processor")
def test_captions_scores_and_gradients_through_onednn_are_those_without(tmp_path, monkeypatch):
    monkeypatch.setattr(products, "SMALLEST", 1)
    monkeypatch.setattr(products, "SMALLEST_DRAWN", 1)
    monkeypatch.setattr(products, "RULES", products.rules("AVX512", intel=False))
    for name, captioner in {**makers(tmp_path), "llava": tiny_llava()}.items():
        batch, found = batch_of(captioner, 9), []
        for enabled in (True, False):
            with torch.backends.mkldnn.flags(enabled=enabled):
                torch.manual_seed(1)
                drawn = [captioner.generate(batch, decoding) for decoding in DECODINGS]
                found.append(([rollout.tokens for rollout in drawn], *scored(captioner, drawn[1])))
        (tokens, logprobs, gradients), (others, before, wanted) = found
        assert all(torch.equal(one, other) for one, other in zip(tokens, others, strict=True)), name
        torch.testing.assert_close(logprobs, before, rtol=0, atol=1e-4)
        for key, gradient in gradients.items():
            # both ways are up to 5e-5 from float64 here
            assert (gradient - wanted[key]).norm() <= 1e-4 * (wanted[key].norm() + 1e-3), (name, key)


def test_captions_of_one_word_and_images_with_masks_are_scored(monkeypatch):
    captioner = tiny_ved()
    batch = batch_of(captioner, 3)
    encoded = captioner.encode(batch)
    hidden = encoded.states.clone()
    mask = torch.ones(hidden.shape[:2], dtype=torch.bool)
    mask[1, 2:] = False
    hidden[1, 2:] = 100.0
    masked = type(encoded)(hidden, mask)
    torch.manual_seed(0)
    rollout = captioner.generate(
        batch, Decoding(do_sample=True, num_return_sequences=2, max_new_tokens=12), encoded=masked
    )
    logprobs = captioner(rollout, encoded=masked).logprobs
    one = replace(rollout, tokens=rollout.tokens[:, :1], mask=rollout.mask[:, :1])
    torch.testing.assert_close(captioner(one, encoded=masked).logprobs, logprobs[:, :1])
    through_modules(monkeypatch)
    torch.testing.assert_close(captioner(rollout, encoded=masked).logprobs, logprobs, rtol=0, atol=2e-5)


def test_dropout_falls_where_its_modules_have_it():
    captioner = tiny_ved()
    batch = batch_of(captioner, 2)
    rollout = captioner.generate(batch, Decoding(max_new_tokens=12))
    captioner.train()
    torch.manual_seed(0)
    first = captioner(rollout).logprobs
    torch.manual_seed(1)
    assert not torch.equal(first, captioner(rollout).logprobs), "the tiny model's dropout is on"


def test_rows_of_images_in_any_order_are_laid_out_and_found_again():
    image = torch.tensor([2, 0, 2, 3, 2, 0])
    slots = _by_image(image, 5)
    rows = torch.arange(24.0).view(6, 4)
    spread = slots.spread(rows, 2)
    assert spread.shape == (5, 2, 3, 2)
    assert spread.transpose(1, 2).reshape(5, 3, 4)[2].tolist() == rows[[0, 2, 4]].tolist()
    assert not spread[1].any()
    assert torch.equal(slots.gather(spread), rows)


@pytest.mark.parametrize(("width", "count"), [(70, 3), (1000, 7), (5000, 10)])
def test_the_largest_of_each_row(width, count, monkeypatch):
    monkeypatch.setattr(drawing, "MANY", 0)
    scores = torch.randn(6, width, generator=torch.Generator().manual_seed(0))
    scores[0, 100:] = -torch.inf
    scores[1, -2:] += 9
    values, places = largest(scores, count)
    wanted = scores.topk(count)
    assert torch.equal(values, wanted.values)
    assert torch.equal(scores.gather(1, places), values)
    finite = values.isfinite()
    assert torch.equal(places[finite], wanted.indices[finite])


def test_beams_over_a_large_vocabulary_are_those_of_sorting_everything(monkeypatch):
    captioner = tiny_ved(vocab=700)
    batch = batch_of(captioner, 4)
    decoding = Decoding(max_new_tokens=12, num_beams=2, num_return_sequences=2)
    found = [captioner.generate(batch, decoding).tokens]
    for name, bound in {"MANY": 100, "WORDS": 1000}.items():
        monkeypatch.setattr(drawing, name, bound)
        found.append(captioner.generate(batch, decoding).tokens)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def each(hidden):
    """Every state predicts one word."""
    words = torch.arange(len(hidden))
    return States(hidden, words, (words, words))


def test_log_probabilities_of_chosen_words_and_their_gradient_are_log_softmaxs():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 8, generator=generator, requires_grad=True)
    hidden = (30 * torch.randn(12, 8, generator=generator)).requires_grad_()
    targets, factors = torch.randint(50, (12,), generator=generator), torch.randn(12, generator=generator)
    found, _ = token_logprobs(lambda states: states @ weight.T, each(hidden), targets, 50, entropy=False)
    wanted = (hidden @ weight.T).log_softmax(dim=1).gather(1, targets[:, None]).squeeze(1)
    assert wanted.min() < -150, "the target's probability underflows in float32"
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-5)
    ours = torch.autograd.grad((found * factors).sum(), [hidden, weight], retain_graph=True)
    theirs = torch.autograd.grad((wanted * factors).sum(), [hidden, weight])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad((found * factors).sum(), [hidden])


def test_logits_beyond_the_budget_are_computed_again(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    weight, hidden = (
        torch.randn(50, 8, generator=generator),
        torch.randn(12, 8, generator=generator, requires_grad=True),
    )
    targets = torch.arange(12)
    heads = []

    def head(states):
        heads.append(len(states))
        return states @ weight.T

    def gradient():
        heads.clear()
        logprobs, _ = token_logprobs(head, each(hidden), targets, 50, entropy=False)
        return torch.autograd.grad(logprobs.sum(), [hidden])[0]

    monkeypatch.setattr(scoring, "CHUNK_ELEMENTS", 5 * 50)
    kept = gradient()
    assert heads == [12]
    monkeypatch.setattr(scoring, "LOGITS_BUDGET", 11 * 50 * 4 / 2**30)
    again = gradient()
    assert sorted(heads) == [2, 2, 5, 5, 5, 5], "each chunk twice"
    torch.testing.assert_close(again, kept)


@pytest.mark.parametrize("queries", [1, 3])
def test_a_mask_as_attention_on_a_gpu_reads_it(queries):
    heads, mask = Heads(2, queries), torch.tensor([[[[True, False, True], [True, True, False]]]])
    repeated = heads.seen(mask, torch.ones(1))
    assert repeated.shape == (1, 1, 2 * queries, 3)
    seen = additive(repeated, torch.ones(1))
    assert all(stride % 8 == 0 for stride in seen.stride()[:-1])
    query, key, value = torch.randn(1, 2, 2 * queries, 8), *torch.randn(2, 1, 2, 3, 8)
    by_mask, by_sum = (attend(query, key, value, attn_mask=given) for given in (repeated, seen))
    torch.testing.assert_close(by_mask, by_sum)
    with torch.autocast("cpu", torch.bfloat16):
        assert additive(mask, torch.ones(1)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["BLIP-2 (OPT)", "LLaVA", "Qwen2-VL"])
def test_a_decoder_whose_weights_are_fetched_is_read_through_its_modules(name, tmp_path):
    captioner = OTHERS[name]()
    batch = batch_of(captioner, 2)
    before = captioner.generate(batch, Decoding(max_new_tokens=12))
    logprobs = captioner(before).logprobs.detach()
    model, body = captioner.family.model, captioner.family.body
    layer = next(path for path, module in model.named_modules() if module is body.layers[1])
    names = [path for path, _ in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]]
    places = {path: "cpu" for path in names if not path.startswith(f"{layer}.")} | {layer: "disk"}
    dispatch_model(model, places, main_device="cpu", offload_dir=tmp_path, force_hooks=True)
    assert captioner.family.decoder(Linear()) is None
    assert captioner.generate(batch, Decoding(max_new_tokens=12)).texts == before.texts
    torch.testing.assert_close(captioner(before).logprobs.detach(), logprobs, rtol=0, atol=2e-5)
