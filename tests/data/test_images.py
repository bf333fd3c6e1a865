"""Pictures of every kind become upright RGB with the right colours, and everything else one sentence."""

from __future__ import annotations

import io
import os
import sys
import warnings
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from damaged_images import BROKEN, ORIENTATION, READABLE, animated, encode, huge_png, picture, turned, with_alpha, ycck
from tellapart.data.decoding import MAX_PIXELS, MAX_PIXELS_VARIABLE, examine
from tellapart.data.images import ImageError, ImageFile, decode
from tellapart.errors import UsageError

RNG = np.random.default_rng(0)


def pixels(data: bytes) -> np.ndarray:
    """What is decoded, as whole numbers that may be subtracted."""
    image = decode(data, "picture")
    assert image.mode == "RGB"
    return np.asarray(image, dtype=np.int64)


def on_white(values: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., None] / 255
    return values * share + 255 * (1 - share)


def grey_rows(values: np.ndarray) -> np.ndarray:
    return np.repeat(np.asarray(values, dtype=np.int64)[..., None], 3, axis=-1)


TURNS = {  # what the stored pixels must undergo, as EXIF 2.3 defines the tag
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a.swapaxes(0, 1)[::-1],
    9: lambda a: a,  # no orientation
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize(
    ("format", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 100}), ("TIFF", {})]
)
def test_orientation(orientation, format, options):
    image = picture(RNG, (9, 6))
    straight = pixels(encode(image, format, **options))
    assert (pixels(turned(image, orientation, format, **options)) == TURNS[orientation](straight)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_compressed_tiff(orientation):
    image = picture(RNG, (9, 6))
    data = encode(image, "TIFF", compression="tiff_lzw", tiffinfo={ORIENTATION: orientation})
    assert (pixels(data) == TURNS[orientation](np.asarray(image))).all()


@pytest.mark.parametrize("exif", [b"", b"II*\0", b"II*\0\xff\xff\xff\x7f", b"MM\0*\0\0\0\x08\xff\xff" + b"\1\x12" * 30])
@pytest.mark.parametrize(("format", "options"), [("JPEG", {}), ("PNG", {}), ("WEBP", {"lossless": True})])
def test_broken_exif_loses_no_picture(exif, format, options):
    image = picture(RNG)
    straight = pixels(encode(image, format, **options))
    assert (pixels(encode(image, format, exif=b"Exif\0\0" + exif, **options)) == straight).all()


def test_cmyk():
    cyan, magenta, yellow, black = (RNG.integers(0, 256, (4, 4)) for _ in range(4))
    inks = np.stack([cyan, magenta, yellow, black], -1).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    data = encode(Image.fromarray(inks, "CMYK"), "JPEG", quality=100)
    expected = (255 - inks[..., :3].astype(float)) * (255 - inks[..., 3:].astype(float)) / 255
    assert np.abs(pixels(data) - expected).max() <= 5  # JPEG's own rounding


def test_ycck():
    luma, blue, red, key = (RNG.integers(60, 200, (4, 4)) for _ in range(4))
    stored = np.stack([luma, blue, red, key], -1).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    y, cb, cr, k = (band.astype(float) for band in np.moveaxis(stored, -1, 0))
    rgb = np.stack(
        [y + 1.402 * (cr - 128), y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128), y + 1.772 * (cb - 128)], -1
    )
    # the decoder turns YCC into inks of 255 - RGB; Adobe stores all four inverted: the inks are RGB, black is 255 - k
    expected = (255 - rgb.clip(0, 255)) * k[..., None] / 255
    assert np.abs(pixels(ycck(Image.fromarray(stored, "CMYK"))) - expected).max() <= 5


@pytest.mark.parametrize("format", ["PNG", "TIFF", "JPEG2000"])
def test_16_bit_greys_are_scaled(format):
    values = np.array([[0, 255, 256, 32768], [65534, 65535, 4095, 128]], dtype=np.uint16)
    data = encode(Image.fromarray(values), format)
    assert (pixels(data) == grey_rows(np.floor(values / 257 + 0.5))).all()


