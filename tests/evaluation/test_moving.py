"""Clips on pages: they play inside the report's one file and on the judge's page."""

from __future__ import annotations

import base64
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_fakes import toy_dataset, toy_result
from PIL import Image

from browser import chromium, page  # noqa: F401  # fixtures
from clip_files import grey_frames, write_webp
from tellapart.data.center_crop import cropped_image
from tellapart.data.clips import ArrayClip, on_disk
from tellapart.data.dataset import CaptionDataset
from tellapart.evaluation.judge.study import LONGEST_CLIP_SIDE, PICTURES, write_moving
from tellapart.evaluation.moving import SECONDS, moves, playing
from tellapart.evaluation.report import RunView, write_report
from tellapart.evaluation.report.pictures import LONGEST_CLIP_SIDE as REPORTED
from tellapart.evaluation.report.pictures import picture_of


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def durations(image: Image.Image) -> list[int]:
    found = []
    for number in range(image.n_frames):
        image.seek(number)
        image.load()
        found.append(image.info["duration"])
    return found


def test_small_clips_play_pixel_by_pixel() -> None:
    clip = ArrayClip("clip", np.random.default_rng(0).integers(0, 255, (8, 32, 48, 3), dtype=np.uint8))
    data, pixelated = playing(clip, 256, small=128)
    image = opened(data)
    assert pixelated
    assert (image.format, image.n_frames, image.info["loop"]) == ("WEBP", 8, 0)
    assert sum(durations(image)) == 1000 * SECONDS
    image.seek(5)
    assert np.array_equal(np.asarray(image.convert("RGB")), clip.array[5])


def test_large_clips_are_shrunk() -> None:
    clip = ArrayClip("clip", grey_frames(20, (900, 300)))
    uri, pixelated = picture_of(clip)
    image = opened(base64.b64decode(uri.removeprefix("data:image/webp;base64,")))
    assert not pixelated
    assert image.size == (REPORTED, 53)
    assert image.n_frames == 8


def test_the_judge_is_shown_clips_that_play(tmp_path: Path) -> None:
    name = write_moving(tmp_path / PICTURES, ArrayClip("clip", grey_frames(8, (900, 300))))
    assert name.endswith(".webp")
    image = Image.open(tmp_path / PICTURES / name)
    assert (image.size[0], image.n_frames) == (LONGEST_CLIP_SIDE, 8)


@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_a_gif_or_webp_file_of_one_frame_is_a_still(tmp_path: Path, ending: str, monkeypatch) -> None:
    Image.fromarray(grey_frames(1, (900, 300))[0]).save(tmp_path / f"still.{ending}")
    write_webp(tmp_path / f"moving.{ending}", grey_frames(3))
    monkeypatch.setitem(sys.modules, "av", None)  # stills need no PyAV
    still, moving = (on_disk(tmp_path / f"{name}.{ending}") for name in ("still", "moving"))
    assert [moves(image) for image in (still, moving)] == [False, True]
    assert [moves(cropped_image(image)) for image in (still, moving)] == [False, True]
    uri, _ = picture_of(still)
    image = opened(base64.b64decode(uri.removeprefix("data:image/webp;base64,")))
    assert (image.size, image.n_frames) == ((240, 80), 1)


def moving_report(folder: Path) -> Path:
    whole = toy_dataset()
    clips = [replace(e, image=ArrayClip(e.id, grey_frames(8) + 5 * i)) for i, e in enumerate(whole)]
    runs = [RunView("dico", toy_result("dico", seed=0), {})]
    return write_report(folder / "report.html", runs, dataset=CaptionDataset(clips, name="clips"))


def test_the_report_holds_its_clips(tmp_path: Path) -> None:
    text = moving_report(tmp_path).read_text()
    sources = re.findall(r'<img src="([^"]{0,40})', text)
    assert sources
    assert all(source.startswith("data:image/webp;base64,") for source in sources)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clips_play_in_chromium(page, tmp_path: Path) -> None:  # noqa: F811
    """The pixels of an image on the page change by themselves."""
    page.goto(moving_report(tmp_path).as_uri())
    card = page.locator("[data-card] img").first
    card.scroll_into_view_if_needed()
    assert card.evaluate("image => image.complete && image.naturalWidth") == 64
    seen = set()
    for _ in range(12):
        seen.add(card.screenshot())
        page.wait_for_timeout(200)
        if len(seen) > 2:
            break
    assert len(seen) > 2
