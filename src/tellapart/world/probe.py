"""Accuracy of a model of the world, question by question; measured on val.

Retrieval alone hides it: a listener that knows colours only reaches a fair recall@5, and every run it rewards then learns
to name wrong shapes. So no training on the world counts unless its reward passes (``require_probe``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.modes import evaluating
from tellapart.data.dataset import Collate, Example
from tellapart.errors import UsageError
from tellapart.files import read_json
from tellapart.frames import Opener
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.kinds import is_late
from tellapart.listeners.late import LateListener
from tellapart.listeners.matcher import ItmMatcher
from tellapart.listeners.matching import MATCHING_FAMILIES
from tellapart.listeners.pairs import PairMatcher
from tellapart.metrics.retrieval import ranks as ranks_of
from tellapart.metrics.retrieval import recall_at_k, retrieval_ranks
from tellapart.types import Batch, Decoding
from tellapart.world import alt_texts, load_scenes, load_world
from tellapart.world.captions import full_description
from tellapart.world.negatives import shuffle_words
from tellapart.world.questions import (
    ATTRIBUTES,
    SEED,
    Question,
    attribute_questions,
    picture_questions,
    single_objects,
)
from tellapart.world.scenes import VALUES, Scene

PROBE = "probe.json"

SIMILARITY = {**dict.fromkeys(("shape", "colour", "size"), 90.0), "background": 85.0}
"""Percent right that a listener or matching head must reach before its similarity means anything as a reward. Backgrounds
differ between the processors that built it: 90.0 and 92.9 % by ``world/listener``, 89.0 and 91.5 % by ``world/pac``."""

TRUTH = dict.fromkeys((*ATTRIBUTES, "binding", "relation", "place", "veto", "doubled", "count", "broken"), 90.0)
"""Percent right that a verifier must reach before it may reward truth, and a judge before it may decide."""

MOTION = dict.fromkeys(("shape", "colour", "verb", "direction", "turned", "actor", "order"), 90.0)
"""The same for the listener of clips, with the questions of ``tellapart.world.video.questions``."""

DEMANDS: dict[str, dict[str, float]] = {
    "similarity": SIMILARITY,
    "motion": MOTION,
    "truth": TRUTH,
    "judge": TRUTH,
    "match": SIMILARITY,
}
"""What a model is used for -> what it must tell right."""

RECALL_AT = (1, 5, 10)

EVERY = 4
"""A matching head is asked about one picture of each cluster: every pair costs a pass."""

Score = Callable[[Sequence[Example], Sequence[Question]], list[Tensor]]
"""Pictures, and questions whose rows are of these -> for each question the scores of its texts."""


def probe_folder(folder: Path, *, size: str = "full") -> dict[str, Any]:
    """All figures of a saved listener or matching head, whichever it is.

    Args:
        folder: of the model.
        size: of the world whose val split is used.

    Returns:
        what ``probe_late``, ``probe_matcher`` or ``probe`` returns, and ``size``.
    """
    if is_late(folder):
        found = probe_late(LateListener.from_pretrained(folder), size=size)
    elif read_json(folder / "config.json")["model_type"] in MATCHING_FAMILIES:
        found = probe_matcher(ItmMatcher.from_pretrained(folder, batch_size=256), size=size)
    else:
        found = probe(ClipListener.from_pretrained(folder), size=size)
    return found | {"size": size}


def probe(listener: ClipListener, *, size: str = "full") -> dict[str, Any]:
    """All figures of a dual encoder in percent.

    Args:
        listener: to be measured.
        size: of the world whose val split is used.

    Returns:
        ``accuracy``: see ``accuracies``. ``recall``: kind of text -> t2i and i2t recall@k on val. ``cosine``: kind of
        text -> mean cosine with its image, times 100.
    """
    accuracy = accuracies(by_cosines(listener), size=size)
    images = _embed(listener, load_world("val", size=size).examples)
    recall, cosine = {}, {}
    for kind, texts in kinds_of_text(size).items():
        embeddings = listener.encode_texts(texts)
        cosine[kind] = 100.0 * (embeddings * images).sum(dim=1).mean().item()
        t2i, i2t = retrieval_ranks(embeddings.cpu().numpy(), images.cpu().numpy())
        recall[kind] = recalls(t2i, i2t)
    return {"accuracy": accuracy, "recall": recall, "cosine": cosine}


def probe_late(listener: LateListener, *, size: str = "full") -> dict[str, Any]:
    """All figures of a late-interaction listener in percent.

    Args:
        listener: to be measured.
        size: of the world whose val split is used.

    Returns:
        ``accuracy`` and ``recall`` as ``probe``. ``verdict``: ``true``, the share of human captions held
        true of their own pictures (probability above one half), and ``false``, the share of those that are false of a picture
        of the same cluster and held false of it. ``logprob``: kind of text -> mean log-probability, in nats.
    """
    accuracy = accuracies(by_matcher(listener), size=size)
    dataset = load_world("val", size=size)
    listener.cache_images(dataset)
    recall, logprob = {}, {}
    for kind, texts in kinds_of_text(size).items():
        matrix = listener.logprobs(texts, dataset.ids).double().numpy()
        logprob[kind] = float(matrix.diagonal().mean())
        recall[kind] = recalls(ranks_of(matrix), ranks_of(matrix.T))
    return {"accuracy": accuracy, "recall": recall, "logprob": logprob, "verdict": _verdicts(listener, size)}


def probe_matcher(matcher: ItmMatcher, *, size: str = "full") -> dict[str, Any]:
    """All figures of a matching head.

    Args:
        matcher: to be measured.
        size: of the world whose val split is used.

    Returns:
        ``accuracy``, in percent, as ``probe``: how often the right text has the highest logit of a match. ``match``: kind
        of text -> mean logit of a match with its own picture, and with another one where the kind ends in ``, other``: what a
        captioner would gain by such texts.
    """
    accuracy = accuracies(by_matcher(matcher), size=size, every=EVERY)
    examples = load_world("val", size=size).examples[::EVERY]
    matcher.know_images(examples)
    ids, kinds = [example.id for example in examples], kinds_of_text(size)
    own = {kind: kinds[kind][::EVERY] for kind in ("human", "longest human", "full", "full, shuffled")}
    others = {f"{kind}, other": [*own[kind][1:], own[kind][0]] for kind in ("human", "full")}
    match = {
        kind: matcher.score(torch.cat(matcher.match_ids(ids, [[text] for text in texts]))).mean().item()
        for kind, texts in {**own, **others, "nothing": ["" for _ in ids]}.items()
    }
    return {"accuracy": accuracy, "match": match}


def accuracies(
    score: Score, *, size: str = "full", every: int = 1, asked: Sequence[str] | None = None
) -> dict[str, float]:
    """How often the true text scores highest, in percent; a tie is wrong.

    ``shape``, ``colour``, ``size``, ``texture``, ``background`` are asked of pictures of one object, with a text for each
    value; all others of whole pictures, see ``ASKED``.

    Args:
        score: the model.
        size: of the world whose val split is used.
        every: ask about every Nth picture only, where each pair costs a pass.
        asked: names of questions; none asks all.
    """
    scenes = list(load_scenes("val", size=size).values())[::every]
    single, pictures = single_objects(scenes)
    alone = [Example(f"single-{i}", picture, ()) for i, picture in enumerate(pictures)]
    whole = load_world("val", size=size).examples[::every]
    questions = {name: attribute_questions(name, single) for name in ATTRIBUTES} | picture_questions(scenes)
    return {
        name: percent_right(score(alone if name in ATTRIBUTES else whole, own))
        for name, own in questions.items()
        if asked is None or name in asked
    }


def percent_right(scores: Sequence[Tensor]) -> float:
    """How often the first score is higher than all others."""
    return 100.0 * sum(bool((row[0] > row[1:]).all()) for row in scores) / len(scores)


def by_cosines(listener: ClipListener) -> Score:
    """The cosine of picture and text."""

    def score(pictures: Sequence[Example], questions: Sequence[Question]) -> list[Tensor]:
        images = _embed(listener, pictures)
        embeddings = listener.encode_texts([text for question in questions for text in question.texts])
        owner = torch.tensor([question.row for question in questions for _ in question.texts], device=images.device)
        cosines = (embeddings * images[owner]).sum(dim=1).cpu()
        return list(cosines.split([len(question.texts) for question in questions]))

    return score


def by_matcher(matcher: PairMatcher) -> Score:
    """What a matcher scores each pair with."""

    def score(pictures: Sequence[Example], questions: Sequence[Question]) -> list[Tensor]:
        matcher.know_images(pictures)
        ids = [pictures[question.row].id for question in questions]
        return [matcher.score(logits) for logits in matcher.match_ids(ids, [question.texts for question in questions])]

    return score


def greedy_and_sampled(max_new_tokens: int) -> dict[str, Decoding]:
    """The two ways in which a captioner that is probed writes."""
    return {
        "greedy": Decoding(max_new_tokens=max_new_tokens),
        "sampled": Decoding(do_sample=True, max_new_tokens=max_new_tokens),
    }


def by_captioner(captioner: HuggingFaceCaptioner, *, collate: Collate | None = None) -> Score:
    """The log-probability with which a captioner writes each text, per token, so that length does not decide.

    Args:
        captioner: to be measured.
        collate: what it reads of pictures; none: by its own processor.
    """
    collate = Collate({captioner.name: captioner.process}) if collate is None else collate

    def of_some(pictures: Sequence[Example], some: Sequence[Question]) -> Sequence[Tensor]:
        shown = [pictures[question.row] for question in some]
        inputs = collate(shown).inputs
        batch = Batch([str(i) for i in range(len(shown))], [[] for _ in shown], inputs).to(captioner.device)
        image = torch.tensor([i for i, question in enumerate(some) for _ in question.texts])
        rollout = captioner.tokenize(batch, [text for question in some for text in question.texts], image)
        logprobs = captioner(rollout).logprobs.sum(dim=1).cpu() / rollout.lengths.cpu()
        return logprobs.split([len(question.texts) for question in some])

    def score(pictures: Sequence[Example], questions: Sequence[Question]) -> list[Tensor]:
        with evaluating(captioner):
            return [
                found
                for start in range(0, len(questions), 64)
                for found in of_some(pictures, questions[start : start + 64])
            ]

    return score


def require_probe(folder: Path, use: str) -> dict[str, Any]:
    """The probe that was saved next to a model, once it is good enough for what it is used for.

    The stages of the ``small`` world, which exist to try things out, need not pass.

    Args:
        folder: of the stage.
        use: a key of ``DEMANDS``: ``similarity`` (a reward by CLIP-S or a likelihood), ``truth`` (a reward for truth),
            ``judge``, ``match`` (the logit of a matching head) or ``motion`` (a reward for the truth about clips).

    Raises:
        UsageError: it was not probed, or answers some question too badly.
    """
    path = Path(folder) / PROBE
    if not path.is_file():
        raise UsageError(f"{folder} holds no {PROBE}: give the folder of a listener that was built for the world.")
    found = read_json(path)
    for name, least in DEMANDS[use].items() if found["size"] == "full" else ():
        if found["accuracy"].get(name, 0.0) < least:
            raise UsageError(
                f"{folder} tells {name} right in {found['accuracy'].get(name, 0.0):.1f} % of pictures, under {least:g} %, so "
                "its reward would teach wrong words: use another model, or delete the folder if another version of tellapart "
                "built it."
            )
    return found


def kinds_of_text(size: str) -> Mapping[str, list[str]]:
    """Kind -> one text for each picture of val."""
    scenes, words = load_scenes("val", size=size), np.random.default_rng(SEED)
    references, keywords = load_world("val", size=size).references, alt_texts("val", size=size)
    full = [full_description(scene) for scene in scenes.values()]
    return {
        "human": [texts[0] for texts in references.values()],
        "longest human": [max(texts, key=len) for texts in references.values()],
        "alt text": [texts[0] for texts in keywords.values()],
        "full": full,
        "full, shuffled": [shuffle_words(text, words) for text in full],
        "keywords": [_keywords(scene, words) for scene in scenes.values()],
    }


def _keywords(scene: Scene, rng: np.random.Generator) -> str:
    """Every attribute word of a scene and nothing else, in random order."""
    named = [getattr(thing, name) for thing in scene.objects for name in VALUES]
    return shuffle_words(" ".join([*named, scene.background, "background"]), rng)


def _embed(listener: ClipListener, examples: Sequence[Example]) -> Tensor:
    """``[M, D]`` of pictures."""
    with torch.no_grad():
        opener = Opener.of(listener.process)
        opened = [opener.single(example.image) for example in examples]
        chunks = [opened[i : i + 250] for i in range(0, len(examples), 250)]
        return torch.cat([listener.embed_images(listener.process(chunk)["pixel_values"]) for chunk in chunks])


def recalls(t2i: np.ndarray, i2t: np.ndarray) -> dict[str, float]:
    """``t2i_R@k`` and ``i2t_R@k`` in percent, of ranks as ``tellapart.metrics.retrieval`` gives them."""
    ways = {"t2i": t2i, "i2t": i2t}
    return {f"{way}_R@{k}": recall_at_k(found, k) for way, found in ways.items() for k in RECALL_AT}


def _verdicts(listener: LateListener, size: str) -> dict[str, float]:
    """See ``probe_late``."""
    from tellapart.world.prefixes import first_wrong
    from tellapart.world.spec import CLUSTER_SIZE

    scenes = load_scenes("val", size=size)
    held: dict[bool, list[bool]] = {True: [], False: []}
    ids = list(scenes)
    references = load_world("val", size=size).references
    for start in range(0, len(ids), CLUSTER_SIZE):
        cluster = ids[start : start + CLUSTER_SIZE]
        texts = [text for name in cluster for text in references[name]]
        logprobs = listener.logprobs(texts, cluster)
        for row, text in enumerate(texts):
            for column, name in enumerate(cluster):
                true = first_wrong(text, scenes[name]) is None
                if not true or name == cluster[row // len(references[name])]:
                    held[true].append(bool(logprobs[row, column] > np.log(0.5)) == true)
    return {"true": _mean(held[True]), "false": _mean(held[False])}


def _mean(right: Sequence[bool]) -> float:
    return 100.0 * sum(right) / len(right) if right else 100.0
