"""The sections of a recipe, beside those whose schema is a constructor elsewhere.

Importing this module must stay cheap: ``train --help`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tellapart.data.formats.names import Readable
from tellapart.recipe.new_section import NewSection, TransformerSection


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
        model_name_or_path: a run of tellapart, a model folder, a Hugging Face id, a stage of the built-in world
            (world/xe, world/backbone), new/fc_lstm or new/att2in2, recurrent captioners over data.features, or
            new/clip_transformer, that of DiCO's paper.
        new: what a recurrent new/... captioner is like; null takes the defaults.
        transformer: what new/clip_transformer is like; null takes the defaults.
        train: which weights train: all but the image tower (decoder), only what stands between it and a language model, such
            as BLIP-2's queries, Q-Former and projection (bridge), or all.
        lora: train adapters of this kind instead of the weights; null trains the weights.
        dtype: precision the weights are held in.
        quantization: hold the weights of the language model in 8 bits (int8) or 4 (nf4), with lora only; needs pip install
            'tellapart[quantization]'.
        gradient_checkpointing: compute activations again in the backward pass, which saves memory and costs time.
        prompt: words the model reads before it writes a caption; null takes the saved ones, else the family's own.
    """

    model_name_or_path: str
    new: NewSection | None = None
    transformer: TransformerSection | None = None
    train: Literal["decoder", "bridge", "all"] = "decoder"
    lora: LoraSection | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantization: Literal["int8", "nf4"] | None = None
    gradient_checkpointing: bool = False
    prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The images and captions to train on.

    Args:
        path: ``world`` (the built-in one), images with captions in any layout of docs/data.md, or owner/name on the hub.
        split: which part of it to train on; data without splits ignore it.
        images: folder that the file's image paths are relative to; null means the file's own folder.
        features: what a captioner that reads features reads instead of images: a folder of tellapart features, a folder
            of .npy or .npz files named by image id, or an HDF5 file.
        format: how to read the path; null finds out by looking.
        size: size of the built-in world; other data ignore it.
        limit: use only the first so many images; null uses all.
        on_error: an image that cannot be read stops the training (fail), or all images are read once before it starts
            and such ones are left out, of the evaluation's, too, and listed in skipped_images.txt (skip). For data that
            take too long to read beforehand: nothing is read ahead, the listener embeds images as they come, and one that
            cannot be read is replaced by the image that stands at its place in the next step, and listed (replace).
        seconds_between: of videos, leave out key-frames sooner than this after the last one taken.
        shuffle_window: null shuffles all images; a number shuffles archives, and images within so many, so that reading
            stays in few archives at a time.
    """

    path: str = "world"
    split: str = "train"
    images: Path | None = None
    features: Path | None = None
    format: Readable | None = None
    size: Literal["full", "small"] = "full"
    limit: int | None = None
    on_error: Literal["fail", "skip", "replace"] = "fail"
    seconds_between: float = 0.0
    shuffle_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class ListenerSection:
    """The dual encoder (CLIP, SigLIP) that the reward listens with, and the first retriever of the evaluation.

    Args:
        path: a model folder, a Hugging Face id, a checkpoint file of OpenAI's code (.pth, such as PAC-S's), or
            world/listener; null when nothing needs one.
        prefix: words put before each caption; null takes what belongs to the model.
        base: for a .pth file, the model that it was trained from (tokenizer, image processor); null takes
            openai/clip-vit-base-patch32.
    """

    path: str | None = None
    prefix: str | None = None
    base: str | None = None


@dataclass(frozen=True, kw_only=True)
class LanguageModelSection:
    """The causal language model (GPT-2, OPT, Llama) that tells the reward how likely a caption is as text.

    Args:
        path: a model folder or a Hugging Face id; null when no reward needs one.
        dtype: precision its weights are held in.
    """

    path: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclass(frozen=True, kw_only=True)
class RewardSection:
    """The weight of each reward; 0 leaves it out.

    Args:
        clip_s: CLIP-S (Hessel et al., 2021), 2.5 times the clamped cosine of image and caption.
        cider_d: CIDEr-D (Vedantam et al., 2015) against the references, with the training captions' document
            frequencies; 0 to 10, typically near 1.
        language_model: log-probability of the caption a token under language_model.path (ref of VLRM, Dzabraev et al.,
            2024); below 0, typically -5 to -3.
        grammar: probability of the caption under the grammar head at grammar.path (Cho et al., 2022), 0 to 1.
        meteor: METEOR 1.5 (Denkowski & Lavie, 2014) against the references, 0 to 1; needs pip install 'tellapart[meteor]'.
        ref_clip_s: RefCLIP-S (Hessel et al., 2021), the harmonic mean of CLIP-S and the highest cosine with a reference.
        pac_s: PAC-S (Sarto et al., 2023) where listener.path is a model trained for it: 2 times the clamped cosine.
        ref_pac_s: RefPAC-S, as ref_clip_s with pac_s.
        itm: what matcher.model says of caption and image, on that model's own scale (sim of VLRM).
        phi: how well caption and image find each other within the whole effective batch (Dzabraev et al., 2024), of mean 0 and
            deviation 1; vlrm_rs only, which needs it.
    """

    clip_s: float = 0.0
    cider_d: float = 0.0
    language_model: float = 0.0
    grammar: float = 0.0
    meteor: float = 0.0
    ref_clip_s: float = 0.0
    pac_s: float = 0.0
    ref_pac_s: float = 0.0
    itm: float = 0.0
    phi: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OwnListenerSection:
    """The listener that belongs to the captioner: it learns beside it, or stays (luo2018). It starts as a copy, and what it
    is copied from stays as it is.

    Args:
        path: a CLIP or SigLIP model (a folder, a Hugging Face id, world/listener), a VSE, or a run of train-listener. For
            methods with gradients through words it must have the captioner's words.
        prefix: words put before each caption by a CLIP or SigLIP; null takes what belongs to the model.
        train: of a CLIP or SigLIP, whether the text side learns (text) or everything (all).
    """

    path: str | None = None
    prefix: str | None = None
    train: Literal["text", "all"] = "text"


@dataclass(frozen=True, kw_only=True)
class NeighboursSection:
    """Look-alikes of the training images, which a contrastive reward holds captions against.

    Args:
        path: a file that tellapart mine wrote; null mines the training images at the start, once for every listener and data.
        k: neighbours of each image to mine.
        listener: what looks for them: a model folder, a Hugging Face id, or world/listener; null takes the reward's.
    """

    path: Path | None = None
    k: int = 5
    listener: str | None = None


@dataclass(frozen=True, kw_only=True)
class GrammarSection:
    """The frozen judge of grammar.

    Args:
        path: the folder of a grammar head, or world/grammar.
    """

    path: str = "world/grammar"


@dataclass(frozen=True, kw_only=True)
class DistanceSection:
    """How far two captions drawn for one image are from one another.

    Args:
        kind: bleu is one minus BLEU-3 plus one minus BLEU-4 (the paper's), edit is Levenshtein in words over the longer
            length, cider is one minus a tenth of CIDEr-D with the training captions' document frequencies.
    """

    kind: Literal["bleu", "edit", "cider"] = "bleu"


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """What the training is watched by.

    Args:
        split: the part of the data to caption; null never evaluates.
        held_out: take so many images out of the training data, chosen by their ids, and caption these instead of a split;
            for data that have no other part, such as unlabelled ones.
        path: data to evaluate on when it is not the training data's path.
        images: folder of that path's images; null takes the training data's.
        features: features of that path's images; null takes the training data's.
        judge: a second retriever that the reward never saw: a model folder, a Hugging Face id, or world/judge.
        pac: encoder of PAC-S: the authors' .pth file, a folder or a Hugging Face id; null leaves PAC-S out.
        pac_base: for a .pth file, the model that it was trained from (tokenizer, image processor); null takes
            openai/clip-vit-base-patch32.
        itm: BLIP or BLIP-2 with an image-text matching head, a folder or a Hugging Face id; null leaves ITM out.
        language_model: also measure the captions' perplexity under this causal language model: a model folder, a
            Hugging Face id, or world/language_model.
        grammar: also measure the mean probability of the captions under this grammar head: a folder of train-listener
            --grammar, or world/grammar.
        meteor: also measure METEOR, which costs some milliseconds a caption.
        samples: also draw so many captions of each image at random and so many by beam search, and measure them as sets
            (CIDEr, Div-1, Div-2, mBLEU-4); 0 does not.
        num_beams: beams of the evaluation's captions; 1 is greedy.
        no_repeat_ngram_size: no run of so many tokens may occur twice in a caption; 0 allows all.
        min_new_tokens: a caption cannot end before so many tokens.
        max_new_tokens: longest caption in tokens.
        limit: use only the first so many images; null uses all.
    """

    split: str | None = "val"
    held_out: int | None = None
    path: str | None = None
    images: Path | None = None
    features: Path | None = None
    judge: str | None = None
    pac: str | None = None
    pac_base: str | None = None
    itm: str | None = None
    language_model: str | None = None
    grammar: str | None = None
    meteor: bool = False
    samples: int = 0
    num_beams: int = 1
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    max_new_tokens: int = 40
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """What is asked of one invocation and is no part of a recipe.

    Args:
        dry_run: build everything, check the captioner on two images, print the resolved recipe, and train nothing.
        print_config: print the resolved recipe and stop before anything is built.
        overwrite_output_dir: delete what the output folder holds and start anew.
        push_to_hub: upload the selected captioner with its model card to the Hugging Face hub after training.
        hub_model_id: name of the repository to push to, owner/name.
        hub_private_repo: make the repository private if it does not exist yet.
    """

    dry_run: bool = False
    print_config: bool = False
    overwrite_output_dir: bool = False
    push_to_hub: bool = False
    hub_model_id: str | None = None
    hub_private_repo: bool = False
