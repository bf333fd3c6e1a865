"""Pictures that were generated for images of a data set, one for each, found by the images' ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.data.center_crop import CenterCropped
from tellapart.data.folder import find_images
from tellapart.data.formats.by_stem import Finder, by_stem
from tellapart.data.images import ImageFile, ImageSource
from tellapart.errors import UsageError
from tellapart.frames import Opener, Processor

if TYPE_CHECKING:
    from torch import Tensor


class GeneratedImages:
    """A folder of pictures as what a model reads of them, by the ids of the images that they were generated for.

    Args:
        folder: holds ``<id>.png``, ``<id>.jpg`` or the like.
        process: RGB images -> a model's tensors.
        center_crop: cut each to its largest centred square, as the images that they were generated for are.

    Raises:
        UsageError: there is no such folder, or two files are named alike.
    """

    def __init__(self, folder: Path, process: Processor, *, center_crop: bool = False) -> None:
        if not folder.is_dir():
            raise UsageError(f"the folder of generated images {folder} does not exist: check pac.images.")
        self.folder, self.process, self.center_crop = folder, process, center_crop
        self._opener = Opener.of(process)
        self._finder = Finder(by_stem(find_images(folder), folder))

    def require(self, ids: Iterable[str]) -> None:
        """Raise unless each of these images has a picture.

        Raises:
            UsageError: naming the first one without.
        """
        for image_id in ids:
            self._finder.find(image_id, self.folder)

    def __call__(self, ids: Sequence[str]) -> dict[str, Tensor]:
        """The model's tensors, one row per image.

        Raises:
            UsageError: a picture is missing or cannot be read.
        """
        return self.process([self._opener.single(self._picture(image_id)) for image_id in ids])

    def fingerprint(self, image_id: str) -> str:
        """A hash of the picture of an image."""
        return self._picture(image_id).fingerprint()

    def _picture(self, image_id: str) -> ImageSource:
        found = ImageFile(self._finder.find(image_id, self.folder))
        return CenterCropped(found) if self.center_crop else found
