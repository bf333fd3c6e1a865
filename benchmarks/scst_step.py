"""One SCST step against the pattern of the field's standard code, in one run.

    OMP_NUM_THREADS=1 python benchmarks/scst_step.py [--model lstm transformer] [--pairs 5] [--docs benchmarks/README.md]
        [--code ImageCaptioning.pytorch]

10 images, 5 samples each, 2,048-wide features, 9,487 words, 20 tokens, CIDEr-D, greedy baseline, Adam. ``lstm`` is the fully
connected one (512 units); ``transformer`` has 6 + 6 layers of width 512 over 36 places of the image.

The standard pattern (as in ImageCaptioning.pytorch, written anew here): the greedy caption without a graph, then a sampling
loop that keeps the graph and writes each step's log-probabilities of all words into ``[50, 20, V]``; the transformer keeps keys
and values, as that code does with its cached variant. Its reward is pycocoevalcap's CIDEr-D scorer, the code that it carries
a copy of. Ours: everything is drawn without a graph, then scored in one pass that reads the products of drawing, with this
package's reward. Both have the same model and optimiser, fused Adam. The GEMM share is what a step's matrix products need at the
rate of one product of 1024 x 1024 x 1024. The standard step is taken twice: with torch's own
products, as that code has them, and with this package's (``tellapart.products``). Times are medians of interleaved CPU seconds;
gradients and rewards are compared on the same samples.

With ``--code``, a checkout of https://github.com/ruotianluo/ImageCaptioning.pytorch (which needs six and yacs), its own models
take a further standard step: ``NewFCModel``, and the cached transformer over 36 features of the image. They have the same widths,
layers, words and reward, weights of their own, and no dropout, so that they need not draw masks.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from cider_reward import Peer
from engine import gemm_rate, operations_of, processor
from tables import spread, write_table
from torch import Tensor
from transformers import (
    CLIPImageProcessorPil,
    GPT2Config,
    GPT2LMHeadModel,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTModel,
)

from tellapart import products
from tellapart.captioners.fresh import fresh_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.objectives.scst import SCST, Experience
from tellapart.ops import first_eos_mask
from tellapart.rewards.reference import CiderD, DocumentFrequencies
from tellapart.types import Batch, Rollout

IMAGES, SAMPLES, LONGEST, WORDS = 10, 5, 20, 9487


def sentences(draw: np.random.Generator, count: int) -> list[str]:
    """Sentences of 8 to 13 words, frequent words far more frequent."""
    weights = 1 / np.arange(1, WORDS + 1)
    chosen = draw.choice(WORDS, size=(count, 13), p=weights / weights.sum())
    return [" ".join(f"w{i}" for i in row[: draw.integers(8, 14)]) for row in chosen]


def lstm(vocabulary: list[str]) -> tuple[HuggingFaceCaptioner, dict[str, Tensor]]:
    """The captioner, and the features of the images."""
    captioner = fresh_captioner("fc_lstm", vocabulary, feature_size=2048, min_count=1, max_caption_tokens=LONGEST)
    return captioner, {"features": torch.randn(IMAGES, 2048)}


def transformer(vocabulary: list[str]) -> tuple[HuggingFaceCaptioner, dict[str, Tensor]]:
    """The captioner, and the pixels of the images."""
    tokenizer = fresh_captioner("fc_lstm", vocabulary, feature_size=8, hidden_size=8, min_count=1).tokenizer
    width = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8}
    tower = ViTModel(ViTConfig(image_size=96, patch_size=16, **width), add_pooling_layer=False)
    text = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=512, n_layer=6, n_head=8, add_cross_attention=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = VisionEncoderDecoderModel(encoder=tower, decoder=GPT2LMHeadModel(text))
    model.config.decoder_start_token_id = tokenizer.bos_token_id
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    processor = CLIPImageProcessorPil(size={"height": 96, "width": 96}, crop_size={"height": 96, "width": 96})
    captioner = HuggingFaceCaptioner.from_parts(model, processor, tokenizer)
    return captioner, {"pixel_values": torch.randn(IMAGES, 3, 96, 96)}


class LstmPattern:
    """The next word's log-probabilities, a step at a time."""

    def __init__(self, model, inputs, count):
        self.model, self.features = model, inputs["features"].repeat_interleave(count, 0)
        self.state = None

    def step(self, tokens: Tensor) -> Tensor:
        """``[N, V]`` after ``tokens [N, t]``, which begin with BOS."""
        if self.state is None:
            self.state = self.model.start(self.features)
        states, self.state = self.model.run(self.model.embedding(tokens[:, -1:]), self.state, (), None)
        return self.model.head(states[:, 0]).log_softmax(dim=-1)


