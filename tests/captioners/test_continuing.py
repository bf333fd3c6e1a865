"""Continuing captions from their prefixes: against one caption at a time, and the probabilities that they must follow."""

from dataclasses import replace

import pytest
import torch

from family_checks import TINY
from family_checks import make as make_family
from tellapart.captioners.drawing import inverse_cdf
from tellapart.captioners.noise import ImageNoise
from tellapart.draws import normals, uniforms
from tellapart.errors import UsageError
from tellapart.types import Decoding
from tiny_lstm import KINDS, tiny_lstm
from tiny_lstm import batch as lstm_batch
from tiny_models import batch_of, tiny_blip, tiny_ved

LONGEST, COUNT = 7, 3
SAMPLES = Decoding(do_sample=True, num_return_sequences=COUNT, max_new_tokens=LONGEST)
NAMES = ["fc_lstm", "att2in2", "ved", "blip"]


def small(name, count=4):
    if name in KINDS:
        return tiny_lstm(name), lstm_batch(name, count)
    captioner = {"ved": tiny_ved, "blip": tiny_blip}[name](eos_logit=5.0)
    return captioner, batch_of(captioner, count)


def drawn(captioner, batch):
    torch.manual_seed(5)
    return captioner.generate(batch, Decoding(do_sample=True, max_new_tokens=LONGEST))


def continued(captioner, rollout, **options):
    torch.manual_seed(9)
    return captioner.continue_from(rollout, SAMPLES, **options)


def slowly(captioner, rollout, shortest):
    """Every continuation alone, word by word, from the scores of what it has so far."""
    torch.manual_seed(9)
    seed, found = int(torch.randint(0, 2**62, (1,)).item()), []
    never = captioner.family.never_drawn
    for n in range(len(rollout)):
        numbers = uniforms([rollout.ids()[n]], LONGEST * COUNT * LONGEST, seed).view(LONGEST, COUNT, LONGEST).float()
        for kept in range(shortest, int(rollout.lengths[n])):
            for sample in range(COUNT):
                words = rollout.tokens[n, :kept].tolist()
                while len(words) < LONGEST and (not words or words[-1] not in captioner.family.eos):
                    tokens = torch.tensor([[*words, 0]])
                    asked = replace(rollout.select([n]), tokens=tokens, mask=torch.ones_like(tokens).bool(), texts=[""])
                    logits = captioner(asked, want=("logits",)).logits[:, len(words)]
                    logits[:, never] = -torch.inf
                    words += inverse_cdf(logits, numbers[kept, sample, len(words)][None]).tolist()
                found.append((n, kept, words))
    return found


