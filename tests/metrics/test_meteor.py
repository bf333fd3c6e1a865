"""METEOR with a table of a few lines, its arithmetic by hand."""

import numpy as np
import pytest

from small_meteor import write_data
from tellapart.errors import UsageError
from tellapart.evaluation.aggregate import Aggregate
from tellapart.evaluation.meteor import MeteorMeasure, meteor_figures
from tellapart.metrics import meteor_data
from tellapart.metrics.meteor import (
    Match,
    Vocabulary,
    align,
    count_chunks,
    java_hash,
    meteor,
    meteor_counts,
    normalise,
    stem,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("meteor"))


@pytest.fixture
def data(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(meteor_data, "source", lambda: folder)
    return meteor_data.load_resources.__wrapped__()


def test_score_of_one_pair_by_hand(data):
    # "the couch stands" / "a sofa stands": stands exact, couch-sofa synonym: one chunk of 2 words
    corpus, values = meteor(["the couch stands"], [["a sofa stands"]], data)
    matched = 0.75 * (1.0 + 0.8)
    length = 0.75 * 2 + 0.25
    fmean = matched / length  # P = R
    assert values[0] == pytest.approx(fmean * (1 - 0.6 * (1 / 2) ** 0.2), abs=1e-12)
    assert corpus == pytest.approx(values[0])


def test_everything_in_one_chunk_has_no_penalty_and_nothing_scores_zero(data):
    values = meteor(
        ["an old man", "", "x", "the man old an"], [["an old man"], ["x"], ["y"], ["an old man the"]], data
    )[1]
    assert values.tolist()[:3] == [1.0, 0.0, 0.0]
    assert 0 < values[3] < 1


def test_stems_irregular_forms_and_phrases_match_and_are_told_apart(data):
    counts = meteor_counts(["dogs", "mice", "one couch"], [["dog"], ["rodent"], ["a sofa"]], data)
    assert counts[0, 8:12].tolist() == [1, 1, 0, 0]
    assert counts[1, 12:16].tolist() == [1, 1, 0, 0]
    assert counts[2, 16:20].tolist() == [2, 1, 0, 1]  # "a" of the reference is a function word


def test_the_best_reference_counts_and_the_corpus_is_of_sums(data):
    candidates, references = ["a dog runs", "a cat"], [["a fish", "a dog runs fast"], ["the cat"]]
    corpus, values = meteor(candidates, references, data)
    alone = [meteor(candidates[:1], [[one]], data)[0] for one in references[0]]
    assert values[0] == max(alone)
    assert corpus != pytest.approx(values.mean())


def test_a_caption_that_matches_in_one_chunk_adds_none_to_its_corpus(data):
    same = ["a dog runs", "a cat sat"]
    assert meteor(same, [[text] for text in same], data)[0] == 1.0
    # beside "old dog" (2 of 3 words in one chunk) there is that chunk only: of 3 + 2 matched words
    corpus, values = meteor(["a dog runs", "old dog"], [["a dog runs"], ["old dog barks"]], data)
    precision, recall = 1.0, (0.25 + 4 * 0.75) / (0.25 + 5 * 0.75)
    fmean = precision * recall / (0.85 * precision + 0.15 * recall)
    assert corpus == pytest.approx(fmean * (1 - 0.6 * (1 / 5) ** 0.2), abs=1e-12)
    assert values[0] == 1.0


def test_columns_give_the_corpus_value_of_any_set(data, monkeypatch):
    monkeypatch.setattr("tellapart.metrics.meteor.load_resources", lambda: data)
    candidates, references = ["a dog runs", "a cat", "mice"], [["a dog"], ["the cat sat"], ["a mouse"]]
    metrics, columns = meteor_figures(candidates, references)
    aggregate = Aggregate([*metrics], columns)
    assert aggregate.keys == ["METEOR"]
    assert aggregate(aggregate.rows.sum(axis=0))[0] == pytest.approx(metrics["METEOR"], abs=1e-12)
    twice = aggregate.rows[[0, 0, 1]].sum(axis=0)
    expected = meteor([candidates[i] for i in (0, 0, 1)], [references[i] for i in (0, 0, 1)], data)[0]
    assert aggregate(twice)[0] == pytest.approx(expected, abs=1e-12)


def test_exact_words_come_before_chunks_and_chunks_before_other_matches():
    crossing = [Match(0, 1, 1, 1, 0), Match(1, 1, 0, 1, 0), Match(0, 1, 0, 1, 2), Match(1, 1, 1, 1, 2)]
    assert [match.module for match in align(crossing, 2)] == [0, 0]
    lonely = [Match(0, 1, 0, 1, 1), Match(0, 1, 0, 1, 2)]
    assert align(lonely, 1) == []
    beside = [*lonely, Match(1, 1, 1, 1, 0)]
    assert align(beside, 2) == [lonely[0], beside[2]]
    assert count_chunks(beside[1:]) == 1


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("It's a Close-up", "it 's a close up"),
        ("12:43 at 3/4", "12 : 43 at 3 / 4"),
        ("1,000 a,b", "1,000 a , b"),
        ("st. john", "st. john"),
        ("the end.", "the end ."),
        ("u.s. 5", "us 5"),
        ("a t.v. and i.e.", "a tv and ie"),
        ("s.-based", "s. based"),
        ("the rev.", "the rev."),
        ("st. éa", "st . éa"),
        ("pp. 5 pp. x. pp.", "pp. 5 pp. x. pp ."),
        ("a,b,c 1,a", "a , b,c 1 , a"),
        ("a–b a--b", "a - b a b"),
        ("a...b .. c", "a ... b .. c"),
        ("22\u00a03/4", "22 3 / 4"),
        ("ƀ ԁ ᴀa", "ƀ ԁ ᴀa"),
        ("no. 5", "no . 5"),
        ("東京tower café", "東 京 tower café"),
        ("2-3-4", "2 3-4"),
    ],
)
def test_normaliser(sentence, words):
    assert normalise(sentence) == words.split()


