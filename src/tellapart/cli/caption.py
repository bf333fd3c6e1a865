"""``tellapart caption``: captions for image files and folders of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.cli.command import options_of
from tellapart.cli.console import note, say
from tellapart.cli.schema import CaptionerSection
from tellapart.errors import UsageError
from tellapart.files import write_json, write_text

if TYPE_CHECKING:
    from tellapart.captioners.base import Captioner
    from tellapart.types import Batch, Decoding


@dataclass(frozen=True, kw_only=True)
class CaptionOptions:
    """Options of ``tellapart caption``.

    Args:
        captioner: a run of tellapart, a model folder, a Hugging Face id, or a stage of the built-in world.
        output: a .json file (COCO results) or .jsonl file to write, all or nothing; - prints a line an image.
        overwrite: replace the output file if it exists.
        num_beams: beams of the search; 1 is greedy.
        max_new_tokens: longest caption in tokens.
        no_repeat_ngram_size: no run of so many tokens may occur twice in a caption; 0 allows all.
        batch_size: images captioned at once.
    """

    captioner: str
    output: str = "-"
    overwrite: bool = False
    num_beams: int = 5
    max_new_tokens: int = 40
    no_repeat_ngram_size: int = 0
    batch_size: int = 16


def run(argv: Sequence[str]) -> int:
    """Caption what the words name; broken images are reported, left out, and make the exit code 2."""
    chosen = options_of(
        argv, CaptionOptions, usage="caption IMAGE_OR_FOLDER ...", description="Caption images and folders of images."
    )
    if chosen is None:
        return 0
    words, options = chosen
    if options.batch_size < 1:
        raise UsageError(f"--batch_size is {options.batch_size}: it must be at least 1.")
    write = _writer(options)
    paths = image_paths(words)
    from tellapart.cli.models import decoding, device, load_captioner

    how = decoding(options.num_beams, options.max_new_tokens, no_repeat_ngram_size=options.no_repeat_ngram_size)
    captioner = load_captioner(CaptionerSection(model_name_or_path=options.captioner)).to(device())
    rows: list[dict[str, str | int]] = []
    for path, caption in captions_of(captioner, paths, how, options.batch_size):
        rows.append({"image_id": image_id(path), "file_name": str(path), "caption": caption})
        if write is None:
            say(f"{path}\t{caption}")
    broken = len(paths) - len(rows)
    if write is not None and rows:
        write(rows)
    if broken:
        note(f"error: {broken} of {len(paths)} images could not be read and have no caption (see above): repair them.")
    return 2 if broken else 0


def image_paths(words: Sequence[str]) -> list[Path]:
    """The image files that are named, those of a folder in order of their names.

    Raises:
        UsageError: nothing is named, a path does not exist, or a folder holds no images.
    """
    from tellapart.data.folder import EXTENSIONS, find_images

    if not words:
        raise UsageError("no images were given: name image files, or folders of them.")
    paths: list[Path] = []
    for word in map(Path, words):
        if not word.exists():
            raise UsageError(f"{word} does not exist: name an image file, or a folder of them.")
        found = [word] if word.is_file() else find_images(word)
        if not found:
            raise UsageError(f"{word} holds no images ({', '.join(sorted(EXTENSIONS))}): name another folder.")
        paths += found
    return list(dict.fromkeys(paths))


def captions_of(
    captioner: Captioner, paths: Sequence[Path], how: Decoding, batch_size: int
) -> Iterator[tuple[Path, str]]:
    """Each readable image with its caption; unreadable ones are reported and skipped."""
    from tellapart.progress import bar

    with bar("captioning", len(paths)) as shown:
        for first in range(0, len(paths), batch_size):
            readable, batch = _read(captioner, paths[first : first + batch_size])
            if readable:
                texts = captioner.generate(batch, how).texts[:: how.num_return_sequences]
                yield from zip(readable, (" ".join(text.split()) for text in texts), strict=True)
            shown.advance(len(paths[first : first + batch_size]))


def _read(captioner: Captioner, paths: Sequence[Path]) -> tuple[list[Path], Batch]:
    """Those of the images that can be read, and they as a batch."""
    from tellapart.cli.models import device_of
    from tellapart.data.images import ImageFile
    from tellapart.types import Batch

    images = {}
    for path in paths:
        try:
            images[path] = ImageFile(path).open()
        except UsageError as error:
            note(f"error: {error}")
    inputs = {captioner.name: captioner.process(list(images.values()))} if images else {}
    return list(images), Batch([str(path) for path in images], [[] for _ in images], inputs).to(device_of(captioner))


def image_id(path: Path) -> str | int:
    """The id that COCO's tools know an image by: the number in COCO's file names, else the name without its ending."""
    numbered = re.fullmatch(r"(?:COCO_\w+_)?(\d{12})", path.stem)
    return int(numbered[1]) if numbered else path.stem


def _writer(options: CaptionOptions) -> Callable[[list[dict[str, str | int]]], None] | None:
    """What writes the rows into the output file, or None to print; checked before any work is done.

    Raises:
        UsageError: the file exists, or its ending is of no known format.
    """
    if options.output == "-":
        return None
    path = Path(options.output)
    if path.suffix not in (".json", ".jsonl"):
        raise UsageError(f"--output {path} ends in {path.suffix!r}: name a .json or .jsonl file, or - to print.")
    if path.exists() and not options.overwrite:
        raise UsageError(f"--output {path} exists: name another file, or give --overwrite to replace it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--output {path} is in a folder that cannot be written to: choose another.")
    if path.suffix == ".json":
        return lambda rows: write_json(path, rows)
    return lambda rows: write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
