"""Drawing captions and a DiCO step against Hugging Face's ``generate`` and forward, in one run.

    OMP_NUM_THREADS=1 python benchmarks/engine.py [--setting world-like real] [--repeats 5] [--docs benchmarks/README.md]

Weights are random, so captions run to the longest length, 20 words. Hugging Face's side is a copy of the same model with
its own modules, fed the same image states. Ways are interleaved; times are medians of CPU milliseconds on one thread, ratios are
medians over the rounds with their least and greatest. ``--docs`` writes the table into a page between
the marks of the processor's kind.

BLIP and BLIP-2 with OPT, at world-like widths, are drawn from pixels to captions on both sides.

Where the processor has instructions for bfloat16, rows "in bfloat16" draw under autocast on both sides, ours by
``rollout_dtype``, which also measures how far log-probabilities are from float32's on two images.

Both sides have the optimiser that tellapart trains with, fused AdamW, and both count numbers below float32's normal ones as 0:
random weights make many of them, and without that the ratio would tell of little else on an Intel processor.

Beams of random weights have many of their words in common, which tellapart reads once. The row "nothing shared" reads every beam
by itself, as is done with captions that have nothing in common.

The share of the GEMM rate is what the step's matrix products need at the rate of one product of 1024 x 1024 x 1024,
measured in the same run by the faster of torch's own and oneDNN's, divided by the step's time. The first figure counts the
products that the step computes, so a step that saves more of them has a smaller share. "Useful" counts those that reading every
word of every caption once takes, whether the step computes them or saves them; it can pass 100%.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tables import write_table
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    BlipConfig,
    BlipForConditionalGeneration,
    CLIPImageProcessorPil,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTModel,
)
from transformers.modeling_outputs import BaseModelOutput

from tellapart.captioners import reading
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.objectives.dico import DiCO, classify
from tellapart.products import computes_in_halves, made_by_intel, multiplies_bfloat16, product
from tellapart.training.denormals import denormals_flushed
from tellapart.types import Batch, Decoding

LONGEST = 20
BEAMS = {"num_beams": 5, "num_return_sequences": 5}


@dataclass(frozen=True)
class Setting:
    """Widths of a model, and images per call.

    Args:
        vocabulary: words.
        width: of tower and decoder.
        layers: of tower and decoder.
        heads: of both.
        picture: pixels of a side, and of a patch's side.
        images: of greedy search and samples, and of beams and the step.
        std: of the random weights, so that captions vary.
    """

    vocabulary: int
    width: int
    layers: tuple[int, int]
    heads: int
    picture: tuple[int, int]
    images: tuple[int, int]
    std: float


SETTINGS = {
    "world-like": Setting(500, 128, (4, 3), 4, (64, 32), (48, 48), 0.08),
    "real": Setting(50257, 384, (6, 6), 6, (224, 16), (16, 8), 0.05),
}


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        name: what is compared.
        peer: milliseconds of each round.
        ours: the same.
        note: what else was found.
    """

    name: str
    peer: list[float]
    ours: list[float]
    note: str

    def cells(self) -> list[str]:
        """Name, times, ratio with its spread, note."""
        ratios = [one / other for one, other in zip(self.peer, self.ours, strict=True)]
        spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"
        return [
            self.name,
            f"{statistics.median(self.peer):.0f}",
            f"{statistics.median(self.ours):.0f}",
            spread,
            self.note,
        ]


def build(setting: Setting) -> VisionEncoderDecoderModel:
    """A ViT and a GPT-2 with random weights."""
    torch.manual_seed(0)
    width, (tower, layers), (picture, patch) = setting.width, setting.layers, setting.picture
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": setting.heads}
    vision = ViTConfig(**sizes, num_hidden_layers=tower, image_size=picture, patch_size=patch)
    ends = {"bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0}
    text = GPT2Config(
        vocab_size=setting.vocabulary,
        n_positions=64,
        n_embd=width,
        n_layer=layers,
        n_head=setting.heads,
        add_cross_attention=True,
        is_decoder=True,
        **ends,
    )
    model = VisionEncoderDecoderModel(encoder=ViTModel(vision, add_pooling_layer=False), decoder=GPT2LMHeadModel(text))
    for parameter in model.decoder.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=setting.std)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    model.config.decoder_start_token_id, model.config.eos_token_id, model.config.pad_token_id = 1, 3, 0
    return model.eval()


