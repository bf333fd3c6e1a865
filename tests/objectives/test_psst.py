"""PSST and its baselines: the straight-through gradient against enumeration, whose turn it is, and what gets no gradient."""

from itertools import product

import numpy as np
import pytest
import torch
from psst_fakes import LinearListener, TableSpeaker, batch_of, learn

from given import double
from tellapart.draws import base_seed, gumbels, mix_seeds, uniforms
from tellapart.errors import UsageError
from tellapart.objectives import METHODS
from tellapart.objectives.communication import told_apart
from tellapart.objectives.joint import ListenerOnly, Luo2018, ReinforceJoint
from tellapart.objectives.psst import PSST, GumbelAnnealed
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Batch
from tiny_lstm import batch as lstm_batch
from tiny_lstm import tiny_lstm

WORDS, PLACES, IMAGES, MARGIN, WEIGHT = 3, 2, 2, 0.4, 0.3


@pytest.fixture
def parts():
    """Logits ``[I, T, V]``, word vectors ``[V, D]`` and images ``[I, D]``, all small enough for the hinge to switch."""
    numbers = np.random.default_rng(4)
    logits, weight, images = (
        numbers.normal(size=(IMAGES, PLACES, WORDS)),
        numbers.normal(size=(WORDS, 2)) * 0.3,
        numbers.normal(size=(IMAGES, 2)),
    )
    return logits, weight, images


def reward_of(caption) -> float:
    """Some number that depends on the words and their order."""
    return 0.3 * caption[0] - 0.2 * caption[1] + 0.5 * (caption == (1, 1))


def reward(rollout):
    return double([reward_of(tuple(map(int, text.split("/")[2]))) for text in rollout.texts])


def similarity_slope(similarities):
    """``d sum of hinges / d S [i, j]``."""
    slope = np.zeros_like(similarities)
    for i in range(IMAGES):
        j = max((j for j in range(IMAGES) if j != i), key=lambda j: similarities[i, j])
        if MARGIN - similarities[i, i] + similarities[i, j] > 0:
            slope[i, i] -= 1
            slope[i, j] += 1
        j = max((j for j in range(IMAGES) if j != i), key=lambda j: similarities[j, i])
        if MARGIN - similarities[i, i] + similarities[j, i] > 0:
            slope[i, i] -= 1
            slope[j, i] += 1
    return slope


def straight_through_by_enumeration(logits, weight, images):
    """The mean gradient by the logits over every pair of captions: of the hinge as if ``p`` had been passed, of the reward by
    the score function."""
    shares = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    greedy = [reward_of(tuple(row)) for row in logits.argmax(axis=2).tolist()]
    mean = np.zeros_like(logits)
    captions = list(product(range(WORDS), repeat=PLACES))
    for pair in product(captions, repeat=IMAGES):
        chance = np.prod([shares[i, t, word] for i, caption in enumerate(pair) for t, word in enumerate(caption)])
        heard = np.array([sum(weight[word] for word in caption) for caption in pair])  # [I, D]
        slope = similarity_slope(images @ heard.T)
        gradient = np.zeros_like(logits)
        for i, caption in enumerate(pair):
            by_word = weight @ (slope[:, i] @ images)  # [V]: what one more of a word changes
            advantage = reward_of(caption) - greedy[i]
            for t, word in enumerate(caption):
                p = shares[i, t]
                gradient[i, t] += WEIGHT * p * (by_word - p @ by_word)
                gradient[i, t] -= (1 - WEIGHT) * advantage * (np.eye(WORDS)[word] - p) / (IMAGES * PLACES)
        mean += chance * gradient
    return mean


def build(parts, kind=PSST, *, listener=None, **options):
    logits, weight, images = parts
    speaker = TableSpeaker(double(logits.tolist()))
    listener = listener or LinearListener(double(weight.tolist()), double(images.tolist()))
    options = {"margin": MARGIN} | ({"discriminability_weight": WEIGHT} if kind is not ListenerOnly else {}) | options
    given = () if kind is ListenerOnly else (reward,)
    return kind(speaker, *given, listener, **options), speaker, listener


