"""The sections of a recipe, beside those whose schema is a constructor elsewhere.

Importing this module must stay cheap: ``train --help`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tellapart.data.formats.names import Format


@dataclass(frozen=True, kw_only=True)
class LoraSection:
    """Low-rank adapters (Hu et al., 2022) instead of training the weights themselves.

    Args:
        r: rank of the adapters.
        alpha: scale; the adapter's output is multiplied by alpha / r.
        dropout: dropout before the adapters, where dropout is on.
        target_modules: regular expression of the whole names of the layers that get one; null takes the text side's.
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: str | None = None


@dataclass(frozen=True, kw_only=True)
class CaptionerSection:
    """The model to be trained.

    Args:
        model_name_or_path: a run of tellapart, a model folder, a Hugging Face id, or a stage of the built-in world
            (world/xe, world/backbone).
        train: which weights train.
        lora: train adapters of this kind instead of the weights; null trains the weights.
        dtype: precision the weights are held in.
        gradient_checkpointing: compute activations again in the backward pass, which saves memory and costs time.
        prompt: words the model reads before it writes a caption; null takes the saved ones, else the family's own.
    """

    model_name_or_path: str
    train: Literal["decoder", "all"] = "decoder"
    lora: LoraSection | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    gradient_checkpointing: bool = False
    prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The images and captions to train on.

    Args:
        path: ``world`` (the built-in one), images with captions in any layout of docs/data.md, or owner/name on the hub.
        split: which part of it to train on; data without splits ignore it.
        images: folder that the file's image paths are relative to; null means the file's own folder.
        format: how to read the path; null finds out by looking.
        size: size of the built-in world; other data ignore it.
        limit: use only the first so many images; null uses all.
        on_error: an image that cannot be read stops the training (fail), or all images are read once before it starts
            and such ones are left out, of the evaluation's, too, and listed in skipped_images.txt (skip).
    """

    path: str = "world"
    split: str = "train"
    images: Path | None = None
    format: Format | None = None
    size: Literal["full", "small"] = "full"
    limit: int | None = None
    on_error: Literal["fail", "skip"] = "fail"


@dataclass(frozen=True, kw_only=True)
class ListenerSection:
    """The dual encoder (CLIP, SigLIP) that the reward listens with, and the first retriever of the evaluation.

    Args:
        path: a model folder, a Hugging Face id, or world/listener; null when nothing needs one.
        prefix: words put before each caption; null takes what belongs to the model.
    """

    path: str | None = None
    prefix: str | None = None


@dataclass(frozen=True, kw_only=True)
class RewardSection:
    """The weight of each reward; 0 leaves it out.

    Args:
        clip_s: CLIP-S (Hessel et al., 2021), 2.5 times the clamped cosine of image and caption.
        cider_d: CIDEr-D (Vedantam et al., 2015) against the references, with the training captions' document
            frequencies; 0 to 10, typically near 1.
    """

    clip_s: float = 0.0
    cider_d: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """What the training is watched by.

    Args:
        split: the part of the data to caption; null never evaluates.
        path: data to evaluate on when it is not the training data's path.
        images: folder of that path's images; null takes the training data's.
        judge: a second retriever that the reward never saw: a model folder, a Hugging Face id, or world/judge.
        num_beams: beams of the evaluation's captions; 1 is greedy.
        max_new_tokens: longest caption in tokens.
        limit: use only the first so many images; null uses all.
    """

    split: str | None = "val"
    path: str | None = None
    images: Path | None = None
    judge: str | None = None
    num_beams: int = 1
    max_new_tokens: int = 40
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """What is asked of one invocation and is no part of a recipe.

    Args:
        dry_run: build everything, check the captioner on two images, print the resolved recipe, and train nothing.
        print_config: print the resolved recipe and stop before anything is built.
        overwrite_output_dir: delete what the output folder holds and start anew.
    """

    dry_run: bool = False
    print_config: bool = False
    overwrite_output_dir: bool = False
