"""Images without captions that join the steps of a training, from the section of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tellapart.data.dataset import CaptionDataset, Collate
from tellapart.errors import UsageError
from tellapart.listeners.ranked import RankedImages, rank_images, scaled_ranks
from tellapart.recipe.feature_inputs import load_pictured, needs_pictures, usable
from tellapart.recipe.images import told_problems
from tellapart.types import Batch

if TYPE_CHECKING:
    from tellapart.recipe.parts import Parts
    from tellapart.recipe.sections import UnlabelledSection

OWN_LISTENER = "own_listener"


class Unlabelled:
    """Draws one image without captions for each training image.

    Args:
        images: the images; captions that they have are not read.
        ranked: which of them belong to a training image.
        collate: makes the captioner's batches.
    """

    def __init__(self, images: CaptionDataset, ranked: RankedImages, collate: Collate) -> None:
        self.images, self.ranked, self.collate = images, ranked, collate

    def __call__(self, ids: Sequence[str], seed: int) -> Batch:
        """As many images as ``ids``, without references; each follows from the id and the seed."""
        places = [self.images.position[name] for name in self.ranked.draw(ids, seed)]
        return self.collate([replace(self.images[place], references=()) for place in places])


def build_unlabelled(parts: Parts, section: UnlabelledSection | None) -> Unlabelled | None:
    """The images of the section, ranked by the recipe's own listener, which is made to know them; none without a path.

    They are read as the training images are. Those that are left out are added to ``parts.skipped``.

    Raises:
        UsageError: they cannot be read, share ids with training images, or the ranks are beyond their number.
    """
    if section is None or section.path is None:
        return None
    recipe, own = parts.recipe, parts(OWN_LISTENER)
    # Their captions are not read, so that they need no column for them.
    columns = {name: value for name, value in recipe.data.columns.items() if name != "caption_column"}
    pool = load_pictured(
        section.path,
        section.split,
        images=section.images,
        format=section.format,
        size=parts.size,
        limit=section.limit,
        missing_files=recipe.data.on_error != "fail",
        seconds_between=recipe.data.seconds_between,
        center_crop=recipe.data.center_crop,
        features=parts.features,
        ignore_unused=True,  # columns are those of the training data
        **columns,
    )
    parts.skipped += told_problems(pool)
    pool, broken = usable(pool, recipe.data.on_error, parts.features, pictures=needs_pictures(recipe))
    parts.skipped += broken
    shared = next((name for name in pool.iterate_ids() if name in parts.dataset.position), None)
    if shared is not None:
        raise UsageError(
            f"unlabelled.path has image {shared!r}, which is also a training image: give other images, with other ids."
        )
    own.cache_images(pool)
    ranks = section.ranks or scaled_ranks(len(pool))
    written = {
        name: [text.strip() for text in texts if text.strip()] for name, texts in parts.dataset.references.items()
    }
    return Unlabelled(pool, rank_images(own.listener, written, pool.ids, ranks), parts.collate)
