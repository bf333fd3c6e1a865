"""Accuracy of a model of the moving world, question by question; measured on val."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import Collate
from tellapart.evaluation.evaluate import Evaluation
from tellapart.listeners.late import LateListener
from tellapart.metrics.retrieval import ranks
from tellapart.world.probe import Score, by_captioner, by_matcher, greedy_and_sampled, percent_right, recalls
from tellapart.world.video import load_moving_scenes, load_video_world
from tellapart.world.video.captions import full_description
from tellapart.world.video.faults import moving_faults
from tellapart.world.video.measures import moving_measures
from tellapart.world.video.questions import moving_questions
from tellapart.world.video.vocabulary import MAX_NEW_TOKENS

KEPT = ("grammatical", "motion", "order", "truthful", "detail", "exact_recall@1")
"""Measures of a captioner's captions."""

DRAWN = greedy_and_sampled(MAX_NEW_TOKENS)


def accuracies(score: Score, *, size: str = "full") -> dict[str, float]:
    """How often the true text scores highest, in percent; a tie is wrong. See
    ``moving_questions``.

    Args:
        score: the model.
        size: of the world whose val split is used.
    """
    examples = load_video_world("val", size=size).examples
    questions = moving_questions(list(load_moving_scenes("val", size=size).values()))
    return {name: percent_right(score(examples, own)) for name, own in questions.items() if own}


def probe_listener(folder: Path, *, size: str = "full") -> dict[str, Any]:
    """All figures of the listener of clips, in percent.

    Args:
        folder: of the listener.
        size: of the world whose val split is used.

    Returns:
        ``accuracy``: see ``accuracies``. ``recall``: kind of text (human, full) -> t2i and i2t recall@k on val. ``size``.

    Example:
        >>> probe_listener(resolve("world/video-listener"))["accuracy"]["direction"]
    """
    listener = LateListener.from_pretrained(folder)
    dataset = load_video_world("val", size=size)
    listener.cache_images(dataset)
    full = [full_description(moving) for moving in load_moving_scenes("val", size=size).values()]
    texts = {"human": [example.references[0] for example in dataset], "full": full}
    recall = {}
    for kind, written in texts.items():
        matrix = listener.logprobs(written, dataset.ids).double().numpy()
        recall[kind] = recalls(ranks(matrix), ranks(matrix.T))
    return {"accuracy": accuracies(by_matcher(listener), size=size), "recall": recall, "size": size}


def probe_captioner(
    captioner: HuggingFaceCaptioner, *, size: str = "full", collate: Collate | None = None
) -> dict[str, Any]:
    """Accuracy of a captioner of clips, and the measures of its captions, in percent on val.

    Args:
        captioner: to be measured.
        size: of the world.
        collate: what it reads of clips; none: by its own processor.

    Returns:
        ``accuracy``: see ``accuracies``; it answers by log-probability per token. ``greedy`` and ``sampled``: ``KEPT`` of such
        captions, and their ``moving_faults``.
    """
    collate = Collate({captioner.name: captioner.process}) if collate is None else collate
    accuracy = accuracies(by_captioner(captioner, collate=collate), size=size)
    dataset, scenes = load_video_world("val", size=size), load_moving_scenes("val", size=size)
    written = {}
    for name, decoding in DRAWN.items():
        captions, _ = Evaluation(dataset, collate, decoding=decoding, batch_size=64).draw(captioner)
        corpus = moving_measures(captions, scenes).corpus
        written[name] = {measure: corpus[measure] for measure in KEPT} | moving_faults(captions, scenes)
    return {"accuracy": accuracy} | written
