"""Steps that write words where no beam needs what is there, against those that keep every word."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from tellapart.captioners.beams import ReusingSteps
from tellapart.captioners.decoder import DecoderSteps
from tellapart.captioners.linear import Linear
from tiny.git import tiny_git
from tiny.qwen2_vl import tiny_qwen2_vl
from tiny_models import batch_of, tiny_blip, tiny_ved

MAKERS = {
    "GPT-2": tiny_ved,
    "GPT-2, prompt": partial(tiny_ved, prompt="a red"),
    "BLIP": tiny_blip,
    "GIT": tiny_git,
    "Qwen2-VL (grouped queries)": tiny_qwen2_vl,
}
IMAGES, BEAMS, WORDS = 5, 3, 12


def kinds(captioner):
    """Both kinds of steps for the same images."""
    family = captioner.family
    encoded = captioner.encode(batch_of(captioner, IMAGES))
    begun = family.beginning(parts := family.decoder(Linear()), encoded, family.embed)
    sizes = {"count": BEAMS, "longest": WORDS}
    return (
        DecoderSteps(parts, begun, family.embedding, beams=True, **sizes),
        ReusingSteps(parts, begun, family.embedding, **sizes),
    )


def parents(images, generator, step):
    """A row of the same image for each row; the first image goes on with one beam only, the second with each one's own."""
    within = torch.randint(BEAMS, (images, BEAMS), generator=generator)
    within[0] = step % BEAMS
    within[1] = torch.arange(BEAMS)
    return (within + torch.arange(images)[:, None] * BEAMS).flatten()


@pytest.mark.parametrize("name", MAKERS)
@torch.no_grad()
def test_states_are_those_of_steps_that_keep_every_word(name, monkeypatch):
    """Whatever lay in memory before, also once images have left."""
    monkeypatch.setattr("tellapart.captioners.decoder.SHORT", 100)
    all_words, reused = kinds(MAKERS[name]())
    for words in reused._words:
        words[:, :, :, reused._start :] = torch.nan
    generator = torch.Generator().manual_seed(0)
    images = IMAGES
    for step in range(WORDS):
        words = torch.randint(4, 40, (images * BEAMS,), generator=generator)
        torch.testing.assert_close(reused.read(words), all_words.read(words), rtol=0, atol=1e-5)
        if step == 5:
            rows = torch.arange(images * BEAMS)[2 * BEAMS :]
            images -= 2
            for steps in (all_words, reused):
                steps.keep(rows)
        parent = parents(images, generator, step)
        for steps in (all_words, reused):
            steps.follow(parent)
    assert reused._length < all_words._length == reused._start + WORDS * BEAMS


@torch.no_grad()
def test_columns_are_as_many_as_the_fullest_image_needs():
    _, steps = kinds(tiny_ved())
    words = torch.full((IMAGES * BEAMS,), 5)
    kept = [[[] for _ in range(BEAMS)] for _ in range(IMAGES)]  # the words of each beam's caption, as (step, beam)
    generator = torch.Generator().manual_seed(1)
    most = 0
    for step in range(WORDS):
        live = [len({word for beam in image for word in beam}) for image in kept]
        most = max(most, max(live) + BEAMS)
        steps.read(words)
        assert steps._length == steps._start + most
        parent = parents(IMAGES, generator, step)
        grown = [[[*beam, (step, place)] for place, beam in enumerate(image)] for image in kept]
        kept = [[grown[image][int(row) % BEAMS] for row in rows] for image, rows in enumerate(parent.view(IMAGES, -1))]
        steps.follow(parent)


def test_they_are_taken_for_beams_on_a_cpu_without_gradients(monkeypatch):
    captioner = tiny_ved()
    encoded = captioner.encode(batch_of(captioner, 2))

    def taken(beams=True):
        return type(captioner.family.steps(encoded, 3, 5, beams=beams))

    assert taken() is DecoderSteps, "gradients need what would be written over"
    with torch.no_grad():
        assert taken() is ReusingSteps
        assert taken(beams=False) is DecoderSteps
        with torch.autocast("cpu", torch.bfloat16):
            assert taken() is DecoderSteps
        rounded = replace(encoded, states=encoded.states.bfloat16())
        half = tiny_ved().to(torch.bfloat16).family.steps(rounded, 3, 5, beams=True)
        assert type(half) is DecoderSteps, "captions would depend on the other images"
        monkeypatch.setattr("tellapart.captioners.decoder.SHORT", 0)
        assert taken() is DecoderSteps, "keys and values lie head by head"
