"""The page's server: what it shows, what it hides, whom it refuses."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from judge_fakes import RUNS, captions, toy_study

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from tellapart.evaluation.judge.answers import Answers
from tellapart.evaluation.judge.app import HEADERS, LARGEST_BODY, judge_app
from tellapart.evaluation.judge.study import ANSWERS_FILE, WHICH_IMAGE, order, swapped

HOME = "http://127.0.0.1:8123"


class Visitor:
    """A browser's requests."""

    def __init__(self, study) -> None:
        self.study, self.answers = study, Answers(study.folder / ANSWERS_FILE)
        self.client = TestClient(judge_app(study, self.answers), base_url=HOME)

    def send(self, action, content, **headers):
        sent = {"Origin": HOME, "Sec-Fetch-Site": "same-origin"} | headers
        return self.client.post(f"/{action}", json=content, headers={k: v for k, v in sent.items() if v is not None})

    def state(self, action, **content):
        response = self.send(action, content)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture
def visitor(tmp_path):
    made = Visitor(toy_study(tmp_path / "s", equal=(0, 1, 2, 3)))
    yield made
    made.answers.close()


def test_a_rater_answers_everything_and_pressed_sides_become_choices(visitor):
    study, state = visitor.study, visitor.state("start", name="Ann")
    pressed = [(1, 2, 0)[number % 3] for number in range(len(study.items))]
    expected = []
    for number, (item, press) in enumerate(zip(order(study, "ann"), pressed, strict=True)):
        assert (state["done"], state["total"], state["name"]) == (number, len(pressed), "Ann")
        assert (state["item"]["id"], state["item"]["question"]) == (item.id, item.question)
        options = ["target", "distractor"] if item.question == WHICH_IMAGE else ["a", "b"]
        shown, key = (item.images, "pictures") if item.question == WHICH_IMAGE else (item.captions, "captions")
        shown = [study.pictures[name] for name in shown] if key == "pictures" else list(shown)
        if swapped(study, "ann", item):
            options, shown = options[::-1], shown[::-1]
        assert state["item"][key] == shown
        expected.append((item.id, options[press - 1] if press else "unsure", options[0]))
        state = visitor.state("answer", rater=state["rater"], item=item.id, pressed=press, seconds=0.5)
    assert state["item"] is None
    assert [(answer.item, answer.choice, answer.first) for answer in visitor.answers.all()] == expected


def test_an_answer_sent_again_changes_nothing(visitor):
    state = visitor.state("start", name="Ann")
    first = {"rater": state["rater"], "item": state["item"]["id"], "pressed": 1, "seconds": 1}
    state = visitor.state("answer", **first)
    again = visitor.state("answer", **(first | {"pressed": 2}))
    assert again == state
    assert len(visitor.answers.all()) == 1
    undone = visitor.state("undo", rater="ann", number=state["last"])
    assert (undone["done"], undone["item"]["id"], undone["last"]) == (0, first["item"], None)
    assert visitor.state("undo", rater="ann", number=state["last"]) == undone


def test_raters_are_apart_and_come_back_to_where_they_were(visitor):
    for name, count in (("Ann", 3), ("Bob", 1)):
        state = visitor.state("start", name=name)
        for _ in range(count):
            state = visitor.state("answer", rater=state["rater"], item=state["item"]["id"], pressed=2, seconds=1)
    assert visitor.state("start", name="Ann")["done"] == 3
    assert visitor.state("start", name="ann")["item"]["id"] == order(visitor.study, "ann")[3].id
    assert visitor.state("start", name="Bob")["done"] == 1
    assert visitor.state("start", name="Eve")["done"] == 0


def test_nothing_tells_which_run_wrote_a_caption(visitor):
    """All that a browser gets: no names of runs, no positions in them, no ids or paths of images."""
    texts = [visitor.client.get(path).text for path in ("/", "/page.js", "/page.css")]
    state = visitor.state("start", name="Ann")
    while state["item"]:
        assert set(state["item"]) == {"id", "question", "pictures", "captions"}
        assert re.fullmatch(r"[0-9a-f]{16}", state["item"]["id"])
        assert all(re.fullmatch(r"[0-9a-f]{20}\.png", name) for name in state["item"]["pictures"])
        texts.append(str(state))
        state = visitor.state("answer", rater="ann", item=state["item"]["id"], pressed=1, seconds=1)
    for text in texts:
        assert not any(
            name in text for name in (*RUNS, "run_a", "run_b", "target", "distractor", str(visitor.study.folder))
        )


