"""Choosing among several captions, trying again, and what a caption may depend on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from captioning.captioning_fakes import Scripted
from tellapart.captioning.draw import Drawer, Drawing
from tellapart.captioning.gate import LENGTH, LOOP, UNFINISHED, Gate, load_openers
from tellapart.captioning.style import STYLES, Finish
from tellapart.lengths import WordRange
from tellapart.types import Batch, Decoding
from tiny_models import batch_of, tiny_blip, tiny_ved

SAMPLING = Decoding(do_sample=True, max_new_tokens=12)


def batch(*names: str) -> Batch:
    return Batch(list(names), [[] for _ in names])


def how(**options) -> Drawing:
    return Drawing(**{"decoding": Decoding(), "sampling": SAMPLING, **options})


def length(rollout):
    """A reward that likes long captions."""
    return torch.tensor([float(len(text)) for text in rollout.texts])


def test_a_failing_caption_is_drawn_again_and_only_that():
    captioner = Scripted(
        {
            "a": [["a dog"]],
            "b": [["b b b"], ["b b b b"], ["a bird"], ["never asked"]],
            "c": [["c c c"], ["c c c c"], ["c c c c c"], ["c c c c c c"]],
        }
    )
    captions = Drawer(captioner, how(resample=3))(batch("a", "b", "c"))
    assert [(c.id, c.caption, c.flags, c.attempt) for c in captions] == [
        ("a", "a dog", (), 0),
        ("b", "a bird", (), 2),
        ("c", "c c c", (LOOP,), 0),  # no try was better: the first one stays, flagged
    ]
    assert [(attempt, ids) for attempt, ids, _ in captioner.calls] == [
        (0, ["a", "b", "c"]),
        (1, ["b", "c"]),
        (2, ["b", "c"]),
        (3, ["c"]),
    ]
    assert [decoding for _, _, decoding in captioner.calls] == [Decoding(), SAMPLING, SAMPLING, SAMPLING]


def test_only_some_faults_call_for_another_try():
    captioner = Scripted({"a": [["a dog with a"], ["a dog"]], "b": [["b b b with a"], ["b"]]})
    captions = Drawer(captioner, how(resample=1, resample_on=(LOOP,)))(batch("a", "b"))
    assert [(c.caption, c.flags) for c in captions] == [("a dog with a", (UNFINISHED,)), ("b", ())]
    assert [ids for _, ids, _ in captioner.calls] == [["a", "b"], ["b"]]


def test_the_best_of_several_is_the_highest_without_faults():
    four = replace(SAMPLING, num_return_sequences=4)
    captioner = Scripted(
        {"a": [["a dog", "a brown dog", "a dog a dog a dog a dog", "a cat"]], "b": [["x", "y", "z", "y"]]}
    )
    captions = Drawer(captioner, how(decoding=four, sampling=four, reward=length, keep_all=True))(batch("a", "b"))
    assert (captions[0].caption, captions[0].score, captions[0].flags) == ("a brown dog", 11.0, ())
    ranked = [("a brown dog", 11.0), ("a dog", 5.0), ("a cat", 5.0), ("a dog a dog a dog a dog", 23.0)]
    assert list(captions[0].candidates) == ranked
    assert captions[1].caption == "x", "the first of equals"
    assert Drawer(captioner, how(decoding=four, reward=length))(batch("a"))[0].candidates == ()


def test_rewards_and_gate_see_what_will_be_written():
    openers = tuple(map(tuple, load_openers()))
    heard = []

    def match(rollout):
        heard.extend(rollout.texts)
        return torch.tensor([0.2])

    captioner = Scripted({"a": [["this is a picture of a dog"]]})
    settings = how(finish=Finish(STYLES["alt"], openers, prefix="alt: "), gate=Gate(openers=openers), match=match)
    (caption,) = Drawer(captioner, settings)(batch("a"))
    assert (caption.caption, caption.raw) == ("alt: A dog.", "this is a picture of a dog")
    assert heard == ["A dog."]
    assert caption.flags == ()
    assert caption.match == pytest.approx(0.2)


def test_a_caption_that_was_cut_is_unfinished_unless_it_ends_well():
    said = "A dog. It sleeps on a bed beside the big"
    captioner = Scripted({"a": [[said]]}, unfinished=[said])
    assert Drawer(captioner, how())(batch("a"))[0].flags == (UNFINISHED,)
    (caption,) = Drawer(captioner, how(finish=Finish(STYLES["detailed"])))(batch("a"))
    assert (caption.caption, caption.flags) == ("A dog.", ())


@pytest.mark.parametrize("make", [tiny_ved, tiny_blip])
def test_a_caption_depends_on_its_image_and_the_seed_only(make):
    captioner = make()
    whole = batch_of(captioner, 12)
    three = replace(SAMPLING, num_return_sequences=3)
    settings = how(decoding=three, sampling=three, reward=length, resample=2, seed=5)
    together = Drawer(captioner, settings)(whole)
    assert any(caption.attempt for caption in together), "some were drawn again"
    order = list(range(12))
    random.Random(0).shuffle(order)
    alone = {}
    for start in range(0, 12, 5):
        torch.manual_seed(start)  # whatever the caller's generator holds
        alone |= {c.id: c for c in Drawer(captioner, settings)(whole.select(order[start : start + 5]))}
    assert [alone[name] for name in whole.ids] == together
    other = Drawer(captioner, replace(settings, seed=6))(whole)
    assert [c.caption for c in other] != [c.caption for c in together]


def test_drawing_leaves_the_generator_of_others_alone():
    captioner = tiny_ved()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    Drawer(captioner, how(decoding=SAMPLING, resample=1))(batch_of(captioner, 2))
    assert torch.equal(torch.rand(2), expected)


def test_a_batch_too_large_for_the_memory_is_halved():
    class Small(Scripted):
        def generate(self, batch, decoding, *, encoded=None):
            if len(batch) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().generate(batch, decoding)

    names = [f"i{number}" for number in range(7)]
    captions = Drawer(Small({name: [[f"dog {name}"]] for name in names}), how())(batch(*names))
    assert [caption.caption for caption in captions] == [f"dog {name}" for name in names]


def test_captions_of_another_length_come_last_and_are_flagged():
    four = replace(SAMPLING, num_return_sequences=4)
    said = {
        "a": [["a dog", "a brown dog on a mat", "b b b", "a big dog"]],
        "b": [["a", "a long long caption of it", "b", "c"]],
    }
    settings = how(decoding=four, reward=length, keep_all=True, gate=Gate(length=WordRange(3, 5)))
    captions = Drawer(Scripted(said), settings)(batch("a", "b"))
    assert [text for text, _ in captions[0].candidates] == ["a big dog", "b b b", "a brown dog on a mat", "a dog"]
    assert captions[0].flags == ()
    assert captions[1].flags == (LENGTH,), "none of them has 3 to 5 words"
    unchecked = replace(settings, gate=Gate(checks=(), length=WordRange(3, 5)))
    captions = Drawer(Scripted(said), unchecked)(batch("a", "b"))
    assert (captions[0].caption, captions[1].flags) == ("a big dog", ())


def test_another_length_can_call_for_a_new_try():
    captioner = Scripted({"a": [["a dog"], ["a big brown dog"]]})
    settings = how(resample=1, gate=Gate(length=WordRange.parse("4-")), resample_on=(LENGTH,))
    assert [(c.caption, c.attempt) for c in Drawer(captioner, settings)(batch("a"))] == [("a big brown dog", 1)]
