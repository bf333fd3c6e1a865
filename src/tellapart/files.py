"""Writing files so that a killed process leaves either the old or the new one, never half of it; and where a run keeps what."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from tellapart.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def cache_dir() -> Path:
    """Where built and derived things live: ``$TELLAPART_CACHE``, else ``~/.cache/tellapart``.

    A new one is its owner's alone, since whoever writes to it decides which weights are loaded.
    """
    folder = Path(os.environ.get("TELLAPART_CACHE") or Path.home() / ".cache" / "tellapart").expanduser()
    with suppress(OSError):  # whoever writes to it says what is wrong
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    return folder


REVIEW = ".review.csv"
"""Ending of the lists of captions to look at: written next to the captions, and not read as data with their folder."""
_LONGEST_NAME = 255 - 10
"""Bytes that disks allow a file's name, less those that make it a temporary one."""


@contextmanager
def beside(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary file that becomes ``path`` when the block ends without an error.

    Args:
        path: the file. Of a symbolic link the file that it leads to is replaced, and the link stays.
        durable: survive a power cut, too: without it, the new name may come to disk before what it names.

    Raises:
        OSError: it cannot be written; the error names ``path``.
    """
    name, handle = None, -1
    try:
        path = _led_to(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        name, handle = _temporary_file(path)
        yield Path(name)
        if durable:
            to_disk(Path(name))
        os.replace(name, path)
        if durable:
            to_disk(path.parent, within=False)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, name):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        if handle >= 0:
            os.close(handle)


_REPLACED = "replaced"
"""Ending of a folder that is being replaced."""
_USUAL = 0o666
"""Mode of new files, of which the umask takes away."""
_PARTIAL = "_partial"
"""Ending of temporary files and folders, unless two processes write the same thing at once."""


def _temporary_file(path: Path) -> tuple[str, int]:
    """A temporary file next to ``path``, empty, and a handle that keeps others out of it; -1 where there is none.

    Its name is always the same, so that the file which a killed process left is used again. Where that one is in use, or
    the disk has no locks, the name is a random one.
    """
    stem = temporary_stem(path.name)
    if fcntl is not None:
        own, handle = path.with_name(f".{stem}.{_PARTIAL}"), -1
        with suppress(OSError):  # for one, the existing path is not a file
            handle = os.open(own, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _USUAL)
            if _held(handle, own):
                os.ftruncate(handle, 0)
                return str(own), handle
        if handle >= 0:
            os.close(handle)
    name = path.with_name(f".{stem}.{uuid.uuid4().hex[:8]}")
    os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, _USUAL))
    return str(name), -1


def _temporary_folder(path: Path) -> tuple[Path, int]:
    """The same for a folder next to ``path``."""
    stem = temporary_stem(path.name)
    if fcntl is not None:
        own, handle = path.with_name(f".{stem}.{_PARTIAL}"), -1
        with suppress(OSError):
            own.mkdir(exist_ok=True)
            handle = os.open(own, os.O_RDONLY | os.O_NOFOLLOW)
            if _held(handle, own):
                for left in own.iterdir():
                    shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
                return own, handle
        if handle >= 0:
            os.close(handle)
    other = path.with_name(f".{stem}.{uuid.uuid4().hex[:8]}")
    other.mkdir()
    return other, -1


def _held(handle: int, path: Path) -> bool:
    """Whether this handle, and no other, now holds the file at ``path``; its lock ends with the handle."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # in use
        return False
    except OSError:  # this disk has no locks, so that no one uses it
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
        return False
    return _is(handle, path)  # its writer may have renamed it meanwhile


def _is(handle: int, path: Path) -> bool:
    """Whether what was opened is what is at ``path``."""
    ours, there = os.fstat(handle), os.lstat(path)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def temporary_stem(name: str) -> str:
    """What a temporary file next to one of this name has between its first and its last dot: the name, if it fits."""
    while len(os.fsencode(name)) > _LONGEST_NAME:
        name = name[:-1]
    return name


def to_disk(path: Path, *, within: bool = True) -> None:
    """Have a file, or a folder with everything in it, on disk and not only in the system's memory.

    Args:
        path: file or folder.
        within: whether a folder's content counts, too, or only the names in it.
    """
    if within and path.is_dir():
        for entry in path.iterdir():
            to_disk(entry)
    if path.is_dir() and os.name == "nt":  # which opens no folders
        return
    opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(opened)


def write_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write ``content`` next to ``path`` and rename it into place."""
    with beside(path, durable=durable) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write ``text`` as UTF-8, in one rename; what UTF-8 cannot hold (file names of other encodings) as JSON escapes it."""
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"), durable=durable)


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """``value`` as readable JSON, in one rename."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", durable=durable)


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """A list of rows as ``write_json`` writes it, without the text of all of them in memory."""
    rest, sign = iter(rows), "["
    with (
        beside(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        while some := [*islice(rest, _ROWS)]:
            file.write(sign + json.dumps(some, indent=2, ensure_ascii=False)[1:-2])
            sign = ","
        file.write("\n]\n" if sign == "," else "[]\n")


_ROWS = 4096
"""Rows that become text together."""


def require_written(*paths: Path) -> None:
    """Raise where what a command has just written is not there: whoever removed it must not read that all went well.

    Raises:
        UsageError: naming the first such path.
    """
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} was removed while it was being written: run the same command again.")


def require_writable(folder: Path, option: str = "output_dir") -> None:
    """Raise where a folder, which need not exist yet, cannot be written to: now, and not after what is to be written is known.

    Args:
        folder: it, which is not made here.
        option: that names it, for the message.

    Raises:
        UsageError: naming the folder.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=place):
            pass
    except OSError as error:
        raise UsageError(f"{place} cannot be written to ({error.strerror}): choose another {option}.") from error


