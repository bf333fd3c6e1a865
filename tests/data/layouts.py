"""Small pieces that the tests of layouts share."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 5, 3), shade, np.uint8)).save(path)
    return path


def write(path: Path, value) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = value if isinstance(value, str | bytes) else json.dumps(value)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def tar(path: Path, members: dict[str, str | bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, text in members.items():
            data = text if isinstance(text, bytes) else text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path
