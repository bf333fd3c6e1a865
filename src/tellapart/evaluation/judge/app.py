"""The page's server: items one by one, answers kept before the next is shown, nothing about runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tellapart.errors import UsageError, reason_of
from tellapart.evaluation.judge.answers import Answers
from tellapart.evaluation.judge.study import (
    CHOICES,
    MEDIA_TYPES,
    PICTURES,
    UNSURE,
    WHICH_IMAGE,
    Item,
    Study,
    order,
    swapped,
)

HOSTS = ["127.0.0.1", "localhost"]
"""What a browser may call this server: a foreign name that was made to point here (DNS rebinding) is refused."""

ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
LARGEST_BODY = 4096
LONGEST_SECONDS = 86_400.0

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def judge_app(study: Study, answers: Answers) -> Starlette:
    """The page about a study.

    Args:
        study: what is asked.
        answers: where answers go.
    """
    desk = Desk(study, answers)
    routes = [Route(path, _asset(*asset)) for path, asset in ASSETS.items()]
    routes.append(Route("/pictures/{name}", _pictures(study)))
    for path, action in (("/start", desk.start), ("/answer", desk.answer), ("/undo", desk.undo)):
        routes.append(Route(path, _action(action), methods=["POST"]))
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    return Starlette(routes=routes, middleware=[Middleware(_Headers), hosts])


class Desk:
    """What the page can do; each action takes what it sent and returns what it shows next.

    Args:
        study: what is asked.
        answers: where answers go.
    """

    def __init__(self, study: Study, answers: Answers) -> None:
        self.study, self.answers = study, answers
        self._items = {item.id: item for item in study.items}

    def start(self, sent: dict[str, Any]) -> dict[str, Any]:
        """A rater comes, or comes back: ``name``.

        Raises:
            UsageError: the name cannot be used.
        """
        return self._state(self.answers.enter(_text(sent, "name")))

    def answer(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Keep ``pressed`` (1, 2, or 0 for unsure) as the answer to ``item``, unless there is one.

        Raises:
            UsageError: the rater, the item or the answer is not known.
        """
        rater, item = self._rater(sent), self._items.get(_text(sent, "item"))
        pressed = sent.get("pressed")
        if item is None or type(pressed) is not int or not 0 <= pressed <= 2:
            raise UsageError("this is not an answer to an item of this study: load the page again.")
        shown = self._shown(rater, item)
        choice = shown[pressed - 1] if pressed else UNSURE
        self.answers.record(rater, item.id, choice, first=shown[0], seconds=_seconds(sent.get("seconds")))
        return self._state(rater)

    def undo(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Take back answer ``number``, if it is the rater's last.

        Raises:
            UsageError: the rater is not known.
        """
        rater, number = self._rater(sent), sent.get("number")
        if type(number) is int and abs(number) < 2**63:
            self.answers.withdraw(rater, number)
        return self._state(rater)

    def _rater(self, sent: dict[str, Any]) -> str:
        rater = _text(sent, "rater")
        if self.answers.name_of(rater) is None:
            raise UsageError("this rater is not known here: load the page again and give your name.")
        return rater

    def _shown(self, rater: str, item: Item) -> tuple[str, str]:
        """The two choices in the order in which this rater sees them."""
        first, second = CHOICES[item.question]
        return (second, first) if swapped(self.study, rater, item) else (first, second)

    def _state(self, rater: str) -> dict[str, Any]:
        """A rater's progress, and the next item."""
        given = self.answers.of(rater)
        items = order(self.study, rater)
        following = next((item for item in items if item.id not in given), None)
        return {
            "rater": rater,
            "name": self.answers.name_of(rater),
            "done": sum(item.id in given for item in items),
            "total": len(items),
            "last": max(given.values(), default=None),
            "item": None if following is None else self._view(rater, following),
        }

    def _view(self, rater: str, item: Item) -> dict[str, Any]:
        """What the page may know of an item: pictures and captions, in the order shown."""
        pictures = [self.study.pictures[image_id] for image_id in item.images]
        captions = list(item.captions)
        if swapped(self.study, rater, item):
            (pictures if item.question == WHICH_IMAGE else captions).reverse()
        return {"id": item.id, "question": item.question, "pictures": pictures, "captions": captions}


def _text(sent: dict[str, Any], key: str) -> str:
    value = sent.get(key)
    if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UsageError(f"{key} is missing or no text: load the page again.")
    return value


def _seconds(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(min(value, LONGEST_SECONDS)) if number and value >= 0 and value != math.inf else None


def _asset(name: str, media_type: str) -> Callable[[Request], Response]:
    content = files("tellapart.evaluation.judge").joinpath(name).read_bytes()
    return lambda request: Response(content, media_type=media_type)


def _pictures(study: Study) -> Callable[[Request], Response]:
    """Pictures by the names that the study gives them: no other file can be asked for."""
    known = set(study.pictures.values())

    def picture(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in known:
            return PlainTextResponse("no such picture", status_code=404)
        path = study.folder / PICTURES / name
        try:
            return Response(path.read_bytes(), media_type=MEDIA_TYPES[path.suffix])
        except OSError as error:  # it was there when the study was opened
            return PlainTextResponse(f"the picture cannot be read ({reason_of(error)})", status_code=404)

    return picture


def _action(act: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Request], Any]:
    """An endpoint that takes JSON from this very page, and from no other site."""

    async def endpoint(request: Request) -> Response:
        host, origin = request.headers.get("host"), request.headers.get("origin")
        if origin != f"http://{host}" or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return JSONResponse({"error": "only the page itself may send answers."}, status_code=403)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return JSONResponse({"error": "send JSON."}, status_code=415)
        try:
            sent = json.loads(await _body(request))
            if not isinstance(sent, dict):
                raise UsageError("send a JSON object.")
            return JSONResponse(await run_in_threadpool(act, sent))
        except (UsageError, ValueError, RecursionError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)

    return endpoint


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BODY:
            raise UsageError(f"more than {LARGEST_BODY} bytes were sent: load the page again.")
    return body


class _Headers:
    """Adds ``HEADERS`` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        await self.app(scope, receive, with_headers)