def test_a_transparent_16_bit_grey_is_white():
    values = np.array([[1000, 20000], [20000, 65535]], dtype=np.uint16)
    data = encode(Image.fromarray(values), "PNG", transparency=20000)
    assert (pixels(data) == grey_rows([[4, 255], [255, 255]])).all()


def test_16_bit_pgm():
    values = np.array([[0, 1000], [40000, 65535]])
    data = b"P5 2 2 65535\n" + values.astype(">u2").tobytes()
    assert (pixels(data) == grey_rows(np.floor(values / 257 + 0.5))).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0, 257], [65535, 514]], [[0, 1], [255, 2]]),  # fits 16 bits
        ([[-100, 0], [101, 300]], [[0, 64], [128, 255]]),  # stretched
        ([[0, 100_000], [200_000, 50_000]], [[0, 128], [255, 64]]),
        ([[-7, -7], [-7, -7]], [[0, 0], [0, 0]]),
    ],
)
def test_32_bit_integers(values, expected):
    data = encode(Image.fromarray(np.array(values, dtype=np.int32)), "TIFF")
    assert (pixels(data) == grey_rows(expected)).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.0, 0.5], [1.0, 0.2]], [[0, 128], [255, 51]]),
        ([[0.0, 99.6], [255.0, 3.0]], [[0, 100], [255, 3]]),
        ([[-1.0, 0.0], [1.0, 3.0]], [[0, 64], [128, 255]]),
        ([[float("nan"), float("inf")], [1.0, 0.0]], [[0, 0], [255, 0]]),
        ([[float("nan")] * 2] * 2, [[0, 0], [0, 0]]),
        ([[-3e38, 3e38], [0.0, 0.0]], [[0, 255], [128, 128]]),
    ],
)
def test_floating_point(values, expected):
    data = encode(Image.fromarray(np.array(values, dtype=np.float32)), "TIFF")
    assert (pixels(data) == grey_rows(expected)).all()


