import numpy as np
import pytest

from given import vector
from tellapart.errors import UsageError
from tellapart.metrics.diversity import caption_statistics
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.metrics.style import OPENERS, style_columns


def test_color_coverage_vector():
    inputs, expected, tolerance = vector("color_coverage")
    columns = style_columns([caption.lower() for caption in inputs["captions"]])
    means = [columns[name].mean() for name in ("colored", "colors", "color_words")]
    names = ("frac_captions_with_color", "mean_distinct_colors", "mean_color_tokens")
    assert means == pytest.approx([expected[name] for name in names], abs=tolerance)


def test_every_column_by_hand():
    captions = ["there are two dogs on a", "a a a a a a", "", "a photo of a dog", "a photograph"]
    columns = style_columns(captions, finished=[False, True, True, True, False])
    assert {name: column.tolist() for name, column in columns.items()} == {
        "length": [6, 6, 0, 5, 2],
        "repetition": [0, 4 / 5, 0, 0, 0],
        "bad_endings": [1, 1, 0, 0, 0],
        "openers": [1, 0, 0, 1, 0],
        "colored": [0, 0, 0, 0, 0],
        "colors": [0, 0, 0, 0, 0],
        "color_words": [0, 0, 0, 0, 0],
        "unfinished": [1, 0, 0, 0, 1],
    }
    assert "unfinished" not in style_columns(captions)
    with pytest.raises(UsageError, match="5 captions came with 1 marks"):
        style_columns(captions, finished=[True])


def test_an_article_that_kept_its_dot_is_a_bad_ending():
    captions = ptb_tokenize(["A dog on a.", "Two dogs on the."])
    assert captions == ["a dog on a.", "two dogs on the"]
    assert style_columns(captions)["bad_endings"].tolist() == [1, 1]


def test_openers_are_whole_words_and_can_be_replaced():
    assert all(phrase and " ".join(phrase).islower() for phrase in OPENERS)
    assert style_columns(["there aren't any"])["openers"].tolist() == [0]
    assert style_columns(["we see a dog", "behold a dog"], openers=[["behold"]])["openers"].tolist() == [0, 1]


def test_repetition_of_equal_lengths_averages_to_the_pooled_figure():
    captions = ["a dog a dog a dog", "one two three four five six", "x x x x x x"]
    pooled = caption_statistics(captions)["repeated_bigrams"]
    assert np.mean(style_columns(captions)["repetition"]) == pytest.approx(pooled)
