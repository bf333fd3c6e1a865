"""Data sets of Hugging Face's ``datasets``: folders of ``save_to_disk``, and names on the hub."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.data.clips import ArrayClip, ClipFile, FrameFiles, PackedClip
from tellapart.data.dataset import Example
from tellapart.data.folder import is_image
from tellapart.data.formats.base import Layout, Place
from tellapart.data.formats.carry import Carrier, suffix_of
from tellapart.data.formats.cells import image_in
from tellapart.data.formats.ids import encode_id
from tellapart.data.formats.row_images import RowImages
from tellapart.data.formats.rows import (
    IMAGE_COLUMNS,
    IMAGE_ID,
    Gathered,
    caption_cell,
    choose_captions,
    choose_column,
    id_cell,
)
from tellapart.data.formats.splits import UNNAMED, in_order
from tellapart.data.images import ImageError, ImageFile, ImageSource, decode
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

PREFIX = "hf://"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILES = re.compile(r"\.(jsonl?|csv|tsv|txt|token|tar|parquet|ya?ml)$", re.IGNORECASE)
_ON_DISK = ("dataset_dict.json", "state.json")
_BATCH = 1000
_CLIPS = ClipFile, PackedClip, FrameFiles, ArrayClip
_WRITTEN = 100
"""Images held in memory until they are written."""


def hub_name(given: str) -> str | None:
    """``owner/name`` of ``hf://owner/name``, and of the same without prefix where no such path exists, else None."""
    name = given.removeprefix(PREFIX).removeprefix("datasets/") if given.startswith(PREFIX) else given
    if not _HUB_NAME.fullmatch(name) or (not given.startswith(PREFIX) and _is_file(name)):
        return None
    return None if not given.startswith(PREFIX) and Path(given).exists() else name


def _is_file(name: str) -> bool:
    return _FILES.search(name) is not None or is_image(name)


@dataclass(frozen=True, eq=False)
class RowImage:
    """An image in a row of a data set, stored encoded.

    Args:
        rows: the data set, whose images come undecoded.
        index: the row.
        column: the image's column.
        name: what messages call it.
    """

    rows: Any
    index: int
    column: str
    name: str

    def read(self) -> bytes:
        """The stored bytes, or those of the file that the row names."""
        value = self.rows[self.index][self.column]
        if value is None:
            raise ImageError(f"{self.name} is empty: remove the row, or give it an image.")
        if value["bytes"] is not None:
            return bytes(value["bytes"])
        return ImageFile(Path(str(value["path"]))).read()

    def open(self) -> Image.Image:
        """The decoded image, upright, in RGB."""
        return decode(self.read(), self.name)

    def fingerprint(self) -> str:
        """SHA-256 of the encoded bytes."""
        return hashlib.sha256(self.read()).hexdigest()


