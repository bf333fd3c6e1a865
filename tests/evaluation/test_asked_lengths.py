"""Asked against given length."""

from __future__ import annotations

import pytest

from family_checks import make, pictures
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.lengths import length_measures, lengths_asked
from tellapart.evaluation.rerank import Together
from tellapart.lengths import LengthBuckets, WordRange, count_words
from tellapart.types import Decoding


def test_share_kept_and_mean_distance_per_asked_length():
    captions = ["a red circle", "a circle", "a", "one two three four five six"]
    metrics, columns = length_measures(captions, [WordRange(3, 4), WordRange(3, 4), WordRange(1, 2), WordRange(5)])
    assert metrics == {"asked_length_kept": 75.0, "asked_length_distance": 0.25}  # only the second, by one word
    assert columns["words"] == [3, 2, 1, 6]
    assert columns["asked_length"] == ["3-4", "3-4", "1-2", "5-"]
    assert lengths_asked(columns) == [
        {"asked": "1-2", "images": 1, "words": 1.0, "asked_length_kept": 100.0, "asked_length_distance": 0.0},
        {"asked": "3-4", "images": 2, "words": 2.5, "asked_length_kept": 50.0, "asked_length_distance": 0.5},
        {"asked": "5-", "images": 1, "words": 6.0, "asked_length_kept": 100.0, "asked_length_distance": 0.0},
    ]


@pytest.mark.parametrize("asked", [None, WordRange(3, 3)])
def test_an_evaluation_measures_what_its_captioner_was_asked(tmp_path, asked):
    make("CLIP + GPT-2", tmp_path)
    captioner = HuggingFaceCaptioner.from_pretrained(tmp_path, length_buckets=[2, 4])
    data = pictures(6)
    evaluation = Evaluation(
        data, Collate({captioner.name: captioner.process}), decoding=Decoding(max_new_tokens=6), words=asked
    )
    first, again = evaluation(captioner), evaluation(captioner)
    assert first.per_image["asked_length"] == again.per_image["asked_length"], (
        "keyed by image and the evaluation's seed"
    )
    buckets = {str(LengthBuckets((2, 4)).range(bucket)) for bucket in range(3)}
    assert set(first.per_image["asked_length"]) <= ({"3-3"} if asked else buckets)
    assert first.per_image["words"] == [count_words(text) for text in first.captions.values()]
    assert sum(row["images"] for row in first.details["lengths"]) == 6
    assert ("3-3 words asked for" in first.protocol.decoding) == (asked is not None)


def test_captions_of_all_images_together_are_compared_with_the_asked_length(tmp_path):
    make("CLIP + GPT-2", tmp_path)
    data = pictures(3)
    said = dict(zip(data.ids, ("a red circle", "a circle", "a"), strict=True))
    evaluation = Evaluation(data, together=Together(lambda _, images: said, "together"), words=WordRange(3, 4))
    result = evaluation(HuggingFaceCaptioner.from_pretrained(tmp_path))
    assert result.per_image["asked_length_distance"] == [0.0, 1.0, 2.0]
    assert result.metrics["asked_length_distance"] == 1.0
    assert [row["images"] for row in result.details["lengths"]] == [3]
