"""One way into greedy search, sampling and beam search."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tellapart.captioners.base import Encoded
from tellapart.captioners.beam import beam_search
from tellapart.captioners.families.base import Family
from tellapart.captioners.rollout import draw
from tellapart.draws import base_seed, uniforms
from tellapart.types import Decoding


def draw_captions(
    family: Family, encoded: Encoded, ids: Sequence[str], decoding: Decoding, *, logprobs: bool
) -> tuple[Tensor, Tensor | None]:
    """Draw ``num_return_sequences`` captions of every image, image by image.

    Sampling takes one number from torch's global generator, and nothing else from it: a caption depends on that number and
    its image's id.

    Args:
        family: the model.
        encoded: states of B images.
        ids: of these images.
        decoding: how.
        logprobs: also return the raw log-probability of each token; beam search has none.

    Returns:
        ``[N, max_new_tokens]`` tokens, padded after EOS, and ``[N, max_new_tokens]`` float32 log-probabilities or none.
    """
    if decoding.num_beams > 1:
        return beam_search(family, encoded, decoding), None
    numbers = None
    if decoding.do_sample:
        numbers = uniforms(ids, decoding.num_return_sequences * decoding.max_new_tokens, base_seed())
        numbers = numbers.view(-1, decoding.max_new_tokens).float().to(encoded.states.device)
    return draw(family, encoded, decoding, numbers, logprobs=logprobs)
