"""The start-up contract accepts sound captioners and refuses every fault it names."""

import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.errors import UsageError
from tellapart.types import Decoding, Rollout, Scores
from tiny_models import batch_of, tiny_blip, tiny_ved

MAKERS = [tiny_ved, tiny_blip]


@pytest.mark.parametrize("make", MAKERS)
def test_sound_captioners_pass_and_nothing_is_left_behind(make):
    captioner = make().train()
    batch = batch_of(captioner, 3)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    start = time.process_time()
    check_captioner(captioner, batch)
    assert time.process_time() - start < 5
    assert torch.equal(torch.rand(3), expected)
    assert captioner.training
    assert all(parameter.grad is None for parameter in captioner.parameters())


@pytest.mark.parametrize("make", MAKERS)
def test_half_precision_passes(make):
    captioner = make().to(torch.bfloat16)
    check_captioner(captioner, batch_of(captioner, 2))
    captioner = make()
    with torch.autocast("cpu", torch.bfloat16):
        check_captioner(captioner, batch_of(captioner, 2))


def test_unlabelled_images_and_untrained_weights_pass():
    captioner = tiny_ved(std=0.02, eos_logit=0.0)
    batch = batch_of(captioner, 2)
    check_captioner(captioner, replace(batch, references=[[], []]))


class IgnoresImage(HuggingFaceCaptioner):
    def encode(self, batch):
        encoded = super().encode(batch)
        return replace(encoded, states=torch.zeros_like(encoded.states))


class ShiftsPositions(HuggingFaceCaptioner):
    def forward(self, rollout, *, encoded=None, want=()):
        scores = super().forward(rollout, encoded=encoded, want=want)
        return replace(scores, logprobs=scores.logprobs.roll(1, dims=1) * rollout.mask)


class DrawsTempered(HuggingFaceCaptioner):
    """Tells the log-probabilities of the tempered distribution it drew from, as processed scores do."""

    def draw(self, batch, decoding, *, encoded=None):
        rollout, _ = super().draw(batch, decoding, encoded=encoded)
        logits = self(rollout, want=["logits"]).logits / 0.7
        return rollout, logits.log_softmax(-1).gather(-1, rollout.tokens[:, :, None]).squeeze(-1) * rollout.mask


class StartsElsewhere(HuggingFaceCaptioner):
    """Draws from [CLS] and scores from BOS, as BLIP's own forward and generate do."""

    def forward(self, rollout, *, encoded=None, want=()):
        self.family.start = [2]
        try:
            return super().forward(rollout, encoded=encoded, want=want)
        finally:
            self.family.start = [1]


class DropsHumanEos(HuggingFaceCaptioner):
    def tokenize(self, batch, texts, image):
        rollout = super().tokenize(batch, texts, image)
        lengths = rollout.lengths - 1
        return replace(rollout, mask=torch.arange(rollout.mask.shape[1]) < lengths[:, None])


class LeavesHumanCaptionsOpen(DropsHumanEos):
    def tokenize(self, batch, texts, image):
        rollout = super().tokenize(batch, texts, image)
        return replace(rollout, finished=torch.zeros_like(rollout.finished))


class MasksByPadding(HuggingFaceCaptioner):
    """GPT-2's fault: padding is EOS, so `tokens != pad` drops every EOS."""

    def draw(self, batch, decoding, *, encoded=None):
        rollout, met = super().draw(batch, decoding, encoded=encoded)
        return replace(rollout, mask=rollout.tokens != self.eos_token_ids[0]), met


class RunsOnAfterEos(HuggingFaceCaptioner):
    def draw(self, batch, decoding, *, encoded=None):
        rollout, met = super().draw(batch, decoding, encoded=encoded)
        return replace(rollout, mask=torch.ones_like(rollout.mask)), met


class DoesNotScoreEos(HuggingFaceCaptioner):
    def forward(self, rollout, *, encoded=None, want=()):
        scores = super().forward(rollout, encoded=encoded, want=want)
        return Scores(scores.logprobs.masked_fill(rollout.tokens == self.eos_token_ids[0], 0.0))


class MatchesByRow(HuggingFaceCaptioner):
    """Captions are matched to images in tile order instead of by ``rollout.image``."""

    def forward(self, rollout, *, encoded=None, want=()):
        turns = torch.arange(len(rollout)) % len(rollout.batch)
        return super().forward(replace(rollout, image=turns), encoded=encoded, want=want)


