"""The ``tellapart`` command: finds the command's module, imports only that, and turns errors into sentences."""

from __future__ import annotations

import _thread
import atexit
import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from tellapart import __version__
from tellapart.cli.console import note, say
from tellapart.errors import UsageError, brief, explain
from tellapart.launch import is_main, processes
from tellapart.names import require_known, resolve

COMMANDS = {
    "demo": ("train, compare and report on the built-in world", "tellapart.cli.demo:run"),
    "train": ("train a captioner from a recipe", "tellapart.cli.train:run"),
    "train-listener": ("train a listener (CLIP, SigLIP), also with a grammar head", "tellapart.cli.train_listener:run"),
    "caption": ("caption images and folders of images", "tellapart.cli.caption:run"),
    "features": ("compute image features for captioners that read them", "tellapart.cli.features:run"),
    "score": ("measure a captioner, or a file of captions", "tellapart.cli.score:run"),
    "compare": ("compare measured runs in one table", "tellapart.cli.compare:run"),
    "frontier": ("train a grid and draw recall against naturalness", "tellapart.cli.frontier:run"),
    "report": ("write one HTML page about measured runs, or their model cards", "tellapart.cli.report:run"),
    "push": ("upload a run's captioner and model card to the Hugging Face hub", "tellapart.cli.push:run"),
    "doctor": ("report what this machine can do, or what goes wrong in a training", "tellapart.cli.doctor:run"),
    "judge": ("ask people, on a local page, which captions are better", "tellapart.cli.judge:run"),
    "bench": ("compare metrics with people's judgements", "tellapart.cli.bench:run"),
    "mine": ("find the pictures nearest to each image", "tellapart.cli.mine:run"),
    "questions": ("write multiple-choice questions about images", "tellapart.cli.questions:run"),
    "methods": ("list the training methods, or describe one", "tellapart.cli.methods:run"),
    "recipes": ("list the shipped recipes, print one or copy them", "tellapart.cli.recipes:run"),
    "completion": ("print a script that completes commands in bash or zsh", "tellapart.cli.completion:run"),
    "data": ("check data before training, or convert it", "tellapart.cli.data:run"),
    "world": ("build the stages of the built-in world and probe its models", "tellapart.cli.world:run"),
}
"""Command -> (one line, ``module:function`` that takes the remaining words and returns the exit code)."""

BAD_USAGE, INTERRUPTED = 2, 130

COLLECTIONS = 1000
"""Collections of young objects between those of all objects (Python's own number is 10). What transformers makes while it is
imported lives to the end, and looking through it again and again took a tenth of the time that a command needs to start."""


def program() -> NoReturn:
    """Run the command of this process's words, and end with its exit code.

    Ctrl-C during the interpreter's end would print tracebacks of what it is ending. Now that the command is done, it just ends
    the process.
    """
    collect_seldom()
    try:
        code = main()
    except KeyboardInterrupt:  # just before or after the command
        code = INTERRUPTED
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has had it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "torch.distributed" in sys.modules and "WORLD_SIZE" in os.environ:
        end_at_once(code)
    sys.exit(code)


def collect_seldom() -> None:
    """Look through all of this process's objects for garbage a hundred times less often, through young ones as before."""
    gc.set_threshold(*gc.get_threshold()[:2], COLLECTIONS)


def end_at_once(code: int) -> NoReturn:
    """End this process without the interpreter's teardown, after all that others have asked to be done at the end.

    What is trained in shards keeps gloo's threads beyond the end of their process group, and a process that has done its work
    now and then aborts while it takes them down ("terminate called without an active exception").
    """
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or its reader has gone
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after ``tellapart``; the process's own by default.

    Returns:
        The exit code: 0, 2 for something the user can put right, 130 when interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        quiet_libraries()
        with plain_warnings(), told_remarks(warnings=_speaks(words)), kept_interrupts():
            code = dispatch(words)
            sys.stdout.flush()  # here, where a reader that has gone is dealt with
            return code
    except KeyboardInterrupt as stopped:
        note(str(stopped) or "interrupted.")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # else the interpreter complains when it flushes at exit
        return 0
    except (UsageError, OSError) as error:
        if debug:
            raise
        note(f"error: {explain(error)}")
        return BAD_USAGE
    except (MemoryError, RuntimeError) as error:
        if not debug and _is_left_alone(error):
            note("error: another process of this launch has ended; its own message says why.")
            return BAD_USAGE
        if debug or not _lacks_memory(error):
            raise
        note(f"error: memory does not suffice ({brief(str(error).strip()) or 'no more is said'}): {LESS}")
        return BAD_USAGE
    finally:
        leave_process_group()


