"""The sections of a recipe: plain records of options, with their documentation.

The section ``objective`` is the method's own constructor, ``reward`` is a list whose entries are the rewards' constructors, and
``training`` is ``TrainConfig``. Importing this module must stay cheap: ``train --help`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tellapart.data.formats.names import Readable
from tellapart.frames import Sampling
from tellapart.listeners.kinds import is_vse
from tellapart.ranges import HalfOpenUnitFloat, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class NewSection:
    """A recurrent captioner that begins with random weights and the words of the training captions.

    Args:
        hidden_size: width of the words and the LSTM.
        dropout: before and after the LSTM, where dropout is on.
        min_count: words that occur less often in the training captions become the unknown word.
        max_caption_tokens: human captions are cut to this many words, the end token included.
        attention_size: width in which regions and state are compared (new/att2in2, new/updown); null takes hidden_size.
    """

    hidden_size: PositiveInt = 512
    dropout: HalfOpenUnitFloat = 0.5
    min_count: PositiveInt = 5
    max_caption_tokens: PositiveInt = 20
    attention_size: PositiveInt | None = None


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
        max_caption_tokens: human captions are cut to this many tokens, the end token included.
    """

    tower: str = "openai/clip-vit-large-patch14"
    hidden_size: PositiveInt = 512
    layers: PositiveInt = 3
    heads: PositiveInt = 8
    dropout: HalfOpenUnitFloat = 0.1
    max_caption_tokens: PositiveInt = 30


@dataclass(frozen=True, kw_only=True)
class LoraSection:
    """Low-rank adapters (Hu et al., 2022) instead of training the weights themselves.

    Args:
        r: rank of the adapters.
        alpha: scale; the adapter's output is multiplied by alpha / r.
        dropout: dropout before the adapters, where dropout is on.
        target_modules: regular expression that matches the full names of the adapted layers; null adapts the text side.
    """

    r: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: HalfOpenUnitFloat = 0.0
    target_modules: str | None = None


@dataclass(frozen=True, kw_only=True)
class CaptionerLoraSection(LoraSection):
    """Low-rank adapters (Hu et al., 2022) instead of training the weights themselves, or next to the parts of train.

    Args:
        tower: the side that the adapters sit on: text (the language model) or image (the image tower).
    """

    tower: Literal["text", "image"] = "text"


