"""Pages without scripts in a real Chromium: that of ``data check`` and that of captions to review."""

from __future__ import annotations

import numpy as np
import pytest

from browser import PHONE, chromium, page, violations  # noqa: F401  # fixtures
from damaged_images import make_damaged, picture
from tellapart.captioning.gate import CONFUSED
from tellapart.captioning.records import Caption, Item
from tellapart.captioning.review_page import write_review_page
from tellapart.data.check import check
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage, ImageFile
from tellapart.evaluation.data_check.page import write_check_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Address of each page by its name."""
    folder = tmp_path_factory.mktemp("pages")
    make_damaged(folder / ("long" * 30), 50)
    (folder / ("long" * 30) / "copy.png").write_bytes(next(folder.glob("*/rgba-*")).read_bytes())
    images = [ImageFile(path) for path in sorted(folder.glob("*/*")) if path.is_file()]
    splits = {"train": [Example(str(i), image, ("",)) for i, image in enumerate(images)]}
    report = check(splits, num_workers=0)
    items = [Item(f"i{n}", ArrayImage(np.asarray(picture(np.random.default_rng(n)))), f"i{n}.png") for n in range(4)]
    rows = [
        (item, Caption(item.id, "a red cup " * 20, flags=(CONFUSED,), margin=-0.1, rival=other.id))
        for item, other in zip(items, items[1:] + items[:1], strict=True)
    ]
    write_review_page(folder / "review.html", rows, items)
    return {
        "check": write_check_page(folder / "check.html", "photos/", report, splits).as_uri(),
        "review": (folder / "review.html").as_uri(),
    }


@pytest.mark.parametrize("name", ["check", "review"])
def test_pictures_are_shown_and_a_phone_is_wide_enough(page, pages, name):  # noqa: F811
    page.set_viewport_size(PHONE)
    page.goto(pages[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    images = page.locator("img")
    assert images.count() > 3
    assert images.evaluate_all("all => all.every((image) => image.complete && image.naturalWidth > 0)")


@pytest.mark.parametrize("name", ["check", "review"])
def test_axe_finds_nothing(page, pages, name):  # noqa: F811
    page.goto(pages[name])
    assert violations(page) == []
