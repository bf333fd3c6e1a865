"""How likely captions are as text, without their images, under a causal language model: a reward and a measure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from tellapart.errors import UsageError, reason_of
from tellapart.files import existing
from tellapart.listeners.loading import called, complete, model_digest, vocabulary_of
from tellapart.processors import read_tokenizer
from tellapart.progress import track
from tellapart.types import Rollout

logger = logging.getLogger(__name__)

TOKENS_AT_ONCE = 2048
"""Tokens of a pass, padding counted: its logits are the largest thing in memory."""

LOGITS_AT_ONCE = 2**24
"""Logits held in float32 at a time: 64 MiB, and as much again for their softmax."""

MANY = 2000
"""Texts from which on there is a bar."""


@dataclass(frozen=True)
class TextScores:
    """What a language model says of N texts.

    Args:
        logprobs: ``[N]`` float64 on the CPU, natural log-probability of each text: the sum over its tokens.
        tokens: ``[N]`` long on the CPU, how many tokens that were.
    """

    logprobs: Tensor
    tokens: Tensor

    def mean(self) -> Tensor:
        """``[N]`` log-probability per token; NaN for a text without tokens."""
        return self.logprobs / self.tokens


class LanguageModel:
    """A causal language model of transformers (GPT-2, OPT, Llama and the like) with its tokenizer.

    A text is scored given the start of a text: BOS, or EOS where the tokenizer has no BOS (GPT-2's is both). Its first
    token therefore counts; only a tokenizer without either leaves it out. Special tokens that the tokenizer would add
    on its own are not added.

    It is deliberately no ``nn.Module``: an objective that holds one as its reward neither trains nor saves it.

    Args:
        model: gives logits of the next token.
        tokenizer: of that model.
        name: what a line of how something was measured calls it.
        tokens_at_once: tokens of a pass, padding counted; it changes no score.

    Raises:
        UsageError: the tokenizer has more tokens than the model, or the model reads ahead.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "language model", tokens_at_once: int = TOKENS_AT_ONCE
    ) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.tokenizer, self.name, self.tokens_at_once = tokenizer, name, tokens_at_once
        known = self.model.get_input_embeddings().num_embeddings
        if len(tokenizer) > known:
            raise UsageError(
                f"the tokenizer of {name} has {len(tokenizer)} tokens but its model {known}: give a folder "
                "where both belong together."
            )
        first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        self._start = [] if first is None else [first]
        self._longest = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self._told_of_cutting = False
        self._require_causal()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        tokens_at_once: int = TOKENS_AT_ONCE,
    ) -> LanguageModel:
        """A language model from a folder or a Hugging Face id.

        Args:
            path: the folder, or the id.
            dtype: of the weights; softmax and sums are at least float32 in any case.
            tokens_at_once: tokens of a pass, padding counted; it changes no score.

        Raises:
            UsageError: the folder does not exist, lacks a part, or holds another kind of model.
        """
        from transformers import AutoModelForCausalLM

        source = existing(path, "language model")
        try:
            model, tokenizer = complete(AutoModelForCausalLM, source, dtype), read_tokenizer(source)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            reason = reason_of(error)
            raise UsageError(
                f"the language model {path} cannot be loaded ({reason}): give a folder or an id of a causal one, such as gpt2."
            ) from error
        return cls(model, tokenizer, name=called(path), tokens_at_once=tokens_at_once)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> LanguageModel:
        """Move the model; returns the language model."""
        self.model.to(device)
        return self

    def fingerprint(self) -> str:
        """A hash of the weights, their precision and the vocabulary."""
        return model_digest(self.model, self.model.config.model_type, vocabulary_of(self.tokenizer))

    def identity(self) -> str:
        """Name, hash and precision, for a line of how something was measured."""
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        return f"{self.name} [{self.fingerprint()[:12]}, {dtype}]"

    def score(self, texts: Sequence[str], *, end: bool | Sequence[bool] = False) -> TextScores:
        """The log-probabilities of texts, without gradient; each distinct one is computed once, among others of its
        length. White space around a text is left out. A text longer than the model can read is cut, with a warning.

        Args:
            texts: N of them.
            end: whether EOS after the text is a token of it, for all or for each. Without it an empty text has no
                tokens.

        Raises:
            UsageError: the end is to be scored, and the tokenizer has no EOS.
        """
        ends = [end] * len(texts) if isinstance(end, bool) else list(end)
        if any(ends) and self.tokenizer.eos_token_id is None:
            raise UsageError(f"the tokenizer of {self.name} has no end token: score texts without their end.")
        wanted = [(text.strip(), closed) for text, closed in zip(texts, ends, strict=True)]
        row = {pair: i for i, pair in enumerate(dict.fromkeys(wanted))}
        rows = self._ids(list(row))
        logprobs = torch.zeros(len(rows), dtype=torch.float64)
        tokens = torch.tensor([max(len(ids) - 1, 0) for ids in rows], dtype=torch.long)
        batches = self._batches(rows)
        for batch in track(batches, f"{self.name}: reading captions") if len(rows) >= MANY else batches:
            logprobs[batch] = self._logprobs([rows[i] for i in batch])
        index = torch.tensor([row[pair] for pair in wanted], dtype=torch.long)
        return TextScores(logprobs[index], tokens[index])

    @property
    def longest(self) -> int | None:
        """Most tokens that the model can read, the start counted; None where it has no limit."""
        return self._longest

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a prompt that an answer follows: in the tokenizer's chat template if it has one, else after the start."""
        if getattr(self.tokenizer, "chat_template", None):
            turn = [{"role": "user", "content": text}]
            written = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
            return list(self.tokenizer(written, add_special_tokens=False)["input_ids"])
        return [*self._start, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def next_token(self, prompts: Sequence[Sequence[int]], ids: Sequence[Sequence[int]]) -> Tensor:
        """``[N, K]`` float64 on the CPU: natural log-probability that one of K sets of tokens comes next, without gradient.

        Args:
            prompts: ids of N texts, at most ``longest`` each; each distinct one is read once.
            ids: K sets of token ids, whose probabilities are summed.
        """
        row = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        rows = [list(prompt) for prompt in row]
        found = torch.zeros(len(rows), len(ids), dtype=torch.float64)
        batches = self._batches(rows, least=1)
        for batch in track(batches, f"{self.name}: answering") if len(rows) >= MANY else batches:
            found[batch] = self._next([rows[i] for i in batch], ids)
        return found[torch.tensor([row[tuple(prompt)] for prompt in prompts], dtype=torch.long)]

    @torch.no_grad()
    def _next(self, rows: Sequence[list[int]], ids: Sequence[Sequence[int]]) -> Tensor:
        with torch.autocast(self.device.type, enabled=False):
            _, mask, logits = self._forward(rows)
            last = logits[torch.arange(len(rows), device=logits.device), mask.sum(dim=1) - 1]
            logprobs = last.float().log_softmax(dim=-1)
        return torch.stack([logprobs[:, list(own)].logsumexp(dim=1) for own in ids], dim=1).double().cpu()

    def _ids(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Start, tokens and, where it counts, the end; cut to what the model can read."""
        found = self.tokenizer([text for text, _ in texts], add_special_tokens=False)["input_ids"] if texts else []
        last = [self.tokenizer.eos_token_id]
        rows = [[*self._start, *ids, *(last if end else ())] for ids, (_, end) in zip(found, texts, strict=True)]
        cut = 0 if self._longest is None else sum(len(ids) > self._longest for ids in rows)
        if cut and not self._told_of_cutting:
            self._told_of_cutting = True
            logger.warning(
                "%s: %d of %d texts are longer than %d tokens and cut.", self.name, cut, len(rows), self._longest
            )
        return [ids[: self._longest] for ids in rows]

    def _batches(self, rows: Sequence[list[int]], *, least: int = 2) -> list[list[int]]:
        """Rows of at least N tokens, the longest first, so that a pass too large fails at once."""
        batches: list[list[int]] = []
        width = 0
        for i in sorted((i for i, ids in enumerate(rows) if len(ids) >= least), key=lambda i: -len(rows[i])):
            if not batches or (len(batches[-1]) + 1) * width > self.tokens_at_once:
                batches.append([])
                width = len(rows[i])
            batches[-1].append(i)
        return batches

    @torch.no_grad()
    def _logprobs(self, rows: Sequence[list[int]]) -> Tensor:
        """``[M]`` float64 sums over all tokens but the first; padded on the right, where no token of a causal model looks."""
        with torch.autocast(self.device.type, enabled=False):
            ids, mask, logits = self._forward(rows)
            row, place = mask[:, 1:].nonzero(as_tuple=True)
            sums = torch.zeros(len(rows), dtype=torch.float64)
            size = max(1, LOGITS_AT_ONCE // logits.shape[-1])
            for some_rows, places in zip(row.split(size), place.split(size), strict=True):
                targets = ids[some_rows, places + 1]
                found = -nn.functional.cross_entropy(logits[some_rows, places].float(), targets, reduction="none")
                sums.index_add_(0, some_rows.cpu(), found.double().cpu())
        return sums

    def _forward(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """``(ids [M, T], mask [M, T], logits [M, T, V])``; padding is token 0, which the mask hides."""
        lengths = torch.tensor([len(ids) for ids in rows])
        padded = [nn.functional.pad(torch.tensor(ids), (0, int(lengths.max()) - len(ids))) for ids in rows]
        ids, mask = torch.stack(padded), torch.arange(int(lengths.max())) < lengths[:, None]
        ids, mask = ids.to(self.device), mask.to(self.device)
        return ids, mask, self.model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits

    @torch.no_grad()
    def _require_causal(self) -> None:
        """Raise if a token's logits depend on what follows it, as a masked language model's do."""
        last = min(len(self.tokenizer), 6) - 1
        logits = self._forward([[0, last, 0, 1], [0, last, 0, last]])[2].float()
        if not torch.allclose(logits[0, :3], logits[1, :3], rtol=1e-2, atol=1e-2):
            raise UsageError(
                f"{self.name} reads ahead: give a causal language model, such as gpt2 or facebook/opt-125m."
            )


class MeanLogProbability:
    """The log-probability of a caption per token, below 0 and nearer to it the more likely the caption: ``ref`` of VLRM
    (Dzabraev, Kunitsyn and Ivaniuta 2024, section 3.4, there "a logarithm of perplexity", which is its negative).

    EOS is one of a caption's tokens where the caption ended with EOS. An empty caption is worth the log-probability of
    ending at once, whether it ended or not: it would otherwise be worth more than any other.

    Departs from the paper: the text is cut into the language model's own tokens, also where those of the captioner are
    the same model's.

    Args:
        language_model: frozen.
        end: count EOS at all.
    """

    def __init__(self, language_model: LanguageModel, *, end: bool = True) -> None:
        self.language_model, self.end = language_model, end

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient.

        Raises:
            UsageError: EOS counts, or a caption is empty, and the tokenizer has none.
        """
        ends = [self.end and done for done in rollout.finished.tolist()]
        scores = self.language_model.score(rollout.texts, end=ends)
        mean, empty = scores.mean(), scores.tokens == 0
        if empty.any():
            mean[empty] = self.language_model.score([""], end=True).mean()
        return mean.to(rollout.image.device, torch.float32)
