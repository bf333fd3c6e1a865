"""The world's grammar head, on the small world."""

from __future__ import annotations

import json

import pytest
import torch

from tellapart.data.corruptions import CORRUPTIONS, vocabulary_of
from tellapart.evaluation.listeners import corruptions_of
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.trained import vision_parameters
from tellapart.rewards.grammar import Grammar, plain
from tellapart.world import WORDS, alt_texts, load_world
from tellapart.world.grammar import parse
from tellapart.world.grammar_head import ACCURACY, measure
from tellapart.world.schedules import STAGES
from tellapart.world.stages import resolve


class Parser:
    """A head that knows the grammar."""

    def probabilities(self, texts):
        return torch.tensor([float(parse(text) is not None) for text in texts])


def test_the_measure_of_a_perfect_head():
    texts = [text for example in load_world("val", size="small") for text in example.references]
    assert plain(texts) == texts  # nothing that the head would not read
    vocabulary = vocabulary_of(texts)
    assert set(vocabulary) <= set(WORDS)
    found = measure(Parser(), vocabulary, "small")
    assert found["agreement"] == {"all": 100, "parses": 100, "does not parse": 100}
    assert found["accuracy"]["grammar_accuracy_references"] == 100
    for kind in ("all", *CORRUPTIONS):
        key = f"grammar_accuracy_{'corrupted' if kind == 'all' else kind}"
        assert found["accuracy"][key] == pytest.approx(100 - found["still_grammatical"][kind])
    # What is missing is missed less often than what is too much: sentences of this grammar can be shortened.
    assert 0 < found["still_grammatical"]["all"] < 10
    assert max(CORRUPTIONS, key=lambda kind: found["still_grammatical"][kind]) == "remove"
    assert len(corruptions_of(texts, vocabulary)) == len(texts)


@pytest.mark.slow
def test_the_stage_is_built_from_the_listener_and_learns():
    folder = resolve("world/grammar", size="small")
    assert STAGES["world/grammar"].needs == ("world/listener",)
    grammar = Grammar.from_pretrained(folder)
    start = ClipListener.from_pretrained(resolve("world/listener", size="small"))
    for before, after in zip(vision_parameters(start), vision_parameters(grammar.listener), strict=True):
        assert torch.equal(before, after)
    found = json.loads((folder / ACCURACY).read_text())
    assert found["accuracy"]["grammar_accuracy"] > 60
    keywords = [text for texts in alt_texts("val", size="small").values() for text in texts]
    references = [text for example in load_world("val", size="small") for text in example.references]
    likely = [float(grammar.probabilities(texts).mean()) for texts in (references, keywords)]
    assert likely[0] > likely[1] + 0.2  # of keyword lists the head was shown none
