"""``tellapart mine``: the images nearest to each image, which a training takes as hard negatives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tellapart.cli.command import options_of, require_another_file, require_own
from tellapart.cli.console import note, say, table
from tellapart.cli.unreadable import leave_out
from tellapart.data.formats.names import Readable
from tellapart.errors import UsageError, count_of

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.listeners.neighbours import Neighbours

SHOWN = 3
CLOSE = 0.98
"""Cosine from which a nearest neighbour is probably a copy."""


@dataclass(frozen=True, kw_only=True)
class MineOptions:
    """Options of ``tellapart mine``.

    Args:
        listener: the model whose image embeddings are compared: a CLIP, SigLIP or late-interaction listener, as a model
            folder, a Hugging Face id, world/listener or world/sighted.
        k: neighbours of each image.
        split: which part of the data; data without splits ignore it.
        images: folder that the file's image paths are relative to.
        format: layout of the data; null detects it.
        image_column: column of a table with the image's path, URL or bytes, when its name is not a usual one.
        id_column: column of a table with the images' ids; null takes image_id, else the path or URL.
        allow_private: let URLs in tables lead to hosts of a private network.
        size: size of the built-in world; other data ignore it.
        limit: maximum number of images, the first ones; null means all.
        prefix: words the listener puts before captions; null takes the model's own prefix. Neighbours do not depend on it, but
            embeddings cached under one prefix are not reused under another.
        engine: exact search (exact), approximate search that is faster where images form clusters and needs faiss-cpu (faiss),
            or exact up to 200,000 images and faiss above (auto).
        recall: share (0 to 1) of the true neighbours that faiss must find, estimated on a sample.
        same_above: cosine from which two images count as one picture.
        near_duplicates: also count photos that look the same (scaled, compressed again) as one picture; decodes every image
            once.
        output: Parquet file to write the neighbours to, in addition to the cache.
        on_error: an image that cannot be read is left out and listed (skip), for which all images are read once beforehand, or is
            an error (fail).
        strict: exit with code 2 if an image could not be read; otherwise only if none could.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart mine world --listener world/listener",
        "tellapart mine photos/ --listener openai/clip-vit-base-patch32 --near_duplicates",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "images": ("split", "images", "format", "size", "limit", "on_error", "strict"),
        "search": ("listener", "prefix", "k", "engine", "recall", "same_above", "near_duplicates"),
        "output": ("output",),
    }
    listener: str | None = None
    k: int = 5
    split: str = "train"
    images: Path | None = None
    format: Readable | None = None
    image_column: str | None = None
    id_column: str | None = None
    allow_private: bool = False
    size: Literal["full", "small"] = "full"
    limit: int | None = None
    prefix: str | None = None
    engine: Literal["auto", "exact", "faiss"] = "auto"
    recall: float = 0.95
    same_above: float = 0.9999
    near_duplicates: bool = False
    output: Path | None = None
    on_error: Literal["fail", "skip"] = "skip"
    strict: bool = False


