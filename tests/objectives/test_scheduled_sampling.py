"""Scheduled sampling of ``xe``: what is read, against recomputations without a cache, and that it depends on the image alone."""

import pytest
import torch

from tellapart.captioners.scheduled import caption_keys
from tellapart.draws import mix_seeds, uniforms
from tellapart.errors import UsageError
from tellapart.objectives.xe import XE, Experience
from tellapart.ops import reduce
from tellapart.types import Batch, Rollout
from tiny_lstm import KINDS, tiny_lstm
from tiny_lstm import batch as lstm_batch
from tiny_models import batch_of, tiny_blip, tiny_ved

RECURRENT = [*KINDS]
MAKERS = {"ved": tiny_ved, "blip": tiny_blip}
SEED, PROBABILITY = 11, 0.6


def make(name, count=4):
    """A captioner, and so many images with references."""
    if name in KINDS:
        return tiny_lstm(name), lstm_batch(name, count)
    captioner = MAKERS[name](eos_logit=1.0)
    images = batch_of(captioner, count)
    texts = [
        ["a red star on a table", "a blue ring"],
        ["a green moon"],
        ["a red circle", "a star"],
        ["a moon on a ring"],
    ]
    return captioner, Batch(images.ids, texts[:count], images.inputs)


def experience_of(captioner, images, step=7, **options):
    options = {"scheduled_sampling": PROBABILITY, "scheduled_sampling_increase": 0.2, "scheduled_sampling_steps": 1}
    torch.manual_seed(SEED)
    objective = XE(captioner, **options)
    with torch.no_grad():
        return objective, objective.collect(images, step)


def one_caption(image, tokens):
    """A rollout of one image and one caption, given as ids."""
    row = torch.tensor([tokens])
    return Rollout(image, torch.tensor([0]), [""], row, torch.ones_like(row).bool(), torch.ones(1).bool())


def slow_reading(captioner, images, rollout, seed, *, recurrent):
    """What is read, caption by caption and word by word: each drawn word from one pass over what stands before it."""
    seen: dict[int, int] = {}
    rows = []
    for n, image in enumerate(rollout.image.tolist()):
        place = seen[image] = seen.get(image, -1) + 1
        key, length = f"{images.ids[image]}/{place}", int(rollout.mask[n].sum())
        human, read = rollout.tokens[n].tolist(), rollout.tokens[n].tolist()
        chance, number = (uniforms([key], len(human), mix_seeds(seed, use))[0] for use in ("replaced", "word"))
        for t in range(length - 1):  # nothing follows on the last word
            if chance[t] >= PROBABILITY:
                continue
            before = read if recurrent else human
            asked = one_caption(images.select([image]), [*before[:t], human[t]])
            logits = captioner(asked, want=["logits"]).logits[0, t]
            logits[captioner.family.never_drawn] = -torch.inf
            shares = logits.float().softmax(dim=0).cumsum(dim=0)
            read[t] = int((shares > number[t].float() * shares[-1]).nonzero()[0])
        rows.append(read)
    return torch.tensor(rows)


@pytest.mark.parametrize("name", [*RECURRENT, *MAKERS])
def test_what_is_read_and_its_loss_are_those_of_a_slow_recomputation(name):
    captioner, images = make(name)
    objective, found = experience_of(captioner, images)
    torch.manual_seed(SEED)
    torch.randint(0, 2**62, (1,))  # the choice of references
    seed = int(torch.randint(0, 2**62, (1,)).item())
    rollout = found.rollout
    with torch.no_grad():
        wanted = slow_reading(captioner, images, rollout, seed, recurrent=name in RECURRENT)
    assert torch.equal(found.read, wanted)
    others = (wanted != rollout.tokens) & rollout.mask
    assert int(others.sum()) > 4
    # The loss: human words scored after what was read, each by one pass over the words before it.
    total, count = 0.0, 0
    for n, image in enumerate(rollout.image.tolist()):
        one = images.select([image])
        for t in range(int(rollout.mask[n].sum())):
            asked = one_caption(one, [*wanted[n, :t].tolist(), int(rollout.tokens[n, t])])
            total, count = total - captioner(asked).logprobs[0, t], count + 1
    [piece] = objective.losses(found)
    assert float(piece.weight) == count
    torch.testing.assert_close(piece.loss, total, atol=2e-4, rtol=1e-5)
    parameters = [p for p in captioner.parameters() if p.requires_grad]
    for ours, theirs in zip(
        *(torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (piece.loss, total)), strict=True
    ):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)
    shares = piece.logs["scheduled_sampling/own_words"]
    torch.testing.assert_close(shares, others.sum(dim=1) / rollout.mask.sum(dim=1))


