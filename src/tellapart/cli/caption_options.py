"""The options of ``tellapart caption``, whether they go together, and which settings follow from them."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tellapart.captioning.defaults import (
    LOOKALIKES,
    NUM_BEAMS,
    NUM_DISTRACTORS,
    REDRAW,
    REDRAW_ON,
    TOP_P,
    TOP_P_APART,
    WEIGHTS,
)
from tellapart.captioning.gate import LOW_MATCH, OPENER, SAME_CAPTION, SEVERITY, load_openers
from tellapart.captioning.style import STYLES, Style
from tellapart.data.folder import is_image
from tellapart.errors import UsageError
from tellapart.frames import Sampling
from tellapart.lengths import WordRange

SUMMARY_TOKENS = 100
Kind = Literal["sidecars", "jsonl", "csv", "parquet", "webdataset", "coco"]


@dataclass(frozen=True, kw_only=True)
class CaptionOptions:
    """Options of ``tellapart caption``.

    Args:
        captioner: a run of tellapart, a model folder, a Hugging Face id, or a stage of the built-in world; with --endpoint, the
            name that the server knows the model by.
        endpoint: address of an OpenAI-compatible server (vLLM, SGLang) that draws the captions, up to /v1. A key for it is read
            from the environment (OPENAI_API_KEY).
        endpoint_image_size: longest side in pixels of images sent to --endpoint; larger ones are made smaller; null takes 1024.
        endpoint_timeout: seconds that a request to --endpoint may take; null takes 120.
        output: the file or folder to write; - prints one line per image. With --out sidecars, a folder for the sidecars,
            which otherwise are written next to the images.
        out: format of the output; null decides by the ending of --output (.json is coco; .jsonl; .csv; .parquet).
        overwrite: replace the output if it exists, and discard unfinished work that was begun with other options.
        split: the part of a data set; null takes all of it.
        format: layout of a data set; null detects it.
        image_column: column of a table with the image's path, URL or bytes, when its name is not a usual one.
        id_column: column of a table with the images' ids; null takes image_id, else the path or URL.
        allow_private: let URLs in tables lead to hosts of a private network.
        frames: caption key-frames of videos as images, those at least N seconds apart (0 takes every key-frame); null gives each
            video one caption.
        sampling: frames of a clip that the captioner is shown: those in the middle of equal parts of the clip (uniform), or the
            last key-frame before each of these (key_frames); null does as the captioner's run was trained.
        features: image features by image id, for a captioner that reads features instead of images: a folder of tellapart
            features, a folder of .npy or .npz files, or an HDF5 file.
        limit: maximum number of images, the first ones; null means all.
        center_crop: cut every image to its largest centred square before any model reads it, or do not; null does as the
            captioner's run was trained.
        existing: what to do with an existing sidecar: keep it and skip its image, overwrite it, append a line, or
            backup it to .bak first.
        caption_extension: ending of sidecars.
        on_error: an image that cannot be read is listed and left out (skip), or ends the run (fail).
        strict: exit with code 2 if an image could not be read; otherwise only if none could.
        dry_run: caption N images, show the captions before and after post-processing, and write nothing.
        num_beams: beams of the search; 1 is greedy; null takes 5, with --apart as many as --n, else 20; not used when sampling.
        max_new_tokens: longest caption in tokens; null takes the style's, else 40.
        min_new_tokens: shortest caption in tokens; null takes the style's, else 0.
        no_repeat_ngram_size: no sequence of N tokens may occur twice in a caption; 0 allows repetition.
        do_sample: sample captions instead of beam search.
        temperature: sampling temperature; logits are divided by it.
        top_p: sample from the likeliest tokens that together have this probability; 1 keeps all; null takes 0.9, with --apart 1.
        top_k: sample from the N likeliest tokens; 0 keeps all.
        seed: seed of sampling; an image's caption depends on the seed and the image's id.
        prompt: prompt for a model that takes one; null takes the style's.
        context: column of a table with what is known of an image (title, tags, text around it), for {context} in the prompt of a
            model that answers questions; a prompt without that place gets it at its end. Cut to 300 characters.
        context_extension: ending of a file next to each image with the same, such as .context.txt.
        words: length to ask for in words, such as 8-15, 8- (8 or more) or 8. A captioner with length buckets is asked for the
            bucket that shares most lengths with it; among several captions of any captioner, other lengths come last; captions of
            another length have the fault length. null asks for the middle bucket.
        dtype: precision of the model's weights.
        n: captions drawn for each image: --rerank keeps the best, --summarize makes one of them, --apart compares them (if not
            given, --num_beams of them, else 20).
        rerank: the reward that decides which caption is best: clip_s, by --listener.
        listener: a CLIP or SigLIP for --apart, --rerank clip_s and the fault low_match: a model folder, a Hugging Face id, or
            world/listener.
        summarize: a causal or sequence-to-sequence language model that writes one caption from the --n sampled ones (IC3), which
            are kept as candidates (jsonl, parquet): a model folder or a Hugging Face id.
        summary_prompt: what that model is asked, with {captions} in place of the captions; null takes the built-in prompt.
        summary_max_new_tokens: longest summary in tokens.
        apart: tell each image from the images of the collection that look most like it, without training: candidates are compared
            by --listener and, if given, --verifier.
        verifier: a matcher that tells true captions from false ones, for --apart: a BLIP or BLIP-2 with a matching head, an
            instruct vision-language model, or world/verifier.
        lookalikes: images that each one is compared with, for --apart.
        apart_weights: weights of truth, likelihood, clip_s and fluency in the value of a candidate, such as
            truth=1,likelihood=0.5; those not named keep their defaults.
        apart_strength: strength of contrastive decoding, which rules out look-alikes word by word; 0 is ordinary decoding.
        num_distractors: look-alikes that contrastive decoding rules out; each costs about as much as the image itself.
        lookalikes_in_prompt: show an instruct captioner the N nearest look-alikes after the image, and ask what sets the image
            apart (Qwen-VL, Idefics3, SmolVLM, LLaVA); 0 shows none.
        lookalikes_prompt: what it is then asked; null takes the built-in prompt.
        keep_all: write all captions of an image with their scores, not only the best (jsonl, parquet).
        gate: the faults to check captions for: all, none, or some of empty, loop, prompt_echo, unfinished, low_match,
            confused, length, same_caption, opener, separated by commas.
        resample: maximum number of times a caption with a fault of --resample_on is sampled again.
        resample_on: all, none, or some of those faults, separated by commas; sampling seldom removes the others.
        openers: a text file of phrases captions should not begin with, one per line; null takes the built-in list.
        min_match: lowest acceptable CLIP-S of image and caption; null flags the outliers of the collection.
        max_same: how often a caption may occur; null means 10, or one in 1000 images if that is more.
        style: short, detailed or alt (alt text) change prompt, length and post-processing; plain changes nothing.
        max_characters: cut longer captions at the end of a sentence or clause; null takes the style's.
        strip_openers: remove phrases like "the image shows"; null takes the style's.
        prefix: text put before each written caption, unchanged.
        suffix: text put after each written caption, unchanged.
        batch_size: images captioned at once; captions do not depend on it.
        num_workers: threads that read images ahead, in each process.
        num_processes: processes that share the work, each on its own GPU, or on its share of the CPU; with --engine ray, the most
            actors.
        batch_by_size: put images of similar shape into one batch.
        by_shard: read .tar and .parquet shards one by one and write a shard of the same name for each into --output, a
            folder here or in a store (s3://, gs://, hf://). Several commands can share the work.
        shard: caption part I of N of the shards, I/N with I from 0, with --by_shard; /N takes I from the scheduler; null takes
            both from the variables of SLURM's arrays or torchrun, else all shards.
        engine: what runs --num_processes workers, with --by_shard: processes of this machine (local), or actors of a Ray cluster
            (ray; needs tellapart[ray]).
        address: the Ray cluster for --engine ray, such as auto; null takes RAY_ADDRESS, else starts Ray on this machine.
        plan: with --by_shard, caption 200 images, print images per second of each stage and what the collection costs,
            and write nothing.
        price: dollars per hour of this machine, for --plan.
        merge: caption nothing, but write one review of all shards in this folder, which --by_shard wrote; goes with --max_same,
            --min_match and --strict only.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart caption photos/ --captioner Salesforce/blip-image-captioning-base",
        "tellapart caption photos/ --captioner runs/x --output captions.jsonl --num_processes 2",
        "tellapart caption clips/ --captioner runs/y --output captions.jsonl",
        "tellapart caption photos/ --captioner runs/x --apart --listener world/listener",
        "tellapart caption photos/ --captioner runs/x --n 8 --rerank clip_s --listener world/listener",
        "tellapart caption s3://b/shards --captioner runs/x --by_shard --output s3://b/captions",
        "tellapart caption s3://b/in --captioner runs/x --by_shard --engine ray --output s3://b/out",
        "tellapart caption photos/ --endpoint http://localhost:8000/v1 --captioner owner/model",
        "tellapart caption --merge s3://b/captions",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "models": ("captioner", "listener", "features", "dtype", "prompt", "context", "context_extension", "words"),
        "a served model": ("endpoint", "endpoint_image_size", "endpoint_timeout"),
        "images": ("split", "format", "limit", "center_crop", "on_error"),
        "output": ("output", "out", "overwrite", "existing", "caption_extension", "dry_run"),
        "decoding": (
            "num_beams",
            "max_new_tokens",
            "min_new_tokens",
            "no_repeat_ngram_size",
            "do_sample",
            "temperature",
            "top_p",
            "top_k",
            "seed",
        ),
        "telling look-alikes apart": (
            "apart",
            "verifier",
            "lookalikes",
            "apart_weights",
            "apart_strength",
            "num_distractors",
            "lookalikes_in_prompt",
            "lookalikes_prompt",
        ),
        "choosing among several captions": (
            "n",
            "rerank",
            "keep_all",
            "summarize",
            "summary_prompt",
            "summary_max_new_tokens",
        ),
        "checks of captions": ("gate", "resample", "resample_on", "openers", "min_match", "max_same"),
        "style": ("style", "max_characters", "strip_openers", "prefix", "suffix"),
        "many shards": ("by_shard", "shard", "engine", "address", "plan", "price", "merge"),
        "speed": ("batch_size", "num_workers", "num_processes", "batch_by_size"),
    }
    captioner: str
    endpoint: str | None = None
    endpoint_image_size: int | None = None
    endpoint_timeout: float | None = None
    output: str = "-"
    out: Kind | None = None
    overwrite: bool = False
    split: str | None = None
    format: str | None = None
    image_column: str | None = None
    id_column: str | None = None
    allow_private: bool = False
    frames: float | None = None
    sampling: Sampling | None = None
    features: Path | None = None
    limit: int | None = None
    center_crop: bool | None = None
    existing: Literal["keep", "overwrite", "append", "backup"] = "keep"
    caption_extension: str = ".txt"
    on_error: Literal["skip", "fail"] = "skip"
    strict: bool = False
    dry_run: int | None = None
    num_beams: int | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    no_repeat_ngram_size: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int = 0
    seed: int = 42
    prompt: str | None = None
    context: str | None = None
    context_extension: str | None = None
    words: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    n: int = 1
    rerank: Literal["clip_s"] | None = None
    listener: str | None = None
    summarize: str | None = None
    summary_prompt: str | None = None
    summary_max_new_tokens: int = SUMMARY_TOKENS
    apart: bool = False
    verifier: str | None = None
    lookalikes: int = LOOKALIKES
    apart_weights: str | None = None
    apart_strength: float = 0.0
    num_distractors: int = NUM_DISTRACTORS
    lookalikes_in_prompt: int = 0
    lookalikes_prompt: str | None = None
    keep_all: bool = False
    gate: str = "all"
    resample: int = REDRAW
    resample_on: str = ",".join(REDRAW_ON)
    openers: Path | None = None
    min_match: float | None = None
    max_same: int | None = None
    style: Literal["plain", "short", "detailed", "alt"] = "plain"
    max_characters: int | None = None
    strip_openers: bool | None = None
    prefix: str = ""
    suffix: str = ""
    batch_size: int = 16
    num_workers: int = 2
    num_processes: int = 1
    batch_by_size: bool = True
    by_shard: bool = False
    shard: str | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    plan: bool = False
    price: float | None = None
    merge: str | None = None