def captioner_of(model: Any, setting: Setting, processor: Any = None) -> HuggingFaceCaptioner:
    side = {"height": setting.picture[0], "width": setting.picture[0]}
    pixels = CLIPImageProcessorPil(size=side, do_center_crop=False)
    return HuggingFaceCaptioner.from_parts(model, pixels, tokenizer_of(setting), processor=processor).eval()


def tokenizer_of(setting: Setting) -> PreTrainedTokenizerFast:
    words = ["<pad>", "<s>", "<unk>", "</s>", *(f"w{i}" for i in range(setting.vocabulary - 4))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", unk_token="<unk>", eos_token="</s>"
    )


def batch(setting: Setting, count: int) -> Batch:
    pixels = torch.randn(count, 3, setting.picture[0], setting.picture[0])
    return Batch([str(i) for i in range(count)], [[] for _ in range(count)], {"captioner": {"pixel_values": pixels}})


def compare(name: str, peer: Callable[[], Any], ours: Callable[[], Any], repeats: int, note: str) -> Row:
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for way, times in zip((peer, ours), spent, strict=True):
            start = time.process_time()
            way()
            times.append(1000 * (time.process_time() - start))
    return Row(name, *spent, note)


def equal(theirs: Tensor, ours: Tensor) -> str:
    """How many captions are the same; theirs begin with a start token, and may be padded with EOS."""
    ended = (theirs[:, 1:-1] == 3).cumsum(dim=1) > 0
    theirs = torch.cat([theirs[:, :2], theirs[:, 2:].masked_fill(ended, 0)], dim=1)
    width = max(theirs.shape[1] - 1, ours.shape[1])
    one, other = (functional.pad(rows, (0, width - rows.shape[1])) for rows in (theirs[:, 1:], ours))
    return f"{int((one == other).all(dim=1).sum())} of {len(one)} captions equal"


def drawing(setting: Setting, repeats: int) -> Iterator[Row]:
    """Greedy search, five samples and five beams per image."""
    model = build(setting)
    peer = copy.deepcopy(model)
    captioner = captioner_of(model, setting)
    for rounded, name in itertools.product((False, True) if multiplies_bfloat16() else (False,), WAYS):
        theirs, ours = WAYS[name]
        captioner.rollout_dtype = "bfloat16" if rounded else "float32"
        images = batch(setting, setting.images[name == "5 beams"])
        with torch.no_grad():
            encoded = captioner.encode(images)

        def generate(encoded: Any = encoded, theirs: dict[str, Any] = theirs, rounded: bool = rounded) -> Tensor:
            fresh = BaseModelOutput(last_hidden_state=encoded.states)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                return peer.generate(encoder_outputs=fresh, max_new_tokens=LONGEST, **theirs)

        def own(images: Batch = images, encoded: Any = encoded, ours: dict[str, Any] = ours) -> Tensor:
            return captioner.generate(images, Decoding(max_new_tokens=LONGEST, **ours), encoded=encoded).tokens

        found = generate(), own()
        note = f"mean length {float((found[1] != 0).sum(dim=1).float().mean()):.1f}"
        note = note if rounded or name == "5 samples" else f"{note}, {equal(*found)}"
        yield compare(name + ", in bfloat16" * rounded, generate, own, repeats, note)


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"do_sample": False}, {}),
    "5 samples": (
        {"do_sample": True, "top_k": 0, "num_return_sequences": 5},
        {"do_sample": True, "num_return_sequences": 5},
    ),
    "5 beams": (BEAMS | {"do_sample": False, "early_stopping": False}, BEAMS),
}


def families(setting: Setting, repeats: int) -> Iterator[Row]:
    """BLIP, and BLIP-2 with OPT, at the widths of the setting, from pixels to captions."""
    images = batch(setting, setting.images[1])
    pixels = images.inputs["captioner"]["pixel_values"]
    for name, make in {"BLIP": blip, "BLIP-2": blip2}.items():
        model = make(setting)
        peer = copy.deepcopy(model)
        captioner = captioner_of(model, setting)
        for way, (theirs, ours) in WAYS.items():

            def generate(
                name: str = name, peer: Any = peer, captioner: Any = captioner, theirs: Any = theirs
            ) -> Tensor:
                further = theirs | {"max_new_tokens": LONGEST, "eos_token_id": 3, "pad_token_id": 0}
                with torch.no_grad():
                    if name == "BLIP":
                        states = peer.vision_model(pixel_values=pixels).last_hidden_state
                        start = torch.full((len(pixels), 1), 1)
                        return peer.text_decoder.generate(input_ids=start, encoder_hidden_states=states, **further)
                    words = torch.tensor([captioner.family.image_token] * 8 + captioner.family.words)
                    ids = words.expand(len(pixels), -1)
                    found = peer.generate(
                        pixel_values=pixels, input_ids=ids, attention_mask=torch.ones_like(ids), **further
                    )
                    return found[:, ids.shape[1] - 1 :]

            def own(captioner: Any = captioner, ours: dict[str, Any] = ours) -> Tensor:
                return captioner.generate(images, Decoding(max_new_tokens=LONGEST, **ours)).tokens

            found = generate(), own()
            note = f"mean length {float((found[1] != 0).sum(dim=1).float().mean()):.1f}"
            note = note if way == "5 samples" else f"{note}, {equal(*found)}"
            yield compare(f"{name}, {way}", generate, own, repeats, note)


