"""What a matcher of the world can and cannot tell apart: the questions of the listeners' probe, put to pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tellapart.data.dataset import Example
from tellapart.listeners.matcher import MATCH, ItmMatcher
from tellapart.world import load_scenes, load_world
from tellapart.world.captions import full_description
from tellapart.world.negatives import shuffle_words
from tellapart.world.probe import ORDER_AWARE, QUESTIONS, question, single_objects, two_ways

PROBE = "probe.json"
EVERY = 4
"""Questions with many answers are put to one picture of each cluster: every pair costs a pass."""


def probe_matcher(matcher: ItmMatcher, *, size: str = "full") -> dict[str, Any]:
    """All figures of val.

    Args:
        matcher: to be measured.
        size: of the world.

    Returns:
        ``accuracy``, in percent, as in :func:`tellapart.world.probe.probe`: how often the right text has the
        highest logit of a match. ``match``: kind of text -> mean logit of a match with its own picture (``other``: with
        another one), which tells what a captioner gains by. ``order_blind``: whether ``order`` is under ``ORDER_AWARE``.
    """
    dataset = load_world("val", size=size)
    matcher.know_images(dataset)
    scenes = load_scenes("val", size=size)
    single, pictures = single_objects(list(scenes.values())[::EVERY])
    alone = [Example(f"single-{i}", picture, ()) for i, picture in enumerate(pictures)]
    matcher.know_images(alone)
    accuracy = {}
    for name in QUESTIONS:
        texts, true = question(name, single)
        logits = torch.stack(_matches(matcher, [example.id for example in alone], texts))
        accuracy[name] = _percent(logits.argmax(dim=1) == torch.tensor(true))
    ids = list(scenes)
    for name, pairs in two_ways(list(scenes.values())).items():
        logits = torch.stack(_matches(matcher, [ids[row] for row, *_ in pairs], [both for _, *both in pairs]))
        accuracy[name] = _percent(logits[:, 0] > logits[:, 1])
    return {
        "accuracy": accuracy,
        "match": _mean_logits(matcher, size),
        "order_blind": accuracy["order"] < ORDER_AWARE,
    }


def _matches(matcher: ItmMatcher, ids: Sequence[str], texts: Sequence[Sequence[str]]) -> list[Tensor]:
    """For each image the logit of a match of each of its texts."""
    return [logits[:, MATCH] for logits in matcher.match_ids(ids, texts)]


def _percent(right: Tensor) -> float:
    return 100.0 * right.float().mean().item()


def _mean_logits(matcher: ItmMatcher, size: str) -> dict[str, float]:
    """Kind of text -> mean logit of a match over every fourth picture of val."""
    rng, scenes = np.random.default_rng(0), load_scenes("val", size=size)
    examples = load_world("val", size=size).examples[::EVERY]
    full = [full_description(scenes[example.id]) for example in examples]
    human = [example.references[0] for example in examples]
    kinds = {
        "human": human,
        "longest human": [max(example.references, key=len) for example in examples],
        "full": full,
        "full, shuffled": [shuffle_words(text, rng) for text in full],
        "human, other": [*human[1:], human[0]],
        "full, other": [*full[1:], full[0]],
        "nothing": ["" for _ in examples],
    }
    ids = [example.id for example in examples]
    found = {kind: _matches(matcher, ids, [[text] for text in texts]) for kind, texts in kinds.items()}
    return {kind: torch.cat(logits).mean().item() for kind, logits in found.items()}
