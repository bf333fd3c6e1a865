"""One door to all sets of features."""

from __future__ import annotations

from pathlib import Path

from tellapart.data.clips import fingerprints
from tellapart.data.dataset import CaptionDataset
from tellapart.data.features.base import FeatureSet
from tellapart.data.features.folder import FeatureFolder, FeatureHdf5
from tellapart.data.features.store import ABOUT, FeatureStore
from tellapart.data.images import ImageError, ImageFile
from tellapart.errors import UsageError
from tellapart.progress import track

HDF5 = (".h5", ".hdf5")
LOOKED_AT = 4
"""Image files that are compared with the pictures that features were computed of."""


def open_features(path: str | Path) -> FeatureSet:
    """The features at ``path``: a folder of ``tellapart features``, a folder of .npy or .npz files, or an HDF5 file.

    Raises:
        UsageError: there is nothing of the kind.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return FeatureStore(path) if (path / ABOUT).is_file() else FeatureFolder(path)
    if not path.exists():
        raise UsageError(f"features {path} do not exist: check the path, or make them with tellapart features.")
    if path.suffix.lower() not in HDF5:
        raise UsageError(
            f"features {path} are of no known form: name a folder, or a file ending in {' or '.join(HDF5)}."
        )
    return FeatureHdf5(path)


def require_features(dataset: CaptionDataset, features: FeatureSet) -> None:
    """Raise unless there is something for every image.

    Raises:
        UsageError: naming the first image without, and how many there are.
    """
    without = [image_id for image_id in dataset.ids if image_id not in features]
    if without:
        raise UsageError(
            f"{features.name} has no features of {len(without)} of the {len(dataset)} images of {dataset.name}, first "
            f"{without[0]!r}: compute them (tellapart features), or leave such images out (data.on_error skip)."
        )


def of_other_pictures(dataset: CaptionDataset, features: FeatureSet) -> str | None:
    """Id of an image whose features are another picture's, if that holds for every one of a few image files that were looked at:
    ids such as 0, 1, 2 are found in features of other data, too. Features that do not know their pictures tell nothing.
    """
    if not isinstance(features, FeatureStore):
        return None
    examples = (example for example in dataset.examples if example.id in features)
    files = [(each.id, each.image.path) for each in examples if isinstance(each.image, ImageFile)]
    wrong = []
    for name, path in files[:: max(1, len(files) // LOOKED_AT)][:LOOKED_AT]:
        try:
            own = fingerprints(path)
        except ImageError:  # the pictures need not be there
            continue
        if features.fingerprint(name) in own:
            return None
        wrong.append(name)
    return wrong[0] if wrong else None


def with_features(dataset: CaptionDataset, features: FeatureSet) -> tuple[CaptionDataset, list[tuple[str, str]]]:
    """The data without the images whose features are missing or cannot be used; each is read once.

    Returns:
        The data set, and id and reason of every image that was left out.

    Raises:
        UsageError: no image has features.
    """
    kept, left = [], []
    for example in track(dataset.examples, "reading features"):
        try:
            features[example.id]
        except UsageError as error:
            left.append((example.id, str(error)))
        else:
            kept.append(example)
    if not kept:
        raise UsageError(f"no image of {dataset.name} has features: {left[0][1]}")
    return (CaptionDataset(kept, name=dataset.name) if left else dataset), left
