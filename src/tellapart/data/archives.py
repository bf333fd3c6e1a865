"""Archives of others: refused where a small file would unfold to fill the memory."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tellapart.errors import UsageError

MOST_UNFOLDED = 64 * 2**20
"""Bytes that any member of a zip file may have."""

MOST_RATIO = 200
"""Bytes per compressed byte that a larger member may have; numbers of a model compress to about half."""


def require_modest(file: Path) -> None:
    """Raise if a zip file, such as a ``.npz``, holds a decompression bomb; other files pass.

    Raises:
        UsageError: naming the member.
    """
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():  # zipfile reads no more of a member than it says here
            if member.file_size > max(MOST_UNFOLDED, MOST_RATIO * member.compress_size):
                raise UsageError(
                    f"{file} unfolds {member.filename} from {member.compress_size:,} to {member.file_size:,} bytes, as a "
                    "decompression bomb does: compute it again."
                )
