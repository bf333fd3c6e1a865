"""What a matching head of the world can and cannot tell apart: the questions of the listeners' probe, put to pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tellapart.listeners.matcher import MATCH, ItmMatcher
from tellapart.world import load_scenes, load_world
from tellapart.world.captions import full_description
from tellapart.world.negatives import shuffle_words
from tellapart.world.probe import ORDER_AWARE, PROBE, accuracies, by_matcher

__all__ = ["EVERY", "PROBE", "probe_matcher"]

EVERY = 4
"""Questions are put to one picture of each cluster: every pair costs a pass."""


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
    accuracy = accuracies(by_matcher(matcher), size=size, every=EVERY)
    return {
        "accuracy": accuracy,
        "match": _mean_logits(matcher, size),
        "order_blind": accuracy["order"] < ORDER_AWARE,
        "demanded": {},
        "size": size,
    }


def _mean_logits(matcher: ItmMatcher, size: str) -> dict[str, float]:
    """Kind of text -> mean logit of a match over every fourth picture of val."""
    rng, scenes = np.random.default_rng(0), load_scenes("val", size=size)
    examples = load_world("val", size=size).examples[::EVERY]
    matcher.know_images(examples)
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
    return {
        kind: torch.cat(matcher.match_ids(ids, [[text] for text in texts]))[:, MATCH].mean().item()
        for kind, texts in kinds.items()
    }
