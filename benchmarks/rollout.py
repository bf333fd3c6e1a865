"""Drawing and scoring against Hugging Face's ``generate`` and an unbucketed pass, in one run.

    OMP_NUM_THREADS=1 python benchmarks/rollout.py [--images 48] [--repeats 7]

The model has the size of the built-in world's captioner and is first taught sentences of 4 to 24 words, so that
captions end as trained ones do: mean length 8, the longest three times that. Ways are interleaved; times are medians of
CPU milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderModel,
)
from transformers.modeling_outputs import BaseModelOutput

from tellapart.captioners.base import Encoded
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.types import Batch, Decoding, Rollout

LONGEST = 26


def captioner() -> HuggingFaceCaptioner:
    """CLIP ViT (32-pixel patches, 3 layers) and GPT-2 (2 layers), both 128 wide; 64 words."""
    words = ["<pad>", "<s>", "<unk>", "</s>", *(f"w{i}" for i in range(60))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", unk_token="<unk>", eos_token="</s>"
    )
    tower = CLIPVisionConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, image_size=64, patch_size=32
    )
    text = GPT2Config(
        vocab_size=64,
        n_positions=64,
        n_embd=128,
        n_layer=2,
        n_head=4,
        add_cross_attention=True,
        bos_token_id=1,
        eos_token_id=3,
        pad_token_id=0,
    )
    model = VisionEncoderDecoderModel(encoder=CLIPVisionModel(tower), decoder=GPT2LMHeadModel(text))
    model.config.decoder_start_token_id, model.config.eos_token_id, model.config.pad_token_id = 1, 3, 0
    processor = CLIPImageProcessorPil(size={"height": 64, "width": 64}, do_center_crop=False)
    return HuggingFaceCaptioner.from_parts(model, processor, fast).eval()


def sentence(draw: np.random.Generator) -> str:
    """Mostly 4 to 8 words, one in eight up to 24: the first tells the length, others mostly follow from the last."""
    length = int(draw.integers(4, 9) if draw.random() < 7 / 8 else draw.integers(9, 25))
    words = [length]
    while len(words) < length:
        words.append((7 * words[-1] + 5) % 60 if draw.random() < 0.8 else int(draw.integers(60)))
    return " ".join(f"w{i}" for i in words)


def batch(model: HuggingFaceCaptioner, count: int, seed: int) -> Batch:
    draw = np.random.default_rng(seed)
    pictures = [Image.fromarray(draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(count)]
    texts = [[sentence(draw)] for _ in range(count)]
    return Batch([f"{seed}-{i}" for i in range(count)], texts, {"captioner": model.process(pictures)})


def teach(model: HuggingFaceCaptioner, steps: int = 250) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    for step in range(steps):
        images = batch(model, 32, 1000 + step)
        scores = model(model.tokenize(images, [texts[0] for texts in images.references], torch.arange(32)))
        optimizer.zero_grad()
        (-scores.logprobs.sum() / 256).backward()
        optimizer.step()


def compare(name: str, ways: dict[str, Callable[[], object]], repeats: int) -> None:
    """CPU time of each way, interleaved, as a ratio to the first."""
    for way in ways.values():
        way()
    spent: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(repeats):
        for key, way in ways.items():
            start = time.process_time()
            way()
            spent[key].append(1000 * (time.process_time() - start))
    medians = {key: statistics.median(times) for key, times in spent.items()}
    first = next(iter(medians.values()))
    print(f"{name:34}", "   ".join(f"{key} {ms:7.1f} ms ({first / ms:.2f}x)" for key, ms in medians.items()))


def compare_drawing(model: HuggingFaceCaptioner, images: Batch, encoded: Encoded, repeats: int) -> Rollout:
    """Greedy search, five samples and five beams an image; returns the samples."""

    def hugging_face(**settings: object) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                fresh = BaseModelOutput(last_hidden_state=encoded.states)
                return model.family.model.generate(encoder_outputs=fresh, max_new_tokens=LONGEST, **settings)

        return run

    def own(decoding: Decoding) -> Callable[[], Rollout]:
        return lambda: model.generate(images, decoding, encoded=encoded)

    greedy = own(Decoding(max_new_tokens=LONGEST))
    samples = own(Decoding(do_sample=True, num_return_sequences=5, max_new_tokens=LONGEST))
    for name, way in {"greedy": greedy, "multinomial x5": samples}.items():
        lengths = way().lengths
        print(f"{name}: mean length {lengths.float().mean():.1f}, longest {lengths.max()}")
    compare("greedy", {"hf": hugging_face(do_sample=False), "own": greedy}, repeats)
    sampling = hugging_face(do_sample=True, top_k=0, num_return_sequences=5)
    compare("multinomial x5", {"hf": sampling, "own": samples}, repeats)
    beams = own(Decoding(num_beams=5, num_return_sequences=5, max_new_tokens=LONGEST))
    search = hugging_face(num_beams=5, num_return_sequences=5, do_sample=False, early_stopping=False)
    compare("5 beams", {"hf": search, "own": beams}, repeats)
    return samples()


def compare_scoring(model: HuggingFaceCaptioner, encoded: Encoded, rollout: Rollout, repeats: int) -> None:
    """One padded pass against length buckets, without and with gradients."""

    def once(backward: bool, *, padded: bool) -> Callable[[], object]:
        def run() -> None:
            with torch.set_grad_enabled(backward):
                loss = plain(model, encoded, rollout) if padded else model(rollout, encoded=encoded).logprobs.sum()
                if backward:
                    loss.backward()

        return run

    for backward in (False, True):
        ways = {"one padded pass": once(backward, padded=True), "buckets": once(backward, padded=False)}
        compare("scoring, forward" + (" + backward" if backward else ""), ways, repeats)


def plain(model: HuggingFaceCaptioner, encoded: Encoded, rollout: Rollout) -> torch.Tensor:
    """What one would write with Hugging Face alone: copies of the image states, one pass, logits at every position."""
    start = rollout.tokens.new_full((len(rollout), 1), 1)
    states = BaseModelOutput(last_hidden_state=encoded.states[rollout.image])
    tokens = torch.cat([start, rollout.tokens[:, :-1]], dim=1)
    logits = model.family.model(encoder_outputs=states, decoder_input_ids=tokens, use_cache=False).logits
    chosen = logits.log_softmax(dim=-1).gather(-1, rollout.tokens[:, :, None]).squeeze(-1)
    return (chosen * rollout.mask).sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = captioner()
    teach(model)
    images = batch(model, options.images, 0)
    with torch.no_grad():
        encoded = model.encode(images)
    rollout = compare_drawing(model, images, encoded, options.repeats)
    compare_scoring(model, encoded, rollout, options.repeats)


if __name__ == "__main__":
    main()
