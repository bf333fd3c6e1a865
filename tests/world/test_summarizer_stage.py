"""The world's summarizer: what captions say together, the objective that teaches it, and that it writes what they say."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tellapart.captioning.summary import Summarizer
from tellapart.types import Batch
from tellapart.world import load_scenes
from tellapart.world.captions import describe
from tellapart.world.grammar import Description, NounPhrase, parse, write
from tellapart.world.merging import FEWEST, MISTAKEN, MOST, draw_captions, merged
from tellapart.world.scenes import Scene, SceneObject
from tellapart.world.stages import resolve
from tellapart.world.summarizer import Merging, make_summarizer, summary_tokenizer
from tellapart.world.truth import is_true

RING = SceneObject("ring", "red", "small", "plain", 0, 0)
HEART = SceneObject("heart", "red", "large", "striped", 1, 1)
CIRCLES = (SceneObject("circle", "red", "small", "plain", 0, 0), SceneObject("circle", "blue", "large", "plain", 1, 0))


@pytest.mark.parametrize(
    ("objects", "said", "wanted"),
    [
        ((RING, HEART), ["a ring", "a red heart", "a striped heart"], "a ring and a striped red heart"),
        ((RING, HEART), ["two shapes", "two shapes on a gray background"], "two shapes on a gray background"),
        ((RING, HEART), ["a heart", "two shapes"], "a heart"),
        ((RING, HEART), ["two red shapes", "a small ring"], "a small red ring and a red shape"),
        ((RING, HEART), ["a heart below a ring"], "a ring above a heart"),
        ((RING, HEART), ["a ring left of a heart", "a ring in the top left"], "a ring in the top left left of a heart"),
        (
            (RING, HEART),
            ["a ring left of a heart", "a ring in the top left and a heart in the bottom right"],
            "a ring in the top left and a heart in the bottom right",
        ),
        # which circle is meant is clear from other captions, or not at all
        (CIRCLES, ["a circle", "a blue circle"], "a blue circle"),
        (CIRCLES, ["a circle", "a circle"], "a circle"),
        (CIRCLES, ["two circles", "a large shape"], "a circle and a large circle"),
        (CIRCLES, ["a blue shape", "a large circle"], "a large blue circle"),
    ],
)
def test_what_captions_say_together(objects, said, wanted):
    scene, parsed = Scene(objects, "gray"), [parse(text) for text in said]
    assert all(one is not None and is_true(one, scene) for one in parsed), "the example is wrong"
    assert write(merged(parsed, scene)) == wanted  # type: ignore[arg-type]


def test_a_summary_is_true_and_says_all_that_is_said_of_single_objects():
    rng = random.Random(0)
    for scene in list(load_scenes("val", size="small").values())[:60]:
        said = [describe(scene, rng) for _ in range(rng.randint(1, 6))]
        whole = merged(said, scene)
        assert is_true(whole, scene)
        assert parse(write(whole)) == whole
        for phrase in (phrase for one in said for phrase in one.phrases if phrase.count == 1):
            alone = [is_true(Description((phrase,)), replace(scene, objects=(thing,))) for thing in scene.objects]
            if sum(alone) == 1 and phrase != NounPhrase():
                told = {name: value for name, value in vars(phrase).items() if value is not None}
                assert any(told.items() <= vars(one).items() for one in whole.phrases), (phrase, whole)


def test_some_people_are_mistaken_and_draws_follow_from_the_seed():
    scenes = list(load_scenes("val", size="small").values())
    drawn = [draw_captions(scene, random.Random(i)) for i, scene in enumerate(scenes)]
    assert drawn == [draw_captions(scene, random.Random(i)) for i, scene in enumerate(scenes)]
    assert {len(captions) for captions, _ in drawn} == set(range(FEWEST, MOST + 1))
    parsed = [(parse(text), scene) for (captions, _), scene in zip(drawn, scenes, strict=True) for text in captions]
    false = [said is None or not is_true(said, scene) for said, scene in parsed]
    assert (
        0.5 * MISTAKEN < sum(false) / len(false) < 1.1 * MISTAKEN
    )  # a caption without attributes cannot be made wrong
    assert all(is_true(parse(summary), scene) for (_, summary), scene in zip(drawn, scenes, strict=True))  # type: ignore[arg-type]


def test_every_word_of_the_answer_and_its_end_count():
    """Against a sum of the model's own log-probabilities, one answer at a time, without padding."""
    tokenizer = summary_tokenizer()
    torch.manual_seed(0)
    model = make_summarizer(tokenizer).eval()
    asked = Summarizer(model, tokenizer)
    pairs = [(["a red ring", "a ring"], "a red ring"), (["a star"], "a star and two small hearts on a blue background")]
    objective = Merging(asked, lambda ids, seed: [pairs[int(name)] for name in ids])
    [piece] = objective.losses(objective.collect(Batch(["0", "1"], [[], []]), 0))
    expected, words = 0.0, 0
    for captions, answer in pairs:
        ids = [*tokenizer.convert_tokens_to_ids(answer.split()), tokenizer.eos_token_id]
        assert tokenizer.unk_token_id not in ids
        prompt = torch.tensor([tokenizer(asked.asked(captions))["input_ids"]])
        before = torch.tensor([[tokenizer.bos_token_id, *ids[:-1]]])
        logprobs = model(input_ids=prompt, decoder_input_ids=before).logits[0].log_softmax(dim=-1)
        expected -= sum(float(row[word]) for row, word in zip(logprobs, ids, strict=True))
        words += len(ids)
    assert float(piece.loss) == pytest.approx(expected, rel=1e-5)
    assert int(piece.weight) == words == 4 + 11


@pytest.mark.slow
def test_the_stage_answers_in_the_world_s_words():
    summarize = Summarizer.from_pretrained(resolve("world/summarizer", size="small"))
    found = summarize([["a red ring", "a red ring and a blue star"], ["a star"]])
    assert all(one.text.split()[0] in ("a", "an", "two", "three") for one in found)
