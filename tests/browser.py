"""A page of a real Chromium, for tests marked ``browser``: ``from browser import page`` makes the fixture known.

The page watches itself. A request that leaves the machine is refused and fails the test, and so does a script's error or a
message of the console (refusals of a content security policy are such).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE = 120_000
"""Milliseconds: a machine may be busy with other tests."""

HERE = ("127.0.0.1", "localhost", "")
"""Hosts of addresses that stay on this machine; ``file:``, ``data:`` and ``blob:`` have none."""


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
