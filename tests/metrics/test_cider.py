"""CIDEr-D against pycocoevalcap, and the properties a reward needs."""

import json
import math
import random

import numpy as np
import pytest
from pycocoevalcap.cider.cider_scorer import CiderScorer

from tellapart.metrics.cider import CiderDScorer, DocumentFrequencies, cider_d
from tellapart.metrics.tokenizer import tokenize


def peer(captions: dict[str, str], references: dict[str, list[str]]) -> dict[str, float]:
    scorer = CiderScorer(n=4, sigma=6.0)
    for name, caption in captions.items():
        scorer += (caption, references[name])
    return dict(zip(captions, scorer.compute_score()[1], strict=True))


def synthetic(images: int, seed: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Captions of few words, so that n-grams repeat within and between captions; some empty, some very short."""
    rng = random.Random(seed)

    def caption() -> str:
        return " ".join(
            rng.choices(["a", "red", "dog", "on", "the", "big", "wave", "and", "board"], k=rng.randint(0, 14))
        )

    references = {str(i): [caption() for _ in range(rng.randint(1, 5))] for i in range(images)}
    captions = {i: rng.choice([*refs, caption(), caption() + " unseen words"]) for i, refs in references.items()}
    return captions, references


@pytest.mark.parametrize(("images", "seed"), [(2, 0), (40, 1), (200, 2)])
def test_equals_pycocoevalcap_on_synthetic_captions(images, seed):
    captions, references = synthetic(images, seed)
    ours, theirs = cider_d(captions, references), peer(captions, references)
    assert ours.keys() == theirs.keys()
    np.testing.assert_allclose([*ours.values()], [*theirs.values()], rtol=0, atol=1e-9)
    assert max(ours.values()) > 0.5


def test_equals_pycocoevalcap_on_coco(shared_data):
    folder = shared_data / "coco-captions"
    wanted = json.loads((folder / "results_human.json").read_text())[:300]
    captions = {str(row["image_id"]): row["caption"] for row in wanted}
    references: dict[str, list[str]] = {name: [] for name in captions}
    for row in json.loads((folder / "references.json").read_text())["annotations"]:
        if str(row["image_id"]) in references:
            references[str(row["image_id"])].append(row["caption"])
    captions = dict(zip(captions, tokenize(captions.values()), strict=True))
    references = {name: tokenize(texts) for name, texts in references.items()}
    ours, theirs = cider_d(captions, references), peer(captions, references)
    np.testing.assert_allclose([*ours.values()], [*theirs.values()], rtol=0, atol=1e-9)


def test_hand_computed():
    # three images; every unigram of "x y" occurs in one image only, so idf = ln 3 throughout
    references = {"0": ["x y"], "1": ["p"], "2": ["q"]}
    scores = cider_d({"0": "x y", "1": "x", "2": "q q"}, references)
    # orders 1 and 2 have cosine 1, orders 3 and 4 do not exist: 10 * (1 + 1) / 4
    assert scores["0"] == pytest.approx(5.0, abs=1e-12)
    assert scores["1"] == 0
    # "q q" against "q": tf 2 clipped to 1 gives 1 * 1 / (2 * 1) for order 1; one bigram against none: exp(-1 / 72)
    assert scores["2"] == pytest.approx(10 * 0.5 * math.exp(-1 / 72) / 4, abs=1e-12)


def test_frequencies_count_images_not_captions_and_never_grow():
    frequencies = DocumentFrequencies.from_tokens({"0": ["a dog", "a dog a"], "1": ["a cat"], "2": ["no"]})
    assert frequencies.counts == {("a",): 2}  # what one image alone has weighs as if unseen and is not kept
    assert frequencies.images == 3
    scorer = CiderDScorer(frequencies)
    for caption in ("never seen words", "a dog"):
        scorer.score(caption.split(), scorer.prepare([["something", "new"], ["a", "dog"]]))
    assert frequencies.counts == {("a",): 2}
    assert len(frequencies.logs) == 1


def test_leaving_out_singletons_changes_no_score():
    captions, references = synthetic(30, 5)
    every: dict[tuple[str, ...], int] = {}
    for texts in references.values():
        words = [text.split() for text in texts]
        for gram in {tuple(w[i : i + n]) for w in words for n in (1, 2, 3, 4) for i in range(len(w) - n + 1)}:
            every[gram] = every.get(gram, 0) + 1
    full = DocumentFrequencies(every, len(references))
    assert len(full.counts) > len(DocumentFrequencies.from_tokens(references).counts)
    assert cider_d(captions, references, full) == cider_d(captions, references)


def test_an_end_token_is_counted_in_every_reference():
    frequencies = DocumentFrequencies.from_references({"0": ["A dog."], "1": ["A cat!"]}, end="<end>")
    assert frequencies.counts == {("a",): 2, ("<end>",): 2}
