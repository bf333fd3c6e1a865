"""Drawing captions and training steps on a GPU against Hugging Face's ``generate`` and forward, in one run.

    python benchmarks/gpu.py [--model blip blip2 qwen2_vl qwen3_vl] [--rows drawing dico scst vlrm compiled]
                             [--repeats 5] [--docs benchmarks/README.md]

Models of published sizes with random weights, so that captions run to the longest length, 20 words. BLIP-base has float32
weights, of which the text decoder trains; BLIP-2 with OPT-2.7B, Qwen2-VL-2B and Qwen3-VL-2B have bfloat16 weights and train LoRA
of rank 16.
Both sides start from pixels and have the same optimiser, fused AdamW. Wall-clock milliseconds, the device waited for; ways are
interleaved, ratios are medians over the rounds with their least and greatest. "Without graphs" is ours with CUDA graphs
switched off. "Busy" is the share of the time in which the device computes, by torch's profiler, "products" and what follows what
ours computes in it, "GiB" what a call takes in addition to models and optimisers.

Hugging Face's steps are what one would write: ``generate``, one padded pass with copies of the image states and logits at every
position, the backward pass. The image tower is called once more where ``generate`` takes pixels only. Rewards are given, so that
nothing but the captioner is timed. VLRM has a linear value head on states without gradient on both sides.
"""

from __future__ import annotations

import argparse
import copy
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from engine import WAYS, Row, equal
from PIL import Image
from tables import write_table
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    BlipConfig,
    BlipForConditionalGeneration,
    CLIPImageProcessorPil,
    GenerationConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from tellapart.captioners import reading
from tellapart.captioners.adapters import LoraOptions, add_lora
from tellapart.captioners.critic import Critic
from tellapart.captioners.families import family_of
from tellapart.captioners.families.base import Family, Processors
from tellapart.captioners.fixed import FixedDecoderSteps
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.captioners.modes import RolloutDtype
from tellapart.objectives.dico import DiCO, classify
from tellapart.objectives.scst import SCST
from tellapart.objectives.vlrm import VLRM
from tellapart.types import Batch, Decoding

LONGEST, IMAGES, RANK = 20, 32, 16
MANY = 100_000
"""Words from which Liger's kernel is measured, too."""
LOWER: tuple[RolloutDtype, ...] = ("tf32", "bfloat16")
"""Precisions that captions of a model in float32 are drawn in, too."""
SPECIALS = ["<pad>", "<s>", "<unk>", "</s>"]
QWEN = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


@dataclass(frozen=True)
class Kind:
    """A model of a published size.

    Args:
        title: its name.
        make: builds it on the device that is the default one.
        processor: makes its image processor.
        dtype: of its weights.
        lora: whether an adapter trains, and not the decoder.
        images: of a step: Hugging Face's padded pass over copies of a long prompt takes 80 GiB for more.
    """

    title: str
    make: Callable[[], Any]
    processor: Callable[[], Any]
    dtype: torch.dtype
    lora: bool
    images: int = IMAGES


def blip() -> BlipForConditionalGeneration:
    """The sizes of BLIP-base, which are transformers' own."""
    return BlipForConditionalGeneration(
        BlipConfig(text_config={"bos_token_id": 1, "sep_token_id": 3, "pad_token_id": 0, "is_decoder": True})
    )


def blip2() -> Blip2ForConditionalGeneration:
    """The sizes of BLIP-2 with OPT-2.7B."""
    text = OPTConfig(
        vocab_size=50272,
        hidden_size=2560,
        word_embed_proj_dim=2560,
        ffn_dim=10240,
        num_hidden_layers=32,
        num_attention_heads=32,
        bos_token_id=1,
        eos_token_id=3,
        pad_token_id=0,
    )
    return Blip2ForConditionalGeneration(Blip2Config(text_config=text, num_query_tokens=32, image_token_index=4))


def tied() -> dict[str, Any]:
    """The special words of a Qwen-VL, whose head is its table of words."""
    ids = {name: len(SPECIALS) + place for place, name in enumerate(QWEN)}
    return {
        "tie_word_embeddings": True,
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
    }


