"""``tellapart caption --by_shard`` and ``--merge``: collections of any size, shard by shard."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tellapart.captioning.gate import SEVERITY
from tellapart.cli.caption_models import require_models
from tellapart.cli.caption_options import CaptionOptions, Kind, check, gate_checks, identity, settings_of
from tellapart.cli.command import options_of, require_alone
from tellapart.cli.console import note, say, table
from tellapart.cli.unreadable import SHOWN
from tellapart.data.remote.addresses import scheme_of
from tellapart.data.tars import is_tar
from tellapart.errors import UsageError, count_of
from tellapart.progress import bar

if TYPE_CHECKING:
    from tellapart.captioning.collection import Pace
    from tellapart.captioning.serve import Build
    from tellapart.captioning.shards.launch import Outcome
    from tellapart.captioning.shards.pools import MakePool
    from tellapart.captioning.shards.shard import ShardJob
    from tellapart.data.remote.folders import Folder

WHOLE_COLLECTION = (
    "apart",
    "limit",
    "split",
    "format",
    "frames",
    "sampling",
    "context",
    "context_extension",
    "dry_run",
    "max_same",
)
"""Options that need the whole collection at once, or read what shards do not hold."""

KINDS: dict[str, Kind] = {".tar": "webdataset", ".parquet": "parquet"}
"""Ending of the input -> form of the output, unless --out names one."""


def check_unsharded(options: CaptionOptions) -> None:
    """Raise if options of --by_shard are given without it.

    Raises:
        UsageError: naming the option.
    """
    default = CaptionOptions(captioner="")
    for name in ("shard", "plan", "price", "engine", "address"):
        if getattr(options, name) != getattr(default, name):
            raise UsageError(f"--{name} is for collections in shards: add --by_shard, or leave it out.")
    require_alone("caption", "give --num_processes, or --by_shard with torchrun")


def caption_by_shard(
    words: Sequence[str],
    options: CaptionOptions,
    build_of: Callable[[CaptionOptions], Build],
    pace_of: Callable[[CaptionOptions], Pace],
) -> int:
    """Caption this command's part of the shards.

    Args:
        words: shards, patterns or folders of them.
        options: of the command.
        build_of: options -> what makes the station of a process.
        pace_of: options -> how the work is cut.

    Returns:
        2 if a shard was given up, if no image could be read, or if one could not and --strict was given; else 0.

    Raises:
        UsageError: an option cannot be used, or the folder was begun with other options.
    """
    from tellapart.captioning.shards.launch import caption_shards, shards_of, share_of
    from tellapart.captioning.shards.output import ShardFolder
    from tellapart.captioning.shards.samples import Reading
    from tellapart.captioning.shards.shard import ShardJob, output_name
    from tellapart.data.remote.folders import Folder

    _check(options)
    shards = _outside(shards_of(words), options.output)
    options = replace(options, out=_kind(shards, options))
    check(replace(options, output="folder"))
    index, count = share_of(options.shard, os.environ)
    idle = next((name for name in ("image_column", "id_column", "allow_private") if getattr(options, name)), None)
    if idle is not None and all(map(is_tar, shards)):
        raise UsageError(f"--{idle} is for Parquet files, and all shards are .tar files: leave it out.")
    reading = Reading(options.image_column, options.id_column, options.allow_private)
    reading.require_columns(shards)
    candidates = options.keep_all or options.summarize is not None
    job = ShardJob(reading, str(options.out), candidates, pace_of(options))
    if options.plan:
        return _plan(shards, options, build_of(options), job)
    _check_places(shards, options.output)
    if options.engine == "local":  # elsewhere the models are on other machines
        require_models(options)
    pool = _pool(options)  # before anything is written
    folder = Folder(options.output)
    own = shards[index::count]
    names = {output_name(shard, job.kind) for shard in own}
    settings = settings_of(replace(options, output="folder")) | _computed_by(options.features)
    output = ShardFolder.begin(folder, settings, overwrite=options.overwrite, shards=names)
    with bar("captioning shards", len(own), done=0) as shown:
        advanced = [0]

        def told(outcome: Outcome) -> None:
            finished = outcome.before + outcome.done + len(outcome.elsewhere) + len(outcome.failed)
            shown.advance(finished - advanced[0])
            advanced[0] = finished
            shown.note(f"{outcome.images / max(outcome.seconds, 1e-9):.1f} images/s")

        outcome = caption_shards(own, build_of(options), output, job, told, pool)
    return _report(outcome, len(own), len(shards), options)


def _computed_by(features: Path | None) -> dict[str, str]:
    """The features with what ``tellapart features`` computed them with, so that shards of others do not count as done; other
    folders and files do not say it."""
    from tellapart.data.features.store import ABOUT

    if features is None or not (features / ABOUT).is_file():
        return {}
    return {"features": f"{features} ({identity(features / ABOUT)})"}


def _pool(options: CaptionOptions) -> MakePool | None:
    """What makes the workers; None for those of this machine. Raises where Ray is needed and not installed."""
    if options.engine == "local":
        return None
    from tellapart.captioning.shards.ray_pool import Actors, require_ray

    require_ray()
    return partial(Actors, address=options.address)


def _check(options: CaptionOptions) -> None:
    default = CaptionOptions(captioner="")
    for name in WHOLE_COLLECTION:
        if getattr(options, name) != getattr(default, name):
            where = "--merge takes it" if name == "max_same" else "leave it out, or caption without --by_shard"
            raise UsageError(f"--{name} does not go with --by_shard: {where}.")
    if options.out in ("coco", "csv", "sidecars"):
        raise UsageError(f"--out {options.out} cannot be written by shard: choose webdataset, parquet or jsonl.")
    _check_plan(options)
    if options.address is not None and options.engine != "ray":
        raise UsageError("--address is that of a Ray cluster: give --engine ray, or leave it out.")
    if options.output == "-" and not options.plan:
        raise UsageError("--by_shard writes a folder: give --output FOLDER, here or in a store.")


def _check_plan(options: CaptionOptions) -> None:
    if options.price is not None and (not options.plan or options.price < 0):
        raise UsageError("--price is dollars per hour for --plan: give both, and a price of at least 0.")
    if options.plan and options.shard is not None:
        raise UsageError("--plan is about all shards: leave --shard out.")
    if options.plan and options.engine != "local":
        raise UsageError("--plan measures this machine: leave --engine out.")


def _kind(shards: Sequence[str], options: CaptionOptions) -> Kind:
    """The form of the output."""
    endings = {Path(shard).suffix.lower() for shard in shards}
    if options.out is not None:
        return options.out
    if len(endings) > 1:
        raise UsageError("the shards are .tar and .parquet files: give --out webdataset, parquet or jsonl.")
    return KINDS[endings.pop()]


def _outside(shards: Sequence[str], output: str) -> Sequence[str]:
    """The shards without this command's own output, where that is in the input: stores list a folder with all folders in it."""
    kept = [shard for shard in shards if not shard.startswith(f"{output.rstrip('/')}/")]
    return shards if scheme_of(output) is None or not kept else kept


