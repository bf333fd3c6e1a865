"""Serving the page to this machine only."""

from __future__ import annotations

import errno
import os
import socket
from importlib.util import find_spec
from pathlib import Path

from tellapart.errors import UsageError
from tellapart.evaluation.judge.answers import Answers
from tellapart.evaluation.judge.study import ANSWERS_FILE, Study

LOCALHOST = "127.0.0.1"


def require_server() -> None:
    """Raise where the extra is not installed.

    Raises:
        UsageError: naming what to install.
    """
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UsageError("the page needs starlette and uvicorn: pip install 'tellapart[judge]'.")


def listen(port: int) -> socket.socket:
    """A socket on this machine's own address; port 0 takes a free one.

    Raises:
        UsageError: the port is taken, or may not be used.
    """
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # a killed server's port is free at once; on Windows this would share a port in use
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((LOCALHOST, port))
    except OSError as error:
        taken.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise UsageError(f"--port {port} is in use or reserved: give another, or 0 for any free one.") from error
        raise
    taken.listen(64)
    return taken


def serve(study: Study, listening: socket.socket) -> None:
    """Serve until interrupted; every answer is on disk by then.

    Raises:
        KeyboardInterrupt: it was interrupted.
        UsageError: the file of answers is damaged.
    """
    import uvicorn

    from tellapart.evaluation.judge.app import judge_app

    answers = Answers(Path(study.folder) / ANSWERS_FILE)
    try:
        config = uvicorn.Config(
            judge_app(study, answers),
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        answers.close()
