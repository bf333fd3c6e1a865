"""Gradients through drawn words: against finite differences, the published vectors, drawing and scoring."""

import math

import pytest
import torch

from family_checks import TINY
from family_checks import make as make_family
from given import double, vector
from tellapart.captioners.families.base import Family
from tellapart.captioners.families.encoder_decoder import EncoderDecoder
from tellapart.captioners.unroll import passed_words, perturbed
from tellapart.draws import gumbels
from tellapart.errors import UsageError
from tellapart.relaxation import Relaxation
from tellapart.types import Batch, Decoding
from tiny.blip2 import tiny_blip2
from tiny_lstm import KINDS, features, tiny_lstm
from tiny_lstm import batch as lstm_batch
from tiny_models import batch_of, tiny_blip, tiny_ved


def small(name, count=4, **options):
    """A tiny captioner and so many images for it."""
    if name in KINDS:
        return tiny_lstm(name), lstm_batch(name, count)
    makers = {"ved": tiny_ved, "vit": lambda **o: tiny_ved(tower="vit", **o), "blip": tiny_blip, "blip2": tiny_blip2}
    captioner = makers[name](eos_logit=2.0, **options)
    return captioner, batch_of(captioner, count)


def unrolled(captioner, images, seed=0, **options):
    torch.manual_seed(seed)
    return captioner.unroll(images, Relaxation(**{"max_new_tokens": 8, **options}))


def gradients(captioner, scalar):
    captioner.zero_grad()
    scalar.backward()
    return {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}


def weights_of(words, seed=1):
    return torch.randn(words.shape[1:], generator=torch.Generator().manual_seed(seed)).to(words)


small_kinds = pytest.mark.parametrize("name", ["fc_lstm", "att2in2", "updown", "vit", "blip", "blip2"])


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, double(expected), atol=tolerance, rtol=0)


def test_vector_psst_multinomial_mixing():
    inputs, expected, tolerance = vector("psst_multinomial_mixing")
    logits = double(inputs["logits"]).requires_grad_()
    soft = torch.tensor(inputs["soft_mask"]).bool()
    words = passed_words(logits, torch.tensor(inputs["sampled_index"]), soft)
    score = (words * double(inputs["downstream_linear_weight"])).sum()
    score.backward()
    close(logits.softmax(dim=1), expected["probs"], tolerance)
    close(words, expected["forward"], tolerance)
    close(score, expected["score"], tolerance)
    close(logits.grad, expected["grad_logits"], tolerance)


def test_vector_st_gumbel_softmax():
    inputs, expected, tolerance = vector("st_gumbel_softmax")
    logits, noise = (double(inputs[key]) for key in ("logits", "gumbel_noise"))
    scores = perturbed(logits.requires_grad_(), noise, inputs["temperature"])
    drawn = scores.argmax(dim=1)
    words = passed_words(scores, drawn, torch.tensor([False, False]))
    score = (words * double(inputs["downstream_linear_weight"])).sum()
    score.backward()
    assert drawn.tolist() == expected["index"]
    close(scores.softmax(dim=1), expected["y_soft"], tolerance)
    close(words, expected["forward"], tolerance)
    close(score, expected["score"], tolerance)
    close(logits.grad, expected["grad_logits"], tolerance)


