"""The decoupled contrastive reward: how far a caption and its image stand out among all others of a step, both ways.

Chaffin, Kijak & Claveau (2024), equation 2. Texts are all candidate captions of the step (drawn, human, greedy), images
those of the step and their mined neighbours. Everything here is a pure function of embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tellapart.draws import mix_seeds

Direction = Literal["both", "i2t", "t2i"]
"""Candidates that a caption is compared with: texts for its image (``i2t``), images for the caption (``t2i``), or both."""
Combine = Literal["half", "sum"]


def contrast(cosines: Tensor, own: Tensor, *, temperature: float, clamp: float | None = None) -> Tensor:
    """``temperature * (s_own / temperature - logsumexp over the other columns of s / temperature)``, ``[N]``.

    Only the one entry is left out of the sum, so the text's siblings of the same image stay in, and so do equal strings:
    a greedy caption that equals the drawn one makes the reward at most 0. As the temperature goes to 0 this is the
    entry minus the highest other one. The entry is masked before the sum is taken: subtracting it afterwards overflows
    or cancels.

    Args:
        cosines: ``[N, K]``, of each caption (or its image) with all K candidates.
        own: ``[N]`` long, the column of the caption's own entry.
        temperature: of the exponentials, above 0; not the listener's ``logit_scale``.
        clamp: highest value of the bracket, in nats (16 in the released code, where it guards against underflow); none
            leaves it free.

    Raises:
        ValueError: there is only one candidate, so nothing to stand out from.
    """
    if cosines.shape[1] < 2 and len(cosines):
        raise ValueError("a contrastive reward needs at least two candidates")
    logits = cosines / temperature
    entry = logits.gather(1, own[:, None]).squeeze(1)
    others = logits.scatter(1, own[:, None], -torch.inf).logsumexp(dim=1)
    ratio = entry - others
    return temperature * (ratio if clamp is None else ratio.clamp(max=clamp))


@dataclass(frozen=True)
class Candidates:
    """What captions are compared with: all texts and all distinct images of a step, over all its parts and devices.

    Args:
        texts: ``[T, D]`` embeddings.
        text_keys: ``[T]`` long, equal exactly for equal strings of one image (see ``text_keys``).
        images: ``[I, D]`` embeddings of pictures that all differ.
        image_keys: ``[M]`` long, keys of all images given, repeats included.
        columns: ``[M]`` long, the row of ``images`` that each of them has.
    """

    texts: Tensor
    text_keys: Tensor
    images: Tensor
    image_keys: Tensor
    columns: Tensor

    @staticmethod
    def of(texts: Tensor, text_keys: Tensor, images: Tensor, image_keys: Tensor) -> Candidates:
        """Join equal pictures: those of one key, and those of one embedding (a listener embeds equal contents once), so
        that no picture is a negative of itself; a neighbour that is also in the batch counts once."""
        first, by_key = _first_of(image_keys)
        distinct, by_embedding = images[first].unique(dim=0, return_inverse=True)
        return Candidates(texts, text_keys, distinct, image_keys, by_embedding[by_key])

    def rewards(
        self,
        texts: Tensor,
        text_keys: Tensor,
        image_keys: Tensor,
        *,
        temperature: float,
        clamp: float | None = None,
        direction: Direction = "both",
    ) -> dict[str, Tensor]:
        """``{"i2t": [N], "t2i": [N]}``, or one of them, of some texts: among texts for the image, among images for the text.

        Args:
            texts: ``[N, D]`` embeddings of the captions to be rewarded, which are among the candidates.
            text_keys: ``[N]`` their keys.
            image_keys: ``[N]`` keys of their images.
            temperature: see ``contrast``.
            clamp: see ``contrast``.
            direction: which of the two.
        """
        found = dict[str, Tensor]()
        # Rounded to bfloat16 by the caller's autocast, cosines would be off by half the temperature.
        with torch.no_grad(), torch.autocast(texts.device.type, enabled=False):
            column = self.columns[_position(self.image_keys, image_keys)]
            entry = _position(self.text_keys, text_keys)
            if direction != "t2i":
                cosines = self.images[column] @ self.texts.T
                found["i2t"] = contrast(cosines, entry, temperature=temperature, clamp=clamp)
            if direction != "i2t":
                found["t2i"] = contrast(texts @ self.images.T, column, temperature=temperature, clamp=clamp)
        return found


def combined(rewards: dict[str, Tensor], combine: Combine) -> dict[str, Tensor]:
    """The directions as they enter the reward: ``half`` their mean (the released code), ``sum`` their sum (the paper's equation
    2); one direction alone is never halved."""
    share = 0.5 if combine == "half" and len(rewards) == 2 else 1.0
    return {name: share * values for name, values in rewards.items()}


def image_keys(ids: Sequence[str]) -> Tensor:
    """``[M]`` long: a hash of each image id, which, unlike the id, can be gathered over devices."""
    return torch.tensor([mix_seeds(name) for name in ids], dtype=torch.long)


def text_keys(ids: Sequence[str], texts: Sequence[str]) -> Tensor:
    """``[N]`` long: a hash of each caption with its image's id.

    The entry that is left out of a caption's own sum is the first one of its key. Entries of one key have the same
    cosine, so it does not matter which of them it is; and the other ones stay in, as they must.
    """
    return torch.tensor([mix_seeds(name, text) for name, text in zip(ids, texts, strict=True)], dtype=torch.long)


def _position(keys: Tensor, wanted: Tensor) -> Tensor:
    """``[N]`` the first place of each wanted key."""
    return (wanted[:, None] == keys[None, :]).long().argmax(dim=1)


def _first_of(keys: Tensor) -> tuple[Tensor, Tensor]:
    """``(first, inverse)``: the first place of each distinct key, and which distinct key every row has."""
    distinct, inverse = keys.unique(return_inverse=True)
    return _position(keys, distinct), inverse
