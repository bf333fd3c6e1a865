"""The review of a whole collection against the same counted in plain Python, and a cost reckoned by hand."""

from __future__ import annotations

import csv
import io
import random
from collections import Counter

import pytest

from tellapart.captioning.records import Caption, Item
from tellapart.captioning.review import judged, low_limit, same_limit
from tellapart.captioning.shards import merge as merging
from tellapart.captioning.shards.cost import Cost
from tellapart.captioning.shards.merge import merged, write_reviews
from tellapart.captioning.shards.parts import CAPTIONS, STEP, Part
from tellapart.data.images import EncodedImage
from tellapart.data.remote.folders import Folder

WORDS = ("cup", "dog", "tree", "car")


def collection(seed: int, images: int) -> list[Caption]:
    """Captions of which some are frequent, with matches of which some are low."""
    drawn = random.Random(seed)
    captions = []
    for number in range(images):
        text = f"a {drawn.choice(WORDS)}" if drawn.random() < 0.3 else f"caption {number}"
        match = drawn.gauss(0.3, 0.01) if drawn.random() < 0.02 else drawn.gauss(0.8, 0.03)
        captions.append(Caption(str(number), text, match=round(match, 6)))
    return captions


def parts(captions: list[Caption], size: int) -> list[Part]:
    found = []
    for first in range(0, len(captions), size):
        part = Part(f"{first}.tar")
        for caption in captions[first : first + size]:
            part.add(Item(caption.id, EncodedImage(b"", f"{caption.id}.png"), ""), caption)
        found.append(Part.from_json(part.as_json()))
    return found


@pytest.mark.parametrize("size", [50, 130, 600])
def test_parts_add_up_to_the_collection(size):
    captions = collection(0, 600)
    whole = merged(parts(captions, size), {})
    often = Counter(caption.caption for caption in captions)
    assert (whole.captioned, whole.most, whole.uncounted) == (600, same_limit(600), 0)
    assert whole.same == {text: count for text, count in often.items() if count > 10}
    assert len(whole.same) == 4
    limit = low_limit([caption.match for caption in captions])
    assert whole.low == pytest.approx(limit, abs=5 * 1.4826 * STEP)
    rows = [(Item(one.id, EncodedImage(b"", one.id), ""), one) for one in captions]
    low = sum("low_match" in caption.flags for _, caption in judged(rows, checks=("low_match",)))
    assert whole.flags["low_match"] == low > 0
    assert sum("low_match" in row["flags"] for row in whole.rows) == low


def test_faults_that_are_not_checked_for_are_not_counted_unless_a_limit_is_given():
    made = parts(collection(0, 600), 130)
    whole = merged(made, {}, checks=())
    assert (whole.same, whole.low, whole.flags["same_caption"], whole.flags["low_match"]) == ({}, None, 0, 0)
    limited = merged(made, {}, checks=(), max_same=10, min_match=0.5)
    assert limited.same == merged(made, {}).same
    assert (limited.low, limited.flags["low_match"] > 0) == (0.5, True)


def test_counts_that_were_left_out_are_bounds(monkeypatch):
    """More different captions than a part, and than the merging, keeps: the truth lies between the bounds."""
    monkeypatch.setattr(merging, "KEPT", CAPTIONS // 2)
    drawn = random.Random(1)
    numbers = [int(drawn.paretovariate(0.6)) if drawn.random() < 0.4 else drawn.randrange(4000) for _ in range(9000)]
    texts = [f"caption {number}" for number in numbers]
    whole = merged(parts([Caption(str(n), text) for n, text in enumerate(texts)], 3000), {}, max_same=20)
    often = Counter(texts)
    assert whole.uncounted > 0
    for text, count in whole.same.items():
        assert count <= often[text] <= count + whole.uncounted
    assert set(whole.same) >= {text for text, count in often.items() if count > 20 + whole.uncounted}


def test_the_review_is_written(tmp_path):
    part = Part("0.tar", damaged="0.tar is not whole <b>")
    part.add(Item("a", EncodedImage(b"", "0.tar/a.png"), ""), Caption("a", "a dog a dog", flags=("loop",)))
    part.fault("0.tar/b.png is empty: remove it.")
    whole = merged([part], {"1.tar": "a reason"})
    write_reviews(Folder(str(tmp_path)), whole)
    page = (tmp_path / "review.html").read_text()
    assert "0.tar is not whole &lt;b&gt;" in page
    assert "given up: a reason" in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "review.csv").read_text())))
    assert [row["reasons"] for row in rows] == ["no caption: 0.tar/b.png is empty: remove it.", "loop"]


def test_hours_and_machines():
    cost = Cost(images=200, seconds={}, rate=50.0, loading=3.0)
    assert cost.hours(10_000_000) == pytest.approx(10_000_000 / 50 / 3600)
    assert cost.machines(1_000_000_000, 24.0) == 232  # 5555.6 hours / 24 = 231.5
