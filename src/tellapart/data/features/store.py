"""tellapart's own layout of features: a few large files that are mapped into memory, not one small file per image.

::

    features.json           what they were computed with
    shard-00000.npy         [rows, D]: the rows of its images, one after the other
    shard-00000.parquet     id, fingerprint of the picture, first row, number of rows

A shard counts once its table is there, and both files are renamed into place: after a kill, the shards that were finished
are whole. The table of a later shard wins, so features can be computed again without touching what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from tellapart.data.features.base import checked, missing
from tellapart.errors import UsageError
from tellapart.files import beside, read_json, remove_half_written, write_json

ABOUT = "features.json"
Pool = Literal["mean", "grid", "frames"]
DType = Literal["float32", "float16"]


@dataclass(frozen=True)
class About:
    """What a store's features were computed with.

    Args:
        model: name of the vision model.
        weights: hash of its weights and preprocessing.
        pool: ``mean`` keeps one vector per image, ``grid`` one per place, ``frames`` one per frame of a clip.
        width: numbers in a vector.
        dtype: what they are stored in.
        frames: frames that were read of each clip; none of images.
    """

    model: str
    weights: str
    pool: Pool
    width: int
    dtype: DType
    frames: int | None = None


@dataclass(frozen=True)
class _Place:
    shard: str
    first: int
    count: int
    fingerprint: str


class _Row(NamedTuple):
    image_id: str
    fingerprint: str
    array: np.ndarray


class FeatureStore:
    """Features in tellapart's own layout, read through memory maps.

    Args:
        path: the folder.

    Raises:
        UsageError: it is not a folder of features, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self.about = _about(path)
        self.width = self.about.width
        self._places: dict[str, _Place] = {}
        for table in sorted(path.glob("shard-*.parquet")):
            self._places.update(_rows(table))
        self._maps: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._places

    def fingerprint(self, image_id: str) -> str:
        """The hash of the picture that the features are of."""
        return self._places[image_id].fingerprint

    def find(self, fingerprints: Iterable[str]) -> str | None:
        """The id of a picture with one of these hashes, if there is one."""
        return next((self._ids[known] for known in fingerprints if known in self._ids), None)

    @cached_property
    def _ids(self) -> dict[str, str]:
        return {place.fingerprint: name for name, place in self._places.items()}

    def __getitem__(self, image_id: str) -> np.ndarray:
        if image_id not in self._places:
            raise missing(self, image_id)
        place = self._places[image_id]
        rows = self._shard(place.shard)[place.first : place.first + place.count]
        return checked(rows[0] if self.about.pool == "mean" and len(rows) == 1 else rows, self, image_id)

    def remove_damaged(self) -> dict[str, str]:
        """Delete the shards whose rows cannot be read, such as those of a full disk; shard -> what is wrong with it."""
        rows: dict[str, int] = {}
        for place in self._places.values():
            rows[place.shard] = max(rows.get(place.shard, 0), place.first + place.count)
        damaged = dict[str, str]()
        for name, count in rows.items():
            try:
                there = len(self._shard(name))
                if there < count:
                    damaged[name] = f"{self.path / name}.npy has {there} rows of {count}"
            except UsageError as error:
                damaged[name] = str(error).partition(": delete")[0]
        for name in damaged:
            (self.path / f"{name}.parquet").unlink(missing_ok=True)  # without its table a shard does not count
            (self.path / f"{name}.npy").unlink(missing_ok=True)
            self._maps.pop(name, None)
        self._places = {image: place for image, place in self._places.items() if place.shard not in damaged}
        return damaged

    def _shard(self, name: str) -> np.ndarray:
        if name not in self._maps:
            file = self.path / f"{name}.npy"
            try:
                self._maps[name] = np.load(file, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise UsageError(
                    f"{file} is damaged ({error}): delete it and {name}.parquet, and run tellapart features again."
                ) from error
        return self._maps[name]


def _rows(table: Path) -> Iterator[tuple[str, _Place]]:
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        columns = pq.read_table(table).to_pydict()
        for name, fingerprint, first, count in zip(
            columns["id"], columns["fingerprint"], columns["first"], columns["count"], strict=True
        ):
            yield name, _Place(table.stem, first, count, fingerprint)
    except (ArrowException, OSError, KeyError) as error:
        raise UsageError(
            f"{table} is damaged ({error}): delete it, and run tellapart features again to compute its images."
        ) from error


class FeatureWriter:
    """Adds features to a store, a shard at a time.

    Args:
        path: the folder; it is made, or must hold features computed in the same way.
        about: what they are computed with.
        shard_bytes: a shard is written when it has at least this many bytes,
        shard_images: or at least this many images.

    Raises:
        UsageError: the folder holds other features, or other files.
    """

    def __init__(self, path: Path, about: About, *, shard_bytes: int = 2**28, shard_images: int = 2000) -> None:
        self.path, self.about, self.shard_bytes, self.shard_images = path, about, shard_bytes, shard_images
        remove_half_written(path, {ABOUT})  # of a command that was killed before it had written anything else
        if (path / ABOUT).is_file():
            _require_same(FeatureStore(path).about, about, path)
        elif path.is_dir() and any(path.iterdir()):
            raise UsageError(f"--output_dir {path} holds other files: name an empty or a new folder.")
        else:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / ABOUT, {"format": 1, **asdict(about)})
        self._rows: list[_Row] = []

    def add(self, batch: Iterable[tuple[str, str, np.ndarray]]) -> None:
        """Keep the features of pictures that were computed together.

        They come into one shard, all or none: after a stop no picture is computed in another batch than before.

        Args:
            batch: of each picture its id, its fingerprint, and ``[D]`` or ``[R, D]``.

        Raises:
            UsageError: features do not fit into the numbers they are to be stored in.
        """
        self._rows += [self._row(*picture) for picture in batch]
        if len(self._rows) >= self.shard_images or sum(row.array.nbytes for row in self._rows) >= self.shard_bytes:
            self.flush()

    def _row(self, image_id: str, fingerprint: str, array: np.ndarray) -> _Row:
        with np.errstate(over="ignore"):
            rows = np.atleast_2d(array).astype(self.about.dtype)
        if not np.isfinite(rows).all():
            raise UsageError(
                f"the features of image {image_id!r} are not finite in {self.about.dtype}: store them with --dtype float32, "
                "or repair the model."
            )
        return _Row(image_id, fingerprint, rows)

    def flush(self) -> None:
        """Write what was added as a shard."""
        if not self._rows:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        stem = f"shard-{_next_number(self.path):05}"
        ids, fingerprints = [row.image_id for row in self._rows], [row.fingerprint for row in self._rows]
        counts = [len(row.array) for row in self._rows]
        first = np.concatenate([[0], np.cumsum(counts)[:-1]]).tolist()
        # On disk before the table that counts it.
        with beside(self.path / f"{stem}.npy", durable=True) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate([row.array for row in self._rows]))
        rows = pa.table({"id": ids, "fingerprint": fingerprints, "first": first, "count": counts})
        with beside(self.path / f"{stem}.parquet") as temporary:
            pq.write_table(rows, temporary)
        self._rows = []