def rows(found):
    """``(caption, length of the prefix, tokens)`` of each continuation."""
    lengths = found.rollout.lengths.tolist()
    return [
        (n, kept, tokens[:length])
        for n, kept, tokens, length in zip(
            found.caption.tolist(), found.length.tolist(), found.rollout.tokens.tolist(), lengths, strict=True
        )
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shortest", [0, 1])
@torch.no_grad()
def test_all_at_once_are_those_of_one_at_a_time(name, shortest):
    captioner, batch = small(name)
    rollout = drawn(captioner, batch)
    found = continued(captioner, rollout, shortest=shortest)
    assert rows(found) == slowly(captioner, rollout, shortest)
    assert len(set(rollout.lengths.tolist())) > 1, "captions of one length would leave leaving rows untested"
    assert found.rollout.image.tolist() == rollout.image[found.caption].tolist()
    assert found.rollout.batch is batch


@pytest.mark.parametrize("name", ["att2in2", "ved"])
def test_they_depend_on_image_and_seed_only(name):
    captioner, batch = small(name)
    whole = rows(continued(captioner, drawn(captioner, batch)))
    part = rows(continued(captioner, drawn(captioner, batch.select([2, 1]))))
    assert part == [(0, *row[1:]) for row in whole if row[0] == 2] + [row for row in whole if row[0] == 1]


@pytest.mark.parametrize("name", sorted(TINY))
def test_every_family_continues_what_it_drew(name, tmp_path):
    captioner = make_family(name, tmp_path)
    rollout = drawn(captioner, batch_of(captioner, 3))
    for n, kept, tokens in rows(continued(captioner, rollout, shortest=0)):
        assert tokens[:kept] == rollout.tokens[n, :kept].tolist()


@torch.no_grad()
def test_words_come_as_often_as_the_captioner_says():
    captioner, batch = small("fc_lstm", 1)
    rollout = drawn(captioner, batch)
    assert int(rollout.lengths[0]) > 2
    torch.manual_seed(0)
    many = replace(SAMPLES, num_return_sequences=4000)
    found = captioner.continue_from(rollout, many, shortest=2)
    third = found.rollout.tokens[found.length == 2, 2]
    expected = captioner(rollout, want=("logits",)).logits[0, 2]
    expected[captioner.family.never_drawn] = -torch.inf
    shares = torch.bincount(third, minlength=len(expected)) / len(third)
    torch.testing.assert_close(shares, expected.softmax(dim=0), atol=0.03, rtol=0)


def test_captions_of_one_word_have_no_prefix_to_continue():
    captioner, batch = small("fc_lstm", 2)
    only_ends = captioner.tokenize(batch, ["", ""], torch.arange(2))
    found = continued(captioner, only_ends)
    assert len(found.rollout) == len(found.caption) == 0
    assert len(continued(captioner, only_ends, shortest=0).rollout) == 2 * COUNT


def test_what_cannot_be_continued_is_refused():
    captioner, batch = small("fc_lstm", 2)
    rollout = drawn(captioner, batch)
    for decoding in (Decoding(max_new_tokens=LONGEST), replace(SAMPLES, max_new_tokens=1)):
        with pytest.raises(ValueError, match="continuations are samples"):
            captioner.continue_from(rollout, decoding)
    captioner, batch = small("ved", 2)
    with pytest.raises(UsageError, match="max_new_tokens is 200, but the model can hold 96 tokens"):
        captioner.continue_from(drawn(captioner, batch), replace(SAMPLES, max_new_tokens=200))


# Noise on image states.


def noise_for(encoded, **options):
    torch.manual_seed(3)
    return ImageNoise(encoded.states.shape[2], **options)


@pytest.mark.parametrize("name", NAMES)
def test_noise_changes_captions_and_gets_gradients(name):
    captioner, batch = small(name)
    encoded = captioner.encode(batch)
    noise = noise_for(encoded, size=5, scale=2.0)
    samples = [
        captioner.generate(batch, Decoding(max_new_tokens=LONGEST), encoded=noise(encoded, noise.draw(batch.ids, seed)))
        for seed in (1, 2, 3)
    ]
    assert len({tuple(sample.texts) for sample in samples}) > 1
    rollout = drawn(captioner, batch)
    captioner(rollout, encoded=noise(encoded, noise.draw(batch.ids, 1))).logprobs.sum().backward()
    assert float(noise.projection.weight.grad.abs().sum()) > 0


def test_noise_by_hand():
    captioner, batch = small("att2in2", 2)
    encoded = captioner.encode(batch)
    noise = noise_for(encoded, size=2, scale=0.5)
    z = noise.draw(batch.ids, 7)
    assert torch.equal(z, normals(batch.ids, 2, 7).float())
    noisy, weight = noise(encoded, z).states, noise.projection.weight.tolist()
    for b in range(2):
        numbers = encoded.states[b, encoded.mask[b]].flatten().tolist()
        size = (sum(x * x for x in numbers) / len(numbers)) ** 0.5
        for region in range(encoded.states.shape[1]):
            for d in range(encoded.states.shape[2]):
                added = sum(weight[d][k] * float(z[b, k]) for k in range(2))
                expected = float(encoded.states[b, region, d]) + 0.5 * size * added
                assert float(noisy[b, region, d]) == pytest.approx(expected, abs=1e-6)
    assert torch.equal(noise(encoded, torch.zeros(2, 2)).states, encoded.states)


def test_noise_is_found_again_in_a_checkpoint(tmp_path):
    from safetensors.torch import save_model

    noise = ImageNoise(4, size=3, scale=0.7)
    save_model(noise, str(tmp_path / "model.safetensors"))
    again = ImageNoise.from_pretrained(tmp_path)
    assert torch.equal(again.projection.weight, noise.projection.weight)
    assert float(again.scale) == pytest.approx(0.7)
    with pytest.raises(UsageError, match="holds no noise"):
        ImageNoise.from_pretrained(tmp_path / "nowhere")


def test_normal_numbers_are_normal():
    found = normals([str(i) for i in range(200)], 50, 1).flatten()
    assert abs(float(found.mean())) < 0.05
    assert float(found.std()) == pytest.approx(1.0, abs=0.05)