def blip(setting: Setting) -> BlipForConditionalGeneration:
    """A BLIP with random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": setting.width, "intermediate_size": 4 * setting.width, "num_attention_heads": setting.heads}
    tower, layers = setting.layers
    text = sizes | {"num_hidden_layers": layers, "vocab_size": setting.vocabulary, "encoder_hidden_size": setting.width}
    text |= {"bos_token_id": 1, "sep_token_id": 3, "pad_token_id": 0, "is_decoder": True}
    vision = sizes | {"num_hidden_layers": tower, "image_size": setting.picture[0], "patch_size": setting.picture[1]}
    return _random(BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=vision)), setting)


def blip2(setting: Setting) -> Blip2ForConditionalGeneration:
    """A BLIP-2 with 8 queries, a Q-Former of 2 layers and an OPT, all with random weights."""
    torch.manual_seed(0)
    width, (tower, layers) = setting.width, setting.layers
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": setting.heads}
    vision = sizes | {"num_hidden_layers": tower, "image_size": setting.picture[0], "patch_size": setting.picture[1]}
    qformer = sizes | {"num_hidden_layers": 2, "vocab_size": 50, "encoder_hidden_size": width}
    text = OPTConfig(
        vocab_size=setting.vocabulary,
        hidden_size=width,
        word_embed_proj_dim=width,
        ffn_dim=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=setting.heads,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=3,
        pad_token_id=0,
    )
    config = Blip2Config(
        vision_config=vision, qformer_config=qformer, text_config=text, num_query_tokens=8, image_token_index=4
    )
    return _random(Blip2ForConditionalGeneration(config), setting)


def _random(model: Any, setting: Setting) -> Any:
    decoder = model.text_decoder if hasattr(model, "text_decoder") else model.language_model
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=setting.std)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model.eval()


def gemm_rate() -> float:
    """Operations per second of a large product in float32, by the faster of torch's own product and the captioner's."""
    one, other = torch.randn(1024, 1024), torch.randn(1024, 1024)
    rates = []
    for way in (functional.linear, product):
        times = []
        for _ in range(7):
            start = time.process_time()
            way(one, other)
            times.append(time.process_time() - start)
        rates.append(2 * 1024**3 / statistics.median(times[1:]))
    return max(rates)


def processor() -> str:
    """Its kind, of which each has a table of its own: ratios depend on the width of its vectors and on MKL. Some that are not
    Intel's compute AVX-512 in two halves; there oneDNN's product is hardly faster than MKL's."""
    kind = str(torch.backends.cpu.get_cpu_capability())
    if made_by_intel():
        return f"{kind}, Intel"
    return f"{kind}, half width" if computes_in_halves() else kind


@register_flop_formula(torch.ops.mkldnn._linear_pointwise)
def counted(rows: Any, *further: Any, out_shape: Any = None, **named: Any) -> int:
    """Operations of oneDNN's product, which torch's counter does not know."""
    return 2 * math.prod(rows) * int(out_shape[-1])


def dico(setting: Setting, repeats: int) -> Iterator[Row]:
    """A step, and one that reads beams one by one."""
    yield _dico(setting, repeats, "DiCO step")
    with nothing_shared():
        yield _dico(setting, repeats, "DiCO step, nothing shared")


@contextmanager
def nothing_shared() -> Iterator[None]:
    """Every caption is read by itself."""
    gain, reading.GAIN = reading.GAIN, 0.0
    try:
        yield
    finally:
        reading.GAIN = gain