def clear_features(path: Path, about: About) -> None:
    """Leave a store without features, for others to take their place; files that are not of the store stay.

    Args:
        path: the store's folder.
        about: what the new features are computed with.

    Raises:
        UsageError: the folder is not one of features.
    """
    _about(path)
    for file in [*path.glob("shard-*.parquet"), *path.glob("shard-*.npy")]:
        if file.stem.removeprefix("shard-").isdecimal():
            file.unlink()
    write_json(path / ABOUT, {"format": 1, **asdict(about)})  # last: a kill leaves fewer features of the same kind


def _about(path: Path) -> About:
    try:
        stored = read_json(path / ABOUT)
        return About(**{key: stored[key] for key in About.__dataclass_fields__ if key in stored})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} has no readable {ABOUT} ({error}): name a folder of tellapart features.") from error


def _next_number(path: Path) -> int:
    """One more than the last shard that counts; the lone .npy of a killed writer is written over."""
    return max((int(table.stem.removeprefix("shard-")) for table in path.glob("shard-*.parquet")), default=-1) + 1


def _require_same(there: About, here: About, path: Path) -> None:
    for key, value in asdict(there).items():
        if key != "model" and value != getattr(here, key):  # the same weights may have two names
            raise UsageError(
                f"--output_dir {path} holds features with {_shown(key, value)}, not {_shown(key, getattr(here, key))}: name "
                "another folder, or give --overwrite to compute all of them again."
            )


def _shown(key: str, value: object) -> str:
    return f"no {key}" if value is None else f"{key} {value!r}"
