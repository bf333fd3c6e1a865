"""Search without training: of several beams of an image the caption that a reward likes best, or one chosen by other images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tellapart.captioners.base import Captioner
from tellapart.data.dataset import CaptionDataset
from tellapart.errors import UsageError
from tellapart.types import Decoding, Reward, Rollout


@dataclass(frozen=True)
class Rerank:
    """Chooses among all beams of a search.

    Args:
        reward: what is compared; it reads no references, which are the answer.
        name: of the reward, in the protocol of an evaluation.

    Example:
        >>> Evaluation(dataset, collate, decoding=Decoding(num_beams=10), rerank=Rerank(Truth(matcher), "truth"))
    """

    reward: Reward
    name: str

    def decoding(self, decoding: Decoding) -> Decoding:
        """The same search with all of its beams returned.

        Raises:
            UsageError: ``decoding`` is not a beam search, or already returns several captions.
        """
        if decoding.num_beams < 2 or decoding.num_return_sequences != 1:
            raise UsageError(
                f"num_beams is {decoding.num_beams}, but reranking chooses among several beams: set 2 or more, such as 10."
            )
        return replace(decoding, num_return_sequences=decoding.num_beams)

    def best(self, rollout: Rollout) -> Rollout:
        """One caption per image, in the order of the images: of equal rewards the likelier beam."""
        values = self.reward(rollout).tolist()
        best: dict[int, int] = {}
        for row, image in enumerate(rollout.image.tolist()):
            if image not in best or values[row] > values[best[image]]:
                best[image] = row
        return rollout.select(list(best.values()))


@dataclass(frozen=True)
class Together:
    """Captions all images of a data set in one call, in which images may be compared with one another.

    Args:
        caption: captioner and images -> image id -> caption, of every image.
        name: of the way, in the protocol of an evaluation.

    Example:
        >>> apart = Apart(captioner, listener)
        >>> Together(lambda _, images: {found.id: found.caption for found in apart(list(images))}, "told apart")
    """

    caption: Callable[[Captioner, CaptionDataset], Mapping[str, str]]
    name: str
