"""Single images that cannot be read: the report of every command that reads a collection, and its exit code."""

from __future__ import annotations

from collections.abc import Iterable

from tellapart.cli.console import note

SHOWN = 20
"""Images, or shards, whose errors are shown one by one."""


class Errors:
    """Shows why images cannot be read, of the first ones."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: str) -> None:
        """Of one more image."""
        self.count += 1
        if self.count <= SHOWN:
            note(f"error: {error}")
        elif self.count == SHOWN + 1:
            note("error: there are more images that cannot be read.")


def summarize(broken: int, total: int, what: str, remedy: str, *, strict: bool) -> int:
    """Say of how many images something is wrong, and return the exit code: 2 if these are all images, or one is too many.

    Args:
        broken: such images.
        total: images in all.
        what: is wrong, such as "could not be read and have no caption".
        remedy: what to do.
        strict: whether a single one makes the exit code 2.
    """
    code = 2 if broken and (strict or broken == total) else 0
    if broken:
        kind = "error" if code else "WARNING"
        note(f"{kind}: {broken} of {total} images {what} (see above): {remedy}.")
    return code


def leave_out(reasons: Iterable[str], total: int, *, strict: bool) -> int:
    """Say which images a command left out because they could not be read, and return its exit code.

    Args:
        reasons: a sentence per image.
        total: images in all, those counted.
        strict: whether a single one makes the exit code 2.
    """
    errors = Errors()
    for reason in reasons:
        errors(reason)
    return summarize(errors.count, total, "could not be read and were left out", "repair or remove them", strict=strict)
