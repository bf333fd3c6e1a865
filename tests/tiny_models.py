"""Small captioners for tests: built in memory, on request also saved to a folder.

Weights are drawn wide (std 0.25): with the usual 0.02 neither images nor tokens matter and every fault is invisible.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertTokenizerFast,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessorPil,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTModel,
)

from pictures import CAPTIONS, images
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.types import Batch


def batch_of(captioner: HuggingFaceCaptioner, count: int, *, seed: int = 0) -> Batch:
    """``count`` processed pictures with two captions each."""
    references = [[CAPTIONS[(2 * i) % 64], CAPTIONS[(2 * i + 9) % 64]] for i in range(count)]
    inputs = {captioner.name: captioner.process(images(count, seed=seed))}
    return Batch([f"image-{seed}-{i}" for i in range(count)], references, inputs)


def word_tokenizer(captions: Sequence[str], size: int | None = None) -> PreTrainedTokenizerFast:
    """One id a word, padded with unused words up to ``size``: pad 0, bos 1, unk 2, eos 3."""
    words = [
        "<pad>",
        "<s>",
        "<unk>",
        "</s>",
        *sorted({word for caption in captions for word in caption.lower().split()}),
    ]
    words += [f"word{i}" for i in range((size or 0) - len(words))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", unk_token="<unk>", eos_token="</s>"
    )


def bert_tokenizer(captions: Sequence[str], size: int | None = None) -> BertTokenizerFast:
    """WordPiece over whole words, with BERT's template: it adds [CLS] and [SEP] unless told not to."""
    words = sorted({word for caption in captions for word in caption.lower().split()})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", *words]
    words += [f"word{i}" for i in range((size or 0) - len(words))]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return BertTokenizerFast(tokenizer_object=tokenizer, bos_token="[DEC]")


def redraw(model: torch.nn.Module, *, std: float, seed: int) -> None:
    """Wide random weights, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or "embedding" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


def _finish(model, image_processor, tokenizer, folder: Path | None, options: dict) -> HuggingFaceCaptioner:
    if folder is None:
        return HuggingFaceCaptioner.from_parts(model, image_processor, tokenizer, **options).eval()
    HuggingFaceCaptioner.from_parts(model, image_processor, tokenizer).save(Path(folder))
    return HuggingFaceCaptioner.from_pretrained(folder, **options).eval()


def tiny_ved(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int | None = 64,
    tower: str = "clip",
    width: int = 32,
    vision_width: int = 32,
    layers: int = 2,
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """A ``VisionEncoderDecoderModel`` (CLIP or ViT, and GPT-2) in eval mode, saved to ``folder`` first if one is given.

    ``eos_logit`` is added to the logit of EOS, so that captions end early. ``options`` go to ``HuggingFaceCaptioner``
    (train, lora, gradient_checkpointing, ...); lora needs a folder.
    """
    tokenizer = word_tokenizer(captions, vocab)
    sizes = {"hidden_size": vision_width, "intermediate_size": 2 * vision_width, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "image_size": 32, "patch_size": 16}
    encoder = CLIPVisionModel(CLIPVisionConfig(**sizes)) if tower == "clip" else ViTModel(ViTConfig(**sizes))
    decoder = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=96,
            n_embd=width,
            n_layer=layers,
            n_head=4,
            add_cross_attention=True,
            bos_token_id=1,
            eos_token_id=3,
            pad_token_id=0,
        )
    )
    model = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    model.config.decoder_start_token_id, model.config.eos_token_id, model.config.pad_token_id = 1, 3, 0
    redraw(model, std=std, seed=seed)
    with torch.no_grad():
        # GPT-2's head has no bias: shift the final layer norm along EOS's own direction instead.
        row = decoder.lm_head.weight[3]
        decoder.transformer.ln_f.bias += eos_logit * row / row.square().sum()
    processor = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    return _finish(model, processor, tokenizer, folder, options)


def tiny_blip(
    folder: Path | None = None,
    *,
    captions: Sequence[str] = CAPTIONS,
    vocab: int | None = 64,
    width: int = 32,
    std: float = 0.25,
    eos_logit: float = 4.0,
    seed: int = 0,
    **options,
) -> HuggingFaceCaptioner:
    """A ``BlipForConditionalGeneration`` in eval mode, saved to ``folder`` first if one is given."""
    tokenizer = bert_tokenizer(captions, vocab)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = sizes | {
        "vocab_size": len(tokenizer),
        "encoder_hidden_size": width,
        "max_position_embeddings": 96,
        "bos_token_id": 5,
        "sep_token_id": 3,
        "pad_token_id": 0,
        "is_decoder": True,
        "use_cache": True,
    }
    config = BlipConfig(text_config=text, vision_config=sizes | {"image_size": 32, "patch_size": 16}, projection_dim=16)
    model = BlipForConditionalGeneration(config)
    redraw(model, std=std, seed=seed)
    with torch.no_grad():
        model.text_decoder.cls.predictions.bias[3] += eos_logit
    processor = BlipImageProcessorPil(size={"height": 32, "width": 32})
    return _finish(model, processor, tokenizer, folder, options)
