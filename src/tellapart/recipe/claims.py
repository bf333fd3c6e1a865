"""The verifier of claims, from its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.scorers import Scorer

EXACT = "exact"
"""The name of the truth about the built-in world."""


def claim_scorers(
    verifier: str | None, claim_file: Path | None, dataset: CaptionDataset, *, data: str, split: str, size: str
) -> list[Scorer]:
    """Claim precision and recall, if they are asked for.

    Args:
        verifier: a matcher's folder or id, or ``exact``; None asks for nothing.
        claim_file: claims by caption; None finds them by rules.
        dataset: the images.
        data: what they were loaded from.
        split: part of it.
        size: of the built-in world.

    Raises:
        UsageError: the verifier does not exist, gives no probabilities, or knows no truth about these images.
    """
    if verifier is None:
        if claim_file is not None:
            raise UsageError("--claim_file needs a verifier: name a matcher as --claims.")
        return []
    from tellapart.evaluation.claims import ClaimScorer, MatcherVerifier, read_claims
    from tellapart.metrics.claims import RULES, Parser, claims_by_rule, given_claims

    if verifier == EXACT:
        return [_exact(claim_file, dataset, data=data, split=split, size=size)]
    parse: Parser = claims_by_rule
    parser = RULES
    if claim_file is not None:
        parse, parser = given_claims(read_claims(claim_file)), f"file {claim_file.name}"
    from tellapart.recipe.models import load_pair_matcher

    matcher = load_pair_matcher(verifier, dataset, option="claims", size=size)
    return [ClaimScorer(MatcherVerifier(matcher), parse=parse, parser=parser)]


def _exact(claim_file: Path | None, dataset: CaptionDataset, *, data: str, split: str, size: str) -> Scorer:
    if data != "world" or claim_file is not None:
        what = f"the claims of {claim_file}" if claim_file is not None else f"the images of {data}"
        raise UsageError(
            f"claims exact knows the truth about captions of the built-in world, not about {what}: name a matcher."
        )
    from tellapart.evaluation.claims import ClaimScorer
    from tellapart.world import load_scenes
    from tellapart.world.claims import PARSER, SceneVerifier, exact_claims

    scenes = load_scenes(split, size=size)
    verifier = SceneVerifier({image: scenes[image] for image in dataset.ids})
    return ClaimScorer(verifier, parse=exact_claims, parser=PARSER)
