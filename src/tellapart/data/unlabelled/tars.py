"""Where the images of a tar begin and end. Unlike the reader of captioned tars, it takes what a damaged one still holds."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.folder import is_image
from tellapart.data.unlabelled.index import Members, Names
from tellapart.data.unlabelled.remembered import remembered


def members_of(archive: Path, name: str) -> tuple[Members, str | None]:
    """The images of a tar, and a sentence if it is cut or damaged: then they are those before the damage.

    Args:
        archive: the tar.
        name: what ids begin with.
    """
    try:
        found = remembered("tars", archive, _members)
    except OSError as error:
        found = _found({}, f"{archive} cannot be read ({error.strerror}): check the file and its permissions.")
    offsets, sizes = (np.array(found[key], dtype=np.int64) for key in ("offsets", "sizes"))
    return Members(archive, name, Names(found["names"]), offsets, sizes), found["problem"]


def _members(path: Path) -> dict[str, Any]:
    """Names, offsets and sizes of the images. One that comes twice counts as it stands last, as when a tar is unpacked."""
    images: dict[str, tuple[int, int]] = {}
    length = path.stat().st_size
    try:
        with path.open("rb") as data, tarfile.open(fileobj=data, mode="r:") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
                if member.offset_data + member.size > length:
                    raise tarfile.ReadError(f"it ends in the middle of {member.name}")
                if member.isfile() and _is_picture(member.name):
                    images[member.name] = (member.offset_data, member.size)
            data.seek(archive.offset)
            if data.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:  # tarfile stops there without a word
                raise tarfile.ReadError(f"no end, or a damaged header at byte {archive.offset}")
    except (tarfile.TarError, EOFError, ValueError) as error:
        return _found(
            images,
            f"{path} is not a whole tar archive ({error}): the {len(images)} images before that are used; unpack it if "
            "it is compressed, or get it again.",
        )
    return _found(images, None)


def _found(images: dict[str, tuple[int, int]], problem: str | None) -> dict[str, Any]:
    offsets, sizes = [list(column) for column in zip(*images.values(), strict=True)] if images else [[], []]
    return {"names": list(images), "offsets": offsets, "sizes": sizes, "problem": problem}


def _is_picture(name: str) -> bool:
    """Whether a member is the picture of its sample; ``1.mask.png`` is not, by WebDataset's rule of the first dot."""
    file = name.rpartition("/")[2]
    stem, _, ending = file.partition(".")
    return bool(stem) and "." not in ending and is_image(file) and name.isprintable() and _is_unicode(name)


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
