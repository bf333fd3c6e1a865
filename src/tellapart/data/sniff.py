"""The likely kind of a file that is not an image, for its error message."""

from __future__ import annotations

import struct
import zlib

from tellapart.errors import UsageError


class ImageError(UsageError):
    """An image is missing, damaged or refused; the sentence names it."""


LOOKS = {
    "HTML": (b"<!doctype html", b"<html", b"<head", b"<body", b"<script", b"<!--"),
    "SVG, a drawing": (b"<svg",),
    "XML": (b"<?xml",),
    "JSON": (b"{", b"["),
    "a PDF": (b"%pdf-",),
    "PostScript": (b"%!ps",),
    "a Photoshop file": (b"8bps",),
    "a ZIP archive": (b"pk\x03\x04", b"pk\x05\x06"),
    "a gzip archive": (b"\x1f\x8b",),
    "a Zstandard archive": (b"\x28\xb5\x2f\xfd",),
    "a video": (b"\x1a\x45\xdf\xa3", b"oggs"),
}
"""What a file is -> how it begins, in small letters."""

RIFF = {b"AVI ": "a video", b"WAVE": "sound"}
"""What such files hold besides WebP, by the bytes after their size."""

HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
AVIF = (b"avif", b"avis")

IMAGES = {
    "JPEG": (b"\xff\xd8",),
    "PNG": (b"\x89PNG",),
    "GIF": (b"GIF8",),
    "TIFF": (b"II*\0", b"MM\0*"),
    "WebP": (b"RIFF",),
    "BMP": (b"BM",),
    "HEIC": HEIC,
    "AVIF": AVIF,
}
"""Image format -> how its files begin (those of one family: their brand), even where the header goes wrong later on."""


def unreadable(name: str, why: str, remedy: str = "repair or remove it", *, what: str = "image") -> ImageError:
    """The error for a file that is not an image, or a damaged one.

    Args:
        name: what the message calls it.
        why: a few words.
        remedy: what to do about it.
        what: what it should be.
    """
    return ImageError(f"{name} is not a readable {what} ({why}): {remedy}.")


def not_an_image(data: bytes, name: str) -> ImageError:
    """The error for bytes that no image format recognises.

    Args:
        data: the file's bytes.
        name: what the message calls it.
    """
    from PIL import Image

    brand = data[8:12] if data[4:8] == b"ftyp" else None
    if brand in HEIC and "HEIF" not in Image.OPEN:
        why, remedy = "it is HEIC, whose decoder is missing", "pip install pillow-heif, or convert it to JPEG"
        return unreadable(name, why, remedy)
    if brand in AVIF and not _pillow_has_avif():
        why, remedy = "it is AVIF, whose decoder is missing", "pip install 'pillow>=11.3', or convert it to JPEG"
        return unreadable(name, why, remedy)
    if data.startswith(b"version https://git-lfs"):
        return unreadable(name, "it is a Git LFS pointer", "run git lfs pull to get the image that it points to")
    other = data[:4] == b"RIFF" and not b"WEBP".startswith(data[8:12])  # AVI and WAV begin so, too
    begins = [] if other else [kind for kind, starts in IMAGES.items() if (brand or data).startswith(starts)]
    if begins:
        return unreadable(name, f"it begins as {begins[0]}, but its header is cut off, wrong or of an unknown kind")
    return unreadable(name, _look(data, brand), "replace or remove it")


def _pillow_has_avif() -> bool:
    from PIL import features

    return "avif" in features.modules and bool(features.check("avif"))


def intact_png(data: bytes) -> bool:
    """Whether the pixels of a PNG file have their checksums, which Pillow does not look at: it would show garbage.

    Args:
        data: the file's bytes; where they end early, what is there counts.
    """
    place = 8
    while place + 12 <= len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        end = place + 8 + length
        if data[place + 4 : place + 8] == b"IDAT" and end + 4 <= len(data):
            (given,) = struct.unpack(">I", data[end : end + 4])
            if zlib.crc32(memoryview(data)[place + 4 : end]) != given:
                return False
        place = end + 4
    return True


def gif_delays(data: bytes) -> list[int] | None:
    """How long each frame of a GIF is shown, in hundredths of a second; None if the file ends in the middle of a block.

    Delays below 2 count as 10, as in browsers and in FFmpeg.

    Args:
        data: the file's bytes. What follows the last known block is skipped.
    """
    place, delay, delays = 13 + _colours(data[10:11]), 0, list[int]()
    while data[place : place + 1] in (b"!", b","):
        if data[place : place + 1] == b"!":
            if data[place + 1 : place + 2] == b"\xf9":  # the control of the next frame
                delay = int.from_bytes(data[place + 4 : place + 6], "little")
            place += 2
        else:
            delays.append(delay if delay > 1 else 10)
            place += 11 + _colours(data[place + 9 : place + 10])  # the descriptor, its colours, the size of codes
        while place < len(data) and data[place]:
            place += 1 + data[place]
        place += 1
    return delays if place <= len(data) else None


def _colours(flags: bytes) -> int:
    """Bytes of a GIF's table of colours, after flags that say whether there is one."""
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0


def _look(data: bytes, brand: bytes | None) -> str:
    if not data:
        return "it is empty"
    if not data.strip(b"\0"):
        return "it holds nothing but zero bytes"
    start = data[:512].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    kinds = [kind for kind, starts in LOOKS.items() if start.startswith(starts)]
    if "XML" in kinds and b"<svg" in start:
        kinds = ["SVG, a drawing"]
    if data[:4] == b"RIFF" and data[8:12] in RIFF:
        kinds = [RIFF[data[8:12]]]
    if kinds or brand is not None:
        return f"it is {kinds[0] if kinds else 'a video'}"
    return "it is text" if _is_text(data[:512]) else "it is in no known image format"


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode("utf-8", errors="strict" if len(start) < 512 else "ignore")
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter.isspace() for letter in text)