@pytest.mark.parametrize("name", ["updown", "ved"])
def test_what_is_read_depends_on_image_and_seed_only(name):
    captioner, images = make(name)
    _, whole = experience_of(captioner, images)
    for index in ([3, 1], [2], [0, 1, 2]):
        _, part = experience_of(captioner, images.select(index))
        for place, image in enumerate(index):
            ours, theirs = part.rollout.image == place, whole.rollout.image == image
            mask = part.rollout.mask[ours]
            assert torch.equal(part.read[ours][mask], whole.read[theirs][:, : mask.shape[1]][mask])
    torch.manual_seed(SEED + 1)
    with torch.no_grad():
        other = XE(captioner, scheduled_sampling=1.0, scheduled_sampling_increase=0.6, scheduled_sampling_steps=7)
        assert not torch.equal(other.collect(images, 7).read, whole.read)


def test_the_probability_follows_from_the_step():
    """That of the code that PSST builds on: 0.05 every 5 epochs up to 0.25, with 885 steps per epoch."""
    captioner, images = make("att2in2")
    objective = XE(captioner, scheduled_sampling=0.25, scheduled_sampling_steps=4425)
    steps = [0, 4424, 4425, 8850, 22_124, 22_125, 10**6]
    assert [objective.sampling_probability(s) for s in steps] == pytest.approx([0, 0, 0.05, 0.1, 0.2, 0.25, 0.25])
    with torch.no_grad():
        before = objective.collect(images, 4424)
    assert (before.read, before.encoded) == (None, None)
    assert XE(captioner).sampling_probability(10**6) == 0


def test_every_word_read_may_be_the_captioners_own():
    """With probability 1 each word before the last is drawn, and equals the human one by chance only."""
    captioner, images = make("fc_lstm")
    objective = XE(captioner, scheduled_sampling=1.0, scheduled_sampling_increase=1.0, scheduled_sampling_steps=1)
    with torch.no_grad():
        found = objective.collect(images, 1)
    last = found.rollout.lengths - 1
    kept = found.read[torch.arange(len(last)), last]
    assert torch.equal(kept, found.rollout.tokens[torch.arange(len(last)), last])
    assert not torch.isin(found.read[found.rollout.mask], torch.tensor(captioner.family.never_drawn)).any()
    loss, weight = reduce(-captioner(found.rollout, read=found.read).logprobs, found.rollout.mask, "token_mean")
    [piece] = objective.losses(found)
    assert (piece.loss.item(), float(piece.weight)) == (loss.item(), float(weight))


def test_keys_count_the_captions_of_an_image():
    assert caption_keys(["x", "y"], torch.tensor([1, 0, 1, 1])) == ["y/0", "x/0", "y/1", "y/2"]


@pytest.mark.parametrize(
    "options",
    [{"scheduled_sampling": 1.5}, {"scheduled_sampling_increase": 0.0}, {"scheduled_sampling_steps": 0}],
)
def test_impossible_numbers_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        XE(make("fc_lstm")[0], **options)


def test_a_captioner_that_reads_only_what_it_scores_is_refused(monkeypatch):
    from tellapart.captioners.base import Captioner

    captioner, images = make("fc_lstm")
    monkeypatch.setattr(type(captioner), "own_words", Captioner.own_words)
    with pytest.raises(
        UsageError, match=r"cannot read other words than it scores: set objective.scheduled_sampling to 0"
    ):
        experience_of(captioner, images)


def test_teacher_forcing_is_an_experience_without_other_words():
    captioner, images = make("fc_lstm")
    with torch.no_grad():
        found = XE(captioner).collect(images, 3)
    assert isinstance(found, Experience)
    assert found.read is None
