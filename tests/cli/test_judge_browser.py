"""The judges' page in a real Chromium: by keyboard, through kills of the server, with captions that mean harm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from math import comb, sqrt

import pytest

from browser import DESKTOP, PHONE, chromium, page, violations  # noqa: F401  # fixtures
from pictures import images
from tellapart.cli.main import main
from tellapart.data.load import load_dataset
from tellapart.evaluation.judge.answers import Answers
from tellapart.evaluation.judge.study import (
    ANSWERS_FILE,
    READS_BETTER,
    WHICH_IMAGE,
    Study,
    choose_images,
    make_items,
    order,
    write_study,
)

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.browser

KEYS = {"first": ("1", "ArrowLeft"), "second": ("2", "ArrowRight")}


class Server:
    """``tellapart judge`` in a process of its own, on one port throughout."""

    def __init__(self, *words: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [sys.executable, "-m", "tellapart.cli", "judge", *words, "--port", str(self.port)]
        self.start()

    def start(self) -> None:
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(self.command, **quiet)
        self.url = self.process.stdout.readline().strip()
        assert self.url == f"http://127.0.0.1:{self.port}/", self.process.stderr.read()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@contextmanager
def served(*words):
    server = Server(*words)
    try:
        yield server
    finally:
        server.kill()


LOOK = """() => ({
  intro: !document.getElementById("intro").hidden,
  item: document.getElementById("ask").hidden ? null : document.getElementById("ask").dataset.item,
  count: document.getElementById("count").textContent,
  caption: document.getElementById("caption").textContent,
  pictures: [...document.querySelectorAll("#choices img")].map((image) => image.getAttribute("src")),
  words: [...document.querySelectorAll("#choices .words")].map((text) => text.textContent),
})"""


def ready(page, before: str | None = None) -> str | None:  # noqa: F811
    """Wait for the item after ``before``, past an introduction; None when all are answered."""
    other = f'#ask:not([hidden]):not([data-item="{before}"])'
    page.wait_for_selector(f"{other}, #intro:not([hidden]), #done:not([hidden])")
    seen = page.evaluate(LOOK)
    if seen["intro"]:
        page.keyboard.press("Enter")
        page.wait_for_selector("#ask:not([hidden])")
        seen = page.evaluate(LOOK)
    return seen["item"]


def enter(page, url: str, name: str) -> str | None:  # noqa: F811
    page.goto(url)
    page.fill("#name", name)
    page.keyboard.press("Enter")
    return ready(page)


def intended(number: int, item) -> str:
    """What the scripted rater means to say: mostly right, sometimes wrong, sometimes unsure."""
    options = ("target", "distractor") if item.question == WHICH_IMAGE else ("b", "a")
    return "unsure" if number % 11 == 5 else options[number % 4 == 3]


def key_for(seen: dict, study: Study, item, choice: str, number: int) -> str:
    """The key of the side on which the page shows the choice."""
    if choice == "unsure":
        return "0"
    if item.question == WHICH_IMAGE:
        shown = [source.removeprefix("/pictures/") for source in seen["pictures"]]
        wanted = study.pictures[item.images[("target", "distractor").index(choice)]]
        assert seen["caption"] == item.captions[0]
    else:
        shown, wanted = seen["words"], item.captions["ab".index(choice)]
    assert len(shown) == 2
    return KEYS[("first", "second")[shown.index(wanted)]][number % 2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """28 pictures, and two files of captions of which two are alike among those that are asked about."""
    root = tmp_path_factory.mktemp("runs")
    (root / "photos").mkdir()
    for number, picture in enumerate(images(28)):
        picture.save(root / "photos" / f"{number}.png")
    first = {str(i): f"a thing called {i}" for i in range(28)}
    asked = choose_images(first, first, count=14, seed=0)[WHICH_IMAGE]
    second = {name: text if name in asked[:2] else f"number {name} of the things" for name, text in first.items()}
    for name, captions in (("one", first), ("two", second)):
        (root / f"{name}.json").write_text(json.dumps(captions))
    return root


@pytest.mark.slow
def test_forty_items_by_keyboard_and_two_kills(chromium, runs, tmp_path, monkeypatch):  # noqa: F811
    folder = tmp_path / "study"
    words = [str(runs / "one.json"), str(runs / "two.json"), "--images", str(runs / "photos"), "--num_items", "14"]
    words += ["--output_dir", str(folder)]
    with monkeypatch.context() as changed:  # made here, where torch is loaded already; the server only goes on with it
        changed.setattr("tellapart.evaluation.judge.serve.serve", lambda study, listening: None)
        assert main(["judge", *words, "--port", "0"]) == 0
    with served(*words) as server:
        context = chromium.new_context(viewport=DESKTOP)
        rater = context.new_page()
        errors: list[str] = []
        rater.on("pageerror", lambda error: errors.append(str(error)))
        current = enter(rater, server.url, "Ann Bee")
        study = Study.load(folder)
        items = {item.id: item for item in study.items}
        assert len(items) == 40
        said = {}
        while current:
            number, seen = len(said), rater.evaluate(LOOK)
            assert seen["count"] == f"{number} of 40 answered"
            said[current] = intended(number, items[current])
            key = key_for(seen, study, items[current], said[current], number)
            if number == 12:  # the server stops with the answer on its way
                os.kill(server.process.pid, signal.SIGSTOP)
                rater.keyboard.press(key)
                rater.wait_for_timeout(200)
                server.kill()
                rater.wait_for_selector("#trouble:not([hidden])")
                server.start()
            elif number == 29:  # it has stopped before, and the answer is given while nobody listens
                server.kill()
                rater.keyboard.press(key)
                rater.keyboard.press("1")  # a second key meanwhile says nothing
                rater.wait_for_selector("#trouble:not([hidden])")
                server.start()
            else:
                rater.keyboard.press(key)
            current = ready(rater, current)
        assert rater.text_content("#count") == "40 of 40 answered"
        assert not rater.is_visible("#trouble")
        assert not errors
        context.close()
    kept = Answers(folder / ANSWERS_FILE)
    answers = kept.all()
    kept.close()
    assert [(answer.item, answer.choice) for answer in answers] == list(said.items())
    assert list(said) == [item.id for item in order(study, "ann bee")]
    assert main(["judge", "--results", str(folder)]) == 0
    check_results(json.loads((folder / "results.json").read_text()), study, said)
    assert len((folder / "answers.csv").read_text().splitlines()) == 41


def check_results(found: dict, study: Study, said: dict[str, str]) -> None:
    """The numbers once more, from what the rater meant to say."""
    z = 1.959963984540054
    for run, row in enumerate(found[WHICH_IMAGE]["runs"]):
        own = [said[item.id] for item in study.items if item.question == WHICH_IMAGE and run in item.runs]
        k, n = own.count("target"), len(own)
        assert (row["right"], row["items"]) == (k, 14) == (k, n)
        assert row["interval"] == pytest.approx(wilson(k, n, z))
    said_better = [said[item.id] for item in study.items_of(READS_BETTER)]
    a, b = said_better.count("a"), said_better.count("b")
    better = found[READS_BETTER]
    assert (better["a"], better["b"], better["share"]) == (a, b, b / (a + b))
    assert better["interval"] == pytest.approx(wilson(b, a + b, z))
    tail = sum(comb(a + b, i) for i in range(min(a, b) + 1)) / 2 ** (a + b)
    assert better["p_value"] == pytest.approx(min(1, 2 * tail))


def wilson(k: int, n: int, z: float) -> list[float]:
    p = k / n
    centre, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [(centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)]


NASTY = [
    "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'>",
    '"double" & \'single\' </blockquote></main>" onclick="window.harmed = 3',
    'رجل يركب "حصانًا" على الشاطئ <b>2</b>',
    "אישה עם \u202eכלב\u202c ושתי חתולות!",
    "a scientist 👩‍🔬 under a 🏳️‍🌈 {{ 7 * 7 }} ${window.harmed = 4}",
    "javascript:window.harmed=5 " + "w" * 300,
    "",
]


@pytest.fixture(scope="module")
def nasty(runs, tmp_path_factory) -> Study:
    dataset = load_dataset(runs / "photos", split="val")
    first = dict(zip(dataset.ids, NASTY, strict=False))
    second = dict(zip(dataset.ids, [*NASTY[1:], NASTY[0]], strict=False))
    chosen = {question: list(first) for question in (WHICH_IMAGE, READS_BETTER)}
    items = make_items(chosen, first, second, dict.fromkeys(first, dataset.ids[20]), seed=0)
    folder = tmp_path_factory.mktemp("nasty") / "study"
    return write_study(folder, dataset, items, runs=("one", "two"), seed=0, asked={}, about={})


def test_captions_are_text_whatever_they_say(page, nasty):  # noqa: F811
    """Also on a phone: nothing is wider than the screen."""
    page.set_viewport_size(PHONE)
    seen = set()
    with served(str(nasty.folder)) as server:
        current = enter(page, server.url, "<b>Ève</b> أمل")
        assert page.text_content("#who") == "<b>Ève</b> أمل"
        while current:
            shown = page.query_selector_all("#caption:not([hidden]), #choices .words")
            for element in shown:
                text = element.text_content()
                seen.add("" if text == "(no words)" else text)
                assert element.query_selector("*") is None
                rtl = text[:1] in "رא"
                assert element.evaluate("e => getComputedStyle(e).direction") == ("rtl" if rtl and text else "ltr")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            assert page.evaluate("typeof window.harmed") == "undefined"
            assert page.evaluate("document.scripts.length") == 1
            page.click("#choices button >> nth=1")
            current = ready(page, current)
    assert seen == {" ".join(text.split()) for text in NASTY}


def test_nobody_answers_before_seeing(page, nasty):  # noqa: F811
    """A picture that did not come whole, because the server was stopped, is asked for again before anything is asked."""
    refused = []

    def refuse_one(route):
        if refused:
            return route.continue_()
        refused.append(route.request.url)
        return route.fulfill(body=b"", content_type="image/png", headers={"cache-control": "no-store"})

    page.route("**/pictures/*", refuse_one)
    with served(str(nasty.folder)) as server:
        enter(page, server.url, "Zoe")
        assert len(refused) == 1
        assert page.evaluate("[...document.querySelectorAll('#ask img')].every((image) => image.naturalWidth > 0)")
        assert page.is_hidden("#trouble")


def test_two_raters_at_once_undo_and_reload(chromium, page, nasty, tmp_path):  # noqa: F811
    folder = tmp_path / "study"
    shutil.copytree(nasty.folder, folder, ignore=shutil.ignore_patterns("answers*"))
    context = chromium.new_context(viewport=DESKTOP)
    other = context.new_page()
    with served(str(folder)) as server:
        mine, theirs = enter(page, server.url, "Ann"), enter(other, server.url, "Bob")
        assert page.is_disabled("#undo")
        page.keyboard.press("u")
        first = mine
        for _ in range(3):
            page.keyboard.press("1")
            mine = ready(page, mine)
            other.keyboard.press("2")
            theirs = ready(other, theirs)
        page.keyboard.press("u")
        back = ready(page, mine)
        assert page.text_content("#count") == "2 of 21 answered"
        page.keyboard.press("Control+1")  # not ours
        page.keyboard.press("0")
        assert ready(page, back) == mine
        page.reload()
        assert ready(page) == mine
        assert page.text_content("#who") == "Ann"
        assert page.evaluate("document.activeElement.id") == "question"
        context.close()
    kept = Answers(folder / ANSWERS_FILE).all()
    study = Study.load(folder)
    assert sorted(answer.rater for answer in kept) == ["Ann"] * 3 + ["Bob"] * 3
    mine = [answer for answer in kept if answer.rater == "Ann"]
    assert [answer.item for answer in mine] == [item.id for item in order(study, "ann")[:3]]
    assert (mine[0].item, mine[2].choice, mine[2].item) == (first, "unsure", back)


def test_axe_finds_nothing(page, nasty):  # noqa: F811
    """On the first page, an introduction and a question."""
    with served(str(nasty.folder)) as server:
        page.goto(server.url)
        page.wait_for_selector("#enter:not([hidden])")
        assert violations(page) == []
        page.fill("#name", "Axe")
        page.keyboard.press("Enter")
        page.wait_for_selector("#intro:not([hidden])")
        assert violations(page) == []
        ready(page)
        assert violations(page) == []
