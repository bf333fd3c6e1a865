"""Encoded pictures of any kind as upright RGB, and one sentence for those that cannot be."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.data.pixels import to_rgb, widened
from tellapart.data.sniff import ImageError, intact_png, not_an_image, unreadable
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO", "DIB", "HEIF", "JXL")
"""Formats that are read, as Pillow calls them. Others that it knows stay shut: EPS runs a program, TGA takes any bytes."""

ENDINGS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".mpo"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "DIB": (".dib", ".bmp"),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif", ".avifs"),
    "JPEG2000": (".jp2", ".j2k", ".jpc", ".jpf", ".jpx", ".j2c"),
    "ICO": (".ico",),
    "HEIF": (".heic", ".heif", ".hif"),
}
"""Format -> the endings its files have. Files of all these are looked for in folders, also where their decoder is missing,
so that an image that cannot be read is reported, and not left out without a word."""

MAX_PIXELS = 178_956_970
"""Pixels of the largest image that is decoded; what Pillow, too, refuses as a decompression bomb."""

MAX_PIXELS_VARIABLE = "TELLAPART_MAX_IMAGE_PIXELS"
"""Environment variable with another limit."""

TINY, THIN, HUGE = 32, 10, 50_000_000
"""Sides in pixels below which an image is remarked upon as tiny, length by breadth from which as thin, pixels as huge."""

MOST_PER_BYTE = 500
"""Pixels per byte of a file; larger ones of more than ``HUGE`` pixels are refused: no photo is so uniform."""

_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Examined:
    """A decoded image and what is unusual about its file.

    Args:
        image: upright, in RGB.
        kinds: the unusual things, in words, such as ``CMYK`` or ``animated``.
    """

    image: Image.Image
    kinds: tuple[str, ...]


def decode(data: bytes, name: str) -> Image.Image:
    """An encoded image in RGB: the first frame, turned upright by its EXIF tag, transparency laid on white.

    Greys of 16 bits and floating-point greys are scaled to 8 bits (``to_rgb``), and an image
    more than 100 times as long as wide is widened (``widened``).

    Args:
        data: the file's bytes; their format is read from the bytes, not from the name.
        name: what messages call it.

    Raises:
        ImageError: it is not an image, is damaged, or has more pixels than the limit.
    """
    with opened_image(data, name) as image:
        return _upright(image)


def require_header(data: bytes, name: str) -> None:
    """Raise unless the bytes begin as an image of a size within the limit; its pixels are not decoded.

    Raises:
        ImageError: as ``decode``.
    """
    with opened_image(data, name):
        pass


def has_frames(data: bytes, name: str) -> bool:
    """Whether an encoded image has several frames; so has one whose second frame is damaged.

    Raises:
        ImageError: as ``decode``.
    """
    with opened_image(data, name) as image:
        return _has_frames(image)


def examine(data: bytes, name: str) -> Examined:
    """The same as ``decode``, with what is unusual about the image.

    It is decoded first, from the start, and by the same function: a decoder that was asked for something else before, such as the
    number of frames, may accept damaged bytes that it otherwise refuses.

    Raises:
        ImageError: as ``decode``.
    """
    image = decode(data, name)
    try:
        with opened_image(data, name) as header:
            kinds = tuple(_kinds(header, Path(name).suffix.lower()))
    except ImageError:  # damage behind the picture, which hides what is odd about the file
        kinds = ()
    return Examined(image, kinds)


def max_pixels() -> int:
    """The pixels that an image may have: of the environment, else ``MAX_PIXELS``.

    Raises:
        UsageError: the environment's value is not a number of pixels.
    """
    given = os.environ.get(MAX_PIXELS_VARIABLE)
    if not given:
        return MAX_PIXELS
    if not given.isdecimal() or int(given) < 1:
        raise UsageError(f"{MAX_PIXELS_VARIABLE} is {given!r}: set it to a number of pixels, or unset it.")
    return int(given)


@contextmanager
def opened_image(data: bytes, name: str) -> Iterator[Image.Image]:
    """The image behind its header, while the block decodes it; any error becomes one sentence.

    Args:
        data: the file's bytes.
        name: what messages call it.

    Raises:
        ImageError: as ``decode``.
    """
    from PIL import Image

    _hush_pillow()
    limit = max_pixels()
    if limit > MAX_PIXELS and Image.MAX_IMAGE_PIXELS is not None:  # Pillow refuses at twice its number
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, limit)
    try:
        with Image.open(io.BytesIO(data), formats=_formats(data)) as image:
            _check_header(image, data, name, limit)
            yield image
    except UsageError:
        raise
    except Image.UnidentifiedImageError as error:
        raise not_an_image(data, name) from error
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\d+", str(error))
        raise _too_large(name, f"{int(pixels[0]):,}" if pixels else "too many", limit) from error
    except Exception as error:  # decoders raise anything at all over damaged bytes
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise unreadable(name, why) from error


def _check_header(image: Image.Image, data: bytes, name: str, limit: int) -> None:
    width, height = image.size
    if width * height > limit:
        raise _too_large(name, f"{width} x {height} = {width * height:,}", limit)
    if width * height > max(HUGE, len(data) * MOST_PER_BYTE):
        raise unreadable(
            name, f"its {len(data):,} bytes unfold to {width * height:,} pixels, as those of a decompression bomb do"
        )
    if width < 1 or height < 1:
        raise unreadable(name, f"it has {width} x {height} pixels")
    if image.format == "PNG" and not intact_png(data):
        raise unreadable(name, "its pixels do not have the checksum that it gives")


def _hush_pillow() -> None:
    """From now on, Pillow's remarks on EXIF, palettes and large images are left out.

    Not only while an image is decoded: Python forgets what it has warned of whenever filters change, and would repeat
    everybody's warnings after every image.
    """
    ours = re.compile(r"PIL\.")
    if not any(action == "ignore" and module == ours for action, _, _, module, _ in warnings.filters):
        warnings.filterwarnings("ignore", module=ours.pattern)


def _formats(data: bytes) -> tuple[str, ...]:
    from PIL import Image

    Image.init()
    if data[4:8] == b"ftyp" and "HEIF" not in Image.OPEN:
        with suppress(ImportError):
            import pillow_heif  # type: ignore[import-not-found]  # optional: Pillow itself has no HEIC

            pillow_heif.register_heif_opener()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _too_large(name: str, pixels: str, limit: int) -> ImageError:
    return ImageError(
        f"{name} has {pixels} pixels, more than the limit of {limit:,}: scale it down or remove it, "
        f"or raise the limit with {MAX_PIXELS_VARIABLE}."
    )


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    return widened(turned(to_rgb(image), orientation(image)))


def turned(picture: Image.Image, orientation: int) -> Image.Image:
    """The picture as its EXIF tag says it is to be shown."""
    from PIL import Image

    turn = _TURNS.get(orientation)
    return picture if turn is None else picture.transpose(Image.Transpose[turn])


def orientation(image: Image.Image) -> int:
    """The EXIF tag; 1 (upright) where there is none or EXIF is damaged, which does not make the picture unreadable."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _kinds(image: Image.Image, ending: str) -> Iterator[str]:
    short, long = sorted(image.size)
    by_mode = {"CMYK": "CMYK", "P": "palette", "PA": "palette", "I": "16-bit", "F": "floating-point"}
    kind = by_mode.get("I" if image.mode.startswith("I;16") else image.mode, "")
    several = image.format != "MPO" and _has_frames(image)  # an MPO's further pictures are views of the same
    renamed = image.format in ENDINGS and ending != "" and ending not in ENDINGS[image.format]
    known = {
        kind: kind != "",
        "transparency": image.has_transparency_data,
        "several frames": several,
        "another format than its ending": renamed,
        "turned by EXIF": orientation(image) != 1,
        f"tiny (below {TINY} pixels)": short < TINY,
        f"thin ({THIN} times as long as wide)": long >= THIN * short,
        f"huge (over {HUGE // 1_000_000} megapixels)": short * long > HUGE,
    }
    return (what for what, holds in known.items() if holds)


def _has_frames(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # the second frame is damaged; only the first is used
        return True