def _dico(setting: Setting, repeats: int, name: str) -> Row:
    """Five beams, the reference's and the model's log-probabilities, the way back, AdamW: without a reward."""
    model = build(setting)
    peer, reference = copy.deepcopy(model), copy.deepcopy(model)
    peer.encoder.requires_grad_(False)
    captioner, images = captioner_of(model, setting), batch(setting, setting.images[1])
    rewards = torch.rand(5 * len(images))
    objective = DiCO(captioner, lambda rollout: rewards, num_beams=5, max_new_tokens=LONGEST)
    optimizers = [
        torch.optim.AdamW([p for p in side.parameters() if p.requires_grad], lr=0.0, fused=True)
        for side in (peer, captioner)
    ]

    def theirs() -> None:
        optimizers[0].zero_grad()
        with torch.no_grad():
            states = peer.encoder(pixel_values=images.inputs["captioner"]["pixel_values"]).last_hidden_state
            fresh = BaseModelOutput(last_hidden_state=states)
            drawn = peer.generate(
                encoder_outputs=fresh, max_new_tokens=LONGEST, do_sample=False, early_stopping=False, **BEAMS
            )
            before = logprobs(reference, states, drawn)
        delta = (logprobs(peer, states, drawn) - before).view(len(images), 5)
        winner, weights = classify(rewards.view(len(images), 5), objective.tau)
        margin = delta.gather(1, winner[:, None]).squeeze(1) - (weights * delta).sum(dim=1)
        (-functional.logsigmoid(objective.beta * margin)).mean().backward()
        optimizers[0].step()

    def ours() -> None:
        optimizers[1].zero_grad()
        output = next(iter(objective.losses(objective.collect(images, 0))))
        (output.loss / output.weight).backward()
        optimizers[1].step()

    operations = [operations_of(side) for side in (theirs, ours)]
    with nothing_shared():
        operations.append(operations_of(ours))
    sides = [
        torch.cat([p.grad.flatten() for p in side.decoder.parameters() if p.grad is not None]) for side in (peer, model)
    ]
    difference = float((sides[0] - sides[1]).norm() / sides[0].norm())
    row, rate = compare(name, theirs, ours, repeats, ""), gemm_rate()
    times = (statistics.median(spent) / 1000 for spent in (row.peer, row.ours, row.ours))
    peer_share, own, useful = (
        f"{count / rate / seconds:.0%}" for count, seconds in zip(operations, times, strict=True)
    )
    note = f"gradients differ by {difference:.0e}, {own} of the GEMM rate, useful {useful} (peer {peer_share})"
    note += f", {read(objective, images):.0%} of words read"
    return Row(row.name, row.peer, row.ours, note)


def operations_of(step: Callable[[], Any]) -> int:
    """Operations of matrix products."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def read(objective: DiCO, images: Batch) -> float:
    """Share of the beams' words that scoring reads."""
    captioner = objective.captioner
    beams, text = captioner.generate(images, objective.decoding), captioner.family.model.decoder.config
    found = reading.choose_reading(beams.image, beams.tokens, beams.mask, text.n_embd, text.n_layer)
    return len(found.row) / int(beams.mask[:, 1:].sum())


def logprobs(model: VisionEncoderDecoderModel, states: Tensor, drawn: Tensor) -> Tensor:
    """What one would write with Hugging Face alone: copies of the image states, one padded pass, logits at every position."""
    words, targets = drawn[:, :-1], drawn[:, 1:]
    copies = BaseModelOutput(last_hidden_state=states.repeat_interleave(5, dim=0))
    logits = model(encoder_outputs=copies, decoder_input_ids=words, use_cache=False).logits
    chosen = logits.log_softmax(dim=-1).gather(-1, targets[:, :, None]).squeeze(-1)
    return (chosen * (targets != 0)).sum(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", choices=tuple(SETTINGS), default=tuple(SETTINGS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with denormals_flushed():
        lines = measured(options.setting, options.repeats)
    if options.docs:
        write_table(options.docs, f"engine, {processor()}", lines)


def measured(settings: list[str], repeats: int) -> list[str]:
    """Lines of the table, printed as they come."""
    lines = ["| setting | row | Hugging Face, ms | ours, ms | ratio | |", "|---|---|---|---|---|---|"]
    print(*lines, sep="\n")
    for name in settings:
        for rows in (drawing, dico, families) if name == "world-like" else (drawing, dico):
            for row in rows(SETTINGS[name], repeats):
                lines.append(f"| {' | '.join([name, *row.cells()])} |")
                print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    main()