def test_passing_words_is_the_written_out_straight_through():
    """Also where words cannot be drawn, and with nothing flowing into captions that ended."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    logits[:, 2] = -math.inf
    drawn, soft = torch.tensor([0, 1, 3, 4, 5, 8]), torch.tensor([1, 0, 1, 0, 1, 0]).bool()
    ended, weights = torch.tensor([0, 0, 0, 0, 1, 1]).bool(), torch.randn(6, 9, generator=generator).double()
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    words = passed_words(ours, drawn, soft, ended)
    spread, one_hot = theirs.softmax(dim=1), torch.nn.functional.one_hot(drawn, 9).double()
    straight = (one_hot - spread).detach() + spread
    written = torch.where(ended[:, None], one_hot, torch.where(soft[:, None], spread, straight))
    torch.testing.assert_close(words, written, atol=1e-12, rtol=0)
    (words**2 * weights).sum().backward()
    (written**2 * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-12, rtol=0)
    assert bool((words.detach().amax(dim=1) == 1)[~soft | ended].all()), "a drawn word is one-hot to the bit"


@small_kinds
@pytest.mark.parametrize("estimator", ["multinomial", "gumbel"])
def test_gradients_are_finite_differences(name, estimator):
    """With rho=1 nothing is straight-through, so the words are a smooth function of the weights, through time too."""
    captioner, images = small(name, 3)
    captioner.double()
    options = {"rho": 1.0, "estimator": estimator, "temperature": 0.7, "max_new_tokens": 5}

    def scalar():
        soft = unrolled(captioner, images, **options)
        return (soft.words**2 * weights_of(soft.words)).sum(), soft.rollout.tokens

    value, tokens = scalar()
    assert value.dtype == torch.float64
    assert tokens.shape[1] > 2
    found = gradients(captioner, value)
    learning = [(name, p) for name, p in captioner.named_parameters() if p.requires_grad]
    generator, step = torch.Generator().manual_seed(2), 1e-6
    # All weights at once, the word embeddings, and single weights of some layers.
    embeddings = {id(p) for p in captioner.family.embedding.parameters()}
    everywhere = [torch.randn(p.shape, generator=generator).double() / p.numel() ** 0.5 for _, p in learning]
    directions = [everywhere, [d * (id(p) in embeddings) for d, (_, p) in zip(everywhere, learning, strict=True)]]
    for chosen in learning[:: len(learning) // 3]:
        place = int(found[chosen[0]].abs().argmax()) if chosen[0] in found else 0
        one = torch.zeros_like(chosen[1]).flatten()
        one[place] = 1
        directions.append([one.view_as(p) if n == chosen[0] else torch.zeros_like(p) for n, p in learning])
    for direction in directions:
        wanted = sum(
            (found.get(n, torch.zeros_like(p)) * d).sum() for (n, p), d in zip(learning, direction, strict=True)
        )
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                for (_, p), d in zip(learning, direction, strict=True):
                    p += sign * step * d
                value, now = scalar()
                for (_, p), d in zip(learning, direction, strict=True):
                    p -= sign * step * d
            assert torch.equal(now, tokens), "another word was drawn"
            ends.append(value)
        measured = (ends[0] - ends[1]) / (2 * step)
        assert abs(measured - wanted) < 1e-4 * max(1.0, abs(float(wanted))), (name, float(measured), float(wanted))


@pytest.mark.parametrize("family", [*TINY, *KINDS])
def test_every_family_draws_reads_and_scores_alike(family):
    if family in KINDS:
        captioner, images = small(family, 5)
    else:
        captioner = make_family(family, None, **({"eos_logit": 2.0} if family == "BLIP-2 (OPT)" else {}))
        images = batch_of(captioner, 5)
    model, eos = captioner.family, captioner.family.eos[0]
    ids = torch.arange(model.vocab_size)
    with torch.no_grad():
        table = model.word_embeddings()
        assert torch.equal(torch.eye(len(ids), dtype=table.dtype) @ table, model.embed(ids[None])[0])
    # The words of rho=0 are those of sampling, whatever is fed, and one-hot.
    torch.manual_seed(0)
    drawn = captioner.generate(images, Decoding(do_sample=True, max_new_tokens=8))
    for feed_soft in (False, True):
        soft = unrolled(captioner, images, rho=0.0, feed_soft=feed_soft)
        assert torch.equal(soft.rollout.tokens, drawn.tokens)
        assert torch.equal(soft.rollout.mask, drawn.mask)
        assert soft.rollout.texts == drawn.texts
        shown = drawn.tokens.masked_fill(~drawn.mask, eos)
        assert torch.equal(soft.words, torch.nn.functional.one_hot(shown, len(ids)).to(soft.words))
    # The distributions met, where drawn words are fed, are those of scoring the drawn words.
    soft = unrolled(captioner, images, rho=1.0, feed_soft=False)
    logits = captioner(soft.rollout, want=["logits"]).logits
    logits[:, :, model.never_drawn] = -math.inf
    running = soft.rollout.mask & ~torch.isin(soft.rollout.tokens, torch.tensor(model.eos))
    assert int(running.sum()) > 3
    torch.testing.assert_close(soft.words[running], logits[running].softmax(dim=-1), atol=1e-5, rtol=1e-3)
    found = gradients(captioner, (soft.words * weights_of(soft.words)).sum())
    assert all(bool(torch.isfinite(g).all()) for g in found.values())
    assert sum(bool(g.any()) for g in found.values()) > 3


@small_kinds
def test_a_mixture_is_what_the_next_step_reads(name):
    """Against one pass over all mixtures, of which the drawn words are no part."""
    captioner, images = small(name)
    soft = unrolled(captioner, images, rho=1.0)
    family, encoded, rows = captioner.family, captioner.encode(images), torch.arange(len(images))
    with torch.no_grad():
        cache = family.new_cache()
        first = family.prefix(encoded, cache)[:, None]
        mixtures = soft.words[:, :-1] @ family.word_embeddings()
        handed = mixtures.clone()
        read = family.decode_embedded(handed, encoded, rows, cache)
        assert torch.equal(handed, mixtures), "what the caller handed over was changed"
        logits = family.exact_logits(torch.cat([first, read], dim=1))
    logits[:, :, family.never_drawn] = -math.inf
    running = soft.rollout.mask & (soft.rollout.tokens != family.eos[0])
    torch.testing.assert_close(soft.words[running], logits[running].softmax(dim=-1), atol=1e-5, rtol=1e-3)
    fed = unrolled(captioner, images, rho=1.0, feed_soft=False)
    assert torch.equal(fed.words[:, 0], soft.words[:, 0])
    width = min(fed.words.shape[1], soft.words.shape[1])
    assert not torch.allclose(fed.words[:, 1:width], soft.words[:, 1:width], atol=1e-3)


@small_kinds
def test_what_flows_through_and_after_the_first_eos(name):
    captioner, images = small(name, 12)
    soft = unrolled(captioner, images, rho=1.0, gradient_through_eos=False)
    tokens, mask, eos = soft.rollout.tokens, soft.rollout.mask, captioner.family.eos[0]
    after = ~mask | (tokens == eos)
    assert bool((~mask).any()), "captions of one length"
    rows = soft.words[after]
    assert torch.equal(rows, torch.nn.functional.one_hot(torch.full((len(rows),), eos), rows.shape[1]).to(rows))
    weights = weights_of(soft.words)
    blocked = torch.autograd.grad((soft.words * weights * after[:, :, None]).sum(), captioner.family.embedding.weight)
    assert not blocked[0].any()
    assert bool(torch.allclose(soft.words.sum(dim=2), torch.ones(()), atol=1e-5))
    # By default the step that draws the first EOS is like any other, and what follows stays as it was.
    through = unrolled(captioner, images, rho=1.0)
    assert torch.equal(through.rollout.tokens, tokens)
    first = mask & (tokens == eos)
    assert bool((through.words[first].amax(dim=1) < 1).all()), "the whole distribution is passed"
    assert torch.equal(through.words[~first], soft.words[~first])
    of_eos = torch.autograd.grad(
        (through.words * weights * first[:, :, None]).sum(), captioner.family.embedding.weight, retain_graph=True
    )
    assert bool(of_eos[0].any())
    later = torch.autograd.grad((through.words * weights * ~mask[:, :, None]).sum(), captioner.family.embedding.weight)
    assert not later[0].any()


@small_kinds
@pytest.mark.parametrize("estimator", ["multinomial", "gumbel"])
def test_a_caption_depends_on_image_and_seed_only(name, estimator):
    captioner, images = small(name, 5)
    options = {"estimator": estimator, "rho": 0.5}
    whole = unrolled(captioner, images, **options)
    for index in ([4, 3, 2, 1, 0], [2], [1, 4]):
        part = unrolled(captioner, images.select(index), **options)
        assert part.rollout.texts == [whole.rollout.texts[i] for i in index]
        width = part.words.shape[1]
        torch.testing.assert_close(part.words, whole.words[index][:, :width], atol=1e-5, rtol=0)
    assert unrolled(captioner, images, seed=1, **options).rollout.texts != whole.rollout.texts


@pytest.mark.parametrize("name", ["fc_lstm", "att2in2", "updown", "ved", "blip", "blip2"])
@pytest.mark.parametrize("feed_soft", [True, False])
def test_checkpointing_changes_no_gradient_and_keeps_less(name, feed_soft):
    """Nor does the mode the captioner is in on the way back: with dropout the recomputed steps would differ."""
    kept, found = [], []
    captioner, images = small(name, 6)
    for checkpointed in (False, True):
        captioner.checkpoints_layers = checkpointed
        captioner.train()
        size = [0]

        def pack(tensor, size=size):
            size[0] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            soft = unrolled(captioner, images, rho=0.5, feed_soft=feed_soft)
        kept.append(size[0])
        assert captioner.training
        found.append(gradients(captioner, (soft.words**2 * weights_of(soft.words)).sum()))
    assert found[0].keys() == found[1].keys()
    for parameter, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][parameter], atol=1e-6, rtol=1e-5)
    assert kept[1] < 0.8 * kept[0]


def test_layers_that_are_checkpointed_keep_their_cache():
    """Hugging Face's checkpointed layers drop the cache in train mode: each word would see only the one before it."""
    plain, images = small("ved")
    captioner, _ = small("ved", gradient_checkpointing=True)
    wanted = gradients(plain, (unrolled(plain, images).words[:, -1] ** 2).sum())
    found = gradients(captioner.train(), (unrolled(captioner, images).words[:, -1] ** 2).sum())
    for parameter, gradient in wanted.items():
        torch.testing.assert_close(gradient, found[parameter], atol=1e-6, rtol=1e-5)


