"""Finding the first wrong word: which words of a text teach, and what they cost."""

import math

import pytest
import torch

from tellapart.captioners.scoring import length_buckets
from tellapart.errors import UsageError
from tellapart.objectives.first_wrong_word import (
    NOTHING_WRONG,
    SOMEWHERE_WRONG,
    FirstWrongWord,
    Readings,
    right_and_first_wrong,
)
from tellapart.types import Batch
from tiny_late import pictures, tiny_late

READINGS = Readings(
    ["a red star", "two shapes", "a blue ring above a star"],
    [0, 0, 1, 2, 2],
    ["x", "y", "x", "z", "y"],
    # True of x; "red" is wrong of y; the end comes too soon; true of z; "above" is wrong of y.
    [NOTHING_WRONG, 1, 2, NOTHING_WRONG, 3],
)


@pytest.fixture
def objective() -> FirstWrongWord:
    made = FirstWrongWord(tiny_late(), lambda ids, seed: READINGS)
    made.know_images(pictures())
    return made


def test_words_before_the_first_wrong_one_are_right_and_those_after_say_nothing():
    mask = torch.tensor([[True] * 5, [True] * 5, [True, True, True, True, False]])  # BOS, three words, EOS; two words
    right, wrong = right_and_first_wrong(mask, torch.tensor([NOTHING_WRONG, 1, 2]))
    assert right.int().tolist() == [[0, 1, 1, 1, 1], [0, 1, 0, 0, 0], [0, 1, 1, 0, 0]]
    assert wrong.int().tolist() == [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]


def test_the_loss_is_the_negative_log_likelihood_of_the_first_wrong_word(objective):
    [output] = objective.losses(READINGS)
    expected = 0.0
    for row, name, wrong in zip(READINGS.text, READINGS.images, READINGS.first_wrong, strict=True):
        words = word_logprobs(objective, READINGS.texts[row], name)
        last = len(words) if wrong == NOTHING_WRONG else wrong
        expected -= sum(words[:last])
        if wrong != NOTHING_WRONG:
            expected -= math.log(1 - math.exp(words[wrong]))
    assert output.loss.item() == pytest.approx(expected, rel=1e-4)
    assert output.weight.item() == 5
    assert (len(output.logs["accuracy/true"]), len(output.logs["accuracy/false"])) == (2, 3)


def test_a_text_that_is_wrong_somewhere_costs_what_all_its_words_together_claim(objective):
    readings = Readings(READINGS.texts, [0, 1, 2], ["y", "x", "y"], [SOMEWHERE_WRONG, SOMEWHERE_WRONG, NOTHING_WRONG])
    [output] = objective.losses(readings)
    whole = [sum(word_logprobs(objective, READINGS.texts[row], readings.images[row])) for row in range(3)]
    expected = -math.log(1 - math.exp(whole[0])) - math.log(1 - math.exp(whole[1])) - whole[2]
    assert output.loss.item() == pytest.approx(expected, rel=1e-4)
    assert (len(output.logs["accuracy/true"]), len(output.logs["accuracy/false"])) == (1, 2)


def word_logprobs(objective, text, name) -> list[float]:
    """Of each word and EOS, by the model alone, one text and image at a time."""
    listener = objective.listener
    picture = next(example for example in pictures() if example.id == name)
    with torch.no_grad():
        vectors = listener.vectors(listener.process([picture.image.open()]))[0]
        tokens, mask = listener.tokens([text])
        queries, offsets = listener.model.word_checks(tokens, mask)
        found = (queries[0] @ vectors.T).amax(dim=-1) + offsets[0]
    return torch.nn.functional.logsigmoid(found).sum(dim=-1)[1:].tolist()


def test_texts_of_each_length_are_read_alone_or_all_together_alike(objective, monkeypatch):
    [whole] = objective.losses(READINGS)
    monkeypatch.setattr(
        "tellapart.objectives.first_wrong_word.length_buckets", lambda lengths: length_buckets(lengths, overhead=0)
    )
    [apart] = objective.losses(READINGS)
    assert len(length_buckets([5, 4, 8], overhead=0)) == 3 > len(length_buckets([5, 4, 8])) == 1
    assert apart.loss.item() == pytest.approx(whole.loss.item(), rel=1e-5)


def test_towers_and_readings_keep_their_weights(objective):
    learns = {name.split(".")[0] for name, p in objective.model.named_parameters() if p.requires_grad}
    assert "text_model" in learns
    assert learns.isdisjoint({"vision_model", "reading"})


def test_texts_follow_from_the_seed():
    seen = []

    def read(ids, seed):
        seen.append((tuple(ids), seed))
        return READINGS

    objective = FirstWrongWord(tiny_late(), read)
    for _ in range(2):
        torch.manual_seed(3)
        objective.collect(Batch(["x", "y"], [[], []]), 0)
    assert seen[0] == seen[1]
    assert seen[0][0] == ("x", "y")


def test_a_tokenizer_of_word_parts_and_unknown_images_are_refused(objective, monkeypatch):
    with pytest.raises(UsageError, match="image 'w' has no states"):
        list(objective.losses(Readings(["a star"], [0], ["w"], [NOTHING_WRONG])))
    with pytest.raises(UsageError, match="has 14 words but 10 tokens"):
        list(objective.losses(Readings([" ".join(["red"] * 14)], [0], ["x"], [NOTHING_WRONG])))