def test_the_mean_gradient_of_st_multinomial_is_that_of_enumeration(parts):
    objective, speaker, _ = build(parts, **METHODS["st_multinomial"].fixed)
    gradients, batch = [], batch_of(IMAGES)
    for draw in range(800):
        torch.manual_seed(draw)
        speaker.logits.grad = None
        learn(objective, batch)
        gradients.append(speaker.logits.grad.numpy().copy())
    drawn, exact = np.stack(gradients), straight_through_by_enumeration(*parts)
    error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - exact) < 4 * error).all()
    assert np.abs(exact).max() > 20 * error.max()  # so that a wrong gradient would show


def test_passing_whole_distributions_is_the_exact_gradient_of_the_mean_caption(parts):
    objective, speaker, listener = build(parts, rho=1.0, discriminability_weight=1.0)
    learn(objective, batch_of(IMAGES))
    logits, weight, images = (double(part.tolist()) for part in parts)
    shares = logits.requires_grad_().softmax(dim=2)
    similarities = images @ (shares @ weight).sum(dim=1).T
    other = torch.flip(similarities, dims=[0])  # of two images, the other one
    own = similarities.diagonal()
    by_caption, by_image = other.diagonal(), torch.flip(similarities, dims=[1]).diagonal()
    hinge = (MARGIN - own + by_caption).clamp(min=0) + (MARGIN - own + by_image).clamp(min=0)
    hinge.sum().backward()
    torch.testing.assert_close(speaker.logits.grad, logits.grad)
    assert listener.weight.grad.abs().sum() > 0
    assert listener.images.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("method", "drawn"), [("psst", 1), ("st_multinomial", 0), ("st_gumbel", 0), ("gumbel_annealed", 0)]
)
def test_only_psst_draws_another_caption_for_naturalness(parts, method, drawn):
    kind = GumbelAnnealed if method == "gumbel_annealed" else PSST
    objective, speaker, _ = build(parts, kind, **METHODS[method].fixed)
    calls, generate = [], speaker.generate
    speaker.generate = lambda batch, decoding, **more: calls.append(decoding) or generate(batch, decoding, **more)
    _, logs = learn(objective, batch_of(IMAGES))
    assert sum(decoding.do_sample for decoding in calls) == drawn
    assert len(calls) == 1 + drawn
    assert set(logs) >= {"reward", "own_listener/hinge", "own_listener/recall@1", "temperature"}
    [relaxation] = speaker.asked
    assert (relaxation.estimator == "gumbel") == ("gumbel" in method)
    assert (relaxation.rho, relaxation.feed_soft) == ((0.25, True) if method == "psst" else (0.0, False))


def grads(module) -> list[bool]:
    return [parameter.grad is not None and bool(parameter.grad.any()) for parameter in module.parameters()]


def test_turns_follow_from_the_step(parts):
    objective, speaker, listener = build(parts, ReinforceJoint, discriminability_weight=0.8)
    for step in (0, 1, 2, 7):
        objective.zero_grad(set_to_none=True)
        learn(objective, batch_of(IMAGES), step)
        assert grads(speaker) == [step % 2 == 0]
        assert grads(listener) == [step % 2 == 1] * 2


def test_the_listeners_turn_is_the_weighted_sum_of_hinges(parts):
    objective, _, _ = build(parts, ReinforceJoint, listener_weight=0.1)
    loss, logs = learn(objective, batch_of(IMAGES), step=1)
    assert loss == pytest.approx(0.1 * float(logs["own_listener/hinge"].sum()))
    assert loss > 0


@pytest.mark.parametrize("kind", [Luo2018, ListenerOnly])
def test_what_stays_is_no_child_and_gets_no_gradient(parts, kind):
    objective, speaker, listener = build(parts, kind, margin=5.0)
    speaker.sampled = torch.tensor([[0, 1], [2, 2]])  # unlike each other and the greedy ones
    learns, stays = (speaker, listener) if kind is Luo2018 else (listener, speaker)
    [(name, child)] = objective.named_children()
    assert child is learns
    assert name == ("captioner" if kind is Luo2018 else "own_listener")
    learn(objective, batch_of(IMAGES))
    assert all(grads(learns))
    assert not any(grads(stays))
    assert objective.captioner is speaker


