"""Question answering from captions: readers, permutations, credit, and the metric with its floor."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tellapart.data.dataset import CaptionDataset, Example
from tellapart.data.images import ImageFile
from tellapart.data.questions import MultipleChoice, questions_of, read_questions, write_questions
from tellapart.errors import UsageError
from tellapart.evaluation.question_answering import QuestionMeasure
from tellapart.rewards.language_model import LanguageModel
from tellapart.rewards.question_answering import (
    Asked,
    ModelReader,
    QuestionAnswering,
    answered,
    credit,
    order_of,
    prompt,
)
from tellapart.rewards.question_templates import questions_from_references
from tellapart.types import Batch, Rollout
from tiny.language_models import FAMILIES, tiny_language_model

COLOUR = MultipleChoice("what colour ?", ("red", "blue", "green"), 1)
SHAPE = MultipleChoice("which shape ?", ("star", "moon"), 0)


class WordReader:
    """Prefers options whose words are in the caption."""

    truncated = 0.0

    def answer(self, asked):
        return [[float(option in one.caption.split()) for option in one.question.options] for one in asked]

    def identity(self):
        return "words"


def rollout(texts, rows, ids):
    flat = torch.ones(len(texts), 1, dtype=torch.long)
    batch = Batch(list(ids), [[] for _ in ids], {})
    return Rollout(batch, torch.tensor(rows), list(texts), flat, flat.bool(), flat[:, 0].bool())


def plain_options(model, tokenizer, one: Asked) -> list[float]:
    """Log-probability of each option's letter after the prompt, one forward pass at a time."""
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids = [start, *tokenizer(prompt(one.caption, one), add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        chance = model(torch.tensor([ids])).logits[0, -1].double().softmax(dim=0)
    said = tokenizer.convert_ids_to_tokens(list(range(len(chance))))
    shown = [sum(chance[i] for i, t in enumerate(said) if t in (x, f"Ġ{x}", f"▁{x}")) for x in "ABC"[: len(one.order)]]
    return [math.log(shown[one.order.index(option)]) for option in range(len(one.order))]


@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if name != "llama"]
)  # its small tokenizer has no capitals
def test_a_language_model_answers_by_the_letter_of_an_option(family):
    model, tokenizer = tiny_language_model(family, positions=512)
    reader = ModelReader(LanguageModel(model, tokenizer, tokens_at_once=400))
    asked = [Asked("a red star", COLOUR, (2, 0, 1)), Asked("a moon", SHAPE, (1, 0)), Asked("", COLOUR, (0, 1, 2))]
    for found, one in zip(reader.answer(asked), asked, strict=True):
        assert found == pytest.approx(plain_options(model, tokenizer, one), abs=1e-4)
    assert reader.truncated == 0.0
    assert reader.identity().startswith("language model [")


def test_a_chat_template_writes_the_prompt():
    model, tokenizer = tiny_language_model("gpt2", positions=512)
    tokenizer.chat_template = (
        "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    )
    language_model = LanguageModel(model, tokenizer)
    assert tokenizer.decode(language_model.prompt_ids("a red star")) == "<u>a red star</u><a>"


def test_a_long_caption_is_cut_and_the_question_is_not():
    model, tokenizer = tiny_language_model("gpt2", positions=200)
    reader = ModelReader(LanguageModel(model, tokenizer))
    long = Asked("a red star on a table " * 30, SHAPE, (0, 1))
    whole = Asked("a", SHAPE, (0, 1))
    found = reader.answer([long, whole])
    assert reader.truncated == 0.5
    assert all(map(math.isfinite, [*found[0], *found[1]]))
    with pytest.raises(UsageError, match=r"has \d+ tokens with its options"):
        reader.answer([Asked("a", MultipleChoice("what " * 200, ("red", "blue"), 0), (0, 1))])


def test_letters_need_tokens_of_their_own():
    model, tokenizer = tiny_language_model("llama")
    with pytest.raises(UsageError, match="no tokens of their own for the letters"):
        ModelReader(LanguageModel(model, tokenizer))


def test_orders_belong_to_the_image_and_the_question():
    orders = [order_of(image, COLOUR, seed=0, turn=turn) for image in map(str, range(600)) for turn in range(2)]
    assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2)}
    assert len(set(orders)) == 6  # all permutations occur
    assert order_of("7", COLOUR, seed=0, turn=0) == orders[14]
    first = [order.index(1) for order in orders]  # where the right option is shown
    assert all(350 <= first.count(place) <= 450 for place in range(3))


