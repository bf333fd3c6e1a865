"""What every set of image features is, and how features become tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class FeatureSet(Protocol):
    """Features of images, by image id."""

    @property
    def name(self) -> str:
        """What messages call it: its path."""
        ...

    @property
    def width(self) -> int:
        """Numbers in a feature vector."""
        ...

    def __contains__(self, image_id: str) -> bool:
        """Whether there is something for this image; it need not be usable."""
        ...

    def __getitem__(self, image_id: str) -> np.ndarray:
        """``[D]`` of the whole image, or ``[R, D]`` of R >= 1 regions or cells of a grid; any floating-point type.

        Raises:
            UsageError: there is none, or it cannot be read, is empty, not finite or of another width.
        """
        ...


def missing(features: FeatureSet, image_id: str) -> UsageError:
    """The complaint that an image has no features."""
    return UsageError(
        f"{features.name} has no features of image {image_id!r}: compute them (tellapart features), or leave the image out (in a "
        "recipe by data.on_error skip)."
    )


def checked(array: np.ndarray, features: FeatureSet, image_id: str) -> np.ndarray:
    """``array`` as ``[D]`` or ``[R, D]``; grids ``[h, w, D]`` become ``[h * w, D]``.

    Raises:
        UsageError: it is empty, no array of numbers, of another width than the set, or not finite in float32.
    """
    what = f"{features.name}: the features of image {image_id!r}"
    if array.dtype.kind not in "fiu" or array.ndim == 0:
        raise UsageError(
            f"{what} are not an array of numbers ({array.dtype}, shape {array.shape}): compute them again."
        )
    if array.shape[-1] != features.width:
        raise UsageError(
            f"{what} are {array.shape[-1]} wide and others {features.width}: compute all of them with the same model."
        )
    if array.size == 0:
        raise UsageError(f"{what} hold no region: compute them again, or leave the image out (data.on_error skip).")
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(np.float32, copy=False)).all()
    if not finite:
        raise UsageError(
            f"{what} are not finite in float32: compute them again, or leave the image out (data.on_error skip)."
        )
    return array if array.ndim == 1 else array.reshape(-1, array.shape[-1])


class FeatureInputs:
    """What a captioner reads of the images of a batch, from a set of features.

    Args:
        features: the set.
    """

    def __init__(self, features: FeatureSet) -> None:
        self.features = features

    def __call__(self, ids: Sequence[str]) -> dict[str, Tensor]:
        """``features [B, D]`` float32; of regions ``[B, R, D]``, padded with 0 to the most regions, and ``mask [B, R]``.

        Raises:
            UsageError: an image's features are missing or unusable, or some images have regions and others none.
        """
        import torch

        arrays = [self.features[image_id] for image_id in ids]
        flat = [image_id for image_id, array in zip(ids, arrays, strict=True) if array.ndim == 1]
        if len(flat) == len(arrays):
            return {"features": torch.from_numpy(np.stack(arrays).astype(np.float32))}
        if flat:
            raise UsageError(
                f"{self.features.name} has one vector for image {flat[0]!r} and regions for others: keep them in two sets."
            )
        most = max(len(array) for array in arrays)
        padded = np.zeros((len(arrays), most, self.features.width), dtype=np.float32)
        mask = np.zeros((len(arrays), most), dtype=bool)
        for row, array in enumerate(arrays):
            padded[row, : len(array)], mask[row, : len(array)] = array, True
        return {"features": torch.from_numpy(padded), "mask": torch.from_numpy(mask)}

    def fingerprint(self, image_id: str) -> str:
        """A hash of an image's features."""
        array = np.ascontiguousarray(self.features[image_id])
        return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()
