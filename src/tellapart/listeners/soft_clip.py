"""CLIP's text tower, fed with distributions over a captioner's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.trained import TrainedListener, freeze_temperature, freeze_vision
from tellapart.listeners.words import ANY_LISTENER, Words, ids_in, role_id

_SURELY = 1 - 1e-3
"""Least probability at which a vector is taken for a one-hot one: straight-through vectors carry rounding."""


class SoftClip(TrainedListener):
    """A CLIP listener that also reads distributions over a captioner's words, as PSST needs (Vered et al., ICCV 2019,
    section 4; there the listener is a GRU): each enters as ``word_vector @ token embedding``.

    Everything else is the model's own: prefix, positions, causal mask, pooling at EOS. A caption that was cut before its EOS
    gets one, and one that is too long loses its last words, as texts do. So tokens give what ``embed_texts`` of the decoded
    caption gives, if no special token is within it.

    Image side and temperature are frozen here: images are embedded once, and only the text side learns. Its folder in a
    checkpoint is a listener's.

    Args:
        listener: a CLIP; SigLIP pools at a fixed place behind the padding and is not supported.
        words: the captioner's vocabulary.

    Raises:
        UsageError: the listener is not a CLIP, lacks a word of the captioner, or its prefix fills it.
    """

    def __init__(self, listener: ClipListener, words: Words) -> None:
        super().__init__(listener)
        config = listener.model.config
        if config.model_type != "clip":
            raise UsageError(
                f"the listener {listener.source} is a {config.model_type!r} model, which cannot read distributions over "
                f"words: take a CLIP or a VSE, or choose {ANY_LISTENER}."
            )
        ids = ids_in(listener.tokenizer, words, reader=f"the listener {listener.source}")
        lead = torch.tensor(listener.leading_ids(), dtype=torch.long)
        self._room = config.text_config.max_position_embeddings - len(lead)  # words and EOS
        if self._room < 2:
            raise UsageError(
                f"the prefix {listener.prefix!r} leaves no tokens for a caption in the listener {listener.source}: "
                "shorten listener.prefix."
            )
        self._eos = role_id(listener.tokenizer, "eos")
        self._ids: Tensor
        self._lead: Tensor
        self._ends: Tensor
        self.register_buffer("_ids", ids, persistent=False)
        self.register_buffer("_lead", lead, persistent=False)
        self.register_buffer("_ends", torch.tensor(words.eos, dtype=torch.long), persistent=False)
        self.to(listener.device)
        freeze_vision(listener)
        freeze_temperature(listener)

    @property
    def _embedding(self) -> nn.Embedding:
        return self.listener.model.text_model.embeddings.token_embedding

    def embed_words(self, words: Tensor, mask: Tensor, finished: Tensor | None = None) -> Tensor:
        """``[N, D]``, unit norm, of captions given as vectors over the captioner's vocabulary.

        Args:
            words: ``[N, T, V]``, each a distribution over the vocabulary, or one-hot.
            mask: ``[N, T]`` bool, true on every real word up to and including the first EOS.
            finished: ``[N]`` bool, captions whose last real word was drawn as EOS: its vector, which may be a distribution,
                is where the tower pools. None: those whose last vector is EOS; behind others EOS is added.
        """
        weight = self._embedding.weight
        if finished is None:
            finished = _last(words.detach()[:, :, self._ends].sum(dim=2) > _SURELY, mask)
        return self._embed(words.to(weight.dtype) @ weight[self._ids], mask, finished)

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """``[N, D]``, unit norm, of captions as ``[N, T]`` ids of the captioner's vocabulary: the same as one-hot words."""
        ended = _last(torch.isin(tokens, self._ends), mask)
        return self._embed(self._embedding(self._ids[tokens]), mask, ended)

    def _embed(self, vectors: Tensor, mask: Tensor, ended: Tensor) -> Tensor:
        """``[N, D]`` of ``[N, T, width]`` word vectors; ``ended [N]`` tells whether the last one is an EOS."""
        # The place of EOS: that of its own, else behind the last word, else the last one there is.
        own = mask.sum(dim=1) - ended.long()
        place = own.clamp(max=self._room - 1)
        width = int(place.max()) + 1
        vectors = nn.functional.pad(vectors, (0, 0, 0, max(width - vectors.shape[1], 0)))[:, :width]
        at = torch.arange(width, device=mask.device)
        given = (at < place[:, None]) | ((at == place[:, None]) & (ended & (own == place))[:, None])
        eos = self._embedding(torch.full_like(place, self._eos))[:, None]
        vectors = torch.where(given[:, :, None], vectors, torch.where((at == place[:, None])[:, :, None], eos, 0.0))
        lead = self._embedding(self._lead)[None].expand(len(vectors), -1, -1)
        return self._read(torch.cat([lead, vectors], dim=1), place + len(self._lead))

    def _read(self, vectors: Tensor, place: Tensor) -> Tensor:
        """``[N, D]``: the tower's output where ``place [N]`` says that EOS is."""
        at = torch.arange(vectors.shape[1], device=vectors.device)
        # The tower takes ids, by which it finds EOS; what it embeds is replaced.
        ids = torch.where(at == place[:, None], self._eos, int(self._eos == 0))
        with _embedded_as(self._embedding, vectors):
            mask = (at <= place[:, None]).long()
            found = self.listener.model.get_text_features(input_ids=ids, attention_mask=mask).pooler_output
        return nn.functional.normalize(found.to(torch.promote_types(found.dtype, torch.float32)), dim=-1)


def _last(flags: Tensor, mask: Tensor) -> Tensor:
    """``[N]``: each row's flag at its last real word."""
    return flags.gather(1, (mask.sum(dim=1) - 1).clamp(min=0)[:, None])[:, 0]


@contextmanager
def _embedded_as(layer: nn.Module, vectors: Tensor) -> Iterator[None]:
    """While the block runs, the layer gives these vectors, whatever it is given."""
    handle = layer.register_forward_hook(lambda module, inputs, output: vectors)
    try:
        yield
    finally:
        handle.remove()
