"""METEOR held against the recorded values of the Java program that pycocoevalcap ships, and nightly against the program."""

import gzip
import itertools
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
IMAGES = 100
"""Of Karpathy's test split, for captions that were never used to find a rule; benchmarks/meteor.py asks about all."""


def captions_of(folder: Path, name: str):
    references: dict[int, list[str]] = {}
    for row in json.loads((folder / "references.json").read_text())["annotations"]:
        references.setdefault(row["image_id"], []).append(row["caption"])
    results = json.loads((folder / f"results_{name}.json").read_text())
    targets = [ptb_tokenize(references[row["image_id"]]) for row in results]
    return [str(row["image_id"]) for row in results], ptb_tokenize([row["caption"] for row in results]), targets


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "human", marks=pytest.mark.nightly
        ),  # the same captions shuffled have more alignments to choose from
        "shuffled",
        "degenerate",
    ],
)
def test_values_are_those_of_pycocoevalcap(shared_data, name):
    folder = shared_data / "coco-captions"
    ids, candidates, references = captions_of(folder, name)
    expected = json.loads((folder / "expected_pycocoevalcap_1.2.json").read_text())[name]
    corpus, values = meteor(candidates, references)
    theirs = np.array([expected["per_image"][image_id]["METEOR"] for image_id in ids])
    assert values == pytest.approx(theirs, abs=1e-12)
    assert corpus == pytest.approx(expected["corpus"]["METEOR"], abs=1e-12)


@pytest.fixture(scope="module")
def program():
    """pycocoevalcap's scorer with its Java program, which reads its tables for ten seconds: started once."""
    from pycocoevalcap.meteor.meteor import Meteor

    scorer = Meteor()
    yield scorer
    scorer.meteor_p.kill()


def assert_equal_statistics(pairs, program):
    theirs = np.array([[float(cell) for cell in program._stat(*pair).split()] for pair in pairs])
    ours = meteor_counts([caption for caption, _ in pairs], [references for _, references in pairs])
    assert theirs.shape == ours.shape
    different = np.flatnonzero((theirs != ours).any(axis=1))
    assert not len(different), [pairs[n] for n in different[:10]]


@pytest.mark.nightly
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
    assert_equal_statistics(pairs, program)


@pytest.mark.nightly
@pytest.mark.java
@pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java runtime")
def test_shuffled_paraphrases_have_the_statistics_of_the_jar(program):
    """Captions full of phrases of the table, where many alignments are equally good."""
    rng = random.Random(4)
    near: dict[str, list[str]] = {}
    with gzip.open(meteor_data.source() / meteor_data.TABLE, "rt", encoding="utf-8") as table:
        for _, first, second in itertools.islice(zip(*[table] * 3, strict=False), 0, 60_000, 3):
            if first.isascii() and second.isascii() and " " in first + second:
                near.setdefault(first.strip(), []).append(second.strip())
                near.setdefault(second.strip(), []).append(first.strip())
    phrases = sorted(phrase for phrase in near if len(near[phrase]) > 1)
    pairs = []
    for _ in range(1000):
        own = rng.choices(phrases, k=rng.randint(1, 4))
        other = [rng.choice(near[phrase]) for phrase in [*own, own[0]]]
        rng.shuffle(other)
        pairs.append((" ".join([*own, "the"]), [" ".join(other)]))
    assert_equal_statistics(pairs, program)


@pytest.mark.nightly
@pytest.mark.java
@pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java runtime")
@pytest.mark.parametrize("name", ["human", "m2_transformer", "blip2_results_xe"])
def test_captions_that_served_for_no_rule_have_the_statistics_of_the_jar(name, program, shared_data):
    folder = shared_data / "results" / "karpathy-test"
    if not folder.is_dir():
        pytest.skip("needs the captions of published captioners")
    references: dict[int, list[str]] = {}
    for row in json.loads((folder / "references.json").read_text())["annotations"]:
        references.setdefault(row["image_id"], []).append(row["caption"])
    used = json.loads((shared_data / "coco-captions" / "captions_val2017.json").read_text())["annotations"]
    images = sorted(references.keys() - {row["image_id"] for row in used})[:IMAGES]
    if name == "human":
        captions = {image: references[image].pop(0) for image in images}
    else:
        captions = {row["image_id"]: row["caption"] for row in json.loads((folder / f"{name}.json").read_text())}
    words = ptb_tokenize(captions[image] for image in images)
    assert_equal_statistics([(words[n], ptb_tokenize(references[image])) for n, image in enumerate(images)], program)


@pytest.mark.nightly
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
