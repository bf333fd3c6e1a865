"""How near the memory that ``train --dry_run`` estimates comes to what a process takes: a ViT and a GPT-2 of half the small size.

    OMP_NUM_THREADS=1 python benchmarks/memory.py [--layers 6] [--captions 16] [--tokens 20]

Each way runs in a process of its own: two steps of teacher forcing with AdamW. Measured is what the highest resident size
(Linux) exceeds that before the model was made.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor
from unroll import captioner, memory

from tellapart.captioners.activations import activations
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.training.memory import memory_of, peak
from tellapart.types import Batch, Rollout

WAYS = {"whole": ("all", False), "checkpointed": ("all", True), "decoder only": ("decoder", False)}


def estimated(model: HuggingFaceCaptioner, pixels: Tensor, captions: int, tokens: int) -> float:
    """MB."""
    made = activations(
        model.family,
        {"pixel_values": pixels[:2]},
        tokens=tokens,
        captions=captions,
        vision_learns=model.trains_vision,
        checkpointed=model.checkpoints_layers,
    )
    return peak(memory_of({"captioner": model}, {}, {"captioner": made.of(captions)})) / 2**20


def measure(way: str, layers: int, captions: int, tokens: int) -> None:
    """Print both, and their ratio."""
    torch.manual_seed(0)
    captioner(1)  # so that what is imported on first use is there
    before = memory("VmRSS")
    train, checkpointed = WAYS[way]
    model = captioner(layers, tower=layers, train=train, gradient_checkpointing=checkpointed).train()
    pixels = torch.randn(captions, 3, 224, 224)
    words = torch.randint(4, 50_000, (captions, tokens))
    mask = torch.ones_like(words, dtype=torch.bool)
    batch = Batch([str(i) for i in range(captions)], [[]] * captions, {model.name: {"pixel_values": pixels}})
    rollout = Rollout(batch, torch.arange(captions), [""] * captions, words, mask, mask[:, 0])
    learned = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(learned)
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(2):
        model(rollout).logprobs.sum().neg().backward()
        optimiser.step()
        optimiser.zero_grad()
    found, told = memory("VmHWM") - before, estimated(model, pixels, captions, tokens)
    sys.stdout.write(f"{way:14} measured {found:6.0f} MB, estimated {told:6.0f} MB, ratio {told / found:.2f}\n")


def main() -> None:
    """Every way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 6, "captions": 16, "tokens": 20}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--way", choices=list(WAYS))
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in sizes}
    if options.way:
        measure(options.way, **given)
        return
    for way in WAYS:
        words = [f"--{name}={value}" for name, value in given.items()]
        subprocess.run([sys.executable, __file__, *words, "--way", way], check=True)


if __name__ == "__main__":
    main()