class Datasets(Layout):
    """A ``Dataset`` or ``DatasetDict`` on disk, or a name on the hub (``hf://owner/name`` or ``owner/name``).

    An image's id is its ``image_id``, else the number of its row. Captions are a column of text or of lists of texts.
    """

    name = "datasets"
    has_columns = True
    spans_splits = True
    links = frozenset({"copy"})

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.hub = None if place.is_folder else hub_name(place.given)
        self.divided = self.hub is not None or (place.path / _ON_DISK[0]).is_file()

    @classmethod
    def looks_like(cls, place: Place) -> bool:
        """Whether ``save_to_disk`` wrote the folder, or it is a name on the hub."""
        if place.is_folder:
            return any(name in place.names for name in _ON_DISK)
        return hub_name(place.given) is not None

    @classmethod
    def require(cls, place: Place) -> None:
        """Raise unless it is one of these."""
        if not cls.looks_like(place):
            raise UsageError(
                f"{place.given} is neither a folder of datasets.save_to_disk nor owner/name on the hub, "
                "which format 'datasets' needs: correct the path or the format."
            )

    def splits(self) -> list[str]:
        """The splits of the data set, or ``train`` for one that has none."""
        if self.hub is not None:
            library = _library()
            return in_order(self._explained(lambda: library.get_dataset_split_names(self.hub)))
        return in_order(self._on_disk) if self.divided else [UNNAMED]

    def read(self, splits: Sequence[str]) -> list[Example]:
        """Their images, in the order of the rows."""
        return [example for split in splits for example in self._examples(self._rows(split))]

    @cached_property
    def _on_disk(self) -> Any:
        library = _library()
        return self._explained(lambda: library.load_from_disk(str(self.place.path)))

    def _rows(self, split: str) -> Any:
        if self.hub is not None:
            library = _library()
            return self._explained(lambda: library.load_dataset(self.hub, split=split))
        return self._on_disk[split] if self.divided else self._on_disk

    def _explained(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # a library of many sources, each with errors of its own
            reason = " ".join(str(error).split())[:300].rstrip(".")
            what = f"{self.place.given} does not exist and" if self.hub else str(self.place.path)
            remedy = "check the name, and whether the hub can be reached" if self.hub else "check the folder"
            raise UsageError(f"{what} cannot be read as a Hugging Face data set ({reason}): {remedy}.") from error

    def _examples(self, rows: Any) -> list[Example]:
        library, path = _library(), self.place.path
        kinds = [name for name, kind in rows.features.items() if isinstance(kind, library.Image)]
        image = choose_column(
            rows.column_names, self.place.image_column, [*kinds, *IMAGE_COLUMNS], "image_column", path
        )
        if image in kinds:
            rows = rows.cast_column(image, library.Image(decode=False))
        captions = choose_captions(rows.column_names, self.place.caption_column, path, needed=False)
        found, images = Gathered(path), RowImages[ImageSource](path)
        for number, (file, row) in enumerate(_light(rows, image, [captions, self.place.id_column, IMAGE_ID])):
            where = f"row {number}"
            given = id_cell(row, self.place.id_column, path, where)
            key = found.key(given, number, where)
            found.add(key, caption_cell(row.get(captions or ""), path, where), given, where)
            source: ImageSource
            if image in kinds:
                source = RowImage(rows, number, image, f"{path}/{Path(file or where).name}")
            else:
                source = image_in(str(file), self.place.images or self.place.folder, self.place, path)
            images.add(key, source, file, where)
        return [Example(key, images.of[key], tuple(own)) for key, own in found.items()]

    @classmethod
    def write(cls, folder: Path, splits: Mapping[str, Sequence[Example]], images: Carrier) -> None:
        """A ``Dataset``, or a ``DatasetDict`` of several splits: columns ``image``, ``image_id``, ``captions``.

        Raises:
            UsageError: an example is a clip.
        """
        every = (example for examples in splits.values() for example in examples)
        clip = next((example for example in every if isinstance(example.image, _CLIPS)), None)
        if clip is not None:
            raise UsageError(f"{clip.image.name} is a clip, which format 'datasets' does not hold: choose another one.")
        library = _library()
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary, _without_bars(library):
            made = {}
            for number, (split, examples) in enumerate(splits.items()):
                file = Path(temporary, f"{number}.arrow")
                _write_arrow(library, file, examples, images)
                made[split] = library.Dataset.from_file(str(file))
            whole = made[UNNAMED] if list(made) == [UNNAMED] else library.DatasetDict(made)
            whole.save_to_disk(str(folder))


def _light(rows: Any, image: str, further: Sequence[str | None]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Each row's file name of the image, if any, and its other columns, without the images' bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    others = list(dict.fromkeys(name for name in further if name is not None and name in rows.column_names))
    table = rows.select_columns(list(dict.fromkeys([image, *others]))).with_format("arrow")
    for start in range(0, len(rows), _BATCH):
        batch = table[start : start + _BATCH]
        column = batch.column(image)
        files = pc.struct_field(column, "path") if pa.types.is_struct(column.type) else column
        yield from zip(
            files.to_pylist(), batch.select(others).to_pylist() if others else [{}] * len(batch), strict=True
        )


def _write_arrow(library: Any, file: Path, examples: Sequence[Example], images: Carrier) -> None:
    from datasets.arrow_writer import ArrowWriter

    text = library.Value("string")
    features = library.Features({"image": library.Image(), IMAGE_ID: text, "captions": library.List(text)})
    with ArrowWriter(features=features, path=str(file), writer_batch_size=_WRITTEN) as writer:
        for example in examples:
            image = {"bytes": images.read(example), "path": f"{encode_id(example.id[:60])}{suffix_of(example.image)}"}
            writer.write({"image": image, IMAGE_ID: example.id, "captions": list(example.references)})
        writer.finalize()


@contextmanager
def _without_bars(library: Any) -> Iterator[None]:
    shown = library.is_progress_bar_enabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bars()


def _library() -> Any:
    """The package, imported on use.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            "data sets of Hugging Face need the package datasets: install it with pip install 'tellapart[datasets]'."
        ) from error
    return datasets