def qwen2_vl() -> Qwen2VLForConditionalGeneration:
    """The sizes of Qwen2-VL-2B."""
    rope = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]}
    text = {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "rope_parameters": rope,
        "bos_token_id": 1,
        "eos_token_id": 3,
        "pad_token_id": 0,
    }
    vision = {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "patch_size": 14}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **tied()))


def qwen3_vl() -> Qwen3VLForConditionalGeneration:
    """The sizes of Qwen3-VL-2B."""
    text = {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [24, 20, 20]},
        "bos_token_id": 1,
        "eos_token_id": 3,
        "pad_token_id": 0,
    }
    vision = {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "deepstack_visual_indexes": [5, 11, 17],
    }
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **tied()))


def patches_of_16() -> Qwen2VLImageProcessorPil:
    """Qwen3-VL's processor: Qwen2-VL's with other patches and other means."""
    half = [0.5, 0.5, 0.5]
    return Qwen2VLImageProcessorPil(patch_size=16, image_mean=half, image_std=half)


def square(side: int) -> Callable[[], Any]:
    """A processor that makes squares of all images."""
    return lambda: CLIPImageProcessorPil(size={"height": side, "width": side}, do_center_crop=False)


KINDS = {
    "blip": Kind("BLIP-base", blip, square(384), torch.float32, lora=False),
    "blip2": Kind("BLIP-2, OPT-2.7B", blip2, square(224), torch.bfloat16, lora=True),
    "qwen2_vl": Kind("Qwen2-VL-2B", qwen2_vl, Qwen2VLImageProcessorPil, torch.bfloat16, lora=True, images=8),
    "qwen3_vl": Kind("Qwen3-VL-2B", qwen3_vl, patches_of_16, torch.bfloat16, lora=True, images=8),
}


def tokenizer_of(vocabulary: int) -> PreTrainedTokenizerFast:
    """Words, and the special words of all models."""
    words = [*SPECIALS, *QWEN]
    words += [f"w{i}" for i in range(vocabulary - len(words))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        unk_token="<unk>",
        eos_token="</s>",
        additional_special_tokens=QWEN,
    )


