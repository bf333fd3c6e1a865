"""Faults of captions: what is one, what is none, and how often people's captions are taken for one."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from hypothesis import given as cases
from hypothesis import strategies as st

from tellapart.captioning.gate import (
    EMPTY,
    LOOP,
    LOW_MATCH,
    OPENER,
    PROMPT_ECHO,
    SEVERITY,
    UNFINISHED,
    Gate,
    echoes_prompt,
    ends_midway,
    has_loop,
    is_empty,
    load_openers,
    opener_of,
    words,
)
from tellapart.errors import UsageError

OPENERS = tuple(map(tuple, load_openers()))


@pytest.mark.parametrize(
    "caption",
    [
        "a a a a a",
        "a a a .",
        "a dog dog dog on a bed",
        "A dog a dog, a dog",
        "on a table with a on a table with a on a table with a",
        "a man riding a horse a man riding a horse",
        "the sky is blue and the grass is green, the sky is blue and the grass is green",
        "a red bus on the street and a red bus on the street and a red car on the street and a red bus on the street",
        "a man in a shirt in a shirt in a shirt",
        "aaaaaaaaaaaa",
        "nice dogdogdogdog",
        "狗狗狗狗狗狗狗狗",
        "一只狗在草地上一只狗在草地上一只狗在草地上一只狗在草地上",
        "Собака собака собака",
        "1 2 3 1 2 3 1 2 3",
    ],
)
def test_loops(caption):
    assert has_loop(caption)


@pytest.mark.parametrize(
    "caption",
    [
        "",
        "a",
        "a very very old dog",
        "two dogs and two cats and two birds",
        "a man holding holding a remote",
        "a truck with a with a wooden building",
        "a sign that reads 10000000000",
        "a row of bikes, a row of cars, and a row of trees",
        "the man next to the woman next to the dog",
        "a bora bora beach, a bora bora boat",
        "一只狗在草地上跑",
        "mahimahi on a plate in Walla Walla",
        "A picture of a person holding a phone displaying a picture of a person holding a phone twice",
        "red car, blue car, red bus, blue bus, red bike, blue bike, red boat, blue boat",
        "wait........ what",
    ],
)
def test_no_loops(caption):
    assert not has_loop(caption)


@cases(st.text("ab12_", min_size=1, max_size=4), st.text("ab12_", min_size=2, max_size=3), st.integers(2, 5))
def test_letters_that_repeat_within_a_word(before, group, times):
    word = before + group * times + before[:2]
    found = any(
        word[start : start + 4 * length] == word[start : start + length] * 4 and any(map(str.isalpha, word[start:]))
        for start in range(len(word))
        for length in range(2, (len(word) - start) // 4 + 1)
    )
    assert has_loop(word) == found


def test_a_word_of_many_digits_is_read_in_time():
    """Each of its 300,000 places was once searched to its end: minutes."""
    began = time.thread_time()
    assert not has_loop("٣٤" * 150_000)
    assert time.thread_time() - began < 20


def test_vowel_signs_make_no_loop():
    """A red fox: its pieces were three times the same letter."""
    assert Gate().faults("एक लाल लोमड़ी", raw="एक लाल लोमड़ी", finished=True) == ()
    assert has_loop("लाल लाल लाल")


def test_an_opener_is_found_whatever_its_capitals_become():
    assert opener_of("İşte bir köpek", [words("İşte bir")]) == len("İşte bir")


@pytest.mark.parametrize(("caption", "empty"), [("", True), (" . ", True), ("!?", True), ("a", False), ("狗", False)])
def test_empty(caption, empty):
    assert is_empty(caption) is empty


@pytest.mark.parametrize(
    ("caption", "midway"),
    [
        ("a man on a", True),
        ("a plate of food with", True),
        ("a cat and", True),
        ("a bench to sit on", False),
        ("a woman with a dog beside her", False),
        ("the letter A.", False),
        ("", False),
    ],
)
def test_ends_midway(caption, midway):
    assert ends_midway(caption) is midway


def test_echoes_of_the_prompt():
    prompt = "Describe this image in one short sentence."
    assert echoes_prompt("Describe this image in one short sentence. A dog.", prompt)
    assert echoes_prompt("describe this image in detail", "Describe this image in detail: colours, places.")
    assert not echoes_prompt("a dog in one short pipe", prompt)
    assert not echoes_prompt("a dog", None)
    assert not echoes_prompt("caption en route", "caption en"), "two words are said by chance"


@pytest.mark.parametrize(
    ("caption", "opener"),
    [
        ("The image shows a dog", "The image shows"),
        ("the  Image, shows a dog", "the  Image, shows"),
        ("In this photo we can see a dog", "In this photo we can see"),
        ("This is a picture of a dog.", "This is a picture of"),
        ("a photograph of a dog", "a photograph of"),
        ("a picture frame on a wall", ""),
        ("the image", ""),
        ("a dog next to an image of a cat", ""),
        ("", ""),
    ],
)
def test_openers(caption, opener):
    assert caption[: opener_of(caption, OPENERS)] == opener


def test_a_list_of_openers_of_ones_own(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("# mine\nBehold a\n\n  lo, and behold \n", encoding="utf-8")
    mine = load_openers(path)
    assert mine == [["behold", "a"], ["lo", "and", "behold"]]
    assert opener_of("Lo and behold: a dog", mine) == len("Lo and behold")
    path.write_text("# mine\nHere’s a\n", encoding="utf-8-sig")
    assert load_openers(path) == [["here's", "a"]], "the mark that editors of Windows write is not a letter"
    assert (
        opener_of("Here’s a dog", load_openers(path))
        == opener_of("Here's a dog", load_openers(path))
        == len("Here's a")
    )
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match=r"names no phrase"):
        load_openers(path)
    with pytest.raises(UsageError, match="does not exist: check the path"):
        load_openers(tmp_path / "absent.txt")


def test_the_gate_names_all_faults_worst_first():
    gate = Gate(openers=OPENERS, prompt="say what you see", min_match=0.5)
    assert gate.faults("a dog", raw="a dog", finished=True, match=0.7) == ()
    said = "a picture of a a a dog with a"
    assert gate.faults(said, raw=said, finished=True, match=0.4) == (LOOP, UNFINISHED, LOW_MATCH, OPENER)
    assert gate.faults("", raw="", finished=True) == (EMPTY,)
    assert gate.faults("a dog", raw="Say what you see: a dog", finished=False) == (PROMPT_ECHO, UNFINISHED)
    assert Gate(checks=(EMPTY,)).faults("a a a", raw="a a a", finished=False) == ()
    assert gate.faults("a dog", raw="a dog a dog a dog", finished=True) == (LOOP,), "also what was cut off counts"
    assert Gate(min_match=0.5).faults("a dog", raw="a dog", finished=True) == (), (
        "a match that is not known is no fault"
    )


def test_people_are_hardly_ever_taken_for_machines(shared_data):
    """12,508 captions by people: no loop, nothing empty, none ends midway; 1.1 % do open with a phrase."""
    rows = json.loads((shared_data / "coco-captions" / "captions_val2017.json").read_text())["annotations"]
    gate = Gate(openers=OPENERS, prompt="Describe this image in detail.")
    told: Counter[str] = Counter()
    for row in rows:
        told.update(gate.faults(row["caption"], raw=row["caption"], finished=True))
    assert len(rows) == 12508
    assert told[EMPTY] == told[LOOP] == told[PROMPT_ECHO] == told[UNFINISHED] == 0
    opened = [row["caption"] for row in rows if opener_of(row["caption"], OPENERS)]
    assert told[OPENER] == len(opened) <= 0.012 * len(rows)
    kinds = {"picture", "photo", "photograph", "image", "we"}
    assert all(kinds & set(words(caption)[:6]) for caption in opened), "and these say so themselves"


def test_machines_are(shared_data):
    rows = json.loads((shared_data / "coco-captions" / "results_degenerate.json").read_text())
    assert all(has_loop(row["caption"]) for row in rows)


def test_severity_is_a_ranking():
    assert len(set(SEVERITY)) == len(SEVERITY) == 9