def _replaced(path: Path) -> Path:
    """Where a folder lies while another one takes its place."""
    return path.with_name(f".{temporary_stem(path.name)}.{_REPLACED}")


def put_back(path: Path) -> bool:
    """Give a folder its name again where a kill came before the new one took its place; whether that was so."""
    old = _replaced(path)
    if path.exists() or not old.is_dir():
        return False
    old.rename(path)
    return True


def remove_half_written(folder: Path, names: Iterable[str] | None = None) -> None:
    """Remove the temporary files and folders that kills left.

    Args:
        folder: where to look.
        names: of the files and folders that they were to become; by default any.
    """
    if not folder.is_dir():
        return
    stems = None if names is None else set(map(temporary_stem, names))
    for entry in list(os.scandir(folder)):
        temporary = re.fullmatch(r"\.(.+)\.[a-z0-9_]{8}", entry.name)
        if temporary is None or (stems is not None and temporary[1] not in stems):
            continue
        if entry.name.endswith(f".{_REPLACED}") and put_back(folder / temporary[1]):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


@contextmanager
def fresh_folder(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` (replacing it) when the block ends without an error.

    Args:
        path: the folder.
        durable: survive a power cut, too.

    Raises:
        OSError: something cannot be written; the error names ``path``.
        UsageError: the current folder is in it, or somebody removed the temporary folder meanwhile.
    """
    path = _led_to(path)
    if _holds_current(path):
        raise UsageError(f"the command runs in the folder {path}, which can therefore not be replaced: name another.")
    put_back(path)
    with _in_making(path, path) as (temporary, handle):
        yield temporary
        _require_whole(temporary, handle, path)
        if durable:
            to_disk(temporary)
        old = _replaced(path)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        temporary.rename(path)
        if durable:
            to_disk(path.parent, within=False)
        shutil.rmtree(old, ignore_errors=True)


def _led_to(path: Path) -> Path:
    """What a symbolic link leads to; any other path itself."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _holds_current(path: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(path.resolve())
    except FileNotFoundError:  # it has been removed
        return False


@contextmanager
def first_folder(path: Path) -> Iterator[Path]:
    """Like ``fresh_folder``, but if ``path`` has come to exist meanwhile, that one stays and this one is dropped.

    So processes that build the same thing at once do not disturb each other: a folder that somebody reads never vanishes. What
    killed ones had begun is removed.
    """
    _remove_abandoned(path)
    with _in_making(path, path.with_name(f"{path.name}-{uuid.uuid4().hex}")) as (temporary, handle):
        yield temporary
        _require_whole(temporary, handle, path)
        try:
            temporary.rename(path)  # fails onto a folder that is not empty
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            if not path.is_dir():
                raise


@contextmanager
def _in_making(path: Path, named: Path) -> Iterator[tuple[Path, int]]:
    """A temporary folder next to ``path``, of a name that follows from ``named``, and a handle that keeps others out of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, handle = _temporary_folder(named)
    try:
        with disk_errors(path):
            yield temporary, handle
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno is not None and str(error.filename).startswith(str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        if handle >= 0:
            os.close(handle)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Give what safetensors and torch raise when they cannot write the type that such errors have elsewhere.

    Args:
        path: what is being written, which the error names.

    Raises:
        OSError: the disk is full, or cannot be written to.
    """
    try:
        yield
    except Exception as error:
        told = str(error)
        system = re.search(r"os error (\d+)", told) if type(error).__name__ == "SafetensorError" else None
        torch_failed = isinstance(error, RuntimeError) and re.search(
            "inline_container|PytorchStreamWriter|iostream", told
        )
        if system is None and (not torch_failed or "PytorchStreamReader" in told):
            raise
        code = int(system[1]) if system else errno.ENOSPC  # torch does not say what the system said
        raise OSError(code, os.strerror(code), str(path)) from error


def _require_whole(temporary: Path, handle: int, path: Path) -> None:
    """Raise where a temporary folder was removed, and made again by a writer without what was in it."""
    if handle >= 0 and not _is(handle, temporary):
        raise UsageError(f"{path} was removed while it was being written: run the same command again.")


def _remove_abandoned(path: Path) -> None:
    """Remove the folders of their own in which killed processes were making ``path``; those in use are locked."""
    for left in path.parent.glob(f".{glob.escape(path.name)}-*.{_PARTIAL}") if fcntl is not None else ():
        with suppress(OSError):
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if _held(handle, left):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The text of a file that anybody may have put there.

    Args:
        path: of the file.
        errors: ``replace`` reads bytes that are not UTF-8 as U+FFFD, which spoils their line only.

    Raises:
        OSError: it cannot be read, or is a pipe or a device, which might never end.
        ValueError: it is not UTF-8.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        return file.read().decode("utf-8", errors=errors)


def names_a_path(text: str) -> bool:
    """Whether the name of a model that is not a folder was meant as a path and not as an id on the hub: it looks like a path, or
    the folder that would hold it exists."""
    parent = Path(text).expanduser().parent
    return (
        text.startswith((".", "/", "~"))
        or text.endswith("/")
        or text.count("/") > 1
        or (parent != Path(".") and parent.is_dir())
    )


def existing(path: str | Path, what: str) -> str:
    """A model's folder or id on the hub, for transformers to load.

    Args:
        path: of the folder, where ``~`` is the home, or the id.
        what: the message calls the model.

    Raises:
        UsageError: it looks like a folder, and there is none; or it holds a pipe or a device.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        require_files(folder)
    if not folder.exists() and (isinstance(path, Path) or names_a_path(path)):
        raise UsageError(f"the {what}'s folder {path} does not exist: check the path.")
    return str(folder) if folder.exists() else str(path)


def require_files(folder: Path) -> None:
    """Raise where a folder of somebody's model holds what a library would read for ever.

    Args:
        folder: whose entries are looked at; links are followed, and those that lead nowhere are left to the reader.

    Raises:
        UsageError: an entry is a pipe, a device or a socket.
    """
    for entry in sorted(folder.iterdir()):
        try:
            mode = entry.stat().st_mode
        except OSError:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"{entry} is a pipe or a device, not a file: restore or remove it.")


def _without_waiting(path: str, flags: int) -> int:
    """Opens a pipe at once, also where it has no writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: as ``read_text``.
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none that can be read, for what may be missing."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def checkpoints(run: Path) -> dict[int, Path]:
    """Step -> checkpoint folder of a run, in order of steps."""
    folders = {path.name.removeprefix("checkpoint-"): path for path in run.glob("checkpoint-*") if path.is_dir()}
    return {int(step): folders[step] for step in sorted(filter(str.isdecimal, folders), key=int)}


def with_weights(run: Path) -> list[Path]:
    """The folders of a run that may hold what it trained: its selected checkpoint, then the others from the last one.

    A selected one that another is about to replace counts, also where a kill came between the two.
    """
    best = run / "best"
    return [best if best.is_dir() else _replaced(best), *reversed(checkpoints(run).values())]


def trained_part(run: Path, part: str) -> Path | None:
    """The folder of something that a run has trained, such as ``captioner``: that of its selected checkpoint, else of the last
    that has one; none without any. A checkpoint's own folder may be given, too."""
    return next((place / part for place in [run, *with_weights(run)] if (place / part).is_dir()), None)


def in_a_cell(name: str) -> str:
    r"""A name without tabs and line breaks, which are shown as ``\t`` and ``\n``.

    Example:
        >>> print(in_a_cell("a\tcup"))
        a\tcup
    """
    return name.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet reads as the beginning of a formula."""


def harmless_cell(text: str) -> str:
    """A cell of a table for people, which no spreadsheet runs as a formula.

    Example:
        >>> harmless_cell("=1+1"), harmless_cell("a cup")
        ("'=1+1", 'a cup')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text
