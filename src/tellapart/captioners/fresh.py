"""Captioners that begin with random weights: recurrent ones with the words of the training captions, and that of DiCO's paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from tellapart.captioners.encoded_clip import EncodedClip, EncodedClipConfig
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.lstm import LSTMS, Att2in2Config
from tellapart.captioners.modes import quiet
from tellapart.errors import UsageError
from tellapart.processors import read_image_processor, read_tokenizer
from tellapart.ranges import HalfOpenUnitFloat, PositiveInt, in_range

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


# Word-level tokenizers made from captions.

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
"""Padding, what a captioner reads first, the end of a caption, and any rare word: ids 0 to 3."""

WORD = r"[\p{L}\p{M}\p{N}]+(?:['\-][\p{L}\p{M}\p{N}]+)*"
"""A word: letters and digits, with hyphens and apostrophes inside it. Everything else only separates words."""


def build_tokenizer(captions: Iterable[str], *, min_count: int = 5) -> PreTrainedTokenizerFast:
    """A tokenizer of the words that are in ``captions`` at least ``min_count`` times; others become ``<unk>``.

    Captions are lower-cased, and punctuation is left out, as the metrics leave it out. Words are numbered by falling
    count, equals by the alphabet, so the same captions in any order give the same ids. Decoding puts one space between
    words. No special token is added to a text. (Vocabularies of "more than 5 times", such as the 9,487 words of COCO in
    the code that PSST builds on, are ``min_count=6``.)

    Args:
        captions: the training captions.
        min_count: rarer words are unknown.

    Raises:
        UsageError: no word is frequent enough.
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    reader = _reading(Tokenizer(models.WordLevel({}, unk_token=SPECIAL[3])))
    counts: Counter[str] = Counter()
    for caption in captions:
        text = reader.normalizer.normalize_str(caption)
        counts.update(word for word, _ in reader.pre_tokenizer.pre_tokenize_str(text))
    words = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
    if not words:
        raise UsageError(
            f"no word is in the training captions {min_count} times or more: lower captioner.new.min_count."
        )
    ids = {word: i for i, word in enumerate([*SPECIAL, *words])}
    pad, bos, eos, unk = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=_reading(Tokenizer(models.WordLevel(ids, unk_token=unk))),
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def _reading(tokenizer: Any) -> Any:
    """``tokenizer`` with the way texts are cut into words."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("\u2019", "'"), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    return tokenizer


CLIP_TRANSFORMER = "clip_transformer"
_TOWERS = ("clip", "clip_vision_model")
PAD = "<|pad|>"
"""The token that the released code adds."""

SPARE = 64
"""Positions of the decoder beyond the longest human caption: drawn captions may be longer."""


@in_range
def fresh_clip_transformer(
    tower: str | Path,
    *,
    hidden_size: PositiveInt = 512,
    layers: PositiveInt = 3,
    heads: PositiveInt = 8,
    dropout: HalfOpenUnitFloat = 0.1,
    max_caption_tokens: PositiveInt = 30,
) -> HuggingFaceCaptioner:
    """The captioner of DiCO's paper (Moratelli et al., BMVC 2024; sizes of the released code): the frozen vision tower of a CLIP,
    a linear layer and an encoder of BERT's layers on top, and a GPT-2 that attends to it, all but the tower with random weights
    from torch's global generator. It writes in CLIP's vocabulary, with a token added to fill rows.

    Args:
        tower: folder or Hugging Face id of the CLIP.
        hidden_size: width of encoder and decoder; their feed-forward parts are four times as wide.
        layers: of the encoder, and of the decoder.
        heads: of each layer.
        dropout: in encoder and decoder, where a training leaves dropout on.
        max_caption_tokens: human captions are cut to this many tokens, their end counted.

    Raises:
        UsageError: ``heads`` do not divide ``hidden_size``, or ``tower`` is not a CLIP.
        ValueError: a number is out of its range.
    """
    if hidden_size % heads:
        raise UsageError(
            f"captioner.transformer has hidden_size {hidden_size} and {heads} heads: choose a width that the heads divide."
        )
    try:
        with quiet():
            vision = _vision_tower(tower)
            tokenizer = read_tokenizer(tower)
            images = read_image_processor(str(tower))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UsageError(
            f"captioner.transformer.tower {str(tower)!r} could not be read as a CLIP: give its folder or Hugging Face id."
        ) from error
    if tokenizer.pad_token in (
        None,
        tokenizer.eos_token,
    ):  # CLIP fills with its end, which would be a word of every caption
        tokenizer.add_special_tokens({"pad_token": PAD})
    sizes: dict[str, Any] = {
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "dropout": dropout,
    }
    encoder = EncodedClip(EncodedClipConfig(tower=vision.config.to_dict(), intermediate_size=4 * hidden_size, **sizes))
    encoder.tower = vision
    model = _decoded(encoder, tokenizer, positions=max_caption_tokens + SPARE, **sizes)
    return HuggingFaceCaptioner.from_parts(model, images, tokenizer, max_caption_tokens=max_caption_tokens)


def _vision_tower(source: str | Path) -> Any:
    """The vision tower of a CLIP with all of its weights.

    Raises:
        UsageError: it is not a CLIP, or weights are missing.
    """
    from transformers import AutoConfig, CLIPVisionModel

    kind = AutoConfig.from_pretrained(source).model_type
    if kind not in _TOWERS:
        raise UsageError(
            f"captioner.transformer.tower {str(source)!r} could not be read as a CLIP, for it is a {kind!r} model: name a CLIP."
        )
    vision, report = CLIPVisionModel.from_pretrained(source, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise UsageError(
            f"captioner.transformer.tower {str(source)!r} lacks {len(missing)} weights, first {missing[0]!r}: give all of the "
            "model."
        )
    return vision


def _decoded(
    encoder: EncodedClip,
    tokenizer: Any,
    *,
    positions: int,
    hidden_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    dropout: float,
) -> Any:
    """The encoder with a GPT-2 that attends to it."""
    from transformers import GPT2Config

    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=positions,
        n_embd=hidden_size,
        n_layer=num_hidden_layers,
        n_head=num_attention_heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        add_cross_attention=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return with_gpt2(encoder, config, tokenizer)


def with_gpt2(encoder: Any, config: Any, tokenizer: Any) -> Any:
    """A ``VisionEncoderDecoderModel`` of an encoder and a new GPT-2 that starts, ends and fills with the tokenizer's tokens.

    Args:
        encoder: of images, a model of transformers.
        config: ``GPT2Config`` with cross-attention; weights are drawn from torch's global generator.
        tokenizer: names BOS, EOS and padding.
    """
    from transformers import GPT2LMHeadModel, VisionEncoderDecoderModel

    model = VisionEncoderDecoderModel(encoder=encoder, decoder=GPT2LMHeadModel(config))
    for settings in (model.config, model.generation_config):
        settings.decoder_start_token_id = tokenizer.bos_token_id
        settings.eos_token_id, settings.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return model


@in_range
def fresh_captioner(
    model_type: str,
    captions: Iterable[str],
    *,
    feature_size: PositiveInt,
    hidden_size: PositiveInt = 512,
    dropout: HalfOpenUnitFloat = 0.5,
    min_count: PositiveInt = 5,
    max_caption_tokens: PositiveInt = 20,
    attention_size: PositiveInt | None = None,
) -> HuggingFaceCaptioner:
    """An untrained recurrent captioner over image features; its weights come from torch's global generator.

    Args:
        model_type: ``fc_lstm``, ``att2in2`` or ``updown``.
        captions: the training captions, whose words it will know.
        feature_size: width of the features.
        hidden_size: width of words and states.
        dropout: before and after the LSTM, where a training leaves dropout on.
        min_count: words that are rarer become ``<unk>``.
        max_caption_tokens: human captions are cut to this many words, their end counted.
        attention_size: width in which regions and state are compared; none takes ``hidden_size``.

    Raises:
        UsageError: the type is unknown, it has no attention, or no word is frequent enough.
        ValueError: a number is out of its range.
    """
    if model_type not in LSTMS:
        raise UsageError(
            f"new/{model_type} is not a captioner that can be made: choose {', '.join(f'new/{k}' for k in LSTMS)}."
        )
    config_class, model_class = LSTMS[model_type]
    if attention_size is not None and not issubclass(config_class, Att2in2Config):
        raise UsageError(f"new/{model_type} attends to nothing: leave captioner.new.attention_size out.")
    tokenizer = build_tokenizer(captions, min_count=min_count)
    config = config_class(
        feature_size=feature_size, hidden_size=hidden_size, vocab_size=len(tokenizer), dropout=dropout
    )
    if hasattr(config, "attention_size"):
        config.attention_size = hidden_size if attention_size is None else attention_size
    return HuggingFaceCaptioner.from_parts(model_class(config), None, tokenizer, max_caption_tokens=max_caption_tokens)