class TransformerPattern:
    """The same with keys and values kept."""

    def __init__(self, model, inputs, count):
        self.model, self.past = model, None
        self.memory = model.encoder(pixel_values=inputs["pixel_values"]).last_hidden_state.repeat_interleave(count, 0)

    def step(self, tokens: Tensor) -> Tensor:
        """``[N, V]``."""
        found = self.model.decoder(
            input_ids=tokens[:, -1:], encoder_hidden_states=self.memory, past_key_values=self.past, use_cache=True
        )
        self.past = found.past_key_values
        return found.logits[:, -1].log_softmax(dim=-1)


PATTERNS = {"lstm": (lstm, LstmPattern), "transformer": (transformer, TransformerPattern)}


def draw(pattern, captioner, *, sample: bool) -> tuple[Tensor, Tensor]:
    """``(tokens [N, T], log-probabilities [N, T, V])``, a word at a time."""
    count = IMAGES * (SAMPLES if sample else 1)
    end = captioner.eos_token_ids[0]
    tokens = torch.full((count, LONGEST), end)
    logprobs = torch.zeros(count, LONGEST, captioner.family.vocab_size)
    prefix = torch.full((count, 1), captioner.tokenizer.bos_token_id)
    going = torch.ones(count, dtype=torch.bool)
    for t in range(LONGEST):
        step = pattern.step(prefix)
        word = torch.multinomial(step.detach().exp(), 1)[:, 0] if sample else step.argmax(dim=1)
        tokens[:, t] = torch.where(going, word, end)
        logprobs[:, t] = step
        going = going & (tokens[:, t] != end)
        prefix = torch.cat([prefix, tokens[:, t : t + 1]], dim=1)
        if not going.any():
            break
    return tokens, logprobs


