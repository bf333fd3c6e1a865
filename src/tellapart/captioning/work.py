"""The work folder of a run, next to its output: the settings that decide the captions, and the journals."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tellapart.captioning.journal import Journal, read_journal
from tellapart.captioning.records import Caption, Item
from tellapart.errors import UsageError
from tellapart.files import read_json, to_disk, write_json
from tellapart.locks import Lock

SETTINGS, LOCK = "settings.json", "lock"


class Work:
    """An unfinished run on disk. It is held by one process at a time.

    Args:
        folder: where; it is made if it is not there.
        settings: everything that decides the captions, as JSON values by option, or by the word of the usage line in capitals.
        overwrite: throw away what was begun with other settings, instead of refusing to resume.

    Attributes:
        done: image id -> its caption, of the images captioned before.
        last: those of the last batch of each journal, whose sidecars may not have been written.
        replaced: image id -> its earlier caption, of images whose file was replaced since by another one of the same name, or
            whose features were computed again.

    Raises:
        UsageError: the run was begun with other settings, or another process works on it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.folder = folder
        begun = folder.is_dir()
        self._lock = Lock(folder / LOCK, "captioning into")
        try:
            remove_finished(folder)
            if begun:
                self._go_on(settings, overwrite)
            if not (folder / SETTINGS).is_file():
                write_json(folder / SETTINGS, dict(settings), durable=True)
            self.done: dict[str, Caption] = {}
            self.last: list[Caption] = []
            self.replaced: dict[str, Caption] = {}
            self._replaced: dict[str, Item] = {}
            self._recover()
        except BaseException:
            self._lock.release()
            raise

    def _go_on(self, settings: Mapping[str, Any], overwrite: bool) -> None:
        """Keep what is there if it was made alike, else remove it or refuse."""
        path = self.folder / SETTINGS
        try:
            before = read_json(path)
        except FileNotFoundError:  # killed before it was written
            before = dict(settings) if not list(self.folder.glob("journal-*.jsonl")) else {}
        except ValueError:
            before = {}
        now = json.loads(json.dumps(dict(settings)))
        different = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if not different:
            return
        if not overwrite:
            key = different[0]
            raise UsageError(
                f"{self.folder} holds a run that was begun with {_shown(key, before.get(key))}, not "
                f"{_shown(key, now.get(key))}: give the same options to resume, or --overwrite to start again."
            )
        for part in [*self.folder.glob("journal-*.jsonl"), path]:
            part.unlink(missing_ok=True)

    def _recover(self) -> None:
        for path in sorted(self.folder.glob("journal-*.jsonl")):
            Journal(path).close()  # waits for the workers of a killed run to end, and cuts off a torn line
            captions, last = read_journal(path)
            self.done |= {caption.id: caption for caption in captions if caption.error is None}
            self.last += [caption for caption in last if caption.error is None]

    def drop_replaced(self, items: Iterable[Item]) -> None:
        """Have images count as not captioned whose file was replaced since by another one of the same name, or whose features
        were computed again."""
        for item in items:
            if (caption := self.done.get(item.id)) is not None and not caption.is_of(item):
                self._replaced[item.id] = item
                self.replaced[item.id] = self.done.pop(item.id)
        self.last = [caption for caption in self.last if caption.id not in self._replaced]

    def journal(self, rank: int) -> Path:
        """The journal of one worker."""
        return self.folder / f"journal-{rank}.jsonl"

    def drawn(self) -> dict[str, Caption]:
        """Image id -> what came of it, of all journals as they are now; a caption counts more than an error."""
        found: dict[str, Caption] = {}
        for path in sorted(self.folder.glob("journal-*.jsonl")):
            for caption in read_journal(path)[0]:
                now = self._replaced.get(caption.id)
                if now is not None and (caption.size, caption.features) != (now.size, now.features):
                    continue
                if caption.error is None or caption.id not in found:
                    found[caption.id] = caption
        return found

    def abandon(self) -> None:
        """Remove the folder if no image is journalled: a run that failed before its first one has nothing to resume, so other
        options may follow."""
        if not any(path.stat().st_size for path in self.folder.glob("journal-*.jsonl")):
            shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let others work on it; a second call does nothing."""
        self._lock.release()

    def remove(self, run: str) -> None:
        """The run is finished: nothing is left to resume.

        Renamed first, and removed under the new name. A kill in between leaves a folder whose name says which run is whole,
        so that the same command, repeated, does not caption again. The name goes last.

        Args:
            run: the run, as ``run_of`` gives it.
        """
        if os.name == "nt":  # which renames no folder with an open file
            self.close()
        done = self.folder
        with suppress(OSError):
            done = self.folder.rename(_finished(self.folder, run))
            to_disk(done.parent, within=False)  # or a power cut might keep the old name, without what is removed below
        self.close()
        shutil.rmtree(done, ignore_errors=True)  # not whatever has that name now: a new run may have begun


@contextmanager
def resumable(work: Work, how_far: Callable[[], str]) -> Iterator[None]:
    """Let others work on a run when the block ends, and give up one that failed before its first image.

    Args:
        work: its folder.
        how_far: says how far it came: ``4 of 5 images captioned``.

    Raises:
        KeyboardInterrupt: it was interrupted; the message says how far it came and how to resume.
    """
    try:
        yield
    except BaseException as error:
        work.abandon()
        if not isinstance(error, KeyboardInterrupt):
            raise
        raise KeyboardInterrupt(f"stopped with {how_far()}: run the same command again to resume.") from error
    finally:
        work.close()


def run_of(settings: Mapping[str, Any], ids: Sequence[str]) -> str:
    """Sixteen hexadecimal digits that tell runs apart.

    Args:
        settings: everything that decides the captions, as JSON values.
        ids: of the images, in order.

    Example:
        >>> run_of({"seed": 0}, ["a"]) == run_of({"seed": 0}, ["a", "b"])
        False
    """
    return hashlib.sha256(json.dumps([dict(settings), list(ids)], sort_keys=True).encode()).hexdigest()[:16]


def _finished(folder: Path, run: str) -> Path:
    """Name of a work folder while it is removed."""
    return folder.with_name(f".{folder.name}.finished-{run}")


def was_finished(folder: Path, run: str) -> bool:
    """Whether a run was finished, and then killed while it removed its work folder.

    Args:
        folder: the work folder.
        run: the run, as ``run_of`` gives it.
    """
    return not folder.is_dir() and _finished(folder, run).is_dir()


def remove_finished(folder: Path) -> None:
    """Remove what kills left of the work folders of runs that were finished.

    Args:
        folder: the work folder.
    """
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.finished*"):
        shutil.rmtree(left, ignore_errors=True)


def _shown(key: str, value: Any) -> str:
    option = key if key.isupper() else f"--{key}"
    return f"{option} {value}" if value is not None else f"no {option}"
