"""``tellapart bench people``: metrics against people's judgements, protocol by protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tellapart.cli.command import options_of, run_action
from tellapart.cli.console import note, say, say_json, table
from tellapart.errors import UsageError
from tellapart.files import require_writable
from tellapart.listeners.kinds import is_checkpoint
from tellapart.names import require_known
from tellapart.recipe.people import Judges, references_from

if TYPE_CHECKING:
    from tellapart.data.judgements.records import Judgements
    from tellapart.evaluation.people.measure import Figure, Measured

PUBLISHED_CLIP = "clip-vit-base-patch32"
PUBLISHED_PAC = "clip_ViT-B-32.pth"


@dataclass(frozen=True, kw_only=True)
class PeopleOptions(Judges):
    """Options of ``tellapart bench people``.

    Args:
        only: names of the sets to measure, with commas between them; null measures all.
        references: human captions by image in any layout, for sets that come without: SugarCrepe, THumB's own file.
        limit: judge only the first N images of each set; null takes all. Published values are then not compared.
        output_dir: folder for people.md, people.json and people.png; null keeps nothing.
        json: print the figures as JSON instead of tables.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart bench people judgements/ --references captions_val2017.json",
        "tellapart bench people judgements/ --only flickr8k-expert --limit 100",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "judgements": ("only", "references", "limit"),
        "metrics": ("images", "listener", "pac", "pac_base", "itm", "meteor"),
        "output": ("output_dir", "json"),
    }
    only: str | None = None
    references: str | None = None
    limit: int | None = None
    output_dir: Path | None = None
    json: bool = False


def run_people(argv: Sequence[str]) -> int:
    """Measure every metric against every set, print the tables and keep the page."""
    chosen = options_of(
        argv,
        PeopleOptions,
        usage="bench people DATA",
        description="Correlate metrics with people's judgements of captions (Flickr8k-Expert, Flickr8k-CF, Composite, THumB, "
        "Polaris, Nebula), and count how often they prefer the caption that people prefer (SugarCrepe, CapArena). DATA is "
        "a file or a folder of published files. Published values are printed next to ours, and differences are marked.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    _check(words, options)
    if options.output_dir is not None:
        require_writable(options.output_dir, "--output_dir")  # told now, not after all models have measured
    measured, how = _measured(Path(words[0]), options)
    if options.output_dir is not None:
        from tellapart.evaluation.people.page import write_people

        note(f"kept in {write_people(options.output_dir, measured, how)}")
    figures = [figure for one in measured for figure in one.figures]
    if options.json:
        say_json([figure.to_json() for figure in figures], indent=2)
    else:
        say(_tables(figures))
    return 0


def _check(words: Sequence[str], options: PeopleOptions) -> None:
    if len(words) != 1:
        raise UsageError(f"{len(words)} sources of judgements were named: give one file or folder.")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit is {options.limit}: keep at least 1 image.")
    unseen = next((name for name in ("images", "pac_base") if getattr(options, name) is not None), None)
    if unseen is not None and not options.models:
        raise UsageError(
            f"--{unseen} is for metrics that see images: give --listener, --pac or --itm, or leave it out."
        )
    if options.pac_base is not None and not is_checkpoint(options.pac or ""):
        raise UsageError("--pac_base is for .pth files: give one as --pac, or leave it out.")


def _measured(path: Path, options: PeopleOptions) -> tuple[list[Measured], list[str]]:
    from tellapart.data.judgements.open import read_judgements
    from tellapart.evaluation.people.measure import measure

    references = references_from(options.references) if options.references else None
    sets = _chosen(read_judgements(path, references=references), options)
    lacking = "--references" if references is None else f"human captions, which {options.references} lacks,"
    if references is not None:
        _require_use(sets, options)
    found = []
    for judgements in sets:
        scorers = options.scorers(judgements)
        same = options.as_published(clip=PUBLISHED_CLIP, pac=PUBLISHED_PAC)
        own = measure(judgements, scorers, same_models=same, whole=options.limit is None)
        if not own.figures:
            note(f"note: {judgements.name} is left out: no metric can score it without {lacking} or --images.")
        found.append(own)
    if not any(one.figures for one in found):
        others = "" if references is None else f" that have captions of images such as {sets[0].images[0]}"
        raise UsageError(
            f"no metric can score the captions of {path}: give --references{others}, or --images with a --listener."
        )
    return found, _how(sets, options)


def _require_use(sets: Sequence[Judgements], options: PeopleOptions) -> None:
    """Raise where all sets come with references; say which sets the given ones do not know."""
    if not any(one.bare for one in sets):
        names = ", ".join(one.name for one in sets)
        raise UsageError(f"--references does nothing, since {names} has references of its own: leave it out.")
    for one in sets:
        known = any(row.references for row in one.rated) or any(pair.references for pair in one.pairs)
        if one.bare and not known:
            note(f"note: {options.references} has no captions of the images of {one.name}, such as {one.images[0]}.")


def _chosen(sets: Sequence[Judgements], options: PeopleOptions) -> list[Judgements]:
    if options.only is not None:
        names = [name.strip() for name in options.only.split(",")]
        for name in names:
            require_known(name, [one.name for one in sets], "a set of judgements there")
        sets = [one for one in sets if one.name in names]
    return [one if options.limit is None else one.first_images(options.limit) for one in sets]


def _how(sets: Sequence[Judgements], options: PeopleOptions) -> list[str]:
    """Sentences that a reader needs to make the figures again."""
    counts = ", ".join(f"{one.name} ({len(one.rated) or len(one.pairs):,})" for one in sets)
    part = f" Only the first {options.limit} images of each set." if options.limit is not None else ""
    return [f"Made by `tellapart bench people`. Captions or pairs: {counts}.{part} {options.described()}".strip()]


def _tables(figures: Sequence[Figure]) -> str:
    from tellapart.evaluation.people.page import STATISTICS, by_protocol

    rows = [["set", "statistic", "metric", "ours", "published", ""]]
    for name, own in by_protocol(figures).items():
        rows += [
            [
                name,
                STATISTICS[figure.protocol.statistic],
                figure.metric,
                figure.text,
                figure.published,
                "differs" if figure.marked else "",
            ]
            for figure in own
        ]
    return table(rows)


ACTIONS = {"people": ("compare metrics with people's judgements of captions", run_people)}
"""Benchmarks of metrics -> (one line, the function that takes the remaining words)."""


def run(argv: Sequence[str]) -> int:
    """Do what the first word says with the rest.

    Raises:
        UsageError: it says nothing known.
    """
    return run_action("bench", ACTIONS, argv)
