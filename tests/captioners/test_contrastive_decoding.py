"""Contrastive decoding against the same sums over whole captions, word by word and without caches."""

import pytest
import torch
from torch import Tensor

from family_checks import TINY, make
from tellapart.captioners.contrastive import Contrast, Contrasted
from tellapart.captioners.drawing import beam_search, draw
from tellapart.captioners.steps import Steps
from tellapart.types import Decoding, Rollout
from tiny_lstm import batch as lstm_batch
from tiny_lstm import tiny_lstm
from tiny_models import batch_of, tiny_ved

FAMILIES = ["ViT + GPT-2", "BLIP", "BLIP-2 (OPT)", "BLIP-2 (T5)", "GIT", "Florence-2", "LLaVA", "Qwen2.5-VL", "LSTM"]
DISTRACTORS = torch.tensor([[1, 3], [0, 2], [4, 3]])


def captioner_and_batch(name, folder):
    if name == "LSTM":
        return tiny_lstm("att2in2").eval(), lstm_batch("att2in2", 5)
    captioner = (tiny_ved() if name == "ViT + GPT-2" else make(name, folder)).eval()
    return captioner, batch_of(captioner, 5)


class SlowSteps(Steps):
    """Every caption of B images from its first word on, in every step and for each image of its group."""

    def __init__(self, captioner, batch, group, count):
        self.captioner, self.batch, self.group = captioner, batch, group
        self.image = torch.arange(len(group)).repeat_interleave(count)
        self.words = torch.zeros(len(self.image), 0, dtype=torch.long)
        self.first = self._states(torch.arange(len(group)), self.words[: len(group)])

    def _states(self, image, words) -> Tensor:
        """``[n, group, t + 1, V]`` log-probabilities; those of the last word are of what follows."""
        rows, n = self.group[image].flatten(), len(words)
        tokens = torch.cat([words, words.new_full((n, 1), 5)], dim=1).repeat_interleave(self.group.shape[1], dim=0)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        rollout = Rollout(self.batch, rows, [""] * len(rows), tokens, mask, torch.zeros(len(rows), dtype=torch.bool))
        with torch.no_grad():
            logits = self.captioner(rollout, want=["logits"]).logits
        return logits.log_softmax(dim=-1).unflatten(0, (n, -1)).flatten(1)

    def scores(self, states, strength, vocabulary) -> Tensor:
        logprobs = states.view(len(states), self.group.shape[1], -1, vocabulary)
        if logprobs.shape[2] == 1:
            said = 0
        else:
            words = self.words[:, None, :, None].expand(-1, logprobs.shape[1], -1, 1)
            said = logprobs[:, :, :-1].gather(3, words).sum(dim=(2, 3))[:, :, None]
        return logprobs[:, 0, -1] + strength * (said + logprobs[:, :, -1]).log_softmax(dim=1)[:, 0]

    def read(self, words):
        self.words = torch.cat([self.words, words[:, None]], dim=1)
        return self._states(self.image, self.words)

    def keep(self, rows):
        self.words, self.image = self.words[rows], self.image[rows]

    def follow(self, parent):
        self.words = self.words[parent]


class Slow:
    def __init__(self, captioner, batch, distractors, strength, vocabulary):
        contrast, encoded = Contrast(distractors), captioner.encode(batch)
        self.__dict__.update(vars(Contrasted(captioner.family, contrast, encoded.select(contrast.images().flatten()))))
        self.parts = captioner, batch, torch.cat([torch.arange(len(distractors))[:, None], distractors], dim=1)
        self.strength, self.vocabulary = strength, vocabulary

    def steps(self, encoded, count, longest, *, beams=False):
        self.made = SlowSteps(*self.parts, count)
        return self.made

    def exact_logits(self, states):
        return self.made.scores(states, self.strength, self.vocabulary)

    def shortlist(self):
        return None


