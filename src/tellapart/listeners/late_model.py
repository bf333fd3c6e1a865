"""Late interaction: every word of a text looks for what it says among the vectors of an image.

FILIP (Yao et al., ICLR 2022) and ColBERT (Khattab & Zaharia, SIGIR 2020) compare a word with an image by the highest dot
product among its tokens, and add up over words. There many right words outweigh a wrong one. Here every word of a *causal* text
tower gets a few such checks, each through a sigmoid: ``log p(true) = sum over words and checks of log sigmoid(max over
tokens of t.e + b)``. A single failed check outweighs everything, so a false word vetoes the text.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, logsigmoid
from transformers import (
    AutoConfig,
    AutoModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)

from tellapart.clip_frames import ClipFrames, ClipFramesConfig
from tellapart.listeners.kinds import LATE

EASY = 3.0
"""Offset of every check at the start: nearly all words are right, and a text is only as right as all its words together."""

WORDS = 64
"""Words compared with all images at once: their products stay in a processor's cache."""


class LateConfig(PreTrainedConfig):
    """Configuration of ``LateModel``.

    Args:
        vision: arguments of ``CLIPVisionConfig``; with ``model_type: clip_frames`` of ``ClipFramesConfig``, and images are clips.
        text: arguments of ``CLIPTextConfig``.
        dim: width of the vectors that are compared.
        checks: number of checks per word.
        hidden: width of the layer between image states and vectors.
        readings: sizes of groups of classes that frozen linear heads read off each token's state; each group goes through a
            softmax and joins the state. None reads nothing.
    """

    model_type: ClassVar[str] = LATE

    vision: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    dim: int = 64
    checks: int = 4
    hidden: int = 192
    readings: list[int] | None = None


class LateModel(PreTrainedModel):
    """An image tower and a causal text tower whose words check the image's tokens.

    Of clips, each token is the mean over frames of one place: a ``ClipFrames`` has read all frames together, so what happens
    there, and when, is in its states.

    Args:
        config: its shape.
    """

    config_class = LateConfig
    main_input_name = "pixel_values"
    base_model_prefix = ""

    def __init__(self, config: LateConfig) -> None:
        super().__init__(config)
        self.vision_model = _tower(config.vision or {})
        self.text_model = CLIPTextModel(CLIPTextConfig(**(config.text or {})))
        states, words = self.vision_model.config.hidden_size, self.text_model.config.hidden_size
        read = sum(config.readings or [])
        self.reading = nn.Linear(states, read)
        self.linear = nn.Linear(states + read, config.dim)
        self.hidden = nn.Linear(states + read, config.hidden)
        self.out = nn.Linear(config.hidden, config.dim)
        # Of the whole image, for what no single token shows: how many objects there are, and that there is another one.
        self.whole = nn.Linear(states + config.hidden, config.hidden)
        self.whole_out = nn.Linear(config.hidden, config.dim)
        pictures = self.vision_model.tower.config if self.num_frames else self.vision_model.config
        self.position = nn.Embedding(1 + (pictures.image_size // pictures.patch_size) ** 2, config.dim)
        self.queries = nn.Linear(words, config.checks * config.dim)
        self.offsets = nn.Linear(words, config.checks)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            initialization.normal_(module.weight, std=1.0)
        elif isinstance(module, nn.Linear):
            largest = module.in_features**-0.5  # as torch draws them
            initialization.uniform_(module.weight, -largest, largest)
            initialization.uniform_(module.bias, -largest, largest)
            if module is self.offsets:
                initialization.zeros_(module.weight)
                initialization.constant_(module.bias, EASY)

    @property
    def num_frames(self) -> int | None:
        """Frames of each clip; None for a model of pictures."""
        return getattr(self.vision_model.config, "num_frames", None)

    def image_states(self, pixel_values: Tensor) -> Tensor:
        """``[B, K, width]``: the tower's last states of pictures ``[B, 3, H, W]``, CLS first.

        Of clips ``[B, F, 3, H, W]``: their mean over frames.
        """
        states = self.vision_model(pixel_values=pixel_values).last_hidden_state
        return states if self.num_frames is None else states.unflatten(1, (self.num_frames, -1)).mean(dim=1)

    def image_vectors(self, states: Tensor) -> Tensor:
        """``[B, K, D]`` of states ``[B, K, width]``; the first represents the whole image."""
        width, groups = states.shape[-1], self.config.readings or []
        read = [group.softmax(dim=-1) for group in self.reading(states).split(list(groups), dim=-1)] if groups else []
        given = torch.cat([layer_norm(states, (width,)), *read], dim=-1)
        hidden = torch.relu(self.hidden(given[:, 1:]))
        tokens = self.linear(given[:, 1:]) + self.out(hidden)
        whole = torch.relu(self.whole(torch.cat([given[:, 0, :width], hidden.mean(dim=1)], dim=-1)))
        return torch.cat([self.whole_out(whole)[:, None], tokens], dim=1) + self.position.weight

    def word_checks(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """``([N, T, C, D], [N, T, C])``: what the checks of each word look for, and their offsets."""
        states = self.text_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        queries = self.queries(states).unflatten(-1, (self.config.checks, self.config.dim))
        return queries / self.config.dim**0.5, self.offsets(states)

    def forward(self, pixel_values: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """``[N]`` log-probability that each text is true of the image in its row."""
        vectors = self.image_vectors(self.image_states(pixel_values))
        words = counted(attention_mask)
        return (pair_logprobs(self.word_checks(input_ids, attention_mask), vectors) * words).sum(dim=1)


def _tower(vision: dict[str, Any]) -> Any:
    if vision.get("model_type") == ClipFramesConfig.model_type:
        return ClipFrames(ClipFramesConfig(**vision))
    return CLIPVisionModel(CLIPVisionConfig(**vision))


def counted(attention_mask: Tensor) -> Tensor:
    """``[N, T]`` bool: the words that are checked, and EOS, which marks a text that ends too soon; not BOS."""
    mask = attention_mask.bool().clone()
    mask[:, 0] = False
    return mask


def pair_logprobs(checks: tuple[Tensor, Tensor], vectors: Tensor) -> Tensor:
    """``[P, T]``: log-probability of every word of P texts that it is right of its own image.

    Args:
        checks: ``([P, T, C, D], [P, T, C])`` of the texts.
        vectors: ``[P, K, D]`` of their images.
    """
    queries, offsets = checks
    found = torch.einsum("ptcd,pkd->ptck", queries, vectors).amax(dim=-1)
    return logsigmoid(found + offsets).sum(dim=-1)


def word_logprobs(queries: Tensor, offsets: Tensor, vectors: Tensor) -> Tensor:
    """``[W, M]``: log-probability of each of W words, of whatever texts, that it is right of each of M images.

    Args:
        queries: ``[W, C, D]``, what their checks look for.
        offsets: ``[W, C]`` of the checks.
        vectors: ``[M, K, D]`` of the images.
    """
    images, tokens, dim = vectors.shape
    # Tokens before images: the highest of a few tokens is then found for many images at once.
    columns = vectors.transpose(0, 1).reshape(-1, dim).T
    found = queries.new_empty(len(queries), images)
    for start in range(0, len(queries), WORDS):
        some = slice(start, start + WORDS)
        products = queries[some].reshape(-1, dim) @ columns
        best = products.view(-1, offsets.shape[1], tokens, images).amax(dim=2)
        found[some] = logsigmoid(best + offsets[some, :, None]).sum(dim=1)
    return found


AutoConfig.register(LATE, LateConfig, exist_ok=True)
AutoModel.register(LateConfig, LateModel, exist_ok=True)
