"""Florence-2, small, with a byte-level tokenizer trained on the captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BartConfig,
    CLIPImageProcessorPil,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    PreTrainedTokenizerFast,
)

from pictures import CAPTIONS
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tiny_models import redraw

QUESTIONS = ["What does the image describe?", "Describe in detail what is shown in the image."]


def byte_tokenizer(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """BART's kind: byte-level pairs of the bytes in ``texts``, put between <s> and </s>; bos 0, pad 1, eos 2, unk 3."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "unk_token": "<unk>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, extra_special_tokens={"image_token": "<image>"}, **names)


def tiny_florence2(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int = 96,
    width: int = 32,
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """A ``Florence2ForConditionalGeneration`` of 17 image states in eval mode, saved to ``folder`` first if given."""
    tokenizer = byte_tokenizer([*captions, *QUESTIONS], vocab - 1)
    images = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False, image_seq_length=17)
    processor = Florence2Processor(images, tokenizer)
    config = Florence2Config(
        vision_config=_tower(width), text_config=_bart(len(tokenizer), width), image_token_id=tokenizer.image_token_id
    )
    model = Florence2ForConditionalGeneration(config)
    redraw(model, std=std, seed=seed)
    _tell_images_apart(model)
    _favour_eos(model, eos_logit)
    parts = (model, images, tokenizer)
    if folder is None:
        return HuggingFaceCaptioner.from_parts(*parts, processor=processor, **options).eval()
    HuggingFaceCaptioner.from_parts(*parts, processor=processor).save(Path(folder))
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def _tower(width: int) -> dict:
    """Two stages: 32 pixels become 8, then 4 a side."""
    patches = {"patch_size": (7, 3), "patch_stride": (4, 2), "patch_padding": (3, 1), "patch_prenorm": (False, True)}
    sizes = {"depths": (1, 1), "embed_dim": (8, 16), "num_heads": (2, 4), "num_groups": (2, 4), "window_size": 4}
    limits = {"projection_dim": width, "max_temporal_embeddings": 10, "max_position_embeddings": 10}
    return patches | sizes | limits


def _bart(vocabulary: int, width: int) -> BartConfig:
    return BartConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        max_position_embeddings=96,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )


def _tell_images_apart(model: Florence2ForConditionalGeneration) -> None:
    """Wide self-attention makes all positions the average of all: after two layers every image would look the same."""
    bart = model.model.language_model
    with torch.no_grad():
        for layer in [*bart.encoder.layers, *bart.decoder.layers]:
            layer.self_attn.out_proj.weight *= 0.3


def _favour_eos(model: Florence2ForConditionalGeneration, amount: float) -> None:
    """The head is the input embedding and has no bias: shift the decoder's last norm along EOS's own direction."""
    with torch.no_grad():
        row = model.lm_head.weight[2]
        model.model.language_model.decoder.layers[-1].final_layer_norm.bias += amount * row / row.square().sum()