@dataclass(frozen=True, kw_only=True)
class CaptionerSection:
    """The model to be trained.

    Args:
        model_name_or_path: a run of tellapart, a model folder, a Hugging Face id, a stage of the built-in world
            (world/xe, world/backbone), new/fc_lstm, new/att2in2 or new/updown (recurrent captioners over data.features),
            or new/clip_transformer (the captioner of DiCO's paper).
        new: sizes of a recurrent new/... captioner; null takes the defaults.
        transformer: sizes of new/clip_transformer; null takes the defaults.
        train: which weights train: all except the image tower (decoder), only the layers between it and a language model,
            such as BLIP-2's queries, Q-Former and projection (bridge), all, or a list of such layers by name.
        lora: train LoRA adapters instead of the weights (with train decoder), or next to the layers that train names; null trains
            no adapters.
        dtype: precision the weights are held in.
        quantization: hold the weights of the language model in 8 bits (int8) or 4 (nf4), with lora only; needs pip install
            'tellapart[quantization]'.
        gradient_checkpointing: recompute activations in the backward pass, which saves memory and costs time.
        prompt: words the model reads before it writes a caption; null takes the saved prompt, else the family's default.
        logits_budget: GiB of logits that scoring keeps for the backward pass; beyond it they are computed twice. null takes 1
            on a CPU and a tenth of the memory of a GPU.
        use_liger_kernel: score captions with gradients by Liger's fused linear cross-entropy, which keeps no logits, whatever
            logits_budget is; on a GPU only, not for the entropies of sll_me nor where gradients pass through words (psst and its
            baselines), needs pip install 'tellapart[liger]'.
        rollout_dtype: precision of drawing captions (bfloat16 by autocast, tf32 on CUDA only); scores and gradients keep theirs.
        length_buckets: bounds in words of the lengths that captions can be asked for: [6, 10, 16] makes four buckets, up to 6
            words, 7 to 10, 11 to 16, and more; null takes the saved ones, if any.
    """

    model_name_or_path: str
    new: NewSection | None = None
    transformer: TransformerSection | None = None
    train: Literal["decoder", "bridge", "all"] | list[Literal["query_tokens", "qformer", "projection"]] = "decoder"
    lora: CaptionerLoraSection | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantization: Literal["int8", "nf4"] | None = None
    gradient_checkpointing: bool = False
    prompt: str | None = None
    logits_budget: NonNegativeFloat | None = None
    use_liger_kernel: bool = False
    rollout_dtype: Literal["float32", "bfloat16", "tf32"] = "float32"
    length_buckets: list[int] | None = None


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The images and captions to train on.

    Args:
        path: ``world`` (the built-in one), ``world/video`` (the built-in clips), images with captions in any layout of
            docs/reference/data.md, or owner/name on the hub.
        split: which part of the data to train on; data without splits ignore it.
        images: folder that the file's image paths are relative to; null means the file's own folder.
        features: image features for a captioner that reads features instead of images: a folder of tellapart features, a
            folder of .npy or .npz files named by image id, or an HDF5 file.
        format: layout of the data; null detects it.
        image_column: column of a table with the image's path, URL or bytes, when its name is not a usual one; as the next two
            also of evaluation.path.
        caption_column: column of a table with the captions, likewise.
        id_column: column of a table with the images' ids; null takes image_id, else the path or URL.
        context_column: column of a table with what is known of an image, for {context} in captioner.prompt and the reward
            context.
        allow_private: let URLs in tables lead to hosts of a private network.
        size: size of the built-in world; other data ignore it.
        limit: maximum number of images, the first ones; null means all.
        on_error: what to do with an image that cannot be read. fail stops the training. skip reads all images once before
            the training, those of the evaluation too, and leaves out unreadable ones, listed in skipped_images.txt. replace
            is for data that take too long to read beforehand: an unreadable image is replaced by the image at the same
            place in the next step, and listed; the listener embeds images as they are read.
        center_crop: cut every image, those of the evaluation and unlabelled ones too, to its largest centred square before any
            model reads it (captioner, listener, judge, matcher); not with features.
        seconds_between: in videos read as key-frames (format unlabelled), leave out key-frames less than this many seconds after
            the last one taken.
        num_frames: frames per clip that the captioner reads; null takes the captioner's own number (8 unless it was made for
            another). Captioners that read stills see the middle frame.
        sampling: frames of clips that models read: those in the middle of equal parts of the clip (uniform), or the last
            key-frame before each of these (key_frames).
        shuffle_window: null shuffles all images; a number N shuffles archives, and images within windows of N, so that few
            archives are read at a time.
    """

    path: str = "world"
    split: str = "train"
    images: Path | None = None
    features: Path | None = None
    format: Readable | None = None
    image_column: str | None = None
    caption_column: str | None = None
    id_column: str | None = None
    context_column: str | None = None
    allow_private: bool = False
    size: Literal["full", "small"] = "full"
    limit: PositiveInt | None = None
    on_error: Literal["fail", "skip", "replace"] = "fail"
    center_crop: bool = False
    seconds_between: NonNegativeFloat = 0.0
    num_frames: PositiveInt | None = None
    sampling: Sampling = "uniform"
    shuffle_window: PositiveInt | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """How tables and clips are read, as arguments of ``load_dataset``."""
        return {
            "image_column": self.image_column,
            "caption_column": self.caption_column,
            "id_column": self.id_column,
            "context_column": self.context_column,
            "allow_private": self.allow_private,
            "sampling": self.sampling,
        }

    @property
    def reads_as_they_come(self) -> bool:
        """Whether no training image is read before its step."""
        return self.on_error == "replace"


@dataclass(frozen=True, kw_only=True)
class ListenerSection:
    """The dual encoder (CLIP, SigLIP) used as reward, and the first retriever of the evaluation.

    Args:
        path: a model folder, a Hugging Face id, a checkpoint file of OpenAI's code (.pth, such as PAC-S's), or
            world/listener; null when nothing needs one.
        prefix: words put before each caption; null takes the model's own prefix.
        base: for a .pth file, the model that it was trained from (tokenizer, image processor); null takes
            openai/clip-vit-base-patch32.
        text_pooling: how captions are read that are longer than the model reads (77 tokens of CLIP, 64 of SigLIP): whole cuts
            them; sentence_mean and sentence_max pool the embeddings of their sentences.
    """

    path: str | None = None
    prefix: str | None = None
    base: str | None = None
    text_pooling: Literal["whole", "sentence_mean", "sentence_max"] = "whole"


@dataclass(frozen=True, kw_only=True)
class LanguageModelSection:
    """The causal language model (GPT-2, OPT, Llama) whose log-probability of a caption is the reward.

    Args:
        path: a model folder or a Hugging Face id; null when no reward needs one.
        dtype: precision its weights are held in.
    """

    path: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclass(frozen=True, kw_only=True)
class ReaderSection:
    """The text-only model that answers questions from captions (reward question_answering).

    Args:
        path: an instruct language model, as a folder or a Hugging Face id; or exact, which reads captions of the built-in world
            by its grammar.
        dtype: precision the weights are held in.
    """

    path: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclass(frozen=True, kw_only=True)
class QuestionsSection:
    """Multiple-choice questions about the training images (docs/reference/metrics.md, question answering).

    Args:
        path: a file of JSON lines (id, question, options, answer); references (by template from human captions); or world (from
            the scenes of the built-in world).
        most: questions per image at most: the first ones, or of references some at random.
    """

    path: str | None = None
    most: PositiveInt = 8


@dataclass(frozen=True, kw_only=True)
class OwnListenerSection:
    """The captioner's own listener: it is trained together with the captioner, or stays frozen (luo2018, sr_pl). It starts as
    a copy; the original does not change.

    Args:
        path: a CLIP or SigLIP model (a folder, a Hugging Face id, world/listener), a VSE, or a run of train-listener. For
            methods with gradients through words it must have the captioner's vocabulary.
        prefix: words put before each caption by a CLIP or SigLIP; null takes the model's own prefix.
        train: whether the text side of a CLIP or SigLIP trains (text) or everything (all).
    """

    path: str | None = None
    prefix: str | None = None
    train: Literal["text", "all"] = "text"


@dataclass(frozen=True, kw_only=True)
class NeighboursSection:
    """Look-alikes of the training images, used as negatives by contrastive rewards.

    Args:
        kind: the nearest images, or random ones as a control.
        path: a file that tellapart mine wrote; null mines the training images at the start, once per listener and data set.
        k: neighbours of each image.
        listener: the model that mines them: a model folder, a Hugging Face id, or world/listener; null takes the recipe's.
    """

    kind: Literal["nearest", "random"] = "nearest"
    path: Path | None = None
    k: PositiveInt = 5
    listener: str | None = None


@dataclass(frozen=True, kw_only=True)
class GallerySection:
    """The training images among which a caption must identify its own (reward likelihood).

    Args:
        images: how many, evenly spread; null takes all.
    """

    images: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class GrammarSection:
    """The frozen grammar head.

    Args:
        path: a run of train-listener --grammar, its folder of the head, or world/grammar.
    """

    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class DistanceSection:
    """The distance between two captions drawn for one image.

    Args:
        kind: bleu is one minus BLEU-3 plus one minus BLEU-4 (the paper's), edit is Levenshtein in words over the longer
            length, cider is one minus a tenth of CIDEr-D with the training captions' document frequencies.
    """

    kind: Literal["bleu", "edit", "cider"] = "bleu"


@dataclass(frozen=True, kw_only=True)
class PreferencesSection:
    """Pairs of captions of the training images, of which one is preferred. Images without a pair are left out.

    Args:
        path: a .jsonl, .json or .parquet file of rows with an image's name, chosen and rejected: TRL's columns, RLHF-V's, or
            preferences.jsonl of tellapart judge --export preferences.
    """

    path: Path = Path("preferences.jsonl")


@dataclass(frozen=True, kw_only=True)
class NoiseSection:
    """Noise that is added to the image states by a learned projection, so that the captioner's captions vary (Dai et al., 2017).

    Args:
        size: numbers in the noise vector.
        scale: size of what is added before training, as a share of the image states' size.
    """

    size: PositiveInt = 64
    scale: PositiveFloat = 0.1


@dataclass(frozen=True, kw_only=True)
class UnlabelledSection:
    """Images without captions that join every step, one for each training image (Liu et al., 2018).

    They are hard negatives: the own listener ranks them by their similarity to the training image's captions, and one within
    ranks is drawn in every step. Captions that they have are not read. They are read as ``data`` says: on_error, center_crop,
    num_frames, sampling, allow_private and the columns of tables, that of captions excepted.

    Args:
        path: ``world``, or images in any layout of docs/reference/data.md; null trains without such images.
        split: which part of the data; data without splits ignore it.
        images: folder that the file's image paths are relative to; null means the file's own folder.
        format: layout of the data; null detects it.
        limit: maximum number of images, the first ones; null means all.
        ranks: lowest and highest rank of the images that are drawn from, 1 for the most similar; null scales the paper's 100
            and 1000 of COCO's 123,287 unlabelled images to the number of images.
    """

    path: str | None = None
    split: str = "train"
    images: Path | None = None
    format: Readable | None = None
    limit: PositiveInt | None = None
    ranks: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """Evaluation during training.

    Args:
        split: the part of the data to caption; null never evaluates, and as an override leaves out the file's eval_steps,
            metric_for_best_model and best_floor.
        held_out: take N images out of the training data, chosen by their ids, and caption these instead of a split; for data
            that have no other part, such as unlabelled images.
        path: data to evaluate on when it is not the training data's path.
        images: folder of that path's images; null takes the path's own folder, and the training data's images for their path.
        features: features of that path's images; null takes the training data's.
        listener: the first retriever, where it is not the reward's: a model folder, a Hugging Face id, or world/listener; null
            takes listener.path.
        judge: a second retriever that the reward never saw: a model folder, a Hugging Face id, or world/judge.
        pac: encoder of PAC-S: the authors' .pth file, a folder or a Hugging Face id; null leaves PAC-S out.
        pac_base: for a .pth file, the model that it was trained from (tokenizer, image processor); null takes
            openai/clip-vit-base-patch32.
        itm: BLIP or BLIP-2 with an image-text matching head, a folder or a Hugging Face id; null leaves ITM out.
        vqa_score: instruct vision-language model for VQAScore, a folder or a Hugging Face id; null leaves VQAScore out.
        claims: verifies each claim of the captions: a matcher or an instruct vision-language model (a folder, a Hugging Face id,
            world/itm), or exact (the truth about the built-in world); null leaves claim precision and recall out.
        language_model: also measure the captions' perplexity under this causal language model: a model folder, a
            Hugging Face id, or world/language_model.
        grammar: also measure the mean probability of the captions under this grammar head: a folder of train-listener
            --grammar, or world/grammar.
        reader: also measure question answering by this text-only language model: a folder, a Hugging Face id, or exact (the
            built-in world's grammar).
        questions: what the reader is asked: a file of questions, references, or world.
        meteor: also measure METEOR, which costs some milliseconds per caption.
        samples: also draw N captions per image at random and N by beam search, and measure them as sets (CIDEr, Div-1, Div-2,
            mBLEU-4); 0 draws none.
        num_beams: beams of the evaluation's captions; 1 is greedy.
        no_repeat_ngram_size: no sequence of N tokens may occur twice in a caption; 0 allows repetition.
        min_new_tokens: shortest caption in tokens.
        max_new_tokens: longest caption in tokens.
        limit: maximum number of images, the first ones; null means all.
    """

    split: str | None = "val"
    held_out: PositiveInt | None = None
    path: str | None = None
    images: Path | None = None
    features: Path | None = None
    listener: str | None = None
    judge: str | None = None
    pac: str | None = None
    pac_base: str | None = None
    itm: str | None = None
    vqa_score: str | None = None
    claims: str | None = None
    language_model: str | None = None
    grammar: str | None = None
    reader: str | None = None
    questions: str | None = None
    meteor: bool = False
    samples: NonNegativeInt = 0
    num_beams: PositiveInt = 1
    no_repeat_ngram_size: NonNegativeInt = 0
    min_new_tokens: NonNegativeInt = 0
    max_new_tokens: PositiveInt = 40
    limit: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class MatcherSection:
    """The model that scores how well a caption matches its image, for reward.itm (docs/how-to/listeners.md).

    Args:
        model: a model folder, a Hugging Face id, world/itm or world/listener; null when no reward needs one.
        kind: itm (BLIP or BLIP-2 with a matching head; score: its positive logit), dual (CLIP or SigLIP; the cosine), yes_no (an
            instruct vision-language model that answers a question; log-odds of yes), vqa_score (the same with the question and
            the scale of VQAScore, as reward.vqa_score needs), late (a late-interaction listener; log-probability); auto decides
            by the model.
        question: the question to a yes_no or vqa_score model, with {caption} in place of the caption; null takes the kind's own.
        scaled: score a dual encoder by the logit of its own loss (for CLIP usually 100 times the cosine).
        batch_size: most images, and most texts, read at once.
        dtype: precision the weights are held in.
        autocast: precision of matrix products, for weights in float32.
        device: the model's device, such as cuda:1; null takes the captioner's.
    """

    model: str | None = None
    kind: Literal["auto", "itm", "dual", "late", "yes_no", "vqa_score"] = "auto"
    question: str | None = None
    scaled: bool = False
    batch_size: PositiveInt = 32
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    autocast: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class CriticSection:
    """The critic, trained together with the captioner to predict the returns of its captions (Dzabraev et al., 2024).

    Args:
        head: what maps the language model's states to values: residual blocks, or one linear layer, which is known to
            collapse.
        blocks: residual blocks; 5 at BLIP-2's width are the paper's 275 million weights.
        lora: adapter of the language model, used only while values are computed; null reads the captioner's own states, as a
            recurrent captioner needs.
    """

    head: Literal["residual", "linear"] = "residual"
    blocks: NonNegativeInt = 2
    lora: LoraSection | None = field(default_factory=LoraSection)


@dataclass(frozen=True, kw_only=True)
class PenaltiesSection:
    """Which words of captions are penalised, besides repeated ones.

    Args:
        phrases: a text file with one phrase per line; or vlrm, the list of Dzabraev et al. (2024); or world, the openers of
            the built-in world (whose colours may then be repeated); null lists none.
        years: whether separate four-digit numbers are penalised as well.
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

    word_size: PositiveInt = 512
    hidden_size: PositiveInt = 1024


@dataclass(frozen=True, kw_only=True)
class TrainedListenerSection:
    """The dual encoder to be trained.

    Args:
        path: a CLIP or SigLIP model: a folder, a Hugging Face id, or world/listener; new/vse, a recurrent listener over
            image features; or a run that trained one.
        prefix: words put before each text; null takes the model's own prefix. They are saved with the model.
        train: which weights train: the text side and the temperature (text), everything (all), or, with loss pac, only the two
            projections (projections); null trains everything in a recurrent listener, the projections with loss pac, and else
            the text side.
        lora: with loss pac, train LoRA adapters in both towers instead of weights; null trains the weights.
        vocabulary: for new/vse, the captioner whose vocabulary it takes: a run, a folder, a Hugging Face id, or world/xe.
        image_encoder: for new/vse without data.features, a CLIP whose image embeddings it reads, such as world/listener.
        new: sizes of new/vse; null takes the defaults.
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
    """Evaluation during training.

    Args:
        split: the part of the data to retrieve in; null never evaluates, and as an override leaves out the file's eval_steps,
            metric_for_best_model and best_floor.
        path: data to evaluate on when it is not the training data's path.
        images: folder of that path's images; null takes the path's own folder, and the training data's images for their path.
        limit: maximum number of images, the first ones; null means all.
    """

    split: str | None = "val"
    path: str | None = None
    images: Path | None = None
    limit: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class HeadSection:
    """The grammar head, trained with --grammar only.

    Args:
        weight: weight of the head's cross-entropy; the contrastive loss has weight 1.
        min_count: words that occur less often in the training captions are never put into a corrupted one.
    """

    weight: NonNegativeFloat = 1.0
    min_count: PositiveInt = 1


@dataclass(frozen=True, kw_only=True)
class HingeSection:
    """The hinge loss of the hardest negatives, with --loss hinge only.

    Args:
        margin: how much higher the cosine of an image and its caption should be than that of other pairs.
        reduction: sum over the images of a batch (as in PSST's code), or their mean.
        warmup_steps: take all other pairs of the batch as negatives for the first N steps, before only the hardest count.
    """

    margin: PositiveFloat = 0.2
    reduction: Literal["sum", "mean"] = "sum"
    warmup_steps: NonNegativeInt = 0


@dataclass(frozen=True, kw_only=True)
class PacSection:
    """Positive-augmented contrastive training (Sarto et al., CVPR 2023), with --loss pac only.

    Args:
        captions: a file of generated captions of the training images (from tellapart caption, or any other that tellapart score
            reads), by image id or file name; of several captions of an image, one is drawn each time.
        captioner: instead of captions, a captioner that writes one per image, greedily, before the training: a run, a model
            folder, a Hugging Face id, or world/xe.
        images: a folder of generated images, one per training image and named by its id; null trains without them.
        caption_weight: weight of the term with generated captions (lambda_t); 0 leaves it out.
        image_weight: weight of the term with generated images (lambda_v).
    """

    captions: Path | None = None
    captioner: str | None = None
    images: Path | None = None
    caption_weight: NonNegativeFloat = 0.1
    image_weight: NonNegativeFloat = 0.05
