"""How a caption suits its own image among that image's look-alikes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.types import Rollout

EmbedIds = Callable[[Sequence[str]], Tensor]
"""M image ids -> ``[M, D]``, unit norm."""


@dataclass(frozen=True)
class Among:
    """A listener's scores of N captions.

    Args:
        cosine: ``[N]`` float32, with the own image.
        likelihood: ``[N]`` float32, log-probability in nats of the own image among it and its look-alikes, at the listener's
            temperature.
        margin: ``[N]`` float32, cosine with the own image minus the highest cosine with a look-alike; above 0 where the
            own image is closer.
        rival: N ids, the look-alike with the highest cosine.
    """

    cosine: Tensor
    likelihood: Tensor
    margin: Tensor
    rival: list[str]


class AmongLookalikes:
    """Compares each caption with its own image and that image's look-alikes.

    Unlike ``Likelihood``, which asks for the image among a fixed gallery, every image has its
    own: the images that it is mistaken for.

    Args:
        listener: a frozen dual encoder.
        lookalikes: image id -> ids of other images, at least one.
        embed: looks up embeddings; by default the listener's own of images cached before.

    Raises:
        UsageError: the listener compares word by word, so it has no cosines.

    Example:
        >>> near = mine(listener, dataset, 20)
        >>> among = AmongLookalikes(listener, dict(zip(near.ids, near.of(near.ids))))
        >>> among(rollout).margin > 0  # told apart
    """

    def __init__(
        self, listener: ClipListener, lookalikes: Mapping[str, Sequence[str]], *, embed: EmbedIds | None = None
    ) -> None:
        if not isinstance(listener, ClipListener):
            raise UsageError(
                f"the listener {listener.name!r} has no cosines to compare look-alikes by: name a CLIP or SigLIP here."
            )
        self.listener, self.lookalikes, self._embed = listener, lookalikes, embed or listener.encode_ids

    @torch.no_grad()
    def __call__(self, rollout: Rollout) -> Among:
        """Of N captions.

        Raises:
            UsageError: an image has no look-alikes.
        """
        ids = rollout.ids()
        texts, scale = self.listener.encode_texts(rollout.texts).float(), self.listener.logit_scale.detach().exp()
        images = {name: self._group(name) for name in dict.fromkeys(ids)}
        own, likelihood, margin, rival = [], [], [], list[str]()
        for name, text in zip(ids, texts, strict=True):
            others, embeddings = images[name]
            cosines = embeddings @ text
            nearest = int(cosines[1:].argmax())
            own.append(cosines[0])
            likelihood.append((scale * cosines).log_softmax(dim=0)[0])
            margin.append(cosines[0] - cosines[1 + nearest])
            rival.append(others[nearest])
        device = rollout.image.device
        cosine, likelihoods, margins = (torch.stack(part).to(device) for part in (own, likelihood, margin))
        return Among(cosine, likelihoods, margins, rival)

    def _group(self, name: str) -> tuple[Sequence[str], Tensor]:
        """Look-alikes of an image, and the embeddings of the image and these."""
        others = self.lookalikes.get(name, ())
        if not others:
            raise UsageError(f"image {name!r} has no look-alikes: mine those of the collection that holds it.")
        return others, self._embed([name, *others]).to(self.listener.device).float()
