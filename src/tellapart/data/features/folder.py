"""Folders with one file of features per image, and HDF5 files with one data set per image."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.archives import require_modest
from tellapart.data.features.base import checked, missing
from tellapart.data.folder import walk
from tellapart.errors import UsageError

KEYS = ("feat", "features", "x", "arr_0")
"""Names of the array in a file of several, in the order they are looked for."""

ENDINGS = (".npy", ".npz")

MOST_GROUPS = 255
"""Groups in each other that are looked into: links can lead round in a circle."""


class FeatureFolder:
    """``ID.npy``, or ``ID.npz`` with the array ``feat`` (boxes and other arrays are skipped), in one folder,
    and in folders below it for ids with ``/``.

    That is how ruotianluo's ImageCaptioning.pytorch keeps them: ``cocotalk_fc/391895.npy``, ``cocotalk_att/391895.npz``.

    Args:
        path: the folder.

    Raises:
        UsageError: it holds no such files, or the first cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        files = (Path(where, name) for where, names in walk(path) for name in sorted(names) if name.endswith(ENDINGS))
        first = next(files, None)
        if first is None:
            raise UsageError(f"{path} holds no features (.npy or .npz, one per image): name another folder.")
        array = _read(first)
        if array.ndim == 0 or array.shape[-1] == 0:
            raise UsageError(f"{first} holds no features (shape {array.shape}): compute them again.")
        self.width = array.shape[-1]

    def __contains__(self, image_id: str) -> bool:
        return self._file(image_id) is not None

    def __getitem__(self, image_id: str) -> np.ndarray:
        file = self._file(image_id)
        if file is None:
            raise missing(self, image_id)
        return checked(_read(file), self, image_id)

    def _file(self, image_id: str) -> Path | None:
        files = [self.path / f"{image_id}{ending}" for ending in ENDINGS]
        return next((file for file in files if file.is_file()), None)


def _read(file: Path) -> np.ndarray:
    """The array of a file; nothing pickled is loaded.

    Raises:
        UsageError: it cannot be read, or has no array of a known name.
    """
    try:
        require_modest(file)
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            key = next((key for key in KEYS if key in loaded), None)
            if key is None:
                raise UsageError(f"{file} has the arrays {', '.join(loaded)} and none named feat: rename one.")
            return loaded[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{file} cannot be read ({str(error).rstrip('.')}): compute it again.") from error


class FeatureHdf5:
    """An HDF5 file whose data sets are named by image ids, or groups so named with the data set ``feat``;
    an id with ``/`` names a data set of a group.

    Args:
        path: the file.

    Raises:
        UsageError: h5py is not installed, or the file is broken or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self._open: tuple[int, Any] | None = None
        try:
            first = self._first()
        except OSError as error:
            raise UsageError(f"{path} is not an HDF5 file ({error}): name another.") from error
        if first is None:
            raise UsageError(f"{path} holds no features: its data sets must be named by image ids.")
        array = self._array(first)
        if array.ndim == 0 or array.shape[-1] == 0:
            raise UsageError(f"{path} holds no features under {first!r} (shape {array.shape}): compute them again.")
        self.width = array.shape[-1]

    def _first(self) -> str | None:
        """The name of the first data set, or of the group that holds it as ``feat``."""
        name = next(iter(self._file), None)
        for _ in range(MOST_GROUPS):
            node: Any = None if name is None else self._file.get(name)
            inside = next(iter(node), None) if hasattr(node, "keys") and "feat" not in node else None
            if inside is None:
                break
            name = f"{name}/{inside}"
        return name

    @property
    def _file(self) -> Any:
        # A handle must not be used on both sides of a fork.
        if self._open is None or self._open[0] != os.getpid():
            try:
                import h5py
            except ImportError as error:
                raise UsageError(f"{self.path} needs h5py: install it with pip install 'tellapart[hdf5]'.") from error
            self._open = (os.getpid(), h5py.File(self.path, "r"))
        return self._open[1]

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._file

    def __getitem__(self, image_id: str) -> np.ndarray:
        if image_id not in self:
            raise missing(self, image_id)
        return checked(self._array(image_id), self, image_id)

    def _array(self, image_id: str) -> np.ndarray:
        try:
            node = self._file[image_id]
            return np.asarray(node["feat"] if hasattr(node, "keys") else node)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{self.path}: {image_id!r} cannot be read ({error}): compute it again.") from error
