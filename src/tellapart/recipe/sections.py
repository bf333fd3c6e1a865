"""The sections of a recipe: plain records of options, with their documentation.

The section ``objective`` is the method's own constructor, ``reward`` is a list whose entries are the rewards' constructors, and
``training`` is :class:`tellapart.training.config.TrainConfig`. Importing this module must stay cheap: ``train --help`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tellapart.data.formats.names import Readable
from tellapart.listeners.kinds import is_vse


@dataclass(frozen=True, kw_only=True)
class NewSection:
    """A recurrent captioner that begins with random weights and the words of the training captions.

    Args:
        hidden_size: width of the words, the LSTM and the attention.
        dropout: before and after the LSTM, where dropout is on.
        min_count: words that occur less often in the training captions are unknown.
        max_caption_tokens: human captions are cut to this many words, their end counted.
    """

    hidden_size: int = 512
    dropout: float = 0.5
    min_count: int = 5
    max_caption_tokens: int = 20


@dataclass(frozen=True, kw_only=True)
class TransformerSection:
    """The captioner of DiCO's paper (Moratelli et al., 2024): a frozen CLIP tower, CLIP's vocabulary, and with random weights an
    encoder on top of the tower and a GPT-2.

    Args:
        tower: the CLIP whose vision tower and vocabulary it takes: a folder, a Hugging Face id or world/listener.
        hidden_size: width of encoder and decoder.
        layers: of the encoder, and of the decoder.
        heads: of each of these layers.
        dropout: in encoder and decoder, where dropout is on.
        max_caption_tokens: human captions are cut to this many tokens, their end counted.
    """

    tower: str = "openai/clip-vit-large-patch14"
    hidden_size: int = 512
    layers: int = 3
    heads: int = 8
    dropout: float = 0.1
    max_caption_tokens: int = 30


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

    @property
    def reads_as_they_come(self) -> bool:
        """Whether no training image is read before its step."""
        return self.on_error == "replace"


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
class GallerySection:
    """The training images among which a caption is to find its own (reward likelihood).

    Args:
        images: how many, evenly spread; null takes all.
    """

    images: int | None = None


@dataclass(frozen=True, kw_only=True)
class GrammarSection:
    """The frozen judge of grammar.

    Args:
        path: a run of train-listener --grammar, its folder of the head, or world/grammar.
    """

    path: str | None = None


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
        listener: the first retriever, where it is not the reward's: a model folder, a Hugging Face id, or world/listener; null
            takes listener.path.
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
    listener: str | None = None
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
class MatcherSection:
    """The model that tells how well a caption and its image go together, for reward.itm (docs/listeners.md).

    Args:
        model: a model folder, a Hugging Face id, world/itm or world/listener; null when no reward needs one.
        kind: itm (BLIP or BLIP-2 with a matching head; score: its positive logit), dual (CLIP or SigLIP; the cosine), yes_no (an
            instruct vision-language model that is asked; log-odds of yes); auto tells by the model.
        question: what a yes_no model is asked, with {caption} in the caption's place; null takes our own words.
        scaled: let a dual give the logit of its own loss (of CLIP usually 100 times the cosine).
        batch_size: most images, and most texts, read at once.
        dtype: precision the weights are held in.
        autocast: precision of matrix products, for weights in float32.
        device: where it is, such as cuda:1; null is where the captioner is.
    """

    model: str | None = None
    kind: Literal["auto", "itm", "dual", "yes_no"] = "auto"
    question: str | None = None
    scaled: bool = False
    batch_size: int = 32
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    autocast: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class CriticSection:
    """What learns beside the captioner to expect the returns of its captions (Dzabraev et al., 2024).

    Args:
        head: what makes values of the language model's states: residual blocks, or one linear layer, which is known to
            collapse.
        blocks: residual blocks; 5 at BLIP-2's width are the paper's 275 million weights.
        lora: adapter that the language model carries while values are computed, and only then; null reads the captioner's own
            states, as a recurrent captioner needs.
    """

    head: Literal["residual", "linear"] = "residual"
    blocks: int = 2
    lora: LoraSection | None = field(default_factory=LoraSection)


@dataclass(frozen=True, kw_only=True)
class PenaltiesSection:
    """Which words of captions are penalised, beside those that are said twice.

    Args:
        phrases: a text file with a phrase a line, or vlrm, the list of Dzabraev et al. (2024), or world, the openers of the
            built-in world (whose colours may then be said twice, too); null lists none.
        years: whether four digits that stand alone are penalised as well.
    """

    phrases: str | None = "vlrm"
    years: bool = True


NEW_VSE = "new/vse"


@dataclass(frozen=True, kw_only=True)
class NewVseSection:
    """A recurrent listener that begins with random weights (VSE++: Faghri et al., 2018).

    Args:
        word_size: width of the word embeddings.
        hidden_size: width of the GRU, and of the space that images and captions share.
    """

    word_size: int = 512
    hidden_size: int = 1024


@dataclass(frozen=True, kw_only=True)
class TrainedListenerSection:
    """The dual encoder to be trained.

    Args:
        path: a CLIP or SigLIP model: a folder, a Hugging Face id, or world/listener; new/vse, a recurrent listener over
            image features; or a run that trained one.
        prefix: words put before each text; null takes what belongs to the model. They are saved with it.
        train: which weights train: the text side and the temperature (text), everything (all), or with loss pac the two
            projections alone (projections); null takes all of a recurrent listener, the projections with loss pac, else
            the text side.
        lora: with loss pac, train adapters of this kind in both towers instead of weights; null trains the weights.
        vocabulary: of new/vse, the captioner whose words it is to know: a run, a folder, a Hugging Face id, or world/xe.
        image_encoder: of new/vse without data.features, a CLIP whose image embeddings it reads, such as world/listener.
        new: what new/vse is like; null takes the defaults.
    """

    path: str
    prefix: str | None = None
    train: Literal["text", "all", "projections"] | None = None
    lora: LoraSection | None = None
    vocabulary: str | None = None
    image_encoder: str | None = None
    new: NewVseSection | None = None

    @property
    def is_new(self) -> bool:
        """Whether it begins with random weights."""
        return self.path == NEW_VSE

    @property
    def is_recurrent(self) -> bool:
        """Whether it is a VSE, new or trained."""
        return self.is_new or is_vse(self.path)

    @property
    def trains(self) -> str:
        """``text`` or ``all``."""
        return self.train or ("all" if self.is_recurrent else "text")


@dataclass(frozen=True, kw_only=True)
class ListenerEvaluationSection:
    """What the training is watched by.

    Args:
        split: the part of the data to retrieve in; null never evaluates.
        path: data to evaluate on when it is not the training data's path.
        images: folder of that path's images; null takes the training data's.
        limit: use only the first so many images; null uses all.
    """

    split: str | None = "val"
    path: str | None = None
    images: Path | None = None
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class HeadSection:
    """The grammar head, trained with --grammar only.

    Args:
        weight: of the head's cross-entropy beside the contrastive loss.
        min_count: words that occur less often in the training captions are never put into a corrupted one.
    """

    weight: float = 1.0
    min_count: int = 1


@dataclass(frozen=True, kw_only=True)
class HingeSection:
    """The hinge loss of the hardest negatives, with --loss hinge only.

    Args:
        margin: by how much an image and its caption should be nearer than others, on the scale of cosines.
        reduction: sum over the images of a batch (as PSST's code), or their mean.
        warmup_steps: begin with so many steps against all others of the batch, where the hardest would be too hard.
    """

    margin: float = 0.2
    reduction: Literal["sum", "mean"] = "sum"
    warmup_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class PacSection:
    """Positive-augmented contrastive training (Sarto et al., CVPR 2023), with --loss pac only.

    Args:
        captions: a file of generated captions of the training images (as tellapart caption writes, or any other that score
            reads), by image id or file name; of several captions of an image one is drawn each time.
        captioner: in place of captions, what writes one for each image, greedily, before the training: a run, a model
            folder, a Hugging Face id, or world/xe.
        images: a folder of generated images, one for each training image and named by its id; null trains without.
        caption_weight: of the term with generated captions (lambda_t); 0 leaves it out.
        image_weight: of the term with generated images (lambda_v).
    """

    captions: Path | None = None
    captioner: str | None = None
    images: Path | None = None
    caption_weight: float = 0.1
    image_weight: float = 0.05
