"""Captions from a chat server: what is asked, and what happens when it drops, stalls, garbles and refuses."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import torch
from PIL import Image

from captioning.chat_server import Chat, said, serving
from tellapart.captioning import endpoint as module
from tellapart.captioning.draw import Drawing
from tellapart.captioning.endpoint import (
    FRUITLESS,
    Endpoint,
    EndpointCaptioner,
    EndpointDrawer,
    _asked_pause,
    _captions,
    _PassingError,
)
from tellapart.captioning.gate import Gate
from tellapart.captioning.serve import StationError
from tellapart.errors import UsageError
from tellapart.types import Batch, Decoding

GREEDY = Decoding(max_new_tokens=12)
KEY = "test-key-0123456789"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(module, "BACK_OFF", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def captioner_of(chat: Chat, **options) -> EndpointCaptioner:
    settings = {"prompt": "Describe it.", "timeout": 60.0, "concurrency": 8, **options}
    return EndpointCaptioner(Endpoint(chat.url, "qwen", **settings))


def batch_of(captioner: EndpointCaptioner, sizes, contexts=()) -> Batch:
    pictures = [Image.new("RGB", size, (9 * number, 40, 90)) for number, size in enumerate(sizes)]
    names = [f"i{number}" for number in range(len(sizes))]
    return Batch(names, [[] for _ in names], {captioner.name: captioner.process(pictures)}, list(contexts))


SIZES = [(20 + number, 30) for number in range(12)]


@pytest.mark.parametrize(
    "faults",
    [(), ("drop",), ("garble", "garble"), (503, 429), ("drop", "garble", 500)],
    ids=lambda faults: "-".join(map(str, faults)) or "none",
)
def test_every_image_gets_its_own_caption_whatever_the_server_does_first(faults):
    with serving(Chat(faults=faults)) as chat:
        captioner = captioner_of(chat)
        rollout = captioner.generate(batch_of(captioner, SIZES), GREEDY)
        assert rollout.texts == [said(size) for size in SIZES]
        assert (rollout.image.tolist(), captioner.failed) == (list(range(12)), {})
        assert rollout.finished.all()
        assert len(chat.requests) == 12 * (1 + len(faults))


@pytest.mark.parametrize("fault", ["stall", "trickle"])
def test_a_request_without_a_whole_answer_in_time_is_asked_again(fault):
    with serving(Chat(faults=(fault,))) as chat:
        captioner = captioner_of(chat, timeout=1.0)
        rollout = captioner.generate(batch_of(captioner, SIZES), GREEDY)
        assert rollout.texts == [said(size) for size in SIZES]
        assert captioner.failed == {}
        assert min(chat.seen.values()) >= 2  # more where the machine is too busy to answer within a second


def test_the_pause_that_a_server_asks_for():
    """Only whole seconds were followed; HTTP allows a date, too."""
    now = datetime.now(UTC)
    said = {
        format_datetime(now + timedelta(seconds=30), usegmt=True): 30.0,
        format_datetime(now - timedelta(days=1)): 0.0,
    }
    for header, seconds in {
        "7": 7.0,
        "1.5": 1.5,
        "-3": 0.0,
        "nan": 0.0,
        "inf": 0.0,
        "soon": 0.0,
        "Sat, 28 Nov 99999 00:00:00 GMT": 0.0,
        "": 0.0,
        **said,
    }.items():
        assert _asked_pause(header) == pytest.approx(seconds, abs=5.0 if "GMT" in header else 0.0)


def test_odd_numbers_of_choices():
    """The infinite one ended the run with a traceback; the other was asked six times for a caption that was there."""
    body = '{"choices": [{"index": %s, "message": {"content": "a cat"}, "finish_reason": "stop"}]}'
    assert _captions((body % "null").encode(), 1) == [("a cat", True)]
    with pytest.raises(_PassingError, match="not a chat completion"):
        _captions((body % "1e999").encode(), 1)


def test_requests_run_at_once_and_no_more_than_asked():
    with serving(Chat(faults=("stall",), stall=0.3)) as chat:
        captioner = captioner_of(chat, concurrency=4)
        captioner.generate(batch_of(captioner, SIZES), GREEDY)
    assert chat.most == 4


def test_what_is_asked():
    with serving(Chat()) as chat:
        captioner = captioner_of(chat, prompt="Describe it. Known: {context}.")
        batch = batch_of(captioner, SIZES[:2], ["a dog", "{context}"])
        captioner.generate(batch, GREEDY)
        sampling = Decoding(
            do_sample=True,
            num_return_sequences=3,
            temperature=0.7,
            top_p=0.9,
            top_k=5,
            min_new_tokens=4,
            max_new_tokens=12,
        )
        torch.manual_seed(1)
        rollout = captioner.generate(batch, sampling)
        captioner.generate(batch, sampling)
        torch.manual_seed(2)
        captioner.generate(batch, sampling)
    greedy = sorted(chat.requests[:2], key=lambda body: body["messages"][0]["content"][1]["text"])
    assert [body["messages"][0]["content"][1]["text"] for body in greedy] == [
        "Describe it. Known: a dog.",
        "Describe it. Known: {context}.",
    ]
    rest = {name: value for name, value in greedy[0].items() if name != "messages"}
    assert rest == {"model": "qwen", "max_tokens": 12, "n": 1, "temperature": 0.0}
    rest = {name: value for name, value in chat.requests[2].items() if name not in ("messages", "seed")}
    assert rest == {
        **{"model": "qwen", "max_tokens": 12, "n": 3, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_tokens": 4}
    }
    seeds = [sorted(body["seed"] for body in chat.requests[first : first + 2]) for first in (2, 4, 6)]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 4
    assert rollout.texts == [said(size, number) for size in SIZES[:2] for number in range(3)]
    assert rollout.image.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_server_that_does_not_follow_n_is_asked_once_for_each_image_at_once():
    """Each image was asked for six times, and paid."""
    with serving(Chat(faults=("one",) * 9)) as chat:
        captioner = captioner_of(chat, concurrency=1)
        with pytest.raises(StationError, match="3 captions is answered with 1, so the server does not follow n"):
            captioner.generate(batch_of(captioner, SIZES[:1]), replace(GREEDY, do_sample=True, num_return_sequences=3))
        assert len(chat.requests) == 1


def test_half_characters_and_nulls_are_left_out():
    """Neither Parquet nor a text file takes the former: the run ended, and so did each that resumed it."""
    with serving(Chat(faults=("half",))) as chat:
        captioner = captioner_of(chat)
        assert captioner.generate(batch_of(captioner, SIZES[:1]), GREEDY).texts == ["a  cat"]


def test_an_error_that_is_nested_without_end_says_nothing():
    assert module._message(b"[" * 100_000) == ""
    assert module._message(b'{"error": {"message": "no"}}') == "no"


def test_images_are_made_smaller_and_padding_is_not_sent():
    with serving(Chat()) as chat:
        captioner = captioner_of(chat, image_size=64)
        captioner.generate(batch_of(captioner, [(640, 320), (30, 3000), (8, 8)]), GREEDY)
    assert sorted(picture.size for picture in chat.pictures) == [(1, 64), (8, 8), (64, 32)]


def test_an_image_that_the_server_refuses_has_no_caption_and_the_others_have():
    refused, broken = SIZES[3], SIZES[5]
    with serving(Chat(always={refused: 400, broken: "garble"})) as chat:
        captioner = captioner_of(chat)
        drawer = EndpointDrawer(captioner, Drawing(GREEDY, GREEDY, resample=2), torch.device("cpu"))
        captions = drawer(batch_of(captioner, SIZES))
        assert [one.caption for one in captions if one.error is None] == [
            said(size) for size in SIZES if size not in (refused, broken)
        ]
        assert captions[3].error == "i3 has no caption (HTTP 400 not now): run the same command again, or leave it out."
        assert "an answer" in captions[5].error
        asked = [picture.size for picture in chat.pictures]
        assert (asked.count(refused), asked.count(broken)) == (1, module.ATTEMPTS)  # and no new tries of the gate
        assert captioner.failed == {}


@pytest.mark.parametrize("fault", [400, 503])
def test_a_caption_with_a_fault_stays_where_no_other_can_be_had(fault, monkeypatch):
    """It was thrown away, and its image counted as one without a caption."""
    monkeypatch.setattr(module, "BACK_OFF", 0.001)
    with serving(Chat(faults=(None, *[fault] * 99))) as chat:
        captioner = captioner_of(chat)
        first = said(SIZES[0]).split()[:2]
        how = Drawing(GREEDY, GREEDY, resample=3, resample_on=("opener",), gate=Gate(openers=(tuple(first),)))
        (caption,) = EndpointDrawer(captioner, how, torch.device("cpu"))(batch_of(captioner, SIZES[:1]))
    assert (caption.caption, caption.error, caption.flags) == (said(SIZES[0]), None, ("opener",))


def test_a_server_that_answers_nothing_ends_the_run():
    with serving(Chat(faults=(400,) * 99)) as chat:
        captioner = captioner_of(chat)
        with pytest.raises(StationError, match=r"no caption for \d+ images in a row.*HTTP 400 not now"):
            captioner.generate(batch_of(captioner, [(10 + number, 9) for number in range(FRUITLESS + 5)]), GREEDY)


def test_a_server_that_is_not_there():
    with serving(Chat()) as chat:
        pass
    captioner = captioner_of(chat)
    with pytest.raises(StationError, match=r"cannot be reached .*run the same command again to resume"):
        captioner.generate(batch_of(captioner, SIZES), GREEDY)


def test_the_key_is_sent_and_is_nowhere_else(monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(Chat(key=KEY)) as chat:
        endpoint = captioner_of(chat).endpoint
        assert captioner_of(chat).generate(batch_of(captioner_of(chat), SIZES[:1]), GREEDY).texts == [said(SIZES[0])]
        chat.key = "another"
        with pytest.raises(
            StationError, match=r"refuses qwen .HTTP 401 no such key: Bearer .*put its key into"
        ) as error:
            captioner_of(chat).generate(batch_of(captioner_of(chat), SIZES[:1]), GREEDY)
        monkeypatch.setenv("OPENAI_API_KEY", "short")  # which is not masked by its length
        with pytest.raises(StationError) as short:
            captioner_of(chat).generate(batch_of(captioner_of(chat), SIZES[:1]), GREEDY)
    assert "0123456789" not in f"{error.value}{caplog.text}{endpoint}"
    assert KEY.encode() not in pickle.dumps(endpoint)
    assert "short" not in str(short.value)
    monkeypatch.setenv("OPENAI_API_KEY", "two\nlines")
    with pytest.raises(UsageError, match="OPENAI_API_KEY holds characters") as error:
        captioner_of(chat)
    assert "lines" not in str(error.value)


def test_a_wrong_path_says_so_at_once():
    with serving(Chat()) as chat:
        captioner = captioner_of(chat)
        captioner.endpoint = replace(captioner.endpoint, url=chat.url + "/v2")
        with pytest.raises(StationError, match=r"refuses qwen .HTTP 404.*check --endpoint and --captioner"):
            captioner.generate(batch_of(captioner, SIZES[:1]), GREEDY)
        assert len(chat.requests) == 1


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://user:secret@host/v1", "a user, a password or a query"),
        ("http://host/v1?key=secret", "a user, a password or a query"),
        ("ftp://host/v1", "write http://HOST:PORT/v1"),
        ("localhost:8000", "write http://HOST:PORT/v1"),
        ("http://host:port/v1", "not a valid address"),
    ],
)
def test_addresses_that_are_none(url, sentence):
    with pytest.raises(UsageError, match=sentence) as error:
        Endpoint(url, "m", "p")
    assert "secret" not in str(error.value)