def _speaks(words: Sequence[str]) -> bool:
    """Whether this process gives the command's warnings: all processes of a training would give the same."""
    return words[:1] not in (["train"], ["train-listener"]) or is_main()


LESS = "ask for fewer beams, samples or images at once."
"""What to do where memory does not suffice."""


LOST = "Connection closed by peer", "Connection reset by peer", "Connection refused"
"""What gloo says of a process that has ended."""


def _is_left_alone(error: Exception) -> bool:
    """Whether this is one of several processes of a launch that waited for another one in vain."""
    kind = getattr(sys.modules.get("torch.distributed"), "DistError", None)
    told = any(text in str(error) for text in LOST) or (kind is not None and isinstance(error, kind))
    return told and processes() > 1


def _lacks_memory(error: Exception) -> bool:
    """Whether this is a device or the system refusing memory; torch says so of a CPU in words only."""
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    return isinstance(error, MemoryError | kind) or "can't allocate memory" in str(error)


def quiet_libraries() -> None:
    """Have libraries that are imported from now on keep remarks to themselves that are not for users."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its start-up remarks are about choices made for the user
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # its retries are summed up in the sentence that follows them
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def leave_process_group() -> None:
    """End what torchrun's processes share, if this is one of them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def dispatch(words: Sequence[str]) -> int:
    """Hand the words to the command that the first of them names.

    Raises:
        UsageError: there is no such command.
    """
    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        say(usage())
        return 0
    if words[0] in ("-V", "--version", "version"):
        say(f"tellapart {__version__}")
        return 0
    require_known(words[0], COMMANDS, "a command of tellapart")
    run = resolve(COMMANDS[words[0]][1])
    return int(run(words[1:]))


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings for users as one line; those that libraries address to programmers are left out."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", category)
        warnings.showwarning = lambda message, *where, **further: note(f"warning: {message}")
        yield


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """While the block runs, a Ctrl-C that arrives in a finalizer or a callback interrupts the command a moment later.

    Python cannot raise it there: it would print a remark, "Exception ignored in", and continue as if nothing had been pressed.
    """
    before, main_thread = sys.unraisablehook, threading.main_thread().ident

    def again() -> None:
        time.sleep(0.01)  # until the callback has returned
        if hasattr(signal, "pthread_kill") and main_thread is not None:  # also ends what that thread waits for
            signal.pthread_kill(main_thread, signal.SIGINT)
        else:
            _thread.interrupt_main()

    def hear(ignored: sys.UnraisableHookArgs) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(again, ())  # threading's locks may be held by what was interrupted
        else:
            before(ignored)

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = before


class _Remarks(logging.Handler):
    """Writes what the library logs to standard error, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        note(record.getMessage())


@contextmanager
def told_remarks(*, warnings: bool = True) -> Iterator[None]:
    """While the block runs, warnings that the library logs reach standard error; without ``warnings``, errors alone."""
    logger, handler = logging.getLogger("tellapart"), _Remarks(logging.WARNING if warnings else logging.ERROR)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def usage() -> str:
    """The overview that ``tellapart --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {line}" for name, (line, _) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: tellapart COMMAND ... [--debug]",
            "",
            "Train image captioners to tell images apart while still writing like people.",
            "",
            "commands:",
            *lines,
            "",
            "tellapart help COMMAND explains a command; --debug shows the traceback of an error.",
        ]
    )


if __name__ == "__main__":
    program()