ENDINGS = {".json": "coco", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
APART = {
    "verifier": None,
    "lookalikes": LOOKALIKES,
    "apart_weights": None,
    "apart_strength": 0.0,
    "num_distractors": NUM_DISTRACTORS,
    "lookalikes_in_prompt": 0,
    "lookalikes_prompt": None,
}
"""Options that only --apart reads, with their defaults."""
SUMMARY = {"summary_prompt": None, "summary_max_new_tokens": SUMMARY_TOKENS}
"""The same of --summarize."""
FREE = frozenset(
    {
        "batch_by_size",
        "batch_size",
        "by_shard",
        "dry_run",
        "address",
        "allow_private",
        "endpoint",
        "endpoint_timeout",
        "engine",
        "format",
        "frames",
        "limit",
        "max_same",
        "merge",
        "num_processes",
        "num_workers",
        "on_error",
        "output",
        "overwrite",
        "plan",
        "price",
        "shard",
        "split",
        "strict",
    }
)
"""Options that change no caption."""


def check(options: CaptionOptions) -> None:
    """Raise where an option cannot be used, alone or together with another; loads nothing.

    Raises:
        UsageError: naming the option.
    """
    for name, least in (
        ("batch_size", 1),
        ("num_processes", 1),
        ("n", 1),
        ("summary_max_new_tokens", 1),
        ("num_workers", 0),
        ("resample", 0),
    ):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} is {getattr(options, name)}: it must be at least {least}.")
    for name in ("limit", "dry_run", "max_characters", "max_same", "num_beams"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise UsageError(f"--{name} is {value}: it must be at least 1.")
    asked_words(options)
    _check_context(options)
    _check_endpoint(options)
    _check_choice(options)
    if samples(options) and (options.num_beams or 1) > 1:
        raise UsageError(f"--num_beams {options.num_beams} searches, but captions are to be sampled: leave one out.")
    style = style_of(options)
    if style.min_new_tokens > style.max_new_tokens:
        raise UsageError(
            f"a caption cannot have at least {style.min_new_tokens} tokens and at most {style.max_new_tokens}: change "
            "--min_new_tokens or --max_new_tokens."
        )
    _check_redrawing(options)
    if options.output != "-" or options.out is not None:
        kind_of(options)
    else:
        _refuse_unprinted(options)


def _check_redrawing(options: CaptionOptions) -> None:
    """Raise where an option of sampling was given, but no caption is sampled, at first or again."""
    redrawn = {*resampled_faults(options)} & {*gate_checks(options)}
    if samples(options) or (options.resample and redrawn):
        return
    default = CaptionOptions(captioner="")
    for name in ("temperature", "top_p", "top_k"):
        if getattr(options, name) != getattr(default, name):
            raise UsageError(f"--{name} is for sampling, and no caption is sampled: add --do_sample, or leave it out.")


def _refuse_unprinted(options: CaptionOptions) -> None:
    """Raise where an option of files was given, but captions are printed."""
    _refuse_of_sidecars(options)
    for name in ("keep_all", "overwrite"):
        if getattr(options, name):
            raise UsageError(
                f"--{name} is for files of captions: give --output, such as captions.jsonl, or leave it out."
            )


def _refuse_of_sidecars(options: CaptionOptions) -> None:
    """Raise where an option of sidecars was given, but other files are written."""
    for name, default in (("existing", "keep"), ("caption_extension", ".txt")):
        if (value := getattr(options, name)) != default:
            raise UsageError(f"--{name} {value} is for sidecars: give --out sidecars, or leave it out.")


def asked_words(options: CaptionOptions) -> WordRange | None:
    """The lengths that --words asks for.

    Raises:
        UsageError: it is not a range.
    """
    return None if options.words is None else WordRange.parse(options.words)


def _check_context(options: CaptionOptions) -> None:
    """Raise where the context of images is named twice, by no ending, or by that of the captions next to it."""
    if options.context is not None and options.context_extension is not None:
        raise UsageError(
            "--context and --context_extension both say what is known of an image: leave one of the two out."
        )
    if options.context_extension is not None:
        _check_extension("context_extension", options.context_extension)


NOT_SERVED = ("apart", "features", "no_repeat_ngram_size", "plan")
"""Options that need the captioner's weights on this machine."""


def _check_endpoint(options: CaptionOptions) -> None:
    """Raise where options do not go with a served model, or are for one that is not given."""
    if options.endpoint is None:
        for name in ("endpoint_image_size", "endpoint_timeout"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name} is for a served model: give --endpoint, or leave it out.")
        return
    from tellapart.captioning.addresses import check_address

    check_address(options.endpoint)
    _refuse_unserved(options)
    for name, least in (("endpoint_image_size", 32), ("endpoint_timeout", 1)):
        if (value := getattr(options, name)) is not None and not value >= least:
            raise UsageError(f"--{name} is {value:g}: it must be at least {least}.")


def _refuse_unserved(options: CaptionOptions) -> None:
    """Raise where an option needs the captioner on this machine."""
    for name in NOT_SERVED:
        if getattr(options, name):
            raise UsageError(f"--{name} needs the captioner itself, not an --endpoint: leave one of the two out.")
    if options.dtype != "float32" and options.summarize is None:
        raise UsageError(
            "--dtype is that of models on this machine, and --endpoint serves the captioner: leave it out."
        )
    if (options.num_beams or 1) > 1:
        raise UsageError(f"--num_beams {options.num_beams} cannot be asked of an --endpoint: leave it out.")


def _check_apart(options: CaptionOptions) -> None:
    """Raise where the options of --apart lack something."""
    if not options.apart:
        given = [name for name, default in APART.items() if getattr(options, name) != default]
        if given:
            raise UsageError(f"--{given[0]} is for telling look-alikes apart: add --apart, or leave it out.")
        return
    if options.listener is None:
        raise UsageError(
            "--apart needs a listener: give --listener, a CLIP model such as openai/clip-vit-base-patch32."
        )
    other = next((name for name in ("rerank", "summarize", "features") if getattr(options, name) is not None), None)
    if other is not None:
        raise UsageError(f"--apart chooses by look-alikes, so it does not go with --{other}: leave one of the two out.")
    _check_apart_draw(options)
    if "truth" in weights_of(options) and options.verifier is None:
        raise UsageError("--apart_weights weighs truth, which only a verifier tells: give --verifier, or leave it out.")
    if options.verifier is not None and weights_of(options).get("truth") == 0:
        raise UsageError(
            "--verifier tells what is true, which --apart_weights gives weight 0: leave one of the two out."
        )


def _check_apart_draw(options: CaptionOptions) -> None:
    """Raise where candidates of --apart cannot be drawn as the options say."""
    for name in ("lookalikes", "num_distractors"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}: it must be at least 1.")
    for name in ("apart_strength", "lookalikes_in_prompt"):
        if not getattr(options, name) >= 0:
            raise UsageError(f"--{name} is {getattr(options, name)}: it must be at least 0.")
    if options.apart_strength and options.lookalikes_in_prompt:
        raise UsageError(
            "--apart_strength reads each image in a prompt of its own, so it does not go with --lookalikes_in_prompt: leave one "
            "of the two out."
        )
    _refuse_idle(options)


def _refuse_idle(options: CaptionOptions) -> None:
    """Raise where an option of drawing was given that would do nothing."""
    if options.num_distractors != NUM_DISTRACTORS and not options.apart_strength:
        raise UsageError("--num_distractors is for contrastive decoding: give --apart_strength, or leave it out.")
    for name, default in (("num_distractors", NUM_DISTRACTORS), ("lookalikes_in_prompt", 0)):
        asked = getattr(options, name)
        if asked > options.lookalikes and asked != default:
            raise UsageError(
                f"--{name} {asked} asks for more look-alikes than an image is compared with: give --lookalikes {asked} or more."
            )
    if options.lookalikes_prompt is not None and not options.lookalikes_in_prompt:
        raise UsageError("--lookalikes_prompt asks about look-alikes: give their number with --lookalikes_in_prompt.")


MOST_WEIGHT = 1e6
"""Of --apart_weights: values of far larger ones are not finite."""


def weights_of(options: CaptionOptions) -> dict[str, float]:
    """The weights of --apart_weights, by name.

    Raises:
        UsageError: it cannot be read.
    """
    found: dict[str, float] = {}
    for part in (options.apart_weights or "").split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not part.strip():
            continue
        try:
            found[name] = float(value) if equals and name in WEIGHTS else math.nan
        except ValueError:
            found[name] = math.nan
        if not abs(found[name]) <= MOST_WEIGHT:
            raise UsageError(
                f"--apart_weights says {part!r}: write NAME=NUMBER with a name of {', '.join(WEIGHTS)} and at most "
                f"{MOST_WEIGHT:g}."
            )
    return found


def top_p_of(options: CaptionOptions) -> float:
    """The share of the probability that samples are drawn from."""
    default = TOP_P_APART if options.apart else TOP_P
    return default if options.top_p is None else options.top_p


def candidates(options: CaptionOptions) -> int:
    """Captions drawn per image; to tell look-alikes apart, without ``n`` one per beam."""
    if not options.apart or options.n > 1:
        return options.n
    return NUM_BEAMS if options.do_sample else options.num_beams or NUM_BEAMS


def _check_choice(options: CaptionOptions) -> None:
    """Raise where the options that choose among several captions lack something."""
    _check_summary(options)
    _check_redraws(options)
    _check_apart(options)
    if options.n > 1 and options.rerank is None and options.summarize is None and not options.apart:
        raise UsageError(
            f"--n {options.n} draws several captions per image: say which is kept, with --rerank clip_s, or make one of them, "
            "with --summarize MODEL."
        )
    if options.rerank is not None and options.n == 1:
        raise UsageError(f"--rerank {options.rerank} chooses among several captions: give --n, such as --n 8.")
    if options.rerank is not None and options.listener is None:
        raise UsageError(
            f"--rerank {options.rerank} needs a listener: give --listener, a CLIP model such as world/listener."
        )
    _check_limits(options)
    if options.center_crop and options.features is not None:
        raise UsageError("--center_crop cuts pictures, but the captioner reads --features: leave one of the two out.")
    if options.keep_all and candidates(options) == 1:
        raise UsageError("--keep_all keeps what --n draws: give --n, such as --n 8.")


def _check_limits(options: CaptionOptions) -> None:
    """Raise where the limit of a fault is given that is not looked for."""
    if options.min_match is not None and options.listener is None:
        raise UsageError("--min_match needs a listener: give --listener, a CLIP model such as world/listener.")
    if options.min_match is not None and LOW_MATCH not in gate_checks(options):
        raise UsageError(
            f"--min_match is for the fault {LOW_MATCH}, which --gate {options.gate} leaves out: name it, or give no --min_match."
        )
    if options.max_same is not None and SAME_CAPTION not in gate_checks(options):
        raise UsageError(
            f"--max_same is for the fault {SAME_CAPTION}, which --gate {options.gate} leaves out: name it, or give no --max_same."
        )
    if options.openers is not None and OPENER not in gate_checks(options) and not style_of(options).strip_openers:
        raise UsageError(
            f"--openers lists what captions should not begin with, which --gate {options.gate} does not look for: add "
            f"{OPENER} there, or give --strip_openers."
        )


def _check_summary(options: CaptionOptions) -> None:
    """Raise where the options of summaries lack something."""
    if options.summarize is None:
        for name, default in SUMMARY.items():
            if getattr(options, name) != default:
                raise UsageError(f"--{name} is for --summarize, which is not given: give it, or leave both out.")
        return
    if options.n == 1:
        raise UsageError("--summarize makes one caption of several: give --n, such as --n 10.")
    if options.rerank is not None or options.keep_all:
        other = "rerank" if options.rerank is not None else "keep_all"
        raise UsageError(
            f"--{other} chooses among captions, and --summarize writes a new one of them: leave one of the two out."
        )
    if options.summary_prompt is not None and "{captions}" not in options.summary_prompt:
        raise UsageError("--summary_prompt has no place for the captions: write {captions} in it.")


def _check_redraws(options: CaptionOptions) -> None:
    """Raise where captions are to be drawn again for faults that are not looked for, or never."""
    if options.resample_on == CaptionOptions.resample_on:
        return
    unseen = [fault for fault in resampled_faults(options) if fault not in gate_checks(options)]
    if not options.resample:
        raise UsageError(
            "--resample_on says which captions are drawn again, and --resample 0 draws none: leave it out."
        )
    if unseen and options.resample_on != "all":
        raise UsageError(
            f"--resample_on names {unseen[0]}, which --gate {options.gate} does not look for: add it there."
        )


def samples(options: CaptionOptions) -> bool:
    """Whether captions are drawn at random."""
    return options.do_sample or (options.n > 1 and not options.apart)


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


def style_of(options: CaptionOptions) -> Style:
    """The preset, where flags that were given win."""
    given = {name: getattr(options, name) for name in ("max_new_tokens", "min_new_tokens", "max_characters")}
    given |= {"strip_openers": options.strip_openers, "prompt": options.prompt}
    return Style(
        **{**asdict(STYLES[options.style]), **{key: value for key, value in given.items() if value is not None}}
    )


def kind_of(options: CaptionOptions) -> str:
    """The form of the output.

    Raises:
        UsageError: it cannot be told, or other options do not go with it.
    """
    suffix = Path(options.output).suffix
    if options.output == "-" and options.out != "sidecars":
        raise UsageError(f"--out {options.out} needs a place: give --output.")
    if options.out is None and suffix not in ENDINGS:
        ending = f"ends in {suffix!r}" if suffix else "has no ending"
        raise UsageError(
            f"--output {options.output} {ending}: name a .json, .jsonl, .csv or .parquet file, say with --out "
            "what to write, or give - to print."
        )
    kind = options.out or ENDINGS[suffix]
    if options.keep_all and kind not in ("jsonl", "parquet"):
        raise UsageError(f"--keep_all cannot be written as {kind}: choose --out jsonl or parquet.")
    if kind == "sidecars":
        _check_extension("caption_extension", options.caption_extension)
    else:
        _refuse_of_sidecars(options)
    return kind


def _check_extension(option: str, extension: str) -> None:
    if not re.fullmatch(r"\.[^/\\\0]*[^/\\\0.]", extension):
        raise UsageError(f"--{option} is {extension!r}: write the end of a file's name with its point, as in .txt.")
    if is_image(f"photo{extension}"):
        raise UsageError(f"--{option} {extension} is that of images, which captions would replace: take .txt.")


def settings_of(options: CaptionOptions) -> dict[str, Any]:
    """Everything that decides the captions, as the work folder keeps it.

    Raises:
        UsageError: a run has no checkpoint yet, or a stage of the world is damaged.
    """
    from tellapart.recipe.models import captioner_folder, listener_folder

    settings = {name: value for name, value in asdict(options).items() if name not in FREE}
    if options.endpoint is None:
        settings["captioner"] = f"{options.captioner} ({identity(captioner_folder(options.captioner))})"
    else:
        settings["captioner"] = f"{options.captioner} (served)"
    if options.listener is not None:
        settings["listener"] = f"{options.listener} ({identity(listener_folder(options.listener))})"
    if options.verifier is not None:
        settings["verifier"] = f"{options.verifier} ({identity(listener_folder(options.verifier))})"
    if not options.apart:
        settings |= dict.fromkeys(("apart", *APART))
    if options.summarize is not None:
        settings["summarize"] = f"{options.summarize} ({identity(options.summarize)})"
    else:
        settings["summary_max_new_tokens"] = None
    settings["top_p"] = top_p_of(options)
    settings["center_crop"] = center_crops(options) or None  # null, as in runs begun before there was the option
    settings["sampling"] = None if samplings(options) == "uniform" else samplings(options)
    settings["features"] = None if options.features is None else str(options.features)
    openers = [" ".join(phrase) for phrase in load_openers(options.openers)]
    settings["openers"] = hashlib.sha256("\n".join(openers).encode()).hexdigest()[:12]
    return settings | {"out": kind_of(options)}


def center_crops(options: CaptionOptions) -> bool:
    """Whether images are cut to their centred square: as the option says, else as the captioner's run was trained."""
    from tellapart.recipe.measured import cropped
    from tellapart.recipe.runs import made

    return cropped(options.center_crop, made(Path(options.captioner)))


def samplings(options: CaptionOptions) -> Sampling:
    """Which frames of clips are taken: those that the option says, else those that the captioner's run was trained on."""
    from tellapart.recipe.measured import sampled
    from tellapart.recipe.runs import made

    return sampled(options.sampling, made(Path(options.captioner)))


def identity(source: str | Path) -> str:
    """Identity of a model beyond its name: a hash of its files, or the commit of one from the hub."""
    from tellapart.recipe.fingerprint import digest

    path = Path(source).expanduser()
    if path.exists():
        return digest(path)
    from huggingface_hub import try_to_load_from_cache

    try:
        known = try_to_load_from_cache(str(source), "config.json")
    except ValueError:  # not even a name of the hub: loading it tells
        known = None
    return Path(known).parent.name[:12] if isinstance(known, str) else "hub"