def run(argv: Sequence[str]) -> int:
    """Mine, and print what was found in short."""
    chosen = options_of(
        argv,
        MineOptions,
        usage="mine DATA --listener CLIP",
        description="Find the k other pictures nearest to each image by a listener's image embeddings. Copies of a picture "
        "are never its neighbours. DATA is `world`, or data in any layout of docs/reference/data.md. The result is cached, and a "
        "training with the same listener, images and options reuses it.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if len(words) != 1:
        raise UsageError(f"{len(words)} data were given: name one data set, such as world or a COCO json.")
    if options.listener is None:
        raise UsageError("mining needs image embeddings: give --listener a CLIP model, such as world/listener.")
    if options.engine == "exact" and options.recall != MineOptions.recall:
        raise UsageError("--recall is for faiss, and --engine exact finds all neighbours: leave one of the two out.")
    if options.output is not None and options.output.suffix != ".parquet":
        raise UsageError(f"--output is {options.output}: neighbours are written as .parquet, give it that ending.")
    if options.output is not None:
        from tellapart.listeners.neighbours import Neighbours

        require_another_file(words, options.output)
        require_own(options.output, Neighbours.load, "neighbours")
    dataset, unreadable = _readable(words[0], options)
    found, seconds = _mined(dataset, options.listener, options)
    if options.output is not None:
        kept = found.path
        found.save(options.output)
        found.path = kept
        note(f"written to {options.output}")
    say(page(dataset, found, seconds, copies_left_out=options.near_duplicates))
    return leave_out(unreadable, len(dataset) + len(unreadable), strict=options.strict)


def _readable(path: str, options: MineOptions) -> tuple[CaptionDataset, list[str]]:
    """The images, and why others were left out."""
    from tellapart.data.dataset import problems_of
    from tellapart.recipe.feature_inputs import without_broken
    from tellapart.recipe.models import load_data

    dataset = load_data(
        path,
        options.split,
        images=options.images,
        format=options.format,
        size=options.size,
        limit=options.limit,
        missing_files=options.on_error == "skip",
        image_column=options.image_column,
        id_column=options.id_column,
        allow_private=options.allow_private,
    )
    damaged = problems_of(dataset.examples)
    dataset, unreadable = without_broken(dataset, options.on_error, tell=False)
    return dataset, [reason for _, reason in [*damaged, *unreadable]]


def _mined(dataset: CaptionDataset, listener: str, options: MineOptions) -> tuple[Neighbours, float]:
    """The neighbours of the images, and how long it took from the loaded listener on."""
    from tellapart.data.inspection import look_alikes
    from tellapart.listeners.mining import mine
    from tellapart.recipe.soft_listeners import load_miner

    miner = load_miner(listener, name="listener", prefix=options.prefix, size=options.size)
    start = time.monotonic()
    same = look_alikes(dataset) if options.near_duplicates else []
    found = mine(
        miner,
        dataset,
        options.k,
        same=same,
        same_above=options.same_above,
        engine=options.engine,
        recall=options.recall,
    )
    return found, time.monotonic() - start


def page(dataset: CaptionDataset, found: Neighbours, seconds: float, *, copies_left_out: bool) -> str:
    """Images and copies, similarities at each rank, the first rows, and where it is kept; without ``copies_left_out`` how copies
    are left out."""
    about, similarities = found.about, found.similarities(found.ids)
    copies = {
        "the same content": about["same_content"],
        "the same look": about["told_same"],
        "the same embedding": about["same_embedding"],
    }
    told = ", ".join(f"{number:,} of {kind}" for kind, number in copies.items() if number)
    lines = [f"{len(dataset):,} images of {dataset.name}: {about['pictures']:,} different pictures"]
    lines[0] += f" (copies left out: {told})" * bool(told) + f"; {about['engine']} search"
    if "recall" in about:
        lines[0] += (
            f" ({100 * about['recall']:.1f} % of the true neighbours, in {about['nprobe']} of {about['lists']} lists)"
        )
    ranks = [("rank", "mean similarity", "least", "most")]
    for rank in range(found.k):
        column = similarities[:, rank]
        ranks.append((str(rank + 1), f"{column.mean():.3f}", f"{column.min():.3f}", f"{column.max():.3f}"))
    rows = [("image", "its neighbours, with their similarity")]
    for name, near, values in zip(found.ids[:SHOWN], found.of(found.ids[:SHOWN]), similarities, strict=False):
        rows.append((name, ", ".join(f"{other} {value:.3f}" for other, value in zip(near, values, strict=True))))
    lines += ["", table(ranks), "", table(rows), ""]
    close = int((similarities[:, 0] >= CLOSE).sum())
    if close:
        remedy = "" if copies_left_out else "; if these are photos, --near_duplicates true leaves copies out"
        lines.append(f"similarity of {CLOSE} or above to the nearest neighbour: {count_of(close, 'image')}{remedy}.")
    return "\n".join([*lines, f"{seconds:.1f} s; kept in {found.path}"])
