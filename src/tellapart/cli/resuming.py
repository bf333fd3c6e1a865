"""Message of an interrupted training: the command that resumes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tellapart.launch import processes
from tellapart.recipe.flags import SWITCH_WORDS

RESUME, OVERWRITE = "resume_from_checkpoint", "overwrite_output_dir"


@contextmanager
def telling_how_to_resume(command: str, argv: Sequence[str], output_dir: Path) -> Iterator[None]:
    """Add the command that resumes to the message of an interrupt, where a checkpoint was written.

    Args:
        command: ``train`` or ``train-listener``.
        argv: the words after it.
        output_dir: of the training.

    Raises:
        KeyboardInterrupt: with the message.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        if not any(output_dir.glob("checkpoint-*")):
            raise
        told = str(stopped).partition(";")[0] or "interrupted"
        raise KeyboardInterrupt(f"{told}; resume with:\n  {resuming_command(command, argv)}") from stopped


def resuming_command(command: str, argv: Sequence[str]) -> str:
    """The command line that resumes from the last checkpoint, ready to paste.

    A launcher's own words (torchrun, accelerate) are not known here, so such a command begins with what it launched.
    """
    words, kept = list(argv), list[str]()
    while words:
        word = words.pop(0)
        name = word.removeprefix("--").partition("=")[0].replace("-", "_").removeprefix("training.")
        if not word.startswith("--") or name not in (RESUME, OVERWRITE):
            kept.append(word)
        elif "=" not in word and words and (name == RESUME or words[0].lower() in SWITCH_WORDS):
            words.pop(0)
    launched = "... tellapart" if processes() > 1 else "tellapart"
    return f"{launched} {shlex.join([command, *kept, f'--{RESUME}', 'last'])}"
