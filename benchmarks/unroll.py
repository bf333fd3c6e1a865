"""Memory and time of gradients through drawn words: a GPT-2 of the small size, 50,257 words, 32 images, 20 words each.

    OMP_NUM_THREADS=1 python benchmarks/unroll.py [--images 32] [--tokens 20] [--layers 12]

Each way runs in a process of its own: whole, checkpointed, and checkpointed with drawn words fed instead of mixtures. Peak is
what the resident size rises by, at most, over the loaded model with its gradients (Linux; reset by the kernel's ``clear_refs``),
while words are drawn, read by an embedding of 512 as a listener's, and differentiated. Time is in CPU seconds, beside that of
sampling the same captions without gradients.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    CLIPImageProcessorPil,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTModel,
)

from tellapart.captioners.base import Encoded
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.relaxation import Relaxation
from tellapart.types import Batch, Decoding

WORDS, WIDTH, PATCHES = 50_257, 768, 197
WAYS = {"whole": (False, True), "checkpointed": (True, True), "checkpointed, drawn words fed": (True, False)}


def captioner(layers: int, *, tower: int = 1, **options: Any) -> HuggingFaceCaptioner:
    """A ViT, of one layer where it is not used, and a GPT-2."""
    from tokenizers import Tokenizer, models

    special = ["<pad>", "<s>", "<unk>", "</s>"]
    words = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(WORDS - 4))])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    text = GPT2Config(n_layer=layers, add_cross_attention=True, bos_token_id=1, eos_token_id=3, pad_token_id=0)
    vision = ViTModel(ViTConfig(num_hidden_layers=tower))
    model = VisionEncoderDecoderModel(encoder=vision, decoder=GPT2LMHeadModel(text))
    model.config.decoder_start_token_id, model.config.eos_token_id, model.config.pad_token_id = 1, 3, 0
    return HuggingFaceCaptioner.from_parts(model, CLIPImageProcessorPil(), tokenizer, **options).eval()


def memory(key: str) -> float:
    """MB of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024


def measure(way: str, images: int, tokens: int, layers: int) -> None:
    """Print peak MB over the model, and CPU seconds of unrolling and of sampling."""
    torch.manual_seed(0)
    model = captioner(layers)
    model.checkpoints_layers, feed_soft = WAYS[way]
    listener = nn.Linear(WORDS, 512, bias=False)
    for part in [*model.parameters(), *listener.parameters()]:
        if part.requires_grad:
            part.grad = torch.full_like(part, 1e-9)
    batch = Batch([str(i) for i in range(images)], [[]] * images)
    encoded = Encoded(torch.randn(images, PATCHES, WIDTH))
    start = time.process_time()
    torch.manual_seed(1)
    drawn = model.generate(batch, Decoding(do_sample=True, max_new_tokens=tokens), encoded=encoded)
    sampling, before = time.process_time() - start, memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    start = time.process_time()
    torch.manual_seed(1)
    relaxation = Relaxation(rho=0.25, feed_soft=feed_soft, max_new_tokens=tokens)
    soft = model.unroll(batch, relaxation, encoded=encoded)
    forward = memory("VmHWM") - before
    listener(soft.words).square().sum().backward()
    unrolling, peak = time.process_time() - start, memory("VmHWM") - before
    # Mixtures that were read change what follows; drawn words do not.
    assert feed_soft or torch.equal(drawn.tokens, soft.rollout.tokens)
    print(
        f"{way:30} {list(soft.words.shape)}  peak {peak:5.0f} MB ({forward:.0f} when drawn), "
        f"{unrolling:.1f} s, sampling {sampling:.1f} s",
        flush=True,
    )


def main() -> None:
    """Every way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"images": 32, "tokens": 20, "layers": 12}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--way", choices=list(WAYS))
    options = parser.parse_args()
    if options.way:
        measure(options.way, options.images, options.tokens, options.layers)
        return
    sizes = [f"--{name}={getattr(options, name)}" for name in ("images", "tokens", "layers")]
    for way in WAYS:
        subprocess.run([sys.executable, __file__, *sizes, "--way", way], check=True)


if __name__ == "__main__":
    main()
