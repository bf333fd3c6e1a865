"""The page of ``tellapart data check``: what it shows, that names are text, and that its size is bounded."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from damaged_images import encode, make_damaged, picture
from tellapart.cli.main import main
from tellapart.data.check import Broken, Group, Member, Odd, Report, check
from tellapart.data.dataset import Example
from tellapart.data.images import EncodedImage, ImageFile
from tellapart.evaluation.data_check.page import HANDLING, LETTERS, MEMBERS, ROWS, Album, write_check_page

EVIL = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))


def photo(seed: int) -> Image.Image:
    return picture(np.random.default_rng(seed), (320, 240))


@pytest.fixture
def photos(tmp_path):
    """Two splits with a photo in both, a repeat, an odd image and a broken one whose name is a script."""
    root = tmp_path / "photos"
    for split, seeds in (("train", (0, 1, 2)), ("val", (3, 4))):
        (root / split).mkdir(parents=True)
        for seed in seeds:
            photo(seed).save(root / split / f"{seed}.jpg")
    shutil.copy(root / "train" / "0.jpg", root / "val" / "leaked.jpg")
    photo(1).resize((160, 120)).save(root / "train" / "smaller.png")
    photo(9).convert("CMYK").save(root / "val" / "print.jpg")
    (root / "val" / f"{EVIL.replace('/', '')}.jpg").write_text("no image")
    return root


def section(page: str, name: str) -> str:
    return re.search(rf'<section id="{name}".*?</section>', page, flags=re.DOTALL)[0]


def test_every_finding_is_shown_with_a_remedy(photos, tmp_path, capsys):
    assert main(["data", "check", str(photos), "--page", str(tmp_path / "check.html"), "--num_workers", "0"]) == 0
    said = capsys.readouterr()
    assert f"written to {tmp_path / 'check.html'}" in said.err
    page = (tmp_path / "check.html").read_text()
    assert "To repair: broken images (1), groups of images in more than one split (1)." in page
    broken = section(page, "broken")
    assert "Broken images (1)" in broken
    assert "it is text" in broken
    assert "Replace each file" in broken
    leaks = section(page, "leaks")
    assert re.findall(r'class="name">([^<]*)<', leaks) == ["0.jpg", "leaked.jpg"]
    assert leaks.count("<img") == 1  # the same file looks the same
    repeats = section(page, "repeats")
    assert sorted(re.findall(r'class="name">([^<]*)<', repeats)) == ["1.jpg", "smaller.png"]
    assert repeats.count("<img") == 2
    assert "CMYK (1)" in section(page, "odd")
    assert HANDLING["CMYK"] in page
    assert (
        section(page, "counts").count(
            '<th scope="row">broken images</th><td class="number">0</td><td class="number">1</td>'
        )
        == 1
    )


def test_names_are_text_and_nothing_is_loaded(photos, tmp_path):
    main(["data", "check", str(photos), "--page", str(tmp_path / "check.html"), "--num_workers", "0"])
    page = (tmp_path / "check.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", page)


def test_clean_data_have_counts_alone(tmp_path):
    splits = {"all": [Example(str(i), EncodedImage(encode(photo(i), "PNG"), f"{i}.png"), ("a b",)) for i in range(3)]}
    page = write_check_page(tmp_path / "p.html", "x & y", check(splits, num_workers=0), splits).read_text()
    assert "Nothing to repair." in page
    assert re.findall(r'<section id="(\w+)"', page) == ["counts"]
    assert "<title>Data check: x &amp; y</title>" in page


def test_the_page_stays_under_six_megabytes(tmp_path, monkeypatch):
    """Of every finding more than is shown, under the longest names, with pictures of four times the usual size."""
    large = f"data:image/webp;base64,{'A' * 60_000}"
    monkeypatch.setattr("tellapart.evaluation.data_check.page.picture_of", lambda image: (large, False))
    count = 3 * ROWS * MEMBERS
    names = [f"{'&' * 400}/{i}.png" for i in range(count)]
    examples = [Example(f"{'<' * 400}{i}", EncodedImage(b"", name)) for i, name in enumerate(names)]
    splits = {"a": examples, "b": examples}
    report = check({"a": [], "b": []}, num_workers=0)
    odd = tuple(Odd(e.id, e.image.name, tuple(HANDLING)) for e in examples)
    ids = tuple(e.id for e in examples)
    full = replace(
        report.splits["a"],
        broken=tuple(Broken(e.id, e.image.name, "&" * 5000) for e in examples),
        odd=odd,
        repeated_ids=ids,
        empty_captions_of=ids,
        kinds=dict.fromkeys(HANDLING, count),
    )
    members = [Member("a", e.id, e.image.name) for e in examples]
    within = [Group(False, tuple(members[i : i + 9])) for i in range(0, count, 9)]
    across = [Group(False, (*group.members, replace(group.members[0], split="b"))) for group in within]
    found = Report({"a": full, "b": full}, (*across, *within))
    page = write_check_page(tmp_path / "p.html", "x", found, splits)
    assert page.stat().st_size < 6_000_000
    text = page.read_text()
    assert text.count("<img") > 20
    assert re.search(r"\d+ of them have no picture", text)
    assert f"…{'&amp;' * 50}" in text
    assert f"{2 * count - ROWS:,} more images" in text
    assert "&" * (LETTERS + 1) not in text.replace("&amp;", "&").replace("…", "\n")


def test_an_image_that_has_gone_is_named_without_a_picture(photos):
    gone = ImageFile(photos / "train" / "0.jpg")
    album = Album({"train": [Example("0", gone)]}, 10**6)
    gone.path.unlink()
    tile = album.tile(Member("train", "0", gone.name))
    assert (tile.picture, tile.file, tile.folder) == ("", "0.jpg", str(photos / "train"))


def test_every_kind_of_odd_image_has_its_handling(tmp_path):
    make_damaged(tmp_path, 60)
    examples = [Example(path.name, ImageFile(path)) for path in sorted(tmp_path.iterdir()) if path.is_file()]
    found = check({"all": examples}, num_workers=0).splits["all"]
    kinds = {kind.partition(" (")[0] for image in found.odd for kind in image.kinds}
    assert len(kinds) > 7
    assert kinds <= set(HANDLING)
    assert sum(found.kinds.values()) == sum(len(image.kinds) for image in found.odd)
