"""One caption from several of an image, written by a language model (IC3: Chan et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from tellapart.errors import UsageError, reason_of
from tellapart.files import existing
from tellapart.listeners.loading import called, complete
from tellapart.listeners.pairs import Precision
from tellapart.processors import read_tokenizer

PLACE = "{captions}"
PROMPT = (
    "Several people described the same picture, and some of them may be mistaken. Merge their descriptions into a single "
    "sentence with all details, and mark what remains uncertain.\n\n"
    f"Descriptions:\n{PLACE}\n\nSentence:"
)
"""Default prompt of the language model."""


@dataclass(frozen=True)
class Summary:
    """The caption that a language model wrote from several captions.

    Args:
        text: one line.
        finished: whether the model ended it, and did not run into the longest length.
        error: why there is none: the captions make a longer prompt than the model can read.
    """

    text: str
    finished: bool
    error: str | None = None


class Summarizer:
    """A language model that writes one caption from several captions of an image, greedily.

    IC3 (Chan, Myers, Vijayanarasimhan, Ross & Canny, *IC3: Image Captioning by Committee Consensus*, EMNLP 2023): captions are
    sampled from any captioner (10 in the paper), and a language model that does not see the image summarises them. The prompt
    has the paper's elements: the captions come from different people who may be wrong, and one detailed sentence is to cover
    all of them and to mark what is uncertain.

    Departures: the wording of the prompt is ours, and the answer is not begun for the model, as the released code does; the
    paper's language models (GPT-3) answer over a network, here any causal or sequence-to-sequence model of transformers runs
    locally. A model with a chat template gets the prompt as its user's turn. Only the first line of an answer counts, since
    a model without instruction tuning writes on.

    Args:
        model: writes the answer.
        tokenizer: of that model.
        prompt: what is asked, with ``{captions}`` in place of the captions, one per line.
        max_new_tokens: longest answer in tokens.

    Raises:
        UsageError: the prompt has no place for captions, ``max_new_tokens`` is below 1, or the model cannot read the prompt, even
            without captions, and write so much.

    Example:
        >>> summarize = Summarizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
        >>> summarize([["a dog on grass", "a brown dog running"]])[0].text
    """

    def __init__(self, model: Any, tokenizer: Any, *, prompt: str = PROMPT, max_new_tokens: int = 100) -> None:
        if PLACE not in prompt:
            raise UsageError(f"the prompt {prompt!r} has no place for the captions: write {PLACE} in it.")
        if max_new_tokens < 1:
            raise UsageError(f"a summary of at most {max_new_tokens} tokens says nothing: give at least 1.")
        self.model: Any = model.eval().requires_grad_(False)
        self.tokenizer, self.prompt, self.max_new_tokens = tokenizer, prompt, max_new_tokens
        self.reads_whole = bool(model.config.is_encoder_decoder)
        self._pad = _first_of(tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self._eos = _eos_ids(model, tokenizer)
        self.model.generation_config = self._greedy()
        self._longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if (alone := self._needed(self._ids(()))) > (self._longest or alone):
            raise UsageError(
                f"the summarizing model has places for {self._longest} tokens, and the prompt alone takes {alone} with those to "
                "write: shorten the prompt, allow fewer new tokens, or name another model."
            )

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, prompt: str = PROMPT, max_new_tokens: int = 100, dtype: Precision = "float32"
    ) -> Summarizer:
        """A summarizer from a folder or a Hugging Face id of a causal or sequence-to-sequence language model.

        Args:
            path: the folder, or the id.
            prompt: what is asked.
            max_new_tokens: longest answer in tokens.
            dtype: of the weights.

        Raises:
            UsageError: the folder does not exist, lacks a part, or holds another kind of model.
        """
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

        source = existing(path, "language model")
        try:
            whole = AutoConfig.from_pretrained(source).is_encoder_decoder
            model = complete(AutoModelForSeq2SeqLM if whole else AutoModelForCausalLM, source, dtype)
            tokenizer = read_tokenizer(source)
        except (OSError, ValueError, RuntimeError, AttributeError, SafetensorError) as error:
            reason = reason_of(error)
            raise UsageError(
                f"the language model {called(path)} cannot be loaded ({reason}): give a folder or an id of a causal or a "
                "sequence-to-sequence one."
            ) from error
        return cls(model, tokenizer, prompt=prompt, max_new_tokens=max_new_tokens)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> Summarizer:
        """Move the model; returns the summarizer."""
        self.model.to(device)
        return self

    def __call__(self, groups: Sequence[Sequence[str]]) -> list[Summary]:
        """One summary per group of captions, or why there is none; all groups in one batch."""
        rows = [self._ids(captions) for captions in groups]
        errors = [self._too_long(captions, row) for captions, row in zip(groups, rows, strict=True)]
        fit = [row for row, error in zip(rows, errors, strict=True) if error is None]
        summaries = iter(self._summaries(fit) if fit else [])
        return [next(summaries) if error is None else Summary("", False, error) for error in errors]

    def _summaries(self, rows: Sequence[Sequence[int]]) -> list[Summary]:
        ids, mask = self._padded(rows)
        with torch.no_grad():
            written = self.model.generate(input_ids=ids, attention_mask=mask)
        return [self._summary(row) for row in written[:, 1 if self.reads_whole else ids.shape[1] :].tolist()]

    def asked(self, captions: Sequence[str]) -> str:
        """The prompt with these captions, one per line; words that are special tokens of the model are left out of them."""
        special = {token for token in self.tokenizer.all_special_tokens if token.strip()}
        lines = []
        for caption in captions:
            for token in special:
                caption = caption.replace(token, " ")
            lines.append(f"- {' '.join(caption.split())}")
        return self.prompt.replace(PLACE, "\n".join(lines))

    def _ids(self, captions: Sequence[str]) -> list[int]:
        text, chats = self.asked(captions), bool(getattr(self.tokenizer, "chat_template", None))
        if chats:
            turn = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(text, add_special_tokens=not chats)["input_ids"]

    def _needed(self, ids: Sequence[int]) -> int:
        """Places that a prompt and what is written after it take."""
        return len(ids) if self.reads_whole else len(ids) + self.max_new_tokens

    def _too_long(self, captions: Sequence[str], ids: Sequence[int]) -> str | None:
        if self._longest is None or self._needed(ids) <= self._longest:
            return None
        return (
            f"{len(captions)} captions make a prompt of {len(ids)} tokens, but the summarizing model has places for "
            f"{self._longest}: sample fewer or shorter captions, or name another model."
        )

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids and mask; on the left for a model that writes on after the prompt, on the right for one that reads it whole."""
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self._pad)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            place = slice(0, len(row)) if self.reads_whole else slice(width - len(row), width)
            ids[i, place], mask[i, place] = torch.tensor(row), 1
        return ids.to(self.device), mask.to(self.device)

    def _summary(self, ids: Sequence[int]) -> Summary:
        end = next((place for place, token in enumerate(ids) if token in self._eos), len(ids))
        text = self.tokenizer.decode(ids[:end], skip_special_tokens=True).lstrip()
        line, newline, _ = text.partition("\n")
        return Summary(" ".join(line.split()), end < len(ids) or bool(newline))

    def _greedy(self) -> Any:
        """Greedy decoding with the model's own token ids; its other defaults may sample or demand a length."""
        from transformers import GenerationConfig

        own = self.model.generation_config
        kept = {
            name: getattr(own, name)
            for name in ("bos_token_id", "decoder_start_token_id", "forced_bos_token_id")
            if getattr(own, name, None) is not None
        }
        return GenerationConfig(
            do_sample=False, max_new_tokens=self.max_new_tokens, pad_token_id=self._pad, eos_token_id=self._eos, **kept
        )


def _eos_ids(model: Any, tokenizer: Any) -> list[int]:
    places = (model.generation_config.eos_token_id, model.config.get_text_config().eos_token_id, tokenizer.eos_token_id)
    found: Any = next((ids for ids in places if ids is not None), [])
    return list(found) if isinstance(found, list | tuple) else [int(found)]


def _first_of(*candidates: int | None) -> int:
    return next(value for value in candidates if value is not None)
