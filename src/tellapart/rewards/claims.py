"""Claim-level rewards: a caption is cut into claims, and a matcher that sees the image verifies each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tellapart.listeners.pairs import PairMatcher, require_probabilities
from tellapart.metrics.claims import Claim, claim_scores, claims_by_rule
from tellapart.ranges import OpenUnitFloat, in_range
from tellapart.types import Rollout

TRUE_FROM = 0.5
"""The probability from which on a claim counts as verified."""


def probability_of_match(logits: Tensor) -> Tensor:
    """``[N]`` float64 of logits ``[N, 2]`` (no match, match)."""
    return torch.softmax(logits.double(), dim=1)[:, 1]


class ClaimPrecision:
    """The share of a caption's claims that a matcher verifies, 0 to 1; 0 for a caption without claims.

    A claim such as "a red car" is verified if the matcher's probability of a match of claim and image is one half or more: of a
    matching head its softmax, of a model that is asked its share of yes among yes and no. Each distinct claim of an image is read
    once.

    Source: the precision of DCScore (Ye, Zeng, Li, Li and Fan, "Painting with Words: Elevating Detailed Image Captioning with
    Benchmark and Alignment Learning", ICLR 2025): verified units over all units.

    Departs from the paper: units are found by rules (``claims_by_rule``) instead of by a language
    model, and verified by the matcher that the recipe names instead of GPT-4o with a human reference.

    Pitfalls: alone it shortens captions to one claim that is surely true; use ``claim_f1`` or add a reward for detail. What no
    rule finds is not checked. Claims are checked one by one: "a small circle" and "a red circle" may be two circles. Matchers of
    whole captions were not trained on claims of two words.

    Args:
        matcher: a frozen matching head, late-interaction listener, or model that is asked a question.
        true_from: probability from which a claim counts as verified.

    Raises:
        ValueError: ``true_from`` is not between 0 and 1.
        UsageError: the matcher is a dual encoder.

    Example:
        >>> reward = ClaimPrecision(ItmMatcher.from_pretrained("Salesforce/blip-itm-base-coco"))
        >>> reward(rollout)
        tensor([0.67, 1.00])
    """

    @in_range
    def __init__(self, matcher: PairMatcher, *, true_from: OpenUnitFloat = TRUE_FROM) -> None:
        require_probabilities(matcher, "the matcher of rewards about claims")
        self.matcher, self.true_from = matcher, true_from

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        claims = [claims_by_rule(text) for text in rollout.texts]
        verified = verified_in(rollout, claims, self.matcher, true_from=self.true_from)
        values = [claim_scores(own, true, ()).precision for own, true in zip(claims, verified, strict=True)]
        return torch.tensor(values, dtype=torch.float32, device=rollout.image.device)


class ClaimF1:
    """The harmonic mean of claim precision and claim recall against the references, 0 to 1.

    Precision: see ``ClaimPrecision``, with its source and pitfalls. Recall: of the different claims of an image's
    references, the share that the caption makes too, word for word (``claim_scores``). An image
    whose references claim nothing gives its captions their precision.

    Source: DCScore's harmonic mean. Departures are those of ``ClaimPrecision``, and plain recall instead of DCScore's, which
    also counts verified claims that no reference makes.

    Pitfalls: five references claim more than one caption can, so recall is far below 1. Synonyms of the references are not
    recognised.

    Args:
        matcher: as of ``ClaimPrecision``.
        true_from: probability from which a claim counts as verified.

    Raises:
        ValueError: ``true_from`` is not between 0 and 1.
        UsageError: the matcher is a dual encoder.

    Example:
        >>> ClaimF1(matcher)(rollout)
        tensor([0.41, 0.28])
    """

    @in_range
    def __init__(self, matcher: PairMatcher, *, true_from: OpenUnitFloat = TRUE_FROM) -> None:
        self._precision = ClaimPrecision(matcher, true_from=true_from)
        self.matcher = matcher

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        claims = [claims_by_rule(text) for text in rollout.texts]
        verified = verified_in(rollout, claims, self.matcher, true_from=self._precision.true_from)
        images = rollout.image.tolist()
        wanted = {row: [claims_by_rule(text) for text in rollout.batch.references[row]] for row in set(images)}
        values = []
        for row, own, true in zip(images, claims, verified, strict=True):
            found = claim_scores(own, true, wanted[row])
            values.append(found.precision if found.f1 is None else found.f1)
        return torch.tensor(values, dtype=torch.float32, device=rollout.image.device)


def verified_in(
    rollout: Rollout, claims: Sequence[Sequence[Claim]], matcher: PairMatcher, *, true_from: float = TRUE_FROM
) -> list[list[bool]]:
    """Of each caption's claims whether the matcher finds them true of the caption's image.

    Args:
        rollout: whose images they are of.
        claims: of each caption.
        matcher: reads claims as texts.
        true_from: probability from which a claim counts as verified.

    Raises:
        UsageError: an image is neither in the batch nor known to the matcher.
    """
    owners = [row for row, own in zip(rollout.image.tolist(), claims, strict=True) for _ in own]
    texts = [claim.text for own in claims for claim in own]
    said = Rollout.of_texts(rollout.batch, owners, texts)
    true = iter((probability_of_match(matcher.rollout_logits(said)) >= true_from).tolist())
    return [[next(true) for _ in own] for own in claims]
