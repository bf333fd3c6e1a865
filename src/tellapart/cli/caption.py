"""``tellapart caption``: captions for photos, folders of them and data sets; a stopped run goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tellapart.cli.command import options_of


@dataclass(frozen=True, kw_only=True)
class CaptionOptions:
    """Options of ``tellapart caption``.

    Args:
        captioner: a run of tellapart, a model folder, a Hugging Face id, or a stage of the built-in world.
        output: the file or folder to write; - prints a line an image. With --out sidecars, a folder for them instead
            of beside the images.
        out: what to write; null tells by the ending of --output: .json is coco, .jsonl, .parquet.
        overwrite: replace the output if it exists, and throw away a run that was begun with other options.
        split: the part of a data set; null takes what it has.
        format: how to read a data set; null finds out by looking.
        features: what a captioner that reads features reads instead of images, by their ids: a folder of tellapart
            features, a folder of .npy or .npz files, or an HDF5 file.
        limit: caption only the first so many images.
        existing: what becomes of a sidecar that is there: keep it and skip its image, overwrite it, append a line, or
            backup it to .bak first.
        caption_extension: ending of sidecars.
        on_error: an image that cannot be read is listed and skipped, or ends the run.
        dry_run: caption so many images, show them before and after post-processing, and write nothing.
        num_beams: beams of the search; 1 is greedy; null takes 5 unless captions are sampled.
        max_new_tokens: longest caption in tokens; null takes the style's, else 40.
        min_new_tokens: shortest caption in tokens; null takes the style's, else 0.
        no_repeat_ngram_size: no run of so many tokens may occur twice in a caption; 0 allows all.
        do_sample: draw captions at random instead of searching.
        temperature: of sampling; logits are divided by it.
        top_p: sample from the likeliest tokens of this total probability; 1 keeps all.
        top_k: sample from so many of the likeliest tokens; 0 keeps all.
        seed: decides, with an image's id, what is sampled for it.
        prompt: what a model that takes a prompt is asked; null takes the style's.
        dtype: precision the model is held in.
        n: captions sampled for each image, of which --rerank keeps the best.
        rerank: what is best: a reward that needs no references, such as clip_s, or several with weights, as in
            clip_s=1,other=0.5.
        listener: a CLIP or SigLIP for --rerank clip_s and for telling captions that do not fit: a model folder, a Hugging
            Face id, or world/listener.
        keep_all: write all captions of an image with their scores, not only the best (jsonl, parquet).
        gate: the faults captions are held to: all, none, or some of empty, loop, prompt_echo, unfinished, low_match,
            same_caption, opener with commas.
        resample: further tries, by sampling, for a caption with a fault of --resample_on.
        resample_on: all, or some of those faults with commas; sampling seldom cures the others.
        openers: a text file of phrases captions should not begin with, one a line; null takes the built-in list.
        min_match: lowest CLIP-S of image and caption; null takes outliers of the collection.
        max_same: how often a caption may occur; null takes 10, or one in 1000 images.
        style: short, detailed or alt (alt text) change prompt, length and post-processing; plain changes nothing.
        max_characters: cut longer captions at the end of a sentence or clause; null takes the style's.
        strip_openers: take off phrases like "the image shows"; null takes the style's.
        prefix: put before each written caption, as it stands.
        suffix: put after each written caption, as it stands.
        batch_size: images captioned at once; it changes no caption.
        num_workers: threads that read images ahead, in each process.
        num_processes: processes that share the work, each on its own GPU, or on its share of the CPU.
        batch_by_size: caption images of like shape together.
    """

    captioner: str
    output: str = "-"
    out: Literal["sidecars", "jsonl", "parquet", "webdataset", "coco"] | None = None
    overwrite: bool = False
    split: str | None = None
    format: str | None = None
    features: Path | None = None
    limit: int | None = None
    existing: Literal["keep", "overwrite", "append", "backup"] = "keep"
    caption_extension: str = ".txt"
    on_error: Literal["skip", "fail"] = "skip"
    dry_run: int | None = None
    num_beams: int | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    no_repeat_ngram_size: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 0.9
    top_k: int = 0
    seed: int = 42
    prompt: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    n: int = 1
    rerank: str | None = None
    listener: str | None = None
    keep_all: bool = False
    gate: str = "all"
    resample: int = 3
    resample_on: str = "empty,loop,prompt_echo,low_match"
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


def run(argv: Sequence[str]) -> int:
    """Caption what the words name; broken images are reported, left out, and make the exit code 2."""
    chosen = options_of(
        argv,
        CaptionOptions,
        usage="caption IMAGE_OR_FOLDER_OR_DATA ...",
        description="Caption images, folders of images and data sets. The same command again goes on with a stopped run.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    from tellapart.captioning.plan import plan
    from tellapart.cli.caption_choices import check
    from tellapart.cli.caption_run import print_captions, show_captions, write_captions

    check(options)
    items = plan(words, split=options.split, format=options.format, pictures=options.features is None)
    items = items[: options.limit]
    if options.dry_run is not None:
        return show_captions(items[: options.dry_run], options)
    if options.output == "-" and options.out != "sidecars":
        return print_captions(items, options)
    return write_captions(items, options)