def _check_places(shards: Sequence[str], output: str) -> None:
    """Raise if a shard of the input lies in the folder of the output, where it would be replaced."""
    for shard in {shard.rpartition("/")[0]: shard for shard in shards}.values():
        folder = shard.rpartition("/")[0]
        if scheme_of(shard) is None and scheme_of(output) is None:
            same = os.path.realpath(folder or ".") == os.path.realpath(output)
        else:
            same = folder == output.rstrip("/")
        if same:
            raise UsageError(f"--output {output} is the folder of the input: name another one.")


def _report(outcome: Outcome, own: int, total: int, options: CaptionOptions) -> int:
    """Say what was done and what was not; the exit code."""
    from tellapart.captioning.shards.launch import ATTEMPTS

    for name, why in list(outcome.failed.items())[:SHOWN]:
        after = "" if name in outcome.unusable else f" after {ATTEMPTS} attempts"
        note(f"error: {name} was given up{after} ({why.rstrip('.')}).")
    damaged = [
        *outcome.damaged,
        *(f"{name} was damaged before, and has not changed." for name in outcome.still_damaged),
    ]
    for why in damaged[:SHOWN]:
        note(f"error: {why}")
    told = f"captioned {count_of(outcome.images, 'image')} in {outcome.done} of {count_of(own, 'shard')}"
    told += f" ({outcome.before} done before)" if outcome.before else ""
    told += f" ({len(outcome.elsewhere)} held by another process)" if outcome.elsewhere else ""
    told += f", part of {total}" if own != total else ""
    told += f" at {outcome.images / outcome.seconds:.1f} images/s" if outcome.images and outcome.seconds else ""
    told += f"; {outcome.flagged} flagged" if outcome.flagged else ""
    told += f"; {count_of(outcome.broken, 'image')} could not be read" if outcome.broken else ""
    told += f"; {count_of(len(damaged), 'damaged shard')}: get a whole copy and run this again" if damaged else ""
    told += f"; {count_of(len(outcome.failed), 'shard')} given up: run the same command again" if outcome.failed else ""
    note(f"{told}. tellapart caption --merge {options.output} reviews all of them.")
    faults = bool(outcome.broken or outcome.damaged)
    strictly = options.strict and bool(faults or damaged)
    return 2 if outcome.failed or strictly or (faults and not outcome.images) else 0


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Options of ``tellapart caption --merge``.

    Args:
        merge: the folder that tellapart caption --by_shard wrote, here or in a store.
        max_same: how often a caption may occur; null means 10, or one in 1000 images if that is more.
        min_match: lowest acceptable CLIP-S; null counts the outliers of the collection.
        strict: exit with code 2 if an image could not be read or a tar is damaged.
    """

    examples: ClassVar[tuple[str, ...]] = ("tellapart caption --merge s3://bucket/captions",)
    merge: str
    max_same: int | None = None
    min_match: float | None = None
    strict: bool = False


def merge(argv: Sequence[str]) -> int:
    """Write one review of all shards of a folder.

    Returns:
        2 if a shard was given up, or something could not be read and --strict was given; else 0.

    Raises:
        UsageError: the folder was not written by --by_shard, or an option is one of captioning.
    """
    from tellapart.captioning.shards.merge import merged, write_reviews
    from tellapart.captioning.shards.output import ShardFolder
    from tellapart.data.remote.folders import Folder

    others = {field.name for field in fields(CaptionOptions)} - {field.name for field in fields(MergeOptions)}
    names = [word.removeprefix("--").partition("=")[0] for word in argv if word.startswith("--")]
    if (other := next((name for name in names if name in others), None)) is not None:
        raise UsageError(f"--{other} is for captioning, and --merge reads what was captioned: leave it out.")
    chosen = options_of(
        argv, MergeOptions, usage="caption --merge FOLDER", description="One review of a collection in shards."
    )
    if chosen is None:
        return 0
    words, options = chosen
    if words:
        raise UsageError(f"--merge reviews one folder, so {words[0]} is one too many: leave it out.")
    if options.max_same is not None and options.max_same < 1:
        raise UsageError(f"--max_same is {options.max_same}: it must be at least 1.")
    folder = Folder(options.merge)
    output = ShardFolder.existing(folder)
    whole = merged(
        output.parts(), output.failed(), checks=_checks(folder), max_same=options.max_same, min_match=options.min_match
    )
    write_reviews(folder, whole)
    often = ", ".join(f"{name} {whole.flags[name]}" for name in SEVERITY if whole.flags[name])
    counted = [
        f"{count_of(whole.captioned, 'caption')} in {count_of(whole.shards, 'shard')}",
        f"{count_of(whole.broken, 'image')} without one",
        count_of(len(whole.damaged), "damaged shard"),
        f"{len(whole.failed)} given up",
        f"faults: {often or 'none'}",
    ]
    note(f"{'; '.join(counted)}. See {folder.at('review.html')}.")
    return 2 if whole.failed or (options.strict and (whole.broken or whole.damaged)) else 0


def _checks(folder: Folder) -> tuple[str, ...]:
    """The faults that the captions of a folder were checked for."""
    from tellapart.captioning.shards.output import SETTINGS

    try:
        gate = str(json.loads(folder.read(SETTINGS) or b"{}")["gate"])
    except (ValueError, KeyError, TypeError):  # damaged: no shard counts as done
        gate = "all"
    return gate_checks(CaptionOptions(captioner="", gate=gate))


def _plan(shards: Sequence[str], options: CaptionOptions, build: Build, job: ShardJob) -> int:
    """Print how fast each stage is, and what a million images take."""
    from tellapart.captioning.shards.cost import SIZES, measured

    cost = measured(shards, build, job)
    rows = [["stage", "images/s", "share of the work"]]
    whole = sum(cost.seconds.values())
    for stage, seconds in cost.seconds.items():
        rate = f"{cost.images / seconds:.1f}" if seconds > 0 else "-"
        rows.append([stage, rate, f"{seconds / max(whole, 1e-9):.0%}"])
    rows.append(["together", f"{cost.rate:.1f}", ""])
    say(table(rows))
    say("")
    heading = ["images", "hours on this machine", "machines for 24 hours"]
    lines = [heading + (["dollars"] if options.price is not None else [])]
    for size in SIZES:
        hours = cost.hours(size)
        line = [f"{size:,}", f"{hours:,.1f}", f"{cost.machines(size, 24.0):,}"]
        lines.append(line + ([f"{hours * options.price:,.2f}"] if options.price is not None else []))
    say(table(lines))
    note(
        f"measured on {cost.images} images in one process, after {cost.loading:.1f} s for loading the models; loading is not "
        "counted."
    )
    return 0