def both(captioner, batch, decoding, strength, uniforms=None):
    """Tokens by :class:`Contrasted`, and by :class:`Slow`."""
    with torch.no_grad():
        encoded = captioner.encode(batch)
        contrast = Contrast(DISTRACTORS, strength)
        fast = Contrasted(captioner.family, contrast, encoded.select(contrast.images().flatten()))
        states = encoded.select(range(len(DISTRACTORS)))
        slow = Slow(captioner, batch, DISTRACTORS, strength, captioner.family.vocab_size)
        if decoding.num_beams > 1:
            return tuple(beam_search(model, states, decoding) for model in (fast, slow))
        return tuple(draw(model, states, decoding, uniforms)[0] for model in (fast, slow))


@pytest.mark.parametrize("name", FAMILIES)
def test_words_are_those_of_the_sums_written_out(name, tmp_path):
    """Greedy, samples of which some end early (``keep``), and beams (``follow``), with a strength that changes captions."""
    assert name in [*TINY, "LSTM"]
    captioner, batch = captioner_and_batch(name, tmp_path)
    uniforms = torch.rand(len(DISTRACTORS) * 4, 6, generator=torch.Generator().manual_seed(1))
    greedy, beams = Decoding(max_new_tokens=6), Decoding(num_beams=3, num_return_sequences=3, max_new_tokens=6)
    samples = Decoding(do_sample=True, num_return_sequences=4, max_new_tokens=6)
    for decoding, numbers in ((greedy, None), (samples, uniforms), (beams, None)):
        fast, slow = both(captioner, batch, decoding, 3.0, numbers)
        assert fast.tolist() == slow.tolist()


def test_samples_that_ended_left_the_batch():
    """Otherwise the test above would not have met :meth:`ContrastedSteps.keep`."""
    captioner, batch = captioner_and_batch("LSTM", None)
    left = []
    encoded = captioner.encode(batch)
    contrast = Contrast(DISTRACTORS, 3.0)
    model = Contrasted(captioner.family, contrast, encoded.select(contrast.images().flatten()))
    make_steps = model.steps

    def spied(*args, **options):
        steps = make_steps(*args, **options)
        keep = steps.keep
        steps.keep = lambda rows: (left.append(len(rows)), keep(rows))
        return steps

    model.steps = spied
    uniforms = torch.rand(len(DISTRACTORS) * 4, 6, generator=torch.Generator().manual_seed(1))
    decoding = Decoding(do_sample=True, num_return_sequences=4, max_new_tokens=6)
    with torch.no_grad():
        draw(model, encoded.select(range(len(DISTRACTORS))), decoding, uniforms)
    assert left
    assert left[0] < len(DISTRACTORS) * 4


@pytest.mark.parametrize("decoding", [Decoding(max_new_tokens=6), Decoding(num_beams=3, max_new_tokens=6)], ids=str)
def test_strength_zero_is_ordinary_decoding(decoding):
    captioner = tiny_ved().eval()
    batch = batch_of(captioner, 5)
    ordinary = captioner.generate(batch.select(range(3)), decoding)
    contrasted = captioner.generate(batch, decoding, contrast=Contrast(DISTRACTORS, 0.0))
    assert contrasted.texts == ordinary.texts
    assert contrasted.ids() == ordinary.ids()


def test_strength_makes_captions_likelier_of_their_own_image():
    captioner = tiny_ved().eval()
    batch = batch_of(captioner, 5)
    posterior = []
    for strength in (0.0, 5.0):
        rollout = captioner.generate(batch, Decoding(max_new_tokens=6), contrast=Contrast(DISTRACTORS, strength))
        images = torch.cat([torch.arange(3)[:, None], DISTRACTORS], dim=1)
        sums = []
        for column in images.T:
            given = Rollout(batch, column, rollout.texts, rollout.tokens, rollout.mask, rollout.finished)
            with torch.no_grad():
                sums.append(captioner(given).logprobs.sum(dim=1))
        posterior.append(torch.stack(sums, dim=1).log_softmax(dim=1)[:, 0].mean().item())
    assert posterior[1] > posterior[0] + 0.01


def test_what_cannot_be_contrasted_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Contrast(torch.zeros(3, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="strength=-1"):
        Contrast(DISTRACTORS, -1)