class PlainReward:
    """CIDEr-D of a rollout by pycocoevalcap's scorer, the end of a caption as a word."""

    def __init__(self, references: dict[str, list[str]]) -> None:
        self.words = {
            name: [f"{text} eos" for text in ptb_tokenize(texts, alone=True)] for name, texts in references.items()
        }
        self.peer = Peer(self.words)

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]``."""
        said = zip(rollout.texts, rollout.finished.tolist(), rollout.ids(), strict=True)
        pairs = [(f"{text} eos" if finished else text, self.words[name]) for text, finished, name in said]
        return torch.from_numpy(self.peer(pairs)).float()


def rollout_of(captioner, batch: Batch, tokens: Tensor) -> Rollout:
    mask, finished = first_eos_mask(tokens, captioner.eos_token_ids)
    texts = captioner.tokenizer.batch_decode(
        torch.where(mask, tokens, captioner.tokenizer.pad_token_id), skip_special_tokens=True
    )
    image = torch.arange(IMAGES).repeat_interleave(len(tokens) // IMAGES)
    return Rollout(batch, image, texts, tokens, mask, finished)


def standard(captioner, batch: Batch, reward: Callable, make: Callable) -> tuple[Rollout, Tensor]:
    """Draws with the graph kept, back-propagates; gives the samples and their advantage."""
    inputs = batch.inputs[captioner.name]
    with torch.no_grad():
        greedy = rollout_of(captioner, batch, draw(make(captioner.family.model, inputs, 1), captioner, sample=False)[0])
    tokens, logprobs = draw(make(captioner.family.model, inputs, SAMPLES), captioner, sample=True)
    rollout = rollout_of(captioner, batch, tokens)
    advantage = reward(rollout) - reward(greedy)[rollout.image]
    chosen = logprobs.gather(2, tokens[..., None])[..., 0]
    (-(advantage[:, None] * chosen * rollout.mask).sum() / rollout.mask.sum()).backward()
    return rollout, advantage


def ours(objective: SCST, batch: Batch) -> None:
    """Collect, and back-propagate."""
    with torch.no_grad():
        experience = objective.collect(batch, 0)
    for piece in objective.losses(experience):
        (piece.loss / piece.weight).backward()


def gradients(module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def compared(captioner, batch: Batch, reward: CiderD, plain: PlainReward, make: Callable) -> float:
    """Relative difference of the two gradients on the same samples."""
    captioner.zero_grad()
    rollout, advantage = standard(captioner, batch, plain, make)
    torch.testing.assert_close(reward(rollout), plain(rollout), rtol=0, atol=1e-6)
    expected = gradients(captioner)
    captioner.zero_grad()
    encoded = captioner.reusable(captioner.encode(batch))
    for piece in SCST(captioner, reward).losses(Experience(rollout, encoded, advantage, None, {})):
        (piece.loss / piece.weight).backward()
    return float((gradients(captioner) - expected).norm() / expected.norm())


OPTIONS = {
    "lstm": {"caption_model": "newfc", "rnn_size": 512, "num_layers": 1},
    "transformer": {"caption_model": "transformer", "cached_transformer": True, "rnn_size": 2048, "num_layers": 6},
}
"""Of the models in ``--code``, as its configurations call them."""


class Code:
    """A step by the models and the loss of a checkout of ImageCaptioning.pytorch.

    Args:
        folder: the checkout.
        model: of ``OPTIONS``.
        ids: of the images.
        plain: the reward.
    """

    def __init__(self, folder: Path, model: str, ids: list[str], plain: PlainReward) -> None:
        sys.path.insert(0, str(folder))
        with contextlib.redirect_stdout(io.StringIO()):  # it tells that its scorers are missing
            from captioning.models import setup
            from captioning.modules.losses import RewardCriterion
        sizes = {"vocab_size": WORDS, "input_encoding_size": 512, "att_hid_size": 512, "max_length": LONGEST}
        sizes |= {"fc_feat_size": 2048, "att_feat_size": 2048, "drop_prob_lm": 0, "dropout": 0}
        self.words = ["eos", *(f"w{i}" for i in range(WORDS))]
        vocab = {str(number): word for number, word in enumerate(self.words)}
        self.model = setup(argparse.Namespace(vocab=vocab, rnn_type="lstm", **sizes, **OPTIONS[model]))
        self.loss, self.ids, self.plain = RewardCriterion(), ids, plain
        self.features = torch.randn(IMAGES, 2048), torch.randn(IMAGES, 36, 2048)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5, fused=True)

    def reward(self, drawn: Tensor) -> Tensor:
        """``[N]`` of ``drawn [N, T]``, image by image."""
        count = len(drawn) // IMAGES
        pairs = []
        for row, words in enumerate(drawn.tolist()):
            ended = words[: words.index(0) + 1] if 0 in words else words
            pairs.append((" ".join(self.words[word] for word in ended), self.plain.words[self.ids[row // count]]))
        return torch.from_numpy(self.plain.peer(pairs)).float()

    def __call__(self) -> None:
        """Greedy captions in eval mode, samples in train mode, its loss, and Adam."""
        self.optimizer.zero_grad()
        self.model.eval()
        with torch.no_grad():
            greedy, _ = self.model(*self.features, None, opt={"sample_method": "greedy", "beam_size": 1}, mode="sample")
        self.model.train()
        how = {"sample_method": "sample", "beam_size": 1, "sample_n": SAMPLES}
        drawn, logprobs = self.model(*self.features, None, opt=how, mode="sample")
        advantage = self.reward(drawn) - self.reward(greedy).repeat_interleave(SAMPLES)
        self.loss(logprobs, drawn, advantage[:, None].repeat(1, LONGEST)).backward()
        self.optimizer.step()


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(model: str, pairs: int, code: Path | None) -> list[str]:
    """Rows of the table."""
    torch.manual_seed(0)
    build, make = PATTERNS[model]
    generator = np.random.default_rng(0)
    captioner, inputs = build([f"w{i}" for i in range(WORDS)])
    captioner.eval().requires_grad_(True)
    references = {str(i): sentences(generator, 5) for i in range(2000)}
    reward, plain = CiderD(DocumentFrequencies.from_references(references)), PlainReward(references)
    ids = list(references)[:IMAGES]
    batch = Batch(ids, [references[i] for i in ids], {captioner.name: inputs})
    difference = compared(captioner, batch, reward, plain, make)
    runs = {}
    for name in ("ours", *STANDARDS):
        own = copy.deepcopy(captioner)
        optimizer = torch.optim.Adam(own.parameters(), lr=1e-5, fused=True)
        objective = SCST(own, reward, num_generations=SAMPLES, max_new_tokens=LONGEST)

        def run(name=name, own=own, optimizer=optimizer, objective=objective) -> None:
            optimizer.zero_grad()
            if name == "ours":
                ours(objective, batch)
            else:
                with STANDARDS[name]():
                    standard(own, batch, plain, make)
            optimizer.step()

        runs[name] = run
    if code is not None:
        runs["ruotianluo's code"] = Code(code, model, ids, plain)
    for run in runs.values():
        run()
    operations = {name: operations_of(run) for name, run in runs.items()}
    times, rates = {name: [] for name in runs}, []
    for _ in range(pairs):
        rates.append(gemm_rate())
        for name, run in runs.items():
            times[name].append(cpu_seconds(run))
    rate = statistics.median(rates)
    shares = {name: operations[name] / rate / statistics.median(times[name]) for name in runs}
    differences = dict.fromkeys(STANDARDS, f"{difference:.0e}")  # the code has other weights
    return [
        row(
            f"{model}, {name}",
            times[name],
            times["ours"],
            f"{differences.get(name, '')} | {shares[name]:.0%}, {shares['ours']:.0%}",
        )
        for name in runs
        if name != "ours"
    ]


@contextmanager
def torchs_products() -> Iterator[None]:
    """Linear layers as torch computes them."""
    before, products.RULES = products.RULES, {}
    try:
        yield
    finally:
        products.RULES = before


STANDARDS = {"torch's products": torchs_products, "our products": nullcontext}


def row(name: str, standard: list[float], own: list[float], further: str) -> str:
    cells = [name, *(f"{1000 * statistics.median(values):.0f}" for values in (standard, own))]
    ratios = [one / other for one, other in zip(standard, own, strict=True)]
    return f"| {' | '.join([*cells, spread(ratios, 2), further])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=tuple(PATTERNS), default=tuple(PATTERNS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--code", type=Path)
    options = parser.parse_args()
    if options.code is not None and not (options.code / "captioning" / "models").is_dir():
        parser.error(f"--code {options.code} is not a checkout of ImageCaptioning.pytorch: clone it there.")
    torch.set_num_threads(1)
    lines = [
        "| model, products of the standard step | standard, ms | ours, ms | ratio | gradients differ by | GEMM shares |",
        "|---|---|---|---|---|---|",
    ]
    for model in options.model:
        lines += measure(model, options.pairs, options.code)
    print(*lines, sep="\n")
    if options.docs:
        write_table(options.docs, f"scst step, {processor()}", lines)


if __name__ == "__main__":
    main()