def test_train_mode_changes_nothing_and_gradients_reach_a_tower_that_trains():
    captioner, images = small("ved", train="all")
    wanted = unrolled(captioner, images)
    captioner.train()
    soft = unrolled(captioner, images)
    assert torch.equal(soft.words, wanted.words)
    assert captioner.training
    assert captioner.family.model.decoder.training
    found = gradients(captioner, (soft.words**2).sum())
    assert any(name.startswith("network.encoder") and bool(g.any()) for name, g in found.items())
    with torch.no_grad():
        encoded = captioner.encode(images)
        torch.manual_seed(0)
        given = captioner.eval().unroll(images, Relaxation(max_new_tokens=8), encoded=encoded)
    assert torch.equal(given.words, wanted.words)
    assert not given.words.requires_grad


def test_a_one_hot_word_embeds_exactly_under_autocast():
    captioner, images = small("ved", 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, fed = (unrolled(captioner, images, rho=0.0, feed_soft=feed) for feed in (True, False))
        assert torch.equal(mixed.words, fed.words)
        soft = unrolled(captioner, images, rho=1.0)
    assert soft.words.dtype == torch.float32
    (soft.words**2).sum().backward()


@pytest.mark.parametrize("estimator", ["multinomial", "gumbel"])
def test_rho_is_the_share_of_whole_distributions(estimator):
    """Within four standard errors of a quarter; and first words are drawn from the distribution (chi-square, p above 1e-4)."""
    captioner, count = tiny_lstm("fc_lstm", eos_bias=0.0), 3000
    one = {"captioner": {"features": features("fc_lstm", 1)["features"].expand(count, -1)}}
    images = Batch([f"{i}" for i in range(count)], [[]] * count, one)
    with torch.no_grad():
        soft = unrolled(captioner, images, rho=0.25, estimator=estimator, max_new_tokens=4, feed_soft=False)
        expected = count * spread_of(captioner, images)
    running = soft.rollout.mask & (soft.rollout.tokens != captioner.family.eos[0])
    share = (soft.words[running].amax(dim=1) < 1).double().mean()
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / int(running.sum())) ** 0.5
    by_step = [(soft.words[:, t][running[:, t]].amax(dim=1) < 1).double() for t in range(4)]
    assert all(abs(s.mean() - 0.25) < 5 * (0.25 * 0.75 / len(s)) ** 0.5 for s in by_step)
    tokens = soft.rollout.tokens[:, 0]
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    statistic = ((observed - wanted).square() / wanted.clamp(min=1e-9)).sum()
    degrees = torch.tensor(float(len(observed) - 1), dtype=torch.float64)
    assert torch.special.gammaincc(degrees / 2, statistic / 2) > 1e-4
    assert not counts[captioner.family.never_drawn].any()


