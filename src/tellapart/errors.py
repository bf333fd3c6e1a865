"""The one exception that means "the input is wrong, and here is the remedy"."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager


class UsageError(Exception):
    """Something the user gave cannot be used.

    The message is one sentence that names the file or option, the value found and the remedy. The command line prints it
    without a traceback (unless ``--debug``) and exits with code 2.
    """


LONGEST, LONGEST_WORDS = 300, (160, 100, 60, 40)
"""Characters of a message from which its overlong words are cut, and of such a word, the shorter the more that needs: an id or
a name may have thousands."""

_CONTROLS = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPED = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS}


def printable(text: str) -> str:
    r"""The text as it may go to a terminal: control characters, of which escape sequences are made, as ``\x1b``.

    File names, captions, ids and the names of runs come from anybody. Line feeds and tabs stay; what reverses the direction of
    writing is escaped, too.
    """
    return text.translate(_ESCAPED)


_SECRETS = re.compile(
    r"\b(hf_|github_pat_|gh[pousr]_|sk-)[A-Za-z0-9]{16,}|(?i:(bearer |token=))[A-Za-z0-9._-]{12,}",
)


_SECRET_NAMES = re.compile(
    r"(?:^|_)(?:API)?(?:KEY|TOKEN|SECRET|CREDENTIALS?|CONNECTION_STRING)(?:_|$)|PASSW", re.IGNORECASE
)
_SHORTEST_SECRET = 8  # characters; shorter values are settings rather than secrets


def without_secrets(text: str) -> str:
    """The text with three dots in place of what looks like a token: libraries quote requests and addresses in their errors.

    Values of environment variables that are called keys, tokens, secrets, passwords, credentials or
    connection strings are left out, too.
    """
    values = {value for name, value in os.environ.items() if _SECRET_NAMES.search(name)}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "...")
    return _SECRETS.sub(lambda found: f"{found[1] or found[2]}...", text)


def brief(text: str) -> str:
    """A message on one line; in a long one, overlong words without their middle. Ordinary paths are left as they are."""
    given = text.split()
    words = given
    for most in LONGEST_WORDS:
        if sum(map(len, words)) + len(words) - 1 <= LONGEST:
            break
        half = most // 2
        words = [word if len(word) <= LONGEST_WORDS[0] else f"{word[:half]}...{word[-half:]}" for word in given]
    return " ".join(words)


REMEDIES = {
    errno.ENOSPC: "free some space or write to another disk",
    errno.EDQUOT: "free some space or write to another disk",
    errno.EFBIG: "write to a disk that takes files of this size",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EACCES: "choose a path that you may read and write",
    errno.EPERM: "choose a path that you may read and write",
    errno.EROFS: "choose a path on a disk that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a folder on that path is a file: choose another",
    errno.EEXIST: "a file is in the way of a folder; choose another path",
    errno.EISDIR: "name a file, not a folder",
}


def explain(error: Exception, at_a_loss: str = "--debug shows where it happened") -> str:
    """An error as one sentence with its remedy; where none is known, ``at_a_loss``."""
    if not isinstance(error, OSError) or error.errno is None:
        return brief(str(error))
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return brief(f"{what}: {REMEDIES.get(error.errno, at_a_loss)}.")


def count_of(number: int, what: str) -> str:
    """``1 image``, ``2,500 images``."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def quoted(name: object, most: int = 20) -> str:
    """An id or a name for a message, in quotes and, if it is longer than ``most``, without its middle."""
    whole = repr(name)
    return whole if len(whole) <= most else f"{whole[: most // 2]}...{whole[-(most // 2) :]}"


def reason_of(error: BaseException, most: int = 140) -> str:
    """First line of a library's error, as part of a sentence; of a file's path its name, since sentences name the folder.

    Args:
        error: of any kind; one that says nothing is called by its type.
        most: characters, from which the rest is cut off: some libraries write a page.
    """
    told = str(error)
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        told = f"{os.path.basename(error.filename)}: {error.strerror}"
    first = next(iter(told.strip().splitlines()), "").rstrip(".:") or type(error).__name__
    return first if len(first) <= most else f"{first[: most - 3]}..."


@contextmanager
def reading_images(what: str) -> Iterator[None]:
    """Turns a model's refusal of images of another size into one sentence.

    Which sizes a model takes is known to it alone: some take any.

    Args:
        what: whose images they are.

    Raises:
        UsageError: in place of the model's own error.
    """
    try:
        yield
    except ValueError as error:
        if "image size" not in str(error).lower():
            raise
        raise UsageError(
            f"{what} cannot read what its image processor prepares ({reason_of(error)}): correct size and crop_size in its "
            "preprocessor_config.json."
        ) from error


@contextmanager
def preparing(what: str) -> Iterator[None]:
    """Turns what an image processor raises into one sentence: its settings may have been written by anybody.

    Args:
        what: whose processor it is.

    Raises:
        UsageError: in place of the processor's own error.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"the image processor of {what} cannot prepare images ({reason_of(error)}): correct its preprocessor_config.json."
        ) from error