class OfTexts(torch.nn.Module):
    """The linear listener of words, given texts."""

    name = "own_listener"

    def __init__(self, listener):
        super().__init__()
        self.inner = listener

    def embed_images(self, batch):
        return self.inner.embed_images(batch)

    def embed_texts(self, texts):
        tokens = torch.tensor([list(map(int, text.split("/")[2])) for text in texts])
        return self.inner.embed_tokens(tokens, torch.ones_like(tokens))


@pytest.mark.parametrize("kind", [ReinforceJoint, Luo2018, ListenerOnly])
def test_a_listener_may_read_texts(parts, kind):
    found = []
    for wrap in (lambda listener: listener, OfTexts):
        torch.manual_seed(3)
        _, weight, images = parts
        listener = wrap(LinearListener(double(weight.tolist()), double(images.tolist())))
        objective, _, _ = build(parts, kind, listener=listener)
        found.append([learn(objective, batch_of(IMAGES), step)[0] for step in (0, 1)])
    assert found[0] == found[1]
    assert any(found[0])


def test_an_image_is_not_compared_with_itself_alone():
    """Its hinge was 0, and every caption counted as found."""
    images = torch.eye(2)
    with pytest.raises(UsageError, match="a step has a single one"):
        told_apart(images, images, 0.2, ["a", "a"])
    assert told_apart(images, images, 0.2, ["a", "b"])[1]["own_listener/recall@1"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", [PSST, GumbelAnnealed, ReinforceJoint, Luo2018, ListenerOnly])
def test_captions_are_told_apart_within_a_step_so_it_cannot_be_cut(parts, kind, tmp_path, monkeypatch):
    objective, _, _ = build(parts, kind)
    config = TrainConfig(output_dir=tmp_path, gradient_accumulation_steps=2, max_steps=1)
    with pytest.raises(UsageError, match=r"gradient_accumulation_steps=2 would change it: set 1"):
        train(objective, None, config)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="several processes would change it"):
        train(objective, None, TrainConfig(output_dir=tmp_path, max_steps=1))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (PSST, {"discriminability_weight": 1.5}),
        (PSST, {"rho": 2.0}),
        (PSST, {"estimator": "laplace"}),
        (PSST, {"temperature": 0.5}),
        (PSST, {"margin": -1.0}),
        (GumbelAnnealed, {"anneal_every": 0}),
        (GumbelAnnealed, {"lowest_temperature": 0.0}),
        (ReinforceJoint, {"discriminability_weight": 1.5}),
        (ReinforceJoint, {"listener_weight": 0.0}),
        (Luo2018, {"discriminability_weight": -1.0}),
        (ListenerOnly, {"margin": -1.0}),
    ],
)
def test_impossible_numbers_are_refused(parts, kind, options):
    with pytest.raises(ValueError, match=r"must|unknown|leave it out"):
        build(parts, kind, **options)


EOS_METHODS = {
    "psst": {"rho": 0.5},
    "psst_gumbel": {"rho": 0.5, "estimator": "gumbel", "temperature": 0.7},
    "st_multinomial": dict(METHODS["st_multinomial"].fixed),
    "st_gumbel": {**METHODS["st_gumbel"].fixed, "temperature": 0.7},
}


def plain_words(captioner, images, relaxation):
    """``[B][T]`` vectors, by a loop over images and words whose every pass reads the whole caption so far, without a cache.

    What is passed is written out, ``(one_hot - p).detach() + p``; after EOS, and at it where its gradient is cut, it is a
    constant.
    """
    family, seed = captioner.family, base_seed()
    model, eos = family.model, family.eos[0]
    seen = images.inputs["captioner"]
    chance = uniforms(images.ids, relaxation.max_new_tokens, seed)
    soft = uniforms(images.ids, relaxation.max_new_tokens, mix_seeds(seed, "soft")) < relaxation.rho
    captions = []
    for n in range(len(images)):
        regions, mask = seen["features"][n : n + 1], seen["mask"][n : n + 1]
        read, words = [model.embedding.weight[1]], []
        for t in range(relaxation.max_new_tokens):
            state, kept = model.start(regions), model.keep(regions, mask)
            logits = model.head(model.run(torch.stack(read)[None], state, kept, mask)[0][0, -1])
            logits = logits.index_fill(0, torch.tensor(family.never_drawn), -torch.inf)
            if relaxation.estimator == "gumbel":
                noise = gumbels(images.ids, len(logits), mix_seeds(seed, "gumbel", t))[n]
                logits = (logits + noise) / relaxation.temperature
                drawn = int(logits.argmax())
            else:
                drawn = int((logits.softmax(dim=0).cumsum(dim=0) > chance[n, t]).nonzero()[0])
            p, one_hot = logits.softmax(dim=0), torch.eye(len(logits), dtype=logits.dtype)[drawn]
            passed = p if soft[n, t] else (one_hot - p).detach() + p
            words.append(one_hot if drawn == eos and not relaxation.gradient_through_eos else passed)
            if drawn == eos:
                break
            read.append(words[-1] @ model.embedding.weight if relaxation.feed_soft else model.embedding.weight[drawn])
        captions.append(words)
    return captions


