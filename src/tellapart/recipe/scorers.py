"""Scores by models that see the images, as options and recipes name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.evaluation.scorers import Scorer


def load_scorers(
    dataset: CaptionDataset, *, pac: str | None, pac_base: str | None, itm: str | None, size: str = "full"
) -> list[Scorer]:
    """PAC-S and image-text matching, by models on this process's device that know the images.

    Args:
        dataset: the images.
        pac: encoder of PAC-S: the authors' ``.pth`` file, a folder or an id; None leaves it out.
        pac_base: whose tokenizer and image processor go with the file.
        itm: a matcher's folder or id; None leaves it out.
        size: of the built-in world.

    Raises:
        UsageError: a model does not exist, or is of another kind.
    """
    from tellapart.errors import UsageError
    from tellapart.evaluation.scorers import MatchScorer, PacScorer
    from tellapart.listeners.pairs import PairMatcher
    from tellapart.recipe.models import build_stage, device, is_world, load_listener
    from tellapart.rewards.matchers import open_matcher

    found: list[Scorer] = []
    if pac is not None:
        encoder = load_listener(pac, name="pac", size=size, base=pac_base)
        encoder.cache_images(dataset)
        found.append(PacScorer(encoder))
    if itm is not None:
        matcher = open_matcher(build_stage(itm, size) if is_world(itm) else itm).to(device())
        if not isinstance(matcher, PairMatcher):
            raise UsageError(
                f"{itm} is a dual encoder, which gives no probability of a match: name it as a listener, or give a BLIP, "
                "BLIP-2 or an instruct vision-language model as itm."
            )
        matcher.know_images(dataset)
        found.append(MatchScorer(matcher))
    return found