@pytest.mark.parametrize(
    ("format", "options"), [("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})]
)
def test_transparency_lies_on_white(format, options):
    image = with_alpha(RNG, picture(RNG))
    values = np.asarray(image, dtype=float)
    expected = on_white(values[..., :3], values[..., 3])
    assert np.abs(pixels(encode(image, format, **options)) - expected).max() <= 1
    assert np.abs(np.asarray(image.convert("RGB")) - expected).max() > 200  # what a plain conversion shows


def test_grey_with_transparency():
    image = with_alpha(RNG, picture(RNG)).convert("LA")
    values = np.asarray(image, dtype=float)
    expected = on_white(values[..., :1].repeat(3, -1), values[..., 1])
    assert np.abs(pixels(encode(image, "PNG")) - expected).max() <= 1


def test_palette():
    image = picture(RNG).quantize(20)
    plain, colours = np.asarray(image), np.array(image.getpalette()).reshape(-1, 3)
    assert (pixels(encode(image, "PNG")) == colours[plain]).all()
    opacity = RNG.integers(0, 256, 20)
    expected = on_white(colours[plain].astype(float), opacity[plain])
    assert np.abs(pixels(encode(image, "PNG", transparency=bytes(opacity.tolist()))) - expected).max() <= 1
    expected = np.where((plain == 3)[..., None], 255, colours[plain])
    for format in ("PNG", "GIF"):
        assert (pixels(encode(image, format, transparency=3)) == expected).all()


@pytest.mark.parametrize(("mode", "key", "shown"), [("RGB", (9, 8, 7), (10, 8, 7)), ("L", 9, (10, 10, 10))])
def test_a_transparent_colour_is_white(mode, key, shown):
    image = Image.new(mode, (2, 1), key)
    image.putpixel((1, 0), shown if mode == "RGB" else shown[0])
    assert pixels(encode(image, "PNG", transparency=key)).tolist() == [[[255, 255, 255], list(shown)]]


@pytest.mark.parametrize(("format", "options"), [("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})])
def test_the_first_frame_of_several(format, options):
    frames = [picture(RNG).quantize(8).convert("RGB") for _ in range(3)]
    data = encode(frames[0], format, save_all=True, append_images=frames[1:], duration=100, **options)
    assert (pixels(data) == np.asarray(frames[0])).all()
    assert "several frames" in examine(data, "picture").kinds


def test_one_pixel_and_thin_images():
    one = Image.new("RGB", (1, 1), (1, 2, 3))
    assert pixels(encode(one, "PNG")).tolist() == [[[1, 2, 3]]]
    thin = Image.fromarray(RNG.integers(0, 256, (5000, 1, 3), dtype=np.uint8))
    shown = pixels(encode(thin, "PNG"))
    assert shown.shape == (5000, 50, 3)  # not thinner than 1 : 100
    assert (shown == np.asarray(thin)).all()  # and nothing else has changed
    assert pixels(encode(thin.rotate(90, expand=True), "PNG")).shape == (50, 5000, 3)
    assert decode(encode(Image.new("1", (300_000, 1)), "PNG"), "picture").size == (10_000, 100)
    panorama = picture(RNG, (1000, 10))
    assert (pixels(encode(panorama, "PNG")) == np.asarray(panorama)).all()


def test_too_many_pixels_are_refused_from_the_header(monkeypatch):
    with pytest.raises(ImageError, match=r"^far.png has 900,000,000 pixels, more than the limit of 178,956,970: "):
        decode(huge_png(), "far.png")
    monkeypatch.setenv(MAX_PIXELS_VARIABLE, "1919")
    with pytest.raises(ImageError, match=r"^a.png has 48 x 40 = 1,920 pixels, more than the limit of 1,919: "):
        decode(encode(picture(RNG), "PNG"), "a.png")
    monkeypatch.setenv(MAX_PIXELS_VARIABLE, "1920")
    decode(encode(picture(RNG), "PNG"), "a.png")
    for wrong in ("many", "0", "-3", "1e9"):
        monkeypatch.setenv(MAX_PIXELS_VARIABLE, wrong)
        with pytest.raises(UsageError, match=f"^{MAX_PIXELS_VARIABLE} is '{wrong}': set it"):
            decode(encode(picture(RNG), "PNG"), "a.png")


def test_the_limit_can_be_raised(monkeypatch):
    from tellapart.data import decoding

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 900)  # Pillow refuses from twice that
    monkeypatch.setattr(decoding, "MAX_PIXELS", 1800)
    data = encode(picture(RNG), "PNG")
    with pytest.raises(ImageError, match=r"1,920 pixels, more than the limit of 1,800"):
        decode(data, "a.png")
    monkeypatch.setenv(MAX_PIXELS_VARIABLE, "2000")
    assert decode(data, "a.png").size == (48, 40)


def test_the_default_limit_is_where_pillow_refuses():
    assert 2 * (Image.MAX_IMAGE_PIXELS or 0) == MAX_PIXELS


SENTENCES = {
    b"": "it is empty",
    b"\0" * 99: "it holds nothing but zero bytes",
    b"  <!DOCTYPE HTML><title>404</title>": "it is HTML",
    b'\xef\xbb\xbf<?xml version="1.0"?>\n<svg/>': "it is SVG, a drawing",
    b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>": "it is XML",
    b'{"error": "rate limited"}': "it is JSON",
    b"%PDF-1.7\n...": "it is a PDF",
    b"PK\x03\x04abc": "it is a ZIP archive",
    b"\0\0\0\x18ftypisom" + bytes(99): "it is a video",
    "Nicht gefunden, Größe 3".encode(): "it is text",
    b"\x01\x02\x93\xff": "it is in no known image format",
    b"\xff\xd8\xff\xe0\0": "it begins as JPEG",
    b"RIFF\x24\0\0\0WEB": "it begins as WebP",
    b"RIFF\x24\0\0\0AVI LIST": "it is a video",
    b"RIFF\x24\0\0\0WAVEfmt ": "it is sound",
    b"version https://git-lfs.github.com/spec/v1\noid": "it is a Git LFS pointer",
    b"%!PS-Adobe-3.0 EPSF-3.0\n": "it is PostScript",  # which Pillow would hand to another program
}


@pytest.mark.parametrize("data", SENTENCES, ids=SENTENCES.values())
def test_what_is_no_image_is_told(data):
    with pytest.raises(ImageError, match=rf"^file\.jpg is not a readable image \({SENTENCES[data]}[^()]*\): .*\.$"):
        decode(data, "file.jpg")


@pytest.mark.parametrize(("brand", "remedy"), [(b"heic", "pip install pillow-heif"), (b"avif", "pillow>=11.3")])
def test_formats_whose_decoder_is_missing(brand, remedy, monkeypatch):
    monkeypatch.setattr(features, "check", lambda feature: False)
    monkeypatch.setattr(Image, "OPEN", {name: how for name, how in Image.OPEN.items() if name not in ("AVIF", "HEIF")})
    with pytest.raises(ImageError, match=rf"is {brand.decode().upper()}, whose decoder is missing\): .*{remedy}"):
        decode(b"\0\0\0\x18ftyp" + brand + bytes(50), "x.jpg")


def test_heic_is_read_where_its_decoder_is_installed(monkeypatch):
    """The decoder is a stand-in: what is tested is that it is found and asked."""
    from PIL import PngImagePlugin

    class Stand(PngImagePlugin.PngImageFile):
        format = "HEIF"

        def _open(self):
            self.fp = io.BytesIO(self.fp.read()[12:])
            super()._open()

    module = ModuleType("pillow_heif")
    Image.init()
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    module.register_heif_opener = lambda: Image.register_open("HEIF", Stand, lambda prefix: prefix[4:8] == b"ftyp")
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    image = picture(RNG)
    assert (pixels(b"\0\0\0\x18ftypheic" + encode(image, "PNG")) == np.asarray(image)).all()


def test_files_that_are_none(tmp_path):
    (tmp_path / "x.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    for name, words in {"x.jpg": "is a folder", "pipe.jpg": "is no ordinary file", "y.jpg": "does not exist"}.items():
        with pytest.raises(ImageError, match=f"{name} {words}"):
            ImageFile(tmp_path / name).open()
    with pytest.raises(ImageError, match="is not a path"):
        ImageFile(tmp_path / "a\0b.jpg").open()
    (tmp_path / "long.jpg").touch()
    os.truncate(tmp_path / "long.jpg", 2**31 + 1)  # sparse: takes no space
    with pytest.raises(ImageError, match="has 2,147,483,649 bytes, too many"):
        ImageFile(tmp_path / "long.jpg").open()


def test_the_ending_does_not_matter(tmp_path):
    image = picture(RNG)
    (tmp_path / "x.jpg").write_bytes(encode(image, "PNG"))
    assert (np.asarray(ImageFile(tmp_path / "x.jpg").open()) == np.asarray(image)).all()


KINDS = {
    "cmyk": {"CMYK"},
    "ycck": {"CMYK"},
    "grey16": {"16-bit"},
    "float": {"floating-point"},
    "palette": {"palette"},
    "palette-transparent": {"palette", "transparency"},
    "rgba": {"transparency"},
    "turned": {"turned by EXIF"},
    "png-called-jpg": {"another format than its ending"},
    "one-pixel": {"tiny (below 32 pixels)"},
    "thin": {"tiny (below 32 pixels)", "thin (10 times as long as wide)"},
    "animated-png": {"several frames"},
    "jpeg": set(),
    "broken-exif": set(),
    "mpo": set(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_odd_is_told(kind):
    ending, make = READABLE[kind]
    assert set(examine(make(RNG), f"x{ending}").kinds) == KINDS[kind]


def outcome(data: bytes) -> str:
    """``fine``, ``refused``, or a sentence that is none; any other error escapes."""
    try:
        found = examine(data, "fuzzed.jpg")
    except ImageError as error:
        said = str(error)
        return "refused" if said.startswith("fuzzed.jpg ") and "<_io" not in said else said
    assert found.image.mode == "RGB"
    assert min(found.image.size) > 0
    return "fine"


def small_files() -> dict[str, bytes]:
    image, exif = picture(RNG, (13, 11)), Image.Exif()
    exif[ORIENTATION] = 6
    grey = Image.fromarray(RNG.integers(0, 2**16, (9, 9), dtype=np.uint16))
    return {
        "jpeg": encode(image, "JPEG", exif=exif),
        "progressive": encode(image, "JPEG", progressive=True),
        "cmyk": encode(image.convert("CMYK"), "JPEG"),
        "png": encode(image, "PNG", exif=exif),
        "palette": encode(image.quantize(9), "PNG", transparency=bytes(range(9))),
        "grey16": encode(grey, "PNG"),
        "webp": encode(image, "WEBP", lossless=True, exif=exif),
        "gif": animated(RNG, "GIF"),
        "bmp": encode(image, "BMP"),
        "ppm": encode(image, "PPM"),
        "tiff": encode(image, "TIFF"),
        "lzw": encode(image, "TIFF", compression="tiff_lzw"),
        "jpeg2000": encode(image, "JPEG2000"),
        "ico": encode(picture(RNG, (16, 16)), "ICO", sizes=[(16, 16)]),
        "mpo": animated(RNG, "MPO"),
    }


FILES = small_files()


@pytest.mark.parametrize("name", FILES)
def test_every_beginning_of_a_file(name):
    data = FILES[name]
    assert outcome(data) == "fine"
    outcomes = [outcome(data[:length]) for length in range(0, len(data), 1 + len(data) // 700)]
    assert outcomes[: len(outcomes) // 4] == ["refused"] * (len(outcomes) // 4)


@settings(max_examples=700, deadline=None)
@given(
    name=st.sampled_from(sorted(FILES)),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    more=st.binary(max_size=6),
)
def test_no_other_error_escapes(name, changes, more):
    data = bytearray(FILES[name])
    for place, value in changes:
        data[int(place * len(data))] = value
    place = int(changes[0][0] * len(data))
    assert outcome(bytes(data[:place] + more + data[place:])) in ("fine", "refused")


@settings(max_examples=300, deadline=None)
@given(start=st.sampled_from([b"", *(data[:24] for data in FILES.values())]), rest=st.binary(max_size=300))
def test_nor_over_arbitrary_bytes(start, rest):
    assert outcome(start + rest) in ("fine", "refused")


def test_pillow_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind, (_, make) in (READABLE | BROKEN).items():
            assert outcome(make(RNG)) == ("fine" if kind in READABLE else "refused")
        image = Image.new("1", (10_000, 10_000))
        noise = np.random.default_rng(0).integers(0, 2, (1500, 1500)).astype(bool)  # all of one colour, it were a bomb
        image.paste(Image.fromarray(noise), (0, 0))
        large = encode(image, "PNG")  # above Pillow's limit for warnings
        assert decode(large, "large.png").size == (10_000, 10_000)


def test_warnings_of_others_are_not_repeated():
    def remark() -> None:
        warnings.warn("something", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            decode(FILES["png"], "x.png")
            remark()
        assert len([warning for warning in seen if str(warning.message) == "something"]) == 1


def test_a_spoiled_png_is_told_by_its_checksum():
    with pytest.raises(ImageError, match="checksum"):
        decode(BROKEN["spoiled-png"][1](RNG), "x.png")
