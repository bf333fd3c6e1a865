"""CIDEr against plain Python, and the properties a reward needs; against pycocoevalcap see test_coco.py."""

import logging
import math
import random

import numpy as np
import pytest

from metrics.captions import counts_of, every_count, odd_captions
from tellapart.errors import UsageError
from tellapart.metrics import bleu, frequencies, pairs
from tellapart.metrics import cider as cider_module
from tellapart.metrics.cider import CiderDScorer, PreparedReferences, cider, cider_d
from tellapart.metrics.frequencies import DocumentFrequencies


def slow_cider(caption: str, references: list[str], counts, images: int, *, clipped: bool) -> float:
    """The definition, term by term."""

    def vector(text, n):
        grams = counts_of(text, n)
        return {g: c * (math.log(images) - math.log(max(1, counts.get(g, 0)))) for g, c in grams.items()}

    total = 0.0
    for reference in references:
        for n in (1, 2, 3, 4):
            one, other = vector(caption, n), vector(reference, n)
            dot = sum((min(w, other.get(g, 0)) if clipped else w) * other.get(g, 0) for g, w in one.items())
            norms = math.hypot(*one.values()) * math.hypot(*other.values())
            bigrams = [max(len(text.split()) - 1, 0) for text in (caption, reference)]
            penalty = math.exp(-((bigrams[0] - bigrams[1]) ** 2) / 72) if clipped else 1.0
            total += penalty * dot / norms if norms else 0.0
    return 10 * total / 4 / len(references)


@pytest.mark.parametrize("clipped", [True, False])
def test_equals_the_definition_also_under_other_images_frequencies(clipped):
    captions, references = odd_captions(60, 1)
    _, others = odd_captions(120, 2)
    counts = every_count(others)
    score = cider_d if clipped else cider
    found = score(captions, references, DocumentFrequencies.from_tokens(others))
    for name, caption in captions.items():
        wanted = slow_cider(caption, references[name], counts, len(others), clipped=clipped)
        assert found[name] == pytest.approx(wanted, abs=1e-9), name
    assert max(found.values()) > 1


def test_hand_computed():
    # three images; every unigram of "x y" occurs in one image only, so idf = ln 3 throughout
    references = {"0": ["x y"], "1": ["p"], "2": ["q"]}
    scores = cider_d({"0": "x y", "1": "x", "2": "q q"}, references)
    # orders 1 and 2 have cosine 1, orders 3 and 4 do not exist: 10 * (1 + 1) / 4
    assert scores["0"] == pytest.approx(5.0, abs=1e-12)
    assert scores["1"] == 0
    # "q q" against "q": tf 2 clipped to 1 gives 1 * 1 / (2 * 1) for order 1; one bigram against none: exp(-1 / 72)
    assert scores["2"] == pytest.approx(10 * 0.5 * math.exp(-1 / 72) / 4, abs=1e-12)
    # without clipping the cosine of "q q" and "q" is 1
    assert cider({"0": "", "1": "", "2": "q q"}, references)["2"] == pytest.approx(10 / 4, abs=1e-12)


def test_one_image_is_refused_and_few_are_warned_of(caplog):
    with pytest.raises(UsageError, match="one image is 0 whatever the caption"):
        cider_d({"0": "a"}, {"0": ["a"]})
    references = {str(i): ["a dog"] for i in range(100)}
    with caplog.at_level(logging.WARNING):
        cider_d(dict.fromkeys(references, "a"), references)
    assert caplog.text == ""
    del references["0"]
    cider_d(dict.fromkeys(references, "a"), references)
    assert "only 99 images" in caplog.text