def test_a_half_written_table_is_built_again(data, folder, monkeypatch, tmp_path):
    place = next((tmp_path / "cache" / "meteor").iterdir())
    before = np.load(place / "paraphrases.npy").tolist()
    (place / "paraphrases.npy").unlink()
    assert meteor_data.load_resources.__wrapped__().paraphrases.tolist() == before
    whole = (place / "paraphrases.npy").read_bytes()
    (place / "paraphrases.npy").write_bytes(whole[:-4])
    assert meteor_data.load_resources.__wrapped__().paraphrases.tolist() == before


def test_without_its_data_the_column_is_left_out_with_a_remedy(monkeypatch):
    monkeypatch.setattr(meteor_data, "source", lambda: None)
    monkeypatch.setattr("tellapart.evaluation.meteor.source", lambda: None)
    with pytest.raises(UsageError, match=r"tellapart\[meteor\]"):
        meteor_data.load_resources.__wrapped__()
    measure = MeteorMeasure({"1": ["a dog"]})
    assert measure({"1": "a dog"}) == ({}, {})
    assert "pip install 'tellapart[meteor]'" in measure.left_out["METEOR"]


JAR = {
    # of two lines with the same left phrase the earlier one is tried first, wherever its right phrase stands
    ("vast crimson huge of", "big red"): (0.23396065078644512, {16: 1, 17: 2, 18: 1, 20: 1, 21: 2, 22: 2}),
    ("big red", "vast crimson huge of"): (0.125978811961932, {16: 2, 17: 1, 19: 1, 20: 1, 21: 2, 22: 2}),
    # with the left phrases in the caption, their places there decide before the lengths in the reference
    ("pale horse dark mare", "white stallion foal"): (0.2611137785524571, {16: 2, 17: 3, 20: 1, 21: 2, 22: 3}),
    ("white stallion foal", "pale horse dark mare"): (0.1488840505004651, {16: 2, 17: 2, 20: 1, 21: 2, 22: 2}),
    # a paraphrase of 5 and 7 words counts 2 + 3, less than three exact words
    ("it is about our turn", "it is about time for us now"): (0.2320992819151619, {4: 3, 5: 3, 20: 1, 21: 3, 22: 3}),
    ("it is about time for us now", "it is about our turn"): (0.29340852619463864, {4: 3, 5: 3, 20: 1, 21: 3, 22: 3}),
    # words with equal hash codes
    ("an old man", "c0 old man"): (1.0, {4: 3, 5: 3, 20: 1, 21: 3, 22: 3}),
    # Snowball's stem of both is "realiz"
    ("the realization", "realize"): (0.22857142857142856, {8: 1, 9: 1, 20: 1, 21: 1, 22: 1}),
    ("a t.v. set", "tv set"): (0.4660191824608054, {4: 2, 5: 2, 20: 1, 21: 2, 22: 2}),
    ("the rev. s.-based no. 5", "rev s based no"): (0.21961823541256348, {4: 2, 5: 2, 20: 1, 21: 2, 22: 2}),
}
"""Caption and reference -> score and counts of matches, as meteor-1.5.jar gives them with the same small table and words."""


@pytest.mark.parametrize(("caption", "reference"), JAR)
def test_small_cases_have_the_values_of_the_jar(data, caption, reference):
    score, expected = JAR[caption, reference]
    counts = meteor_counts([caption], [[reference]], data)[0]
    assert {n: count for n, count in enumerate(counts[4:].tolist(), 4) if count} == expected
    assert meteor([caption], [[reference]], data)[0] == pytest.approx(score, abs=1e-15)


def test_a_caption_that_is_its_reference_is_aligned_word_by_word(data):
    # without the rule the general search gives the same, here among 7 * 7 exact matches and phrases
    words = ["the", "old", "man", "the", "elderly", "man", "the", "big", "red"]
    vocabulary = Vocabulary([words, ["x"]], data)
    own = vocabulary.sentence(words)
    exact = [Match(place, 1, place, 1, 0) for place in range(len(words))]
    assert vocabulary.matches(own, own) == exact
    every = [Match(n, 1, m, 1, 0) for n in range(len(words)) for m in range(len(words)) if words[n] == words[m]]
    assert align([*every, Match(1, 2, 4, 2, 3), Match(4, 2, 1, 2, 3)], len(words)) == exact


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("realization", "realiz"),
        ("theorizer's", "theoriz"),
        ("sensationally", "sensat"),
        ("irrationality", "irrat"),
        ("organization", "organ"),
        ("legatee", "legate"),
        ("rotational", "rotat"),
        ("atomizee", "atomize"),
    ],
)
def test_stems_are_those_of_the_jar(word, expected):
    assert stem(word) == expected


@pytest.mark.parametrize(
    ("word", "code"), [("siblings", 166965745), ("teheran", -1433043407 % 2**32), ("é😀", 1996812)]
)
def test_hash_codes_are_those_of_java(word, code):
    assert java_hash(word) == code


def test_of_equal_alignments_the_one_that_passed_over_less_is_taken():
    early = [Match(1, 1, 2, 1, 0), Match(3, 1, 2, 1, 0)]  # passing over the first costs |1 - 2|
    assert align(early, 4) == early[:1]
    even = [Match(0, 1, 0, 1, 0), Match(2, 1, 0, 1, 0)]  # and here nothing, so the chunk that is still open is ahead
    assert align(even, 3) == even[1:]