def test_credit():
    assert credit([0.1, 0.9, 0.2], 1) == 1.0
    assert credit([0.9, 0.1], 1) == 0.0
    assert credit([0.5, 0.5, 0.1], 0) == 0.5
    assert credit([math.log(3), math.log(1)], 0, soft=True) == pytest.approx(0.75)


def test_the_reward_is_the_share_of_questions_answered_right():
    questions = {"x": [COLOUR, SHAPE], "y": [SHAPE]}
    texts = ["a blue star", "a red star", "a", "a moon", "a star"]
    found = QuestionAnswering(WordReader(), questions)(rollout(texts, [0, 0, 0, 1, 2], ["x", "y", "z"]))
    # blue star: both; red star: shape only; "a": all options tie, 1/3 and 1/2; moon: wrong; z has no questions
    assert found.tolist() == pytest.approx([1.0, 0.5, (1 / 3 + 1 / 2) / 2, 0.0, 0.0])
    soft = QuestionAnswering(WordReader(), questions, soft=True)(rollout(["a star"], [0], ["y"]))
    assert soft.tolist() == pytest.approx([math.e / (math.e + 1)])
    with pytest.raises(ValueError, match="turns=0"):
        QuestionAnswering(WordReader(), questions, turns=0)


def test_turns_average_over_orders():
    model, tokenizer = tiny_language_model("gpt2", positions=512)
    reader = ModelReader(LanguageModel(model, tokenizer))
    once = [
        credit(reader.answer([Asked("a red star", COLOUR, order_of("x", COLOUR, seed=3, turn=turn))])[0], 1, soft=True)
        for turn in range(4)
    ]
    (mean,) = answered(reader, [("x", "a red star")], {"x": [COLOUR]}, turns=4, seed=3, soft=True)
    assert mean == pytest.approx(sum(once) / 4, abs=1e-9)
    assert max(once) - min(once) > 1e-4


def test_the_metric_reports_its_floor_and_chance():
    measure = QuestionMeasure(WordReader(), {"x": [COLOUR, SHAPE], "y": [SHAPE]}, called="q.jsonl")
    metrics, columns = measure({"x": "a blue moon", "y": "a star", "z": "a"})
    assert columns["QA"] == [50.0, 100.0, None]
    assert metrics["QA"] == 75.0
    tie = (100 / 3 + 100 / 2) / 2  # without a caption all options tie
    assert columns["QA_floor"] == [pytest.approx(tie), 50.0, None] == columns["QA_chance"]
    assert metrics["QA_floor"] == pytest.approx((tie + 50) / 2)
    assert measure.measured_by == {"QA": "words, questions q.jsonl, asked 1 times, seed 0"}
    with pytest.raises(UsageError, match="no question is about one of the images"):
        measure({"z": "a"})


