"""What the options of ``tellapart caption`` come to: whether they go together, and which settings follow from them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.captioning.gate import SEVERITY, load_openers
from tellapart.captioning.style import STYLES, Style
from tellapart.data.folder import is_image
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.cli.caption import CaptionOptions
    from tellapart.types import Decoding, Listener, Reward

ENDINGS = {".json": "coco", ".jsonl": "jsonl", ".parquet": "parquet"}
FREE = frozenset(
    {
        "batch_by_size",
        "batch_size",
        "dry_run",
        "format",
        "limit",
        "max_same",
        "num_processes",
        "num_workers",
        "on_error",
        "output",
        "overwrite",
        "split",
    }
)
"""Options that change no caption."""


def check(options: CaptionOptions) -> None:
    """Raise where an option cannot be used, alone or beside another; nothing is loaded for it.

    Raises:
        UsageError: naming the option.
    """
    for name, least in (("batch_size", 1), ("num_processes", 1), ("n", 1), ("num_workers", 0), ("resample", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} is {getattr(options, name)}: it must be at least {least}.")
    for name in ("limit", "dry_run", "max_characters", "max_same", "num_beams"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise UsageError(f"--{name} is {value}: it must be at least 1.")
    weights = rerank_weights(options)
    if options.n > 1 and not weights:
        raise UsageError(f"--n {options.n} draws several captions an image: say which is kept, with --rerank clip_s.")
    if weights and options.n == 1:
        raise UsageError(f"--rerank {options.rerank} chooses among several captions: give --n, such as --n 8.")
    if "clip_s" in weights and options.listener is None:
        raise UsageError("--rerank clip_s needs a listener: give --listener, a CLIP model such as world/listener.")
    if options.min_match is not None and options.listener is None:
        raise UsageError("--min_match needs a listener: give --listener, a CLIP model such as world/listener.")
    if options.keep_all and options.n == 1:
        raise UsageError("--keep_all keeps what --n draws: give --n, such as --n 8.")
    if _samples(options) and (options.num_beams or 1) > 1:
        raise UsageError(f"--num_beams {options.num_beams} searches, but captions are to be sampled: leave one out.")
    style = style_of(options)
    if style.min_new_tokens > style.max_new_tokens:
        raise UsageError(
            f"a caption cannot have at least {style.min_new_tokens} tokens and at most {style.max_new_tokens}: change "
            "--min_new_tokens or --max_new_tokens."
        )
    gate_checks(options)
    resampled_faults(options)
    decodings(options)
    if options.output != "-" or options.out is not None:
        kind_of(options)


def _samples(options: CaptionOptions) -> bool:
    return options.do_sample or options.n > 1


def gate_checks(options: CaptionOptions) -> tuple[str, ...]:
    """The faults that count.

    Raises:
        UsageError: one of them is unknown.
    """
    return _faults("gate", options.gate)


def resampled_faults(options: CaptionOptions) -> tuple[str, ...]:
    """The faults for which a caption is drawn again.

    Raises:
        UsageError: one of them is unknown.
    """
    return _faults("resample_on", options.resample_on)


def _faults(option: str, text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return SEVERITY if text == "all" else ()
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in SEVERITY]
    if unknown:
        raise UsageError(f"--{option} names {unknown[0]!r}: choose all, none, or some of {', '.join(SEVERITY)}.")
    return tuple(name for name in SEVERITY if name in names)


def rerank_weights(options: CaptionOptions) -> dict[str, float]:
    """Name of a reward -> its weight.

    Raises:
        UsageError: a reward is unknown or needs references, or a weight is no number.
    """
    weights: dict[str, float] = {}
    for part in (options.rerank or "").split(","):
        name, given, weight = part.strip().partition("=")
        if not name:
            continue
        if name not in REWARDS:
            why = _UNFIT.get(name, f"known are {', '.join(REWARDS)}")
            raise UsageError(f"--rerank cannot use {name!r} ({why}): choose of {', '.join(REWARDS)}.")
        try:
            weights[name] = float(weight) if given else 1.0
        except ValueError as error:
            raise UsageError(
                f"--rerank gives {name} the weight {weight!r}: write a number, as in {name}=0.5."
            ) from error
    return weights


def _clip_s(listener: Listener) -> Reward:
    from tellapart.rewards.similarity import Similarity

    return Similarity(listener)


REWARDS = {"clip_s": _clip_s}
"""The rewards of recipes that need no references."""

_UNFIT = {
    "cider_d": "it compares with human captions",
    "language_model": "it does not look at the image, and would prefer captions that fit any",
}


def style_of(options: CaptionOptions) -> Style:
    """The preset, where flags that were given win."""
    given = {name: getattr(options, name) for name in ("max_new_tokens", "min_new_tokens", "max_characters")}
    given |= {"strip_openers": options.strip_openers, "prompt": options.prompt}
    return Style(
        **{**asdict(STYLES[options.style]), **{key: value for key, value in given.items() if value is not None}}
    )


def decodings(options: CaptionOptions) -> tuple[Decoding, Decoding]:
    """How captions are drawn first, and when they are drawn again.

    Raises:
        UsageError: a number cannot be used.
    """
    from tellapart.recipe.models import as_usage_errors
    from tellapart.types import Decoding

    style = style_of(options)
    with as_usage_errors("decoding"):
        searching = Decoding(
            num_beams=options.num_beams or 5,
            max_new_tokens=style.max_new_tokens,
            min_new_tokens=style.min_new_tokens,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
        )
        sampling = replace(
            searching,
            num_beams=1,
            do_sample=True,
            num_return_sequences=options.n,
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
        )
    return (sampling if _samples(options) else searching), sampling


def kind_of(options: CaptionOptions) -> str:
    """The form of the output.

    Raises:
        UsageError: it cannot be told, or other options do not go with it.
    """
    suffix = Path(options.output).suffix
    if options.output == "-" and options.out != "sidecars":
        raise UsageError(f"--out {options.out} needs a place: give --output.")
    if options.out is None and suffix not in ENDINGS:
        raise UsageError(
            f"--output {options.output} ends in {suffix!r}: name a .json or .jsonl file, or a .parquet file, say with "
            "--out what to write, or give - to print."
        )
    kind = options.out or ENDINGS[suffix]
    if options.keep_all and kind not in ("jsonl", "parquet"):
        raise UsageError(f"--keep_all cannot be written as {kind}: choose --out jsonl or parquet.")
    if kind == "sidecars":
        _check_extension(options.caption_extension)
    if kind != "sidecars" and options.existing != "keep":
        raise UsageError(f"--existing {options.existing} is for sidecars: give --out sidecars, or leave it out.")
    return kind


def _check_extension(extension: str) -> None:
    if not re.fullmatch(r"\.[^/\\\0]*[^/\\\0.]", extension):
        raise UsageError(
            f"--caption_extension is {extension!r}: write the end of a file's name with its point, as in .txt."
        )
    if is_image(f"photo{extension}"):
        raise UsageError(f"--caption_extension {extension} is that of images, which captions would replace: take .txt.")


def settings_of(options: CaptionOptions) -> dict[str, Any]:
    """Everything that decides the captions, as the work folder keeps it."""
    settings = {name: value for name, value in asdict(options).items() if name not in FREE}
    for name in ("captioner", "listener"):
        if settings[name] is not None:
            settings[name] = f"{settings[name]} ({identity(settings[name])})"
    settings["features"] = None if options.features is None else str(options.features)
    openers = [" ".join(phrase) for phrase in load_openers(options.openers)]
    settings["openers"] = hashlib.sha256("\n".join(openers).encode()).hexdigest()[:12]
    return settings | {"out": kind_of(options)}


def identity(name: str) -> str:
    """What tells a model from others of its name: a hash of its files, or the commit of one from the hub.

    Raises:
        UsageError: a run has no checkpoint yet, or a stage of the world is damaged.
    """
    from tellapart.recipe.models import captioner_folder

    folder = Path(captioner_folder(name)).expanduser()
    if folder.is_dir():
        digest = hashlib.sha256()
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(folder)}\n".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:12]
    from huggingface_hub import try_to_load_from_cache

    try:
        known = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not even a name of the hub: loading it tells
        known = None
    return Path(known).parent.name[:12] if isinstance(known, str) else "hub"
