"""Rewards of captions: callables ``rollout -> [N]``, without gradient, higher is better.

The rewards that recipes name are listed here; nothing heavy is imported until one is chosen.
"""

from __future__ import annotations

from typing import Any

from tellapart.installed import Offers
from tellapart.metrics.scores import CLIP_WEIGHT, PAC_WEIGHT
from tellapart.rewards.kinds import RewardKind

__all__ = ["REWARDS", "RewardKind", "for_trl", "for_verl"]

_COSINE, _REF_COSINE = "tellapart.rewards.similarity:Similarity", "tellapart.rewards.similarity:RefSimilarity"

SHIPPED: dict[str, RewardKind] = {
    "clip_s": RewardKind(
        "CLIP-S, 2.5 times the clamped cosine of image and caption (Hessel et al., 2021)",
        _COSINE,
        ("listener",),
        {"weight": CLIP_WEIGHT},
    ),
    "ref_clip_s": RewardKind(
        "RefCLIP-S, the harmonic mean of CLIP-S and the highest cosine with a reference (Hessel et al., 2021)",
        _REF_COSINE,
        ("listener",),
        {"weight": CLIP_WEIGHT},
        needs_references=True,
    ),
    "pac_s": RewardKind(
        "PAC-S, 2 times the clamped cosine under a listener trained for it (Sarto et al., 2023)",
        _COSINE,
        ("listener",),
        {"weight": PAC_WEIGHT},
    ),
    "ref_pac_s": RewardKind(
        "RefPAC-S, as ref_clip_s with PAC-S (Sarto et al., 2023)",
        _REF_COSINE,
        ("listener",),
        {"weight": PAC_WEIGHT},
        needs_references=True,
    ),
    "cider_d": RewardKind(
        "CIDEr-D against the references with the training captions' document frequencies, 0 to 10, typically near 1 "
        "(Vedantam et al., 2015)",
        "tellapart.rewards.reference:CiderD",
        ("document_frequencies",),
        needs_references=True,
    ),
    "meteor": RewardKind(
        "METEOR 1.5 against the references, 0 to 1; needs pip install 'tellapart[meteor]' (Denkowski & Lavie, 2014)",
        "tellapart.rewards.meteor:Meteor",
        needs_references=True,
    ),
    "context": RewardKind(
        "share of the image's context words that matcher confirms and the caption contains, 0 to 1",
        "tellapart.rewards.context:ConfirmedContext",
        ("matcher",),
        judges_truth=True,
        needs_context=True,
    ),
    "length": RewardKind(
        "minus the number of words above or below the requested length bucket, or words; 0 at best",
        "tellapart.rewards.length:LengthDistance",
        ("captioner",),
    ),
    "language_model": RewardKind(
        "mean log-probability per token under language_model, typically -5 to -3 (ref of VLRM: Dzabraev et al., 2024)",
        "tellapart.rewards.language_model:MeanLogProbability",
        ("language_model",),
    ),
    "grammar": RewardKind(
        "probability of the caption under a grammar head, 0 to 1 (Cho et al., 2022)",
        "tellapart.rewards.grammar:grammaticality",
        ("grammar",),
    ),
    "itm": RewardKind(
        "matcher's score of image and caption, on that model's own scale (sim of VLRM: Dzabraev et al., 2024)",
        "tellapart.rewards.matching:Matching",
        ("matcher",),
    ),
    "truth": RewardKind(
        "log-probability that the caption is true, by matcher: a matching head, a late-interaction listener or a model that is "
        "asked; -8 to 0",
        "tellapart.rewards.truth:Truth",
        ("matcher",),
        judges_truth=True,
    ),
    "vqa_score": RewardKind(
        "VQAScore, the probability that a matcher of kind vqa_score answers Yes, 0 to 1 (Lin et al., 2024)",
        "tellapart.rewards.vqa_score:VqaScore",
        ("matcher",),
    ),
    "question_answering": RewardKind(
        "share of an image's questions that reader answers right from the caption alone, 0 to 1 (CapRL: Xing et al., 2025)",
        "tellapart.rewards.question_answering:QuestionAnswering",
        ("reader", "questions"),
    ),
    "claim_precision": RewardKind(
        "share of a caption's claims that matcher verifies, 0 to 1 (after DCScore: Ye et al., 2025)",
        "tellapart.rewards.claims:ClaimPrecision",
        ("matcher",),
        judges_truth=True,
    ),
    "claim_f1": RewardKind(
        "harmonic mean of claim precision by matcher and claim recall against the references, 0 to 1 (after DCScore)",
        "tellapart.rewards.claims:ClaimF1",
        ("matcher",),
        needs_references=True,
        judges_truth=True,
    ),
    "likelihood": RewardKind(
        "log-probability of the image among those of gallery, given the caption; -12 to 0",
        "tellapart.rewards.likelihood:Likelihood",
        ("listener", "gallery"),
    ),
    "lookalikes": RewardKind(
        "log-probability of the image among it and its mined look-alikes, given the caption; -12 to 0",
        "tellapart.rewards.lookalikes:Lookalikes",
        ("listener", "neighbours"),
    ),
    "oracle": RewardKind(
        "the exact truth about the built-in world, 0 if false, else up to 1.1 for telling details: a control, not a method",
        "tellapart.world.oracle:Oracle",
        ("scenes",),
        control=True,
    ),
}
"""Name -> reward of this package."""

_FOR_TRAINERS = ("for_trl", "for_verl")


def __getattr__(name: str) -> Any:
    """Our rewards for other trainers, imported on first use."""
    if name not in _FOR_TRAINERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tellapart.rewards import trainers

    return getattr(trainers, name)


REWARDS: Offers[RewardKind] = Offers(SHIPPED, "tellapart.rewards", "reward", RewardKind.of)
"""The same, and those that installed packages bring."""
