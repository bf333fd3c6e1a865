"""A page of a real Chromium, for tests marked ``browser``: ``from browser import page`` makes the fixture known.

The page watches itself. A request that leaves the machine is refused and fails the test, and so does a script's error or a
message of the console (refusals of a content security policy are such).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE = 120_000
"""Milliseconds: a machine may be busy with other tests."""

HERE = ("127.0.0.1", "localhost", "")
"""Hosts of addresses that stay on this machine; ``file:``, ``data:`` and ``blob:`` have none."""


AXE_FILE = "AXE_CORE"
"""Environment variable with the path of ``axe.min.js`` (npm install axe-core)."""


def axe_core() -> str:
    """The source of axe-core; the test is skipped where neither ``$AXE_CORE`` nor ``axe-playwright-python`` has it."""
    package = find_spec("axe_playwright_python")
    places = [os.environ.get(AXE_FILE)] + [
        f"{folder}/axe.min.js" for folder in (package and package.submodule_search_locations) or ()
    ]
    for place in places:
        if place and Path(place).is_file():
            return Path(place).read_text(encoding="utf-8")
    return pytest.skip(f"axe-core is absent: npm install axe-core, and name its axe.min.js in ${AXE_FILE}")


def violations(page: Any) -> list[str]:
    """What axe-core finds wrong with the open page in light and dark colours: rule, help and the first element."""
    page.evaluate(axe_core())
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        result = page.evaluate("axe.run({resultTypes: ['violations']})")
        found += [f"{scheme} {v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]}" for v in result["violations"]]
    return found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser without a window; the test is skipped where Chromium or playwright is absent."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    options = ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    if sys.platform == "linux" and os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium refuses to run as root with it
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """An empty page, 1280 pixels wide (``page.set_viewport_size(PHONE)`` for a phone)."""
    context = chromium.new_context(viewport=DESKTOP)
    complaints: list[str] = []

    def guard(route: Any) -> None:
        if (urlsplit(route.request.url).hostname or "") in HERE:
            route.continue_()
        else:
            complaints.append(f"a request left for {route.request.url[:100]}")
            route.abort()

    context.route("**/*", guard)
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    opened.on("console", lambda said: complaints.append(f"console: {said.text}") if said.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(f"script error: {error}"))
    yield opened
    context.close()
    assert not complaints, complaints