def test_batches_of_any_shape_give_each_caption_its_own_score():
    """Several captions of some images, none of others, in any order, prepared together or one by one."""
    said, references = odd_captions(150, 7)
    names = [*references]
    scorer = CiderDScorer(DocumentFrequencies.from_tokens(references))
    rows = [[text.split() for text in texts] for texts in references.values()]
    image = np.random.default_rng(0).integers(0, 90, 400)  # images 90 to 149 have no caption
    captions = [said[names[i % 37]] for i in range(400)]
    found = scorer.score([text.split() for text in captions], image, scorer.prepare(rows))
    again = scorer.score(
        [text.split() for text in captions], image, PreparedReferences.join([scorer.prepare([row]) for row in rows])
    )
    parts = PreparedReferences.join(scorer.prepare(rows).images())
    np.testing.assert_allclose(found, again, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found, scorer.score([t.split() for t in captions], image, parts), rtol=0, atol=1e-12)
    counts = every_count(references)
    for n in range(0, 400, 5):
        wanted = slow_cider(captions[n], references[names[image[n]]], counts, 150, clipped=True)
        assert found[n] == pytest.approx(wanted, abs=1e-9)


def test_scoring_adds_nothing_to_the_tables():
    frequencies = DocumentFrequencies.from_tokens({"0": ["a dog", "a dog a"], "1": ["a cat"], "2": ["no"]})
    before = dict(frequencies.counts), len(frequencies.words), len(frequencies.totals)
    scorer = CiderDScorer(frequencies)
    prepared = scorer.prepare([[["something", "new"], ["a", "dog"]]])
    known = len(scorer.vocabulary)
    first = scorer.score([["never", "seen", "words"], ["a", "dog"]], np.array([0, 0]), prepared)
    assert len(scorer.vocabulary) == known == len(frequencies.words) + 2  # the reference's new words only
    assert (dict(frequencies.counts), len(frequencies.words), len(frequencies.totals)) == before
    again = scorer.score([["never", "seen", "words"], ["a", "dog"]], np.array([0, 0]), prepared)
    assert first.tolist() == again.tolist()


def test_more_words_than_fit_in_16_bits():
    words = [f"w{i}" for i in range(70_000)]
    references = {str(i): [" ".join(words[i * 7 : i * 7 + 7])] for i in range(10_000)}
    # numbers are given in this order, so that in 16 bits the first of these would be the word 21 of image 3
    captions = {name: texts[0] for name, texts in references.items()} | {"3": f"{words[65_536 + 21]} {words[22]}"}
    found = cider_d(captions, references)
    assert found.pop("3") == pytest.approx(
        slow_cider(captions["3"], references["3"], {}, 10_000, clipped=True), abs=1e-9
    )
    assert list(found.values()) == pytest.approx([10] * 9_999)


def test_images_without_references_or_captions():
    frequencies = DocumentFrequencies.from_tokens({"0": ["a dog"], "1": ["a cat"]})
    assert cider_d({}, {}, frequencies) == {}
    with pytest.raises(ValueError, match="an image has none"):
        cider_d({"0": "a", "1": "a"}, {"0": ["a"], "1": []}, frequencies)


def test_references_of_further_images_count_for_the_frequencies():
    references = {"0": ["a b"], "1": ["c d"], "2": ["a c"]}
    counted = DocumentFrequencies.from_tokens(references)
    assert cider_d({"0": "a b"}, references) == cider_d({"0": "a b"}, {"0": ["a b"]}, counted)


def test_images_in_parts_give_the_same_numbers(monkeypatch):
    """Bit for bit: of 40 images, whatever share is split into words, counted or compared together."""
    rng = random.Random(0)

    def text(most):
        return " ".join(rng.choices("abcdef", k=rng.randint(0, most)))

    references = {str(i): [text(12) or "a" for _ in range(rng.randint(1, 4))] for i in range(40)}
    captions = {name: text(20) for name in references}

    def numbers():
        counted = DocumentFrequencies.from_tokens(references)
        tables = [counted.totals.tolist(), counted.pairs.tolist()]
        found = bleu.count_matches(list(captions.values()), list(references.values()))
        return tables, cider_d(captions, references), cider(captions, references), [part.tolist() for part in found]

    whole = numbers()
    for module, name in ((frequencies, "_IMAGES_AT_ONCE"), (cider_module, "_IMAGES"), (pairs, "_AT_ONCE")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, 7)
            assert numbers() == whole