def plain_loss(objective, images):
    """The hinge of ``objective``, from words of :func:`plain_words` and loops over pairs."""
    listener, captions = objective.own_listener, plain_words(objective.captioner, images, objective.relaxation)
    heard = [sum(word @ listener.weight for word in caption) for caption in captions]
    scores = [[image @ caption for caption in heard] for image in listener.embed_images(images)]
    total = 0.0
    for i in range(len(images)):
        others = [j for j in range(len(images)) if j != i]
        hardest = [max(scores[i][j] for j in others), max(scores[j][i] for j in others)]
        total = total + sum((objective.margin - scores[i][i] + other).clamp(min=0) for other in hardest)
    return total


@pytest.mark.parametrize("method", EOS_METHODS)
def test_the_gradient_through_eos_is_that_of_a_plain_recomputation(method):
    """With both values, all gradients of captioner and listener; the two differ where captions end."""
    found = {}
    for through in (False, True):
        captioner = tiny_lstm("att2in2", eos_bias=3.0).double()
        images = lstm_batch("att2in2", 4)
        images = Batch(["0", "1", "2", "3"], images.references, images.inputs)
        images.inputs["captioner"]["features"] = images.inputs["captioner"]["features"].double()
        generator = torch.Generator().manual_seed(5)
        weight = torch.randn(captioner.family.vocab_size, 3, generator=generator).double() * 0.3
        listener = LinearListener(weight, torch.randn(4, 3, generator=generator).double())
        options = {"max_new_tokens": 6, "discriminability_weight": 1.0, "gradient_through_eos": through}
        objective = PSST(
            captioner, lambda rollout: torch.zeros(len(rollout)), listener, **EOS_METHODS[method] | options
        )
        parameters = dict(objective.named_parameters())
        torch.manual_seed(3)
        with torch.no_grad():
            experience = objective.collect(images, 0)
        state = torch.get_rng_state()
        hinge = next(iter(objective.losses(experience))).loss
        ours = torch.autograd.grad(hinge, list(parameters.values()))
        torch.set_rng_state(state)
        plain = plain_loss(objective, images)
        theirs = torch.autograd.grad(plain, list(parameters.values()))
        assert hinge.item() == pytest.approx(plain.item(), abs=1e-6)
        for name, mine, wanted in zip(parameters, ours, theirs, strict=True):
            torch.testing.assert_close(
                mine, wanted, atol=1e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )
        found[through] = torch.cat(
            [g.flatten() for g, name in zip(ours, parameters, strict=True) if "captioner" in name]
        )
    assert torch.cosine_similarity(found[False], found[True], dim=0) < 0.99


def test_an_image_that_is_twice_in_a_step_is_not_its_own_negative():
    """Images 0 and 1, of which the first is there twice: its hinge is that of the two alone."""
    images, captions = double([[1.0, 0.0], [0.6, 0.8]]), double([[0.8, 0.6], [0.0, 1.0]])
    twice = [0, 1, 0]
    alone, _ = told_apart(images, captions, 0.5, ["a", "b"])
    hinge, logs = told_apart(images[twice], captions[twice], 0.5, ["a", "b", "a"])
    # image 0: 0.5 - 0.8 + 0 and 0.5 - 0.8 + 0.96; image 1: 0.5 - 0.8 + 0.96 and 0.5 - 0.8 + 0
    torch.testing.assert_close(alone, double([0.66, 0.66]))
    torch.testing.assert_close(hinge, alone[twice])
    assert logs["own_listener/recall@1"].tolist() == [0.0, 1.0, 0.0]