class Sides:
    """A model as this package has it, and a copy of it as Hugging Face has it.

    Args:
        kind: of model.
        device: where it lies.
    """

    def __init__(self, kind: Kind, device: torch.device) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            torch.set_default_dtype(kind.dtype)
            try:
                model = kind.make()
            finally:
                torch.set_default_dtype(torch.float32)
        model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=3, pad_token_id=0)
        model.name_or_path = "random"
        processors = Processors(kind.processor(), tokenizer_of(model.config.get_text_config().vocab_size))
        self.kind, self.device = kind, device
        self.peer: Family = family_of(copy.deepcopy(model).eval(), processors, None)
        lora = LoraOptions(r=RANK) if kind.lora else None
        parts = model, processors.image, processors.tokenizer
        self.captioner = HuggingFaceCaptioner.from_parts(*parts, lora=lora).eval()
        self.network = add_lora(self.peer, lora) if lora else self.peer.model
        if not lora:
            self.peer.vision.requires_grad_(False)
        self.before = None if lora else family_of(copy.deepcopy(self.peer.model), processors, None)
        self.images = self.images_of(IMAGES).to(device)

    def images_of(self, count: int) -> Batch:
        """A batch of noise."""
        pixels = torch.randint(0, 256, (count, 448, 448, 3), dtype=torch.uint8).numpy()
        inputs = self.captioner.family.process([Image.fromarray(rows) for rows in pixels])
        dtype = self.captioner.family.input_dtype
        inputs = {name: part.to(dtype) if part.is_floating_point() else part for name, part in inputs.items()}
        return Batch([str(i) for i in range(count)], [[] for _ in range(count)], {"captioner": inputs})

    def generate(self, options: dict[str, Any]) -> Tensor:
        """``[N, 20]`` words by Hugging Face."""
        inputs, family = self.images.inputs["captioner"], self.peer
        options = options | {"max_new_tokens": LONGEST, "min_new_tokens": LONGEST}
        with torch.no_grad():
            if isinstance(family.model, BlipForConditionalGeneration):
                states = family.encode(inputs).states
                start = torch.full((len(states), 1), 1, device=self.device)
                decoder = family.model.text_decoder
                found = decoder.generate(
                    input_ids=start, encoder_hidden_states=states, eos_token_id=3, pad_token_id=0, **options
                )
                return found[:, 1:]
            if isinstance(family.model, Blip2ForConditionalGeneration):
                encoded = family.encode(inputs)
                ids, mask = encoded.inputs["input_ids"], encoded.inputs["attention_mask"]
            else:
                ids, mask = inputs["input_ids"], inputs["attention_mask"]
            further = {name: part for name, part in inputs.items() if name not in ("input_ids", "attention_mask")}
            if "image_grid_thw" in further:
                further["pixel_values"] = further["pixel_values"].flatten(0, 1)
                further["mm_token_type_ids"] = (ids == family.image_token).int()  # type: ignore[attr-defined]  # of Qwen
            found = family.model.generate(input_ids=ids, attention_mask=mask, **further, **options)
        return found[:, ids.shape[1] :]

    def states(self, family: Family, tokens: Tensor, encoded: Any) -> Tensor:
        """``[N, T, D]`` by one padded pass over copies of the image's states."""
        count = len(self.images)
        image = torch.arange(count, device=self.device).repeat_interleave(len(tokens) // count)
        return family.teacher_forced(tokens, encoded, image)

    def logprobs(self, family: Family, tokens: Tensor, states: Tensor) -> Tensor:
        """``[N]`` of whole captions, logits at every position."""
        logits = family.head(family.before_head(states)).float()
        chosen = logits.log_softmax(dim=-1).gather(-1, tokens[:, :, None]).squeeze(-1)
        return (chosen * (tokens != 0)).sum(dim=1)

    def reference(self, tokens: Tensor, encoded: Any) -> Tensor:
        """``logprobs`` of the start model."""
        with torch.no_grad(), self.network.disable_adapter() if self.before is None else nullcontext():
            family = self.before or self.peer
            return self.logprobs(family, tokens, self.states(family, tokens, encoded))


KERNELS = {
    "products": r"gemm|nvjet|cutlass|splitK|cublas",
    "attention": r"fmha|flash|attention",
    "copies": r"Memcpy|Memset",
}
"""What the names of a GPU's kernels contain, by what they compute; names are looked at in this order."""


@dataclass(frozen=True)
class Measured:
    """Times of a row, and what the device did.

    Args:
        row: Hugging Face's and ours.
        plain: ours without graphs, or nothing.
        kernels: seconds of Hugging Face's kernels and of ours, by what they compute.
        memory: GiB that each took in addition.
    """

    row: Row
    plain: list[float]
    kernels: tuple[Counter[str], Counter[str]]
    memory: tuple[float, float]

    def cells(self) -> list[str]:
        """Name, times, ratio, busy shares, memory, note."""
        name, theirs, ours, ratio, note = self.row.cells()
        peer, own = (
            sum(kernels.values()) / statistics.median(times) * 1000
            for kernels, times in zip(self.kernels, (self.row.peer, self.row.ours), strict=True)
        )
        total = statistics.median(self.row.ours) / 1000
        kinds = ", ".join(f"{kind} {self.kernels[1][kind] / total:.0%}" for kind in KERNELS)
        plain = f"{statistics.median(self.plain):.0f}" if self.plain else ""
        memory = f"{self.memory[1]:.1f} ({self.memory[0]:.1f})"
        return [
            name,
            theirs,
            plain,
            ours,
            ratio,
            f"{own:.0%} ({peer:.0%})",
            memory,
            "; ".join(filter(None, (note, kinds))),
        ]


def seconds(way: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    way()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def kernels(way: Callable[[], Any]) -> Counter[str]:
    """Seconds of kernels, by what they compute."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        seconds(way)
    spent: Counter[str] = Counter()
    # The profiler's own list of events takes it a minute for a step of thirty thousand kernels.
    for event in found.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA and "#" not in event.name():
            kind = next((kind for kind, names in KERNELS.items() if re.search(names, event.name())), "other")
            spent[kind] += event.duration_ns() / 1e9
    return spent


def memory(way: Callable[[], Any]) -> float:
    """GiB that are allocated at once, besides what is there before."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds(way)
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def without_graphs(way: Callable[[], Any]) -> Callable[[], Any]:
    def plain() -> Any:
        replays = Family.replays
        Family.replays = lambda self, device: False  # type: ignore[method-assign]
        try:
            return way()
        finally:
            Family.replays = replays  # type: ignore[method-assign]

    return plain


def compare(
    name: str, peer: Callable[[], Any], ours: Callable[[], Any], repeats: int, note: str, *, plain: bool = False
) -> Measured:
    ways = [peer, ours, without_graphs(ours)] if plain else [peer, ours]
    used = [memory(way) for way in ways]
    spent: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, times in zip(ways, spent, strict=True):
            times.append(1000 * seconds(way))
    row = Row(name, spent[0], spent[1], note)
    return Measured(row, spent[2] if plain else [], (kernels(peer), kernels(ours)), (used[0], used[1]))


def precision(sides: Sides, half: bool) -> AbstractContextManager[Any]:
    """bfloat16 autocast where weights are float32."""
    return torch.autocast(sides.device.type, torch.bfloat16, enabled=half and sides.kind.dtype is torch.float32)


def drawing(sides: Sides, repeats: int, half: bool) -> Iterator[Measured]:
    """Greedy search, 5 samples and 5 beams of every image, from pixels to words."""
    for name, (theirs, ours) in WAYS.items():

        def peer(theirs: dict[str, Any] = theirs) -> Tensor:
            with precision(sides, half):
                return sides.generate(theirs)

        def own(ours: dict[str, Any] = ours) -> Tensor:
            with precision(sides, half):
                return sides.captioner.generate(sides.images, Decoding(max_new_tokens=LONGEST, **ours)).tokens

        note = "" if half or name == "5 samples" else same(peer(), own())
        whole = compare(f"{name}{'' if half else ', float32'}", peer, own, repeats, note, plain=True)
        yield whole
        if not half:
            for dtype in LOWER:
                with drawn_in(sides, dtype):
                    yield variant(f"{name}, drawn in {dtype}", whole, own, repeats)


def same(theirs: Tensor, ours: Tensor) -> str:
    """How many captions are the same."""
    start, end = theirs.new_full((len(theirs), 1), 1), theirs.new_zeros(len(theirs), 1)
    return equal(torch.cat([start, theirs, end], dim=1), ours)


def optimizers(sides: Sides, further: tuple[nn.Module, nn.Module] | None = None) -> list[torch.optim.Optimizer]:
    found = []
    for place, side in enumerate((sides.network, sides.captioner)):
        weights = [p for p in side.parameters() if p.requires_grad]
        weights += [] if further is None else list(further[place].parameters())
        found.append(torch.optim.AdamW(weights, lr=0.0, fused=True))
    return found


def own_step(sides: Sides, objective: Any, optimizer: torch.optim.Optimizer, half: bool) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        with torch.no_grad(), precision(sides, half):
            found = objective.prepare([objective.collect(sides.images, 0)], lambda part: part)
        pieces = iter(objective.losses(found[0]))
        while True:
            with precision(sides, half):
                piece = next(pieces, None)
            if piece is None:
                break
            piece.loss.backward()
        optimizer.step()

    return step


def dico(sides: Sides, repeats: int, half: bool) -> Iterator[Measured]:
    """Five beams, log-probabilities of the reference and the model, the backward pass, AdamW; and variants of our side."""
    rewards = torch.rand(5 * len(sides.images), device=sides.device)
    objective = DiCO(sides.captioner, lambda rollout: rewards, num_beams=5, max_new_tokens=LONGEST)
    their, our = optimizers(sides)

    def peer() -> None:
        their.zero_grad()
        with torch.no_grad(), precision(sides, half):
            encoded = sides.peer.encode(sides.images.inputs["captioner"])
            drawn = sides.generate(WAYS["5 beams"][0])
            before = sides.reference(drawn, encoded)
        with precision(sides, half):  # of its own: weights that were cast without gradients have none
            now = sides.logprobs(sides.peer, drawn, sides.states(sides.peer, drawn, encoded))
            delta = (now - before).view(-1, 5)
            winner, weights = classify(rewards.view(-1, 5), objective.tau)
            margin = delta.gather(1, winner[:, None]).squeeze(1) - (weights * delta).sum(dim=1)
            loss = -functional.logsigmoid(objective.beta * margin).sum()
        loss.backward()
        their.step()

    ours = own_step(sides, objective, our, half)
    note = "" if half else difference(sides, peer, ours)
    whole = compare(f"DiCO step{'' if half else ', float32'}", peer, ours, repeats, note)
    yield whole
    if not half:
        for dtype in LOWER:
            with drawn_in(sides, dtype):
                yield variant(f"DiCO step, float32, drawn in {dtype}", whole, ours, repeats)
    if half:
        gain, reading.GAIN = reading.GAIN, 0.0
        try:
            yield variant("DiCO step, nothing shared", whole, ours, repeats)
        finally:
            reading.GAIN = gain
        if sides.captioner.family.vocab_size > MANY and find_spec("liger_kernel"):
            sides.captioner.use_liger_kernel = True
            yield variant("DiCO step, Liger's kernel", whole, ours, repeats)
            sides.captioner.use_liger_kernel = False


@contextmanager
def drawn_in(sides: Sides, dtype: RolloutDtype) -> Iterator[None]:
    """Our captioner draws in this precision, and scores in its own."""
    sides.captioner.rollout_dtype = dtype
    try:
        yield
    finally:
        sides.captioner.rollout_dtype = "float32"


def variant(name: str, whole: Measured, ours: Callable[[], Any], repeats: int) -> Measured:
    """Another way of ours against the same times of Hugging Face's."""
    used = memory(ours)
    row = Row(name, whole.row.peer, [1000 * seconds(ours) for _ in range(repeats)], "")
    return Measured(row, [], (whole.kernels[0], kernels(ours)), (whole.memory[0], used))


def difference(sides: Sides, peer: Callable[[], None], ours: Callable[[], None]) -> str:
    """Of the gradients of both sides."""
    peer()
    ours()
    found = [
        torch.cat([p.grad.flatten().double() for p in side.parameters() if p.grad is not None])
        for side in (sides.peer.model, sides.captioner.family.model)
    ]
    return f"gradients differ by {float((found[0] - found[1]).norm() / found[0].norm()):.0e}"


def scst(sides: Sides, repeats: int, half: bool) -> Iterator[Measured]:
    """Five samples against the greedy caption."""
    rewards = torch.rand(6 * len(sides.images), device=sides.device)
    objective = SCST(
        sides.captioner, lambda rollout: rewards[: len(rollout)], num_generations=5, max_new_tokens=LONGEST
    )
    their, our = optimizers(sides)

    def peer() -> None:
        their.zero_grad()
        with torch.no_grad(), precision(sides, half):
            encoded = sides.peer.encode(sides.images.inputs["captioner"])
            sides.generate(WAYS["greedy"][0])
            drawn = sides.generate(WAYS["5 samples"][0])
        with precision(sides, half):
            now = sides.logprobs(sides.peer, drawn, sides.states(sides.peer, drawn, encoded))
            advantage = rewards[: len(now)] - rewards[len(now) :].repeat_interleave(5)
            loss = -(advantage * now).sum()
        loss.backward()
        their.step()

    yield compare("SCST step", peer, own_step(sides, objective, our, half), repeats, "")


def vlrm(sides: Sides, repeats: int, half: bool) -> Iterator[Measured]:
    """One sample of every image, among the six likeliest words at temperature 2."""
    rewards = torch.rand(len(sides.images), device=sides.device)
    critic = Critic(sides.captioner, head="linear")
    objective = VLRM(sides.captioner, lambda rollout: rewards, critic, max_new_tokens=LONGEST)
    value = copy.deepcopy(critic.head)
    their, our = optimizers(sides, (value, critic))

    def peer() -> None:
        their.zero_grad()
        with torch.no_grad(), precision(sides, half):
            encoded = sides.peer.encode(sides.images.inputs["captioner"])
            drawn = sides.generate({"do_sample": True, "top_k": 6, "temperature": 2.0})
        with precision(sides, half):
            states = sides.states(sides.peer, drawn, encoded)
            logits = sides.peer.head(sides.peer.before_head(states)).float()
            chosen = logits.log_softmax(dim=-1).gather(-1, drawn[:, :, None]).squeeze(-1)
            error = rewards[:, None] - value(states.detach().flatten(0, 1)).view_as(chosen)
            advantage = ((error - error.mean()) / error.std()).detach()
            loss = (error.square() - advantage * chosen.exp()).mean(dim=1).sum()
        loss.backward()
        their.step()

    yield compare("VLRM step", peer, own_step(sides, objective, our, half), repeats, "")


def compiled(sides: Sides, repeats: int, half: bool) -> Iterator[Measured]:
    """Greedy search and 5 beams, the layers that read a word as they are and by ``torch.compile``, both replayed from a graph."""
    plain = FixedDecoderSteps._through_layers
    fused = torch.compile(plain, dynamic=False)

    def by_fused(self: Any, words: Tensor, *others: Any) -> Tensor:
        # with the strides that words have in a graph: others would be compiled for once more
        return fused(self, words.clone(memory_format=torch.contiguous_format), *others)

    for name in ("greedy", "5 beams"):

        def own(name: str = name) -> Tensor:
            with precision(sides, half):
                return sides.captioner.generate(sides.images, Decoding(max_new_tokens=LONGEST, **WAYS[name][1])).tokens

        def other(own: Callable[[], Tensor] = own) -> Tensor:
            FixedDecoderSteps._through_layers = by_fused  # type: ignore[method-assign]
            try:
                return own()
            finally:
                FixedDecoderSteps._through_layers = plain  # type: ignore[method-assign]

        first = seconds(other)
        alike = (own() == other()).all(dim=1)
        note = f"{int(alike.sum())} of {len(alike)} captions equal; compiled in {first:.0f} s"
        yield compare(f"{name}, ours against ours compiled", own, other, repeats, note)


ROWS = {"drawing": drawing, "dico": dico, "scst": scst, "vlrm": vlrm}
FURTHER = {"compiled": compiled}
"""Rows that are measured where they are asked for."""


def rows(sides: Sides, repeats: int, wanted: Sequence[str]) -> Iterator[Measured]:
    """The wanted rows of a model."""
    halves = (False, True) if sides.kind.dtype is torch.float32 else (True,)
    for half in halves:
        for name, measure in (ROWS | FURTHER).items():
            if name in ("dico", "scst", "vlrm") and sides.kind.images < len(sides.images):
                sides.images = sides.images_of(sides.kind.images).to(sides.device)
            if name in wanted and (half or name in ("drawing", "dico")):
                yield from measure(sides, repeats, half)


HEAD = "| model | row | Hugging Face, ms | ours without graphs, ms | ours, ms | ratio | busy (peer) | GiB (peer) | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--rows", nargs="+", choices=(*ROWS, *FURTHER), default=tuple(ROWS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "no GPU: this benchmark needs CUDA.\n")
    lines = [HEAD, "|---|---|---|---|---|---|---|---|---|"]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", *lines, sep="\n")
    for name in options.model:
        sides = Sides(KINDS[name], torch.device("cuda"))
        for measured in rows(sides, options.repeats, options.rows):
            lines.append(f"| {' | '.join([KINDS[name].title, *measured.cells()])} |")
            print(lines[-1], flush=True)
        del sides
        torch.cuda.empty_cache()
    if options.docs:
        write_table(options.docs, "gpu", lines)


if __name__ == "__main__":
    main()
