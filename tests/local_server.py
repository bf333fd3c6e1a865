"""A small web server on this machine, whose answers a test sets and whose requests it can read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Server:
    """A running server.

    Attributes:
        url: its address, without a slash at the end.
        asked: path and query of every request, in order.
        answers: path -> what is answered; other paths are files of the folder, else 404.
    """

    url: str
    folder: Path | None
    asked: list[str] = field(default_factory=list)
    answers: dict[str, Answer | Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)

    def times(self, path: str) -> int:
        """How often a path was asked for."""
        return self.asked.count(path)


@contextmanager
def serving(folder: Path | None = None) -> Iterator[Server]:
    """A server for a folder's files while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known.asked.append(self.path)
            answer = known.answers.get(self.path)
            if callable(answer):
                answer(self)
                return
            status, headers, body = answer or self.file()
            self.send_response(status)
            for name, value in ({"content-length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if status != 304:
                self.wfile.write(body)

        def file(self) -> Answer:
            path = None if folder is None else folder / unquote(urlsplit(self.path).path).lstrip("/")
            if path is None or not path.is_file():
                return 404, {}, b"<!doctype html>"
            stamp = f'"{path.stat().st_mtime_ns}"'
            if self.headers.get("if-none-match") == stamp:
                return 304, {"content-length": "0"}, b""
            return 200, {"etag": stamp}, path.read_bytes()

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    known = Server(f"http://127.0.0.1:{server.server_address[1]}", folder)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
