"""METEOR held against the Java program that pycocoevalcap ships, and against its recorded values."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from metrics.odd_captions import odd_captions
from tellapart.metrics import meteor_data
from tellapart.metrics.meteor import meteor, meteor_counts
from tellapart.metrics.ptb import ptb_tokenize

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(meteor_data.source() is None, reason="needs pycocoevalcap"),
]
KNOWN = {"human": {"129492", "521819"}, "shuffled": set(), "degenerate": set()}
"""Images whose value differs: paraphrases of equal rank, tried in an order that is not known (docs/metrics.md)."""


def captions_of(folder: Path, name: str):
    references: dict[int, list[str]] = {}
    for row in json.loads((folder / "references.json").read_text())["annotations"]:
        references.setdefault(row["image_id"], []).append(row["caption"])
    results = json.loads((folder / f"results_{name}.json").read_text())
    targets = [ptb_tokenize(references[row["image_id"]]) for row in results]
    return [str(row["image_id"]) for row in results], ptb_tokenize([row["caption"] for row in results]), targets


@pytest.mark.parametrize("name", list(KNOWN))
def test_values_are_those_of_pycocoevalcap(shared_data, name):
    folder = shared_data / "coco-captions"
    ids, candidates, references = captions_of(folder, name)
    expected = json.loads((folder / "expected_pycocoevalcap_1.2.json").read_text())[name]
    corpus, values = meteor(candidates, references)
    theirs = np.array([expected["per_image"][image_id]["METEOR"] for image_id in ids])
    different = {ids[n] for n in np.flatnonzero(np.abs(values - theirs) > 1e-6)}
    assert different == KNOWN[name]
    # the corpus differs by what the known captions differ by, nearly a mean of 2,500 values
    known = sum(values[n] - theirs[n] for n in range(len(ids)) if ids[n] in KNOWN[name]) / len(ids)
    assert corpus == pytest.approx(expected["corpus"]["METEOR"] + known, abs=1e-6 if KNOWN[name] else 1e-12)


@pytest.fixture(scope="module")
def program():
    """pycocoevalcap's scorer with its Java program, which reads its tables for ten seconds: started once."""
    from pycocoevalcap.meteor.meteor import Meteor

    scorer = Meteor()
    yield scorer
    scorer.meteor_p.kill()


@pytest.mark.java
@pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java runtime")
def test_odd_captions_have_the_statistics_of_the_jar(program):
    rng = random.Random(3)
    texts = [
        text for text in ptb_tokenize([caption for _, caption in odd_captions(900, 5)]) if text and "|||" not in text
    ]
    pairs = []
    for text in texts:
        words = text.split()
        rng.shuffle(words)
        pairs.append((text, [" ".join(words), rng.choice(texts)]))
    theirs = np.array([[float(cell) for cell in program._stat(*pair).split()] for pair in pairs])
    ours = meteor_counts([caption for caption, _ in pairs], [references for _, references in pairs])
    assert theirs.shape == ours.shape
    equal = (theirs == ours).all(axis=1)
    assert equal.mean() > 0.985, [pairs[n] for n in np.flatnonzero(~equal)[:10]]


@pytest.mark.java
@pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java runtime")
def test_corpora_with_captions_that_are_references_are_those_of_the_jar(program):
    same = [f"a man rides horse number {word} on the beach" for word in ("one", "two", "three")]
    pairs = [(text, text) for text in same]
    pairs += [
        ("the dog sat on a red mat", "a dog sat quietly on the mat today"),
        ("on the beach a man", "a man on the beach"),
    ]
    for some in (pairs[:1], pairs[:3], pairs[:4], pairs, pairs[3:]):
        captions, references = ({i: [pair[side]] for i, pair in enumerate(some)} for side in (0, 1))
        theirs, _ = program.compute_score(references, captions)
        ours, _ = meteor([caption for caption, _ in some], [[reference] for _, reference in some])
        assert ours == pytest.approx(theirs, abs=1e-12)
