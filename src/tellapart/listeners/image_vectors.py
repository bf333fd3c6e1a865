"""Image vectors, read in place of pictures by a listener without its own image tower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from tellapart.errors import UsageError
from tellapart.listeners.cache import NamedPicture
from tellapart.listeners.clip import ClipListener

MADE_BY, WEIGHTS = "listener", "weights"
"""What a saved listener says of the CLIP that looks at its images: its path, and the hash of its weights."""


class ImageVectors(Protocol):
    """Vectors of images by their ids.

    ``width`` is the numbers in a vector; ``about`` is saved with the listener, and empty for features that a user names.
    """

    width: int
    about: dict[str, str]

    def __call__(self, ids: Sequence[str]) -> dict[str, Tensor]:
        """``features [M, D]``, or ``[M, R, D]`` of regions with ``mask [M, R]``.

        Raises:
            UsageError: an image has none.
        """
        ...

    def prepare(self, dataset: Iterable[NamedPicture]) -> None:
        """Make the vectors of these images available."""
        ...


class StoredVectors:
    """Features that were computed before.

    Args:
        read: image ids -> ``features``, and of regions ``mask``.
        width: of the features.
    """

    def __init__(self, read: Callable[[Sequence[str]], dict[str, Tensor]], width: int) -> None:
        self.read, self.width, self.about = read, width, dict[str, str]()

    def __call__(self, ids: Sequence[str]) -> dict[str, Tensor]:
        """As they are stored."""
        return self.read(ids)

    def prepare(self, dataset: Iterable[NamedPicture]) -> None:
        """Nothing: they are there."""


class ClipVectors:
    """The image embeddings of a frozen CLIP or SigLIP, for images that have no features.

    Args:
        listener: whose image side is used; it is neither trained nor saved.
        path: what it was loaded from, and is to be loaded from again.
    """

    def __init__(self, listener: ClipListener, path: str) -> None:
        folder = Path(path).expanduser()
        self.listener, self.path = listener, str(folder.resolve()) if folder.exists() else path
        config = listener.model.config
        self.width = int(getattr(config, "projection_dim", config.vision_config.hidden_size))
        self.about = {MADE_BY: self.path, WEIGHTS: listener.fingerprint()}

    def __call__(self, ids: Sequence[str]) -> dict[str, Tensor]:
        """``[M, D]``, unit norm, of images that were prepared."""
        return {"features": self.listener.encode_ids(ids)}

    def prepare(self, dataset: Iterable[NamedPicture]) -> None:
        """Embed the images, or read their embeddings from the cache."""
        self.listener.cache_images(dataset)

    def require(self, about: dict[str, str], folder: Path) -> None:
        """Raise unless this is what a saved listener was trained on.

        Raises:
            UsageError: the weights are others.
        """
        if about[WEIGHTS] != self.about[WEIGHTS]:
            raise UsageError(
                f"{folder} was trained on the image embeddings of {about[MADE_BY]}, whose weights have changed since: "
                "restore that model, or train the listener again."
            )