class AttendsToPadding(HuggingFaceCaptioner):
    def forward(self, rollout, *, encoded=None, want=()):
        width = rollout.mask.shape[1]
        scores = super().forward(rollout, encoded=encoded, want=want)
        waste = (width - rollout.lengths).float()[:, None]
        longest = rollout.lengths.max()
        return Scores((scores.logprobs + 0.01 * (waste - (longest - rollout.lengths)[:, None])) * rollout.mask)


class Broken(HuggingFaceCaptioner):
    def forward(self, rollout, *, encoded=None, want=()):
        return Scores(super().forward(rollout).logprobs * float("nan"))


FAULTS = [
    (IgnoresImage, "ignores the image"),
    (ShiftsPositions, "positions are shifted"),
    (DrawsTempered, "away from those of drawing"),
    (StartsElsewhere, "the start token or prompt differs"),
    (DropsHumanEos, "a human caption .* does not end at its first EOS"),
    (LeavesHumanCaptionsOpen, "left unfinished"),
    (MasksByPadding, "a drawn caption .* does not end at its first EOS"),
    (RunsOnAfterEos, "a drawn caption .* does not end at its first EOS"),
    (DoesNotScoreEos, "does not score EOS"),
    (MatchesByRow, "nats"),
    (AttendsToPadding, "padding is attended to"),
    (Broken, "not finite"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_each_fault_is_refused_with_its_cause(fault, message):
    sound = tiny_ved()
    captioner = fault.from_parts(sound.family.model, sound.image_processor, sound.tokenizer).eval()
    with pytest.raises(UsageError, match=message) as caught:
        check_captioner(captioner, batch_of(captioner, 2))
    assert "\n" not in str(caught.value)


def test_images_that_are_all_alike_prove_nothing():
    captioner = tiny_ved()
    batch = batch_of(captioner, 3)
    same = {"captioner": {"pixel_values": batch.inputs["captioner"]["pixel_values"][:1].expand(3, -1, -1, -1)}}
    with pytest.raises(UsageError, match="all alike"):
        check_captioner(captioner, replace(batch, inputs=same))
    mixed = batch.select([0, 0, 1])
    check_captioner(captioner, mixed)


def test_weights_without_cross_attention_are_refused():
    """A text-only GPT-2 checkpoint put under an image tower whose attention gives nothing: the commonest silent fault."""
    captioner = tiny_ved()
    with torch.no_grad():
        for block in captioner.family.model.decoder.transformer.h:
            block.crossattention.c_proj.weight.zero_()
    with pytest.raises(UsageError, match="ignores the image"):
        check_captioner(captioner, batch_of(captioner, 2))


def test_rollouts_of_the_check_are_short():
    drawn = []

    class Watches(HuggingFaceCaptioner):
        def draw(self, batch, decoding, *, encoded=None):
            drawn.append(super().draw(batch, decoding, encoded=encoded))
            return drawn[-1]

    sound = tiny_ved()
    captioner = Watches.from_parts(sound.family.model, sound.image_processor, sound.tokenizer).eval()
    check_captioner(captioner, batch_of(captioner, 2))
    rollout: Rollout = drawn[0][0]
    assert len(rollout) == 8
    assert rollout.finished.any(), "no drawn caption ended, so its EOS was not looked at"


@pytest.mark.parametrize(("error", "accepted"), [(3e-5, True), (1e-3, False)])
def test_rounding_may_grow_with_the_log_probabilities(error, accepted):
    """float32 keeps seven digits of a logit, whatever its size; trained models have logits of 100."""

    class Rounds(HuggingFaceCaptioner):
        def draw(self, batch, decoding, *, encoded=None):
            rollout, met = super().draw(batch, decoding, encoded=encoded)
            return rollout, met * (1 + error)

    sound = tiny_ved(std=0.5)
    captioner = Rounds.from_parts(sound.family.model, sound.image_processor, sound.tokenizer).eval()
    batch = batch_of(captioner, 2)
    torch.manual_seed(0)
    _, met = captioner.draw(batch, Decoding(do_sample=True, num_return_sequences=4, max_new_tokens=20))
    assert met.abs().max() > 5
    with nullcontext() if accepted else pytest.raises(UsageError, match="away from those of drawing"):
        check_captioner(captioner, batch)
