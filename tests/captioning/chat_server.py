"""A small chat server in the OpenAI manner, which can drop, stall, garble and refuse requests."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

GARBLED = (
    b"<html>gateway</html>",
    b'{"choices": [{"message": {"content": "cut',
    b'{"choices": []}',
    b'{"choices": [{"message": {"content": 7}}]}',
    b"[1]",
)


@dataclass
class Chat:
    """What the server does and has seen.

    Args:
        faults: what is done with the first requests about each image, one after another: drop, stall, garble, trickle, one (of
            several captions), half (a character), an HTTP status; then it is answered.
        always: size of an image -> what is done with every request about it.
        stall: seconds of a stall.
        key: that requests need.
    """

    faults: tuple[str | int, ...] = ()
    always: dict[tuple[int, int], str | int] = field(default_factory=dict)
    stall: float = 3.0
    key: str | None = None
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[Image.Image] = field(default_factory=list)
    seen: Counter = field(default_factory=Counter)
    now: int = 0
    most: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def fault(self, size: tuple[int, int]) -> str | int | None:
        """What is to be done with a request about an image of this size."""
        if size in self.always:
            return self.always[size]
        with self.lock:
            turn = self.seen[size]
            self.seen[size] += 1
        return self.faults[turn] if turn < len(self.faults) else None


def said(size: tuple[int, int], number: int = 0) -> str:
    """The caption of an image: of several, later ones are longer."""
    return f"a field of {size[0]} by {size[1]} pixels" + " indeed" * number


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    chat: Chat

    def log_message(self, *given: Any) -> None:
        return

    def do_POST(self) -> None:
        chat = self.chat
        with chat.lock:
            chat.now += 1
            chat.most = max(chat.most, chat.now)
        try:
            self._answer(chat)
        finally:
            with chat.lock:
                chat.now -= 1

    def _answer(self, chat: Chat) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        url = body["messages"][0]["content"][0]["image_url"]["url"]
        picture = Image.open(io.BytesIO(base64.b64decode(url.partition("base64,")[2])))
        with chat.lock:
            chat.requests.append(body)
            chat.pictures.append(picture)
        if self.path != "/v1/chat/completions":
            self._send(404, b'{"detail": "Not Found"}')
        elif chat.key is not None and self.headers["authorization"] != f"Bearer {chat.key}":
            self._send(
                401, json.dumps({"error": {"message": f"no such key: {self.headers['authorization']}"}}).encode()
            )
        else:
            self._meet(chat, body, picture.size)

    def _meet(self, chat: Chat, body: dict[str, Any], size: tuple[int, int]) -> None:
        fault = chat.fault(size)
        choices = [
            {"index": number, "message": {"content": said(size, number)}, "finish_reason": "stop"}
            for number in range(body["n"])
        ]
        answer = json.dumps({"choices": choices[::-1]}).encode()
        if fault == "drop":
            self.close_connection = True
        elif fault == "stall":
            time.sleep(chat.stall)
            self.close_connection = True
        elif fault == "trickle":
            self._trickle(answer)
        elif fault == "one":
            self._send(200, json.dumps({"choices": choices[:1]}).encode())
        elif fault == "half":
            self._send(200, b'{"choices": [{"message": {"content": "a \\ud83d cat\\u0000"}, "finish_reason": "stop"}]}')
        elif fault == "garble":
            self._send(200, GARBLED[len(chat.requests) % len(GARBLED)])
        elif isinstance(fault, int):
            self._send(fault, b'{"error": {"message": "not now."}}', {"retry-after": "0"})
        else:
            self._send(200, answer)

    def _trickle(self, answer: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.close_connection = True
        for byte in answer:
            try:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
            except OSError:
                return
            time.sleep(0.2)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(chat: Chat) -> Iterator[Chat]:
    """The server while the block runs; its address is ``chat.url``."""
    handler = type("Handler", (_Handler,), {"chat": chat})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.socket.listen(128)  # five by default: further connections wait a second, or for ever
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    chat.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
