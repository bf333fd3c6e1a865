"""Damaged and odd images of every kind that people's folders hold, made on the spot."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def make_damaged(folder: Path, count: int = 300, *, seed: int = 0) -> dict[str, str]:
    """Write ``count`` files into ``folder``, every kind in turn, no two of the same picture.

    Returns:
        File name -> kind, in order of the names; a name begins with its kind. :data:`READABLE` are the kinds that must
        be readable, and :data:`BROKEN` those that must be refused.
    """
    kinds = list(READABLE | BROKEN)
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for i in range(count):
        kind = kinds[i % len(kinds)]
        ending, make = (READABLE | BROKEN)[kind]
        name = f"{kind}-{i:03}{ending}"
        (folder / name).write_bytes(make(np.random.default_rng([seed, i])))
        made[name] = kind
    return dict(sorted(made.items()))


def picture(rng: np.random.Generator, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Random blocks of colour, width x height."""
    blocks = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return blocks.resize(size, Image.Resampling.NEAREST)


def encode(image: Image.Image, format: str, **options) -> bytes:
    """The image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def turned(image: Image.Image, orientation: int, format: str = "JPEG", **options) -> bytes:
    """The image with an EXIF orientation, its pixels as they are."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encode(image, format, exif=exif, **options)


def with_alpha(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """The image in RGBA, every pixel of another opacity."""
    return Image.merge("RGBA", [*image.convert("RGB").split(), Image.fromarray(noise(rng, image))])


def noise(rng: np.random.Generator, image: Image.Image) -> np.ndarray:
    """``[height, width]`` uint8."""
    return rng.integers(0, 256, (image.height, image.width), dtype=np.uint8)


def ycck(stored: Image.Image) -> bytes:
    """A JPEG file whose four stored components, given as a CMYK image's, are declared to be YCCK by Adobe's marker."""
    inverted = Image.merge("CMYK", [band.point(lambda value: 255 - value) for band in stored.split()])
    data = bytearray(encode(inverted, "JPEG", quality=100))  # Pillow writes what it is given inverted, in Adobe's way
    marker = data.index(b"\xff\xee\x00\x0eAdobe")
    assert data[marker + 15] == 0  # transform: CMYK
    data[marker + 15] = 2
    return bytes(data)


def animated(rng: np.random.Generator, format: str, **options) -> bytes:
    """Three frames."""
    first, *rest = (picture(rng) for _ in range(3))
    return encode(first, format, save_all=True, append_images=rest, **options)


def huge_png(width: int = 30_000, height: int = 30_000) -> bytes:
    """A PNG file of a few bytes whose header claims this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


def cut(data: bytes, share: float = 0.6) -> bytes:
    """The beginning of a file."""
    return data[: int(len(data) * share)]


def spoiled_png(rng: np.random.Generator) -> bytes:
    """A PNG file with a byte of its pixels changed, which its checksum tells."""
    data = bytearray(encode(picture(rng), "PNG"))
    data[data.index(b"IDAT") + 20] ^= 0xFF
    return bytes(data)


def broken_exif(rng: np.random.Generator) -> bytes:
    """A JPEG file whose EXIF is nonsense."""
    return encode(picture(rng), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f" + rng.bytes(40))


Maker = Callable[[np.random.Generator], bytes]

READABLE: dict[str, tuple[str, Maker]] = {
    "jpeg": (".jpg", lambda rng: encode(picture(rng), "JPEG")),
    "cmyk": (".jpg", lambda rng: encode(picture(rng).convert("CMYK"), "JPEG")),
    "ycck": (".jpg", lambda rng: ycck(picture(rng).convert("CMYK"))),
    "grey16": (".png", lambda rng: encode(Image.fromarray(noise(rng, picture(rng)) * np.uint16(257)), "PNG")),
    "grey16-tiff": (".tif", lambda rng: encode(Image.fromarray(noise(rng, picture(rng)) * np.uint16(257)), "TIFF")),
    "float": (".tif", lambda rng: encode(Image.fromarray(noise(rng, picture(rng)) / np.float32(255)), "TIFF")),
    "bilevel": (".png", lambda rng: encode(picture(rng).convert("1"), "PNG")),
    "palette": (".png", lambda rng: encode(picture(rng).quantize(20), "PNG")),
    "palette-transparent": (".png", lambda rng: encode(picture(rng).quantize(20), "PNG", transparency=rng.bytes(20))),
    "grey-alpha": (".png", lambda rng: encode(with_alpha(rng, picture(rng)).convert("LA"), "PNG")),
    "rgba": (".webp", lambda rng: encode(with_alpha(rng, picture(rng)), "WEBP", lossless=True)),
    "animated-gif": (".gif", lambda rng: animated(rng, "GIF")),
    "animated-webp": (".webp", lambda rng: animated(rng, "WEBP")),
    "animated-png": (".png", lambda rng: animated(rng, "PNG")),
    "one-pixel": (".png", lambda rng: encode(Image.fromarray(rng.integers(0, 256, (1, 1, 3), dtype=np.uint8)), "PNG")),
    "thin": (".png", lambda rng: encode(Image.fromarray(rng.integers(0, 256, (5000, 1, 3), dtype=np.uint8)), "PNG")),
    "turned": (".jpg", lambda rng: turned(picture(rng), int(rng.integers(2, 9)))),
    "broken-exif": (".jpg", broken_exif),
    "png-called-jpg": (".jpg", lambda rng: encode(picture(rng), "PNG")),
    "mpo": (".jpg", lambda rng: animated(rng, "MPO")),
}
"""Kind -> its ending, and what makes a file of it; to be read as an image."""

BROKEN: dict[str, tuple[str, Maker]] = {
    "cut-jpeg": (".jpg", lambda rng: cut(encode(picture(rng), "JPEG"))),
    "cut-png": (".png", lambda rng: cut(encode(Image.fromarray(noise(rng, picture(rng))), "PNG"))),
    "cut-gif": (".gif", lambda rng: cut(encode(Image.fromarray(noise(rng, picture(rng))), "GIF"))),
    "spoiled-png": (".png", spoiled_png),
    "empty": (".jpg", lambda rng: b""),
    "zeros": (".jpg", lambda rng: bytes(int(rng.integers(1, 4000)))),
    "html": (".jpg", lambda rng: b"<!DOCTYPE html>\n<html><body>404 %d</body></html>" % rng.integers(10**6)),
    "svg": (".png", lambda rng: b'<?xml version="1.0"?><svg width="%d"/>' % rng.integers(1, 10**6)),
    "text": (".jpg", lambda rng: f"Zugriff verweigert: zu viele Anfragen, Größe {rng.integers(99)}".encode()),
    "git-lfs": (
        ".jpg",
        lambda rng: b"version https://git-lfs.github.com/spec/v1\noid sha256:%d\n" % rng.integers(10**9),
    ),
    "noise": (".png", lambda rng: b"\x01\xfe" + rng.bytes(2000)),
    "huge": (".png", lambda rng: huge_png()),
    "heic": (".jpg", lambda rng: b"\0\0\0\x18ftypheic" + rng.bytes(500)),
}
"""Kind -> its ending, and what makes a file of it; to be refused by a sentence that names it."""