def test_ids_and_their_order_say_nothing_about_runs(tmp_path):
    """Sorted by id, items of both runs alternate as by chance: no prefix holds only one run's."""
    study = toy_study(tmp_path / "s", images=60, count=30)
    runs = [item.runs for item in study.items_of(WHICH_IMAGE)]
    changes = sum(a != b for a, b in pairwise(runs))
    assert 18 <= changes <= 42  # 59 neighbours, even odds: 29.5, deviation 3.8


def test_pictures_are_served_by_name_only(visitor):
    name = next(iter(visitor.study.pictures.values()))
    response = visitor.client.get(f"/pictures/{name}")
    assert response.status_code == 200
    assert response.headers["content-type"] == "image/png"
    assert response.content.startswith(b"\x89PNG")
    for path in ("study.json", "..%2fstudy.json", "../study.json", "%2fetc%2fpasswd", "x.png", f"{name}%00"):
        assert visitor.client.get(f"/pictures/{path}").status_code == 404


def test_a_picture_that_vanishes_is_no_fault_of_the_server(visitor):
    name = next(iter(visitor.study.pictures.values()))
    (visitor.study.folder / "pictures" / name).unlink()
    response = visitor.client.get(f"/pictures/{name}")
    assert (response.status_code, "cannot be read" in response.text) == (404, True)


def test_every_response_carries_the_policy(visitor):
    for path in ("/", "/page.js", "/pictures/none", "/nothing"):
        headers = visitor.client.get(path).headers
        assert {key: headers[key] for key in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = visitor.client.get("/").text
    assert not re.search(r"<script(?! src=\"/page\.js\" defer></script>)|<style| on\w+=| style=", page)
    assert "innerHTML" not in visitor.client.get("/page.js").text


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": None}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Host": "evil.example:8123", "Origin": "http://evil.example:8123"}, 400),
        ({"Host": "127.0.0.1.evil.example"}, 400),
    ],
)
def test_other_sites_are_refused(visitor, headers, code):
    assert visitor.send("start", {"name": "Mallory"}, **headers).status_code == code
    assert visitor.answers.raters() == []


def test_a_name_that_was_made_to_point_here_sees_nothing(visitor):
    for path in ("/", "/page.js", "/pictures/x"):
        assert visitor.client.get(path, headers={"Host": "rebound.example"}).status_code == 400
    assert visitor.client.get("/", headers={"Host": "localhost:8123"}).status_code == 200
    assert visitor.client.get("/start").status_code == 405
    assert visitor.client.options("/start", headers={"Origin": "http://evil.example"}).status_code == 405


@pytest.mark.parametrize(
    "content",
    [
        {"rater": "ann", "item": "ffff", "pressed": 1},
        {"rater": "nobody", "item": None, "pressed": 1},
        {"rater": ["ann"], "pressed": 1},
        [],
        3,
    ],
)
def test_what_is_no_answer_is_one_sentence(visitor, content):
    visitor.state("start", name="Ann")
    response = visitor.send("answer", content)
    assert response.status_code == 400
    assert response.json()["error"].endswith(".")


@pytest.mark.parametrize("pressed", [3, -1, True, 1.0, "1", None, [1]])
def test_only_keys_count_as_answers(visitor, pressed):
    state = visitor.state("start", name="Ann")
    sent = {"rater": "ann", "item": state["item"]["id"], "pressed": pressed}
    assert visitor.send("answer", sent).status_code == 400
    assert visitor.answers.all() == []


def test_odd_numbers_do_no_harm(visitor):
    state = visitor.state("start", name="Ann")
    for number in (None, "1", 10**30, -1, True, 0.5):
        assert visitor.state("undo", rater="ann", number=number) == state
    for seconds in (-1, "x", None, 1e12, 10**400):
        state = visitor.state("answer", rater="ann", item=state["item"]["id"], pressed=1, seconds=seconds)
    assert [answer.seconds for answer in visitor.answers.all()] == [None, None, None, 86400.0, 86400.0]
    huge = visitor.client.post("/start", content=b'{"name": "%s"}' % (b"x" * LARGEST_BODY), headers=json_headers())
    assert (huge.status_code, "bytes were sent" in huge.text) == (400, True)
    broken = visitor.client.post("/start", content=b"{", headers=json_headers())
    assert broken.status_code == 400


def json_headers() -> dict[str, str]:
    return {"Origin": HOME, "Content-Type": "application/json"}


def test_the_captions_are_all_asked(visitor):
    first, second = captions(30, equal=(0, 1, 2, 3))
    for item in visitor.study.items:
        assert set(item.captions) <= {*first.values(), *second.values()}
