"""The world's words as VLRM penalises and counts them."""

import numpy as np
import pytest
import torch

from given import vector
from tellapart.metrics.phrases import PhraseFinder
from tellapart.metrics.style import style_columns
from tellapart.rewards.penalties import Penalties
from tellapart.types import Batch, Rollout
from tellapart.world import WORDS, build_tokenizer, load_world, spec
from tellapart.world.grammar import parse
from tellapart.world.itm import false_text
from tellapart.world.phrases import COLOURS, EXEMPT_WORDS, wording, world_phrases


def test_every_opener_of_the_grammar_is_listed_and_nothing_else_of_a_caption():
    find = PhraseFinder(world_phrases(), years=False)
    for prefix in spec.PREFIXES:
        covered = {i for first, last in find(f"{prefix} a red star") for i in range(first, last)}
        assert covered == set(range(len(prefix)))
    said = set(WORDS) - {word for prefix in spec.PREFIXES for word in prefix.split()}
    assert [word for word in said if find(word)] == []


def test_the_penalties_of_a_caption_of_the_world():
    tokenizer = build_tokenizer()
    penalties = Penalties(tokenizer, world_phrases(), exempt=EXEMPT_WORDS, years=False)
    text = "a photo of a cyan star and a cyan star and a tiny box on a violet background"
    ids = [*tokenizer.convert_tokens_to_ids(text.split()), tokenizer.eos_token_id]
    tokens = torch.tensor([ids])
    everything = torch.ones_like(tokens, dtype=torch.bool)
    rollout = Rollout(Batch(["i"], [[]]), torch.tensor([0]), [text], tokens, everything, torch.tensor([True]))
    bad, repeated = penalties(rollout)
    assert bad[0].tolist() == [True] * 3 + [False] * (len(ids) - 3)
    # A colour may be said twice, "star" may not.
    assert repeated[0].nonzero().flatten().tolist() == [9]


def test_colour_coverage_with_colours_of_ones_own():
    inputs, expected, tolerance = vector("color_coverage")
    columns = style_columns([text.lower() for text in inputs["captions"]], colors=inputs["colors"])
    assert columns["colored"].mean() == pytest.approx(expected["frac_captions_with_color"], abs=tolerance)
    assert columns["colors"].mean() == pytest.approx(expected["mean_distinct_colors"], abs=tolerance)
    captions = {"a": "we see a cyan star and a cyan ring on a grey background", "b": "two shapes", "c": "a violet box"}
    metrics, columns = wording(captions)
    assert columns == {
        "color_coverage": [100.0, 0.0, 100.0],
        "distinct_colors": [2.0, 0.0, 1.0],
        "listed_phrases": [100.0, 0.0, 0.0],
    }
    assert metrics == pytest.approx({"color_coverage": 200 / 3, "distinct_colors": 1.0, "listed_phrases": 100 / 3})
    assert "violet" in COLOURS


def test_false_texts_differ_and_read_as_captions():
    rng = np.random.default_rng(0)
    texts = [text for example in load_world("val", size="small") for text in example.references]
    false = [false_text(text, rng) for text in texts]
    changed = [(a, b) for a, b in zip(texts, false, strict=True) if a != b]
    # "two shapes" can only stay as it is.
    assert all(parse(text) is not None for text in false)
    assert all(parse(a) != parse(b) for a, b in changed)
    assert len(changed) > 0.6 * len(texts)
    assert {"two shapes", "three shapes"} & {a for a, b in zip(texts, false, strict=True) if a == b}
