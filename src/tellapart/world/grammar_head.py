"""The world's grammar head: trained on its listener's text tower, and compared with the grammar that wrote the captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tellapart.data.corruptions import CORRUPTIONS, vocabulary_of
from tellapart.data.dataset import Collate
from tellapart.data.loader import TrainingData
from tellapart.draws import seeded
from tellapart.evaluation.listeners import corruptions_of, head_accuracy
from tellapart.files import write_json
from tellapart.listeners.clip import ClipListener
from tellapart.objectives.contrastive_grammar import ContrastiveGrammar
from tellapart.rewards.grammar import Grammar, make_head, plain
from tellapart.world import load_world
from tellapart.world.grammar import parse
from tellapart.world.schedule import History, Task, one_thread

ACCURACY = "grammar_accuracy.json"


def build_grammar(task: Task) -> History:
    """Train the head jointly with the text tower of ``world/listener``, on the captions that listener learnt from.

    The model's folder also records how often the head is right on val, and how many of the corruptions it should have recognised
    the world's grammar can read.
    """
    listener = ClipListener.from_pretrained(task.needs["world/listener"], name="grammar", prefix="")
    dataset = load_world("web", size=task.size)
    with one_thread():
        listener.cache_images(dataset)
    with seeded(task.name, task.seed):
        head = make_head(listener)
    vocabulary = vocabulary_of(plain([text for example in dataset for text in example.references]))
    objective = ContrastiveGrammar(listener, head, vocabulary=vocabulary)
    history = task.fit(objective, TrainingData(dataset, Collate({})))
    objective.listener.save(task.folder)
    with one_thread():
        write_json(task.folder / ACCURACY, measure(Grammar(listener, head), vocabulary, task.size))
    return history


def measure(grammar: Grammar, vocabulary: Sequence[str], size: str) -> dict[str, Any]:
    """How often the head is right on the references of val and a corruption of each, next to what the grammar says.

    Returns:
        ``accuracy`` of the head; ``still_grammatical``, the share of corruptions that parse, in all and by kind;
        ``agreement`` of head and grammar on the corruptions; all in percent.
    """
    texts = plain([text for example in load_world("val", size=size) for text in example.references])
    corrupted = corruptions_of(texts, vocabulary)
    parses = [parse(text) is not None for _, text in corrupted]
    said = (grammar.probabilities([text for _, text in corrupted]) > 0.5).tolist()
    still = {"all": _percent(parses)}
    for kind in CORRUPTIONS:
        still[kind] = _percent([parsed for parsed, (own, _) in zip(parses, corrupted, strict=True) if own == kind])
    return {
        "accuracy": head_accuracy(grammar.probabilities, texts, corrupted),
        "still_grammatical": still,
        "agreement": {
            "all": _percent([a == b for a, b in zip(parses, said, strict=True)]),
            "parses": _percent([b for a, b in zip(parses, said, strict=True) if a]),
            "does not parse": _percent([not b for a, b in zip(parses, said, strict=True) if not a]),
        },
    }


def _percent(values: Sequence[bool]) -> float:
    return 100.0 * sum(values) / max(len(values), 1)