def spread_of(captioner, images):
    """``[V]`` of the first image's first word."""
    family = captioner.family
    logits = family.exact_logits(family.prefix(captioner.encode(images.select([0])), family.new_cache()))[0].double()
    logits[family.never_drawn] = -math.inf
    return logits.softmax(dim=0)


def test_gumbel_noise_is_standard_and_of_the_image():
    noise = gumbels(["a", "b"], 200_000, 3)
    assert bool(torch.isfinite(noise).all())
    assert abs(noise.mean() - 0.5772157) < 4 * (math.pi**2 / 6 / noise.numel()) ** 0.5
    assert abs(noise.var() - math.pi**2 / 6) < 0.02
    assert torch.equal(gumbels(["c", "b"], 50, 3)[1], gumbels(["b"], 50, 3)[0])
    assert not torch.equal(gumbels(["b"], 50, 3), gumbels(["b"], 50, 4))


class Opaque(EncoderDecoder):
    """A family that embeds words in a way of its own."""

    embedding = Family.embedding

    def embed(self, tokens):
        return self.model.decoder.transformer.wte(tokens)


def test_a_family_that_cannot_mix_words_is_refused_in_one_sentence():
    captioner, images = small("ved")
    captioner.family = Opaque(captioner.family.model, captioner.family.processors)
    with pytest.raises(UsageError, match=r"cannot read mixtures of words.*feed_soft") as refused:
        unrolled(captioner, images)
    assert str(refused.value).count(". ") == 0
    assert unrolled(captioner, images, feed_soft=False).words.requires_grad