def test_questions_are_read_in_three_spellings_of_the_answer(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [
        {"id": 7, "question": "what ?", "options": ["a cat", "a dog"], "answer": answer} for answer in ("a dog", 1, "B")
    ]
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    found = read_questions(path)
    assert found == {"7": [MultipleChoice("what ?", ("a cat", "a dog"), 1)] * 3}
    write_questions(tmp_path / "again.jsonl", found)
    assert read_questions(tmp_path / "again.jsonl") == found


@pytest.mark.parametrize(
    ("options", "answer", "right"),
    [
        ([1, 2, 3], 2, "2"),
        ([1, 2, 3], "2", "2"),
        ([4, 5], 0, "4"),
        (["1", "2", "3"], 1, "2"),
        ([True, False], True, "True"),
    ],
)
def test_a_number_among_options_that_are_numbers_is_the_option(tmp_path, options, answer, right):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"id": 7, "question": "how many ?", "options": options, "answer": answer}))
    (question,) = read_questions(path)["7"]
    assert question.options[question.answer] == right


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "what ?", "options": ["a", "b"], "answer": "a"}, "'id'"),
        ({"id": 1, "question": "what ?", "options": ["a", "b"], "answer": "cat"}, "none of the options"),
        ({"id": 1, "question": "what ?", "options": ["a", "b"], "answer": 2}, "none of the 2 options"),
        ({"id": 1, "question": "what ?", "options": ["a"], "answer": 0}, "1 options: give 2 to 26"),
        ({"id": 1, "question": "what ?", "options": ["a", "a"], "answer": 0}, "two options are equal"),
        ({"id": 1, "question": "what ?", "options": "ab", "answer": 0}, "options is not a list"),
        ([], "indices"),
    ],
)
def test_what_is_no_question_is_told(tmp_path, row, said):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(UsageError, match=f"line 1 of .* is not a question .*{said}"):
        read_questions(path)


def named(files):
    return CaptionDataset([Example(name, ImageFile(Path(file)), ()) for name, file in files.items()], name="photos")


def test_questions_find_their_image_by_id_by_file_and_by_name_without_ending():
    photos = named({"1": "a/red.jpg", "blue": "a/2.jpg", "3": "a/c.v2.png"})
    asked = {"c.v2": [SHAPE], "blue": [SHAPE], "red.jpg": [COLOUR], "red": [SHAPE], "4": [COLOUR]}
    assert questions_of(asked, photos, "q.jsonl") == {"1": [COLOUR, SHAPE], "blue": [SHAPE], "3": [SHAPE]}
    with pytest.raises(UsageError, match=r"no question of q\.jsonl is about an image of photos"):
        questions_of({"4": [COLOUR]}, photos, "q.jsonl")


def test_questions_about_a_name_of_two_images_are_refused():
    photos = named({"a/7.jpg": "a/7.jpg", "b/7.jpg": "b/7.jpg"})
    assert questions_of({"a/7.jpg": [COLOUR]}, photos, "q.jsonl") == {"a/7.jpg": [COLOUR]}
    with pytest.raises(
        UsageError, match=r"questions of q.jsonl are about '7.jpg', but photos has several .* ids as id"
    ):
        questions_of({"7.jpg": [COLOUR]}, photos, "q.jsonl")


def test_questions_from_references_name_what_two_references_agree_on():
    references = {
        "1": ["A red car on a street.", "a red car and a dog", "the car is parked"],
        "2": ["a cat", "two cats on a grey sofa", "the gray couch"],
        "3": ["a zebra and an elephant", "a zebra", "a giraffe"],
        "4": ["nothing to see"],
    }
    found = questions_from_references(references)
    assert set(found) == {"1", "2", "3"}
    asked = {image: [(one.question, one.options[one.answer]) for one in own] for image, own in found.items()}
    assert asked["1"] == [("Which of these is in the image?", "car"), ("What colour is the car?", "red")]
    assert ("Which of these is in the image?", "cat") in asked["2"]
    assert asked["3"] == [("Which of these is in the image?", "zebra")]
    for image, own in found.items():
        for one in own:
            assert len(set(one.options)) == 4
            said = " ".join(references[image]).lower()
            assert not any(f" {option}" in said for i, option in enumerate(one.options) if i != one.answer)
    assert questions_from_references(references) == found
    assert len(questions_from_references(references, most=1)["1"]) == 1
