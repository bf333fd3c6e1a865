"""A late-interaction listener: scores of pairs as a matcher, of all pairs as a retriever, embeddings for mining."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import compress
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from torch import Tensor

from tellapart.errors import UsageError, reason_of
from tellapart.files import existing, fresh_folder
from tellapart.frames import Opener, seen_as
from tellapart.listeners.batches import batches_by_length
from tellapart.listeners.cache import EmbeddingTable, NamedPicture, by_id
from tellapart.listeners.late_model import LateModel, counted, pair_logprobs, word_logprobs
from tellapart.listeners.loading import called, complete, model_digest, vocabulary_of
from tellapart.listeners.pairs import Precision
from tellapart.listeners.tokenized import TokenizedMatcher
from tellapart.processors import read_image_processor, read_tokenizer

SMALLEST = 1e-6
"""Probabilities nearer to 1 than this count as 1."""

TEXTS, IMAGES = 256, 1024
"""Texts and images that are compared at once; words that texts have in common are compared once."""


class LateListener(TokenizedMatcher):
    """A frozen ``LateModel`` with its processors.

    As a matcher it gives the natural logarithm of the probability that a text is true of its image, from minus infinity to 0.
    As a retriever it ranks all images for a text by the same number (``logprobs``). Texts are read once, whatever the
    number of images.

    Example:
        >>> listener = LateListener.from_pretrained("runs/verifier")
        >>> listener.cache_images(dataset)
        >>> listener.logprobs(["a red star"], dataset.ids).argmax()  # the image that it fits best
    """

    def __init__(
        self, model: Any, image_processor: Any, tokenizer: Any, *, name: str = "matcher", batch_size: int = 256
    ) -> None:
        """See ``from_pretrained``."""
        limit = model.text_model.config.max_position_embeddings
        sizes: dict[str, Any] = {"limit": limit, "batch_size": batch_size}
        super().__init__(model, image_processor, tokenizer, name=name, autocast="float32", **sizes)
        self._table = EmbeddingTable()
        self._table_of = ""  # fingerprint under which the table was filled

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, name: str = "matcher", batch_size: int = 256, dtype: Precision = "float32"
    ) -> LateListener:
        """A listener from a folder that ``save`` wrote.

        Args:
            path: the folder.
            name: key of its tensors in ``batch.inputs``.
            batch_size: most images, and most texts, read at once; it changes no value.
            dtype: of the weights.

        Raises:
            UsageError: it does not exist, lacks a part, or is another kind of model.
        """
        source = existing(path, "listener")
        try:
            model = complete(LateModel, source, dtype)
            processor = read_image_processor(source)
            listener = cls(model, processor, read_tokenizer(source), name=name, batch_size=batch_size)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(f"the listener {path} cannot be loaded ({reason_of(error)}): check the folder.") from error
        listener.source = called(path)
        return listener

    def save(self, folder: Path) -> None:
        """Write what ``from_pretrained`` reads; replaces ``folder``."""
        with fresh_folder(folder) as temporary:
            for part in (self.model, self.image_processor, self.tokenizer):
                part.save_pretrained(temporary)

    @property
    def num_frames(self) -> int | None:
        """Frames that it reads of each clip; None where it reads pictures."""
        return self.model.num_frames

    def process(self, images: list[Any]) -> dict[str, Tensor]:
        """RGB images, or lists of frames -> ``{"pixel_values": [B, 3, H, W]}``, of clips ``[B, F, 3, H, W]``, on the CPU."""
        frames = self.num_frames
        if frames is None:
            return super().process(images)
        flat = super().process([frame for clip in images for frame in clip])["pixel_values"]
        return {"pixel_values": flat.unflatten(0, (-1, frames))}

    def fingerprint(self) -> str:
        """A hash of architecture, weights, image preprocessing and vocabulary."""
        configs = [self.model.config.to_dict(), self.image_processor.to_dict()]
        return model_digest(self.model, *configs, vocabulary_of(self.tokenizer))

    def describe(self) -> dict[str, Any]:
        """Model, backbone, first 12 digits of the fingerprint, and the scale of its scores."""
        frames = self.num_frames
        tower = (self.model.vision_model.tower if frames else self.model.vision_model).config
        seen = (
            f"late interaction, {tower.num_hidden_layers} layers of width {tower.hidden_size}, patch {tower.patch_size}"
        )
        if frames:
            seen += f", {self.model.vision_model.config.num_hidden_layers} layers over {frames} frames"
        described = {"model": self.source, "backbone": seen, "weights": self.fingerprint()[:12]}
        return described | {"scale": "log-probability"}

    def score(self, logits: Tensor) -> Tensor:
        """The log-probability that the text is true."""
        return logits[:, 1]

    def cache_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Compute the images' vectors once and keep them in memory; call it again after changing the weights.

        Equal pictures are read once, so that a text fits each of them equally well.

        Raises:
            UsageError: an id was cached for another picture before.
        """
        fingerprint = self.fingerprint()
        if fingerprint != self._table_of:
            self._table, self._table_of = EmbeddingTable(), fingerprint
        examples, opener = by_id(dataset), Opener.of(self.process)
        key_of = {name: seen_as(example.image, self.num_frames) for name, example in examples.items()}
        shown = {key: examples[name].image for name, key in key_of.items() if key not in self._table}
        keys, found = list(shown), dict[str, Tensor]()
        with torch.no_grad():
            for start in range(0, len(keys), self.batch_size):
                some = keys[start : start + self.batch_size]
                vectors = self.vectors(self.process([opener.single(shown[key]) for key in some]))
                found |= zip(some, vectors, strict=True)
        self._table.add(key_of, found)
        self.know_images(examples.values())

    def with_own_images(self) -> Self:
        """The same model, which knows no image yet: those of an evaluation may have the ids of training images."""
        other = copy(self)
        other._table, other._table_of, other._pictures = EmbeddingTable(), "", {}
        return other

    def vectors_of(self, ids: Sequence[str]) -> Tensor:
        """``[M, K, D]`` vectors of images passed to ``cache_images`` before.

        Raises:
            UsageError: an id is not among them.
        """
        return self._table.of(self._keys(ids))

    def _keys(self, ids: Sequence[str]) -> list[str]:
        try:
            return self._table.keys(ids)
        except KeyError as error:
            raise UsageError(
                f"the listener {self.name!r} has no vectors of image {error.args[0]!r}: cache the images of its data set first."
            ) from error

    def encode_ids(self, ids: Sequence[str]) -> Tensor:
        """``[M, K * D]``, unit norm: images compared token by token, for mining and galleries of look-alikes."""
        return torch.nn.functional.normalize(self.vectors_of(ids).flatten(1).float(), dim=1)

    @torch.no_grad()
    def logprobs(self, texts: Sequence[str], ids: Sequence[str]) -> Tensor:
        """``[N, M]`` float32 on the CPU, outside of any autocast: log-probability that each of N texts is true of each of M
        cached images.

        Raises:
            UsageError: an image was not cached.
        """
        with torch.autocast(self.device.type, enabled=False):
            return self._logprobs(texts, ids)

    def _logprobs(self, texts: Sequence[str], ids: Sequence[str]) -> Tensor:
        keys, distinct = self._keys(ids), sorted(set(texts))
        column_of = {key: column for column, key in enumerate(dict.fromkeys(keys))}
        vectors = self._table.of(column_of)
        found = torch.zeros(len(distinct), len(vectors))
        for start in range(0, len(distinct), TEXTS):
            rows = slice(start, start + TEXTS)
            queries, offsets, word_of, text_of = self._words(distinct[rows])
            for first in range(0, len(vectors), IMAGES):
                columns = slice(first, first + IMAGES)
                right = word_logprobs(queries, offsets, vectors[columns])
                found[rows, columns].index_add_(0, text_of, right[word_of].float().cpu())
        row_of = {text: row for row, text in enumerate(distinct)}
        found = found[[row_of[text] for text in texts]]
        return found if len(column_of) == len(ids) else found[:, [column_of[key] for key in keys]]

    def _words(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``([W, C, D], [W, C], [N], [N])``: the checks of the distinct words of texts, and of each of all N words, which of
        these it is and which text it is of.

        The tower is causal: words whose texts begin alike up to them are one, as they often are in beams of an image.
        """
        known = dict[tuple[int, ...], int]()
        queries, offsets, word_of, text_of = list[Tensor](), list[Tensor](), list[int](), list[int]()
        for rows, (tokens, mask) in self._batches(texts, 32):
            fresh = list[tuple[int, int]]()
            for place, (row, ids, counts) in enumerate(zip(rows, tokens.tolist(), counted(mask).tolist(), strict=True)):
                for word in compress(range(len(ids)), counts):
                    beginning = tuple(ids[: word + 1])
                    if beginning not in known:
                        known[beginning] = len(known)
                        fresh.append((place, word))
                    word_of.append(known[beginning])
                    text_of.append(row)
            if fresh:
                places, words = torch.tensor(fresh).T
                looked_for, shifts = self.model.word_checks(tokens, mask)
                queries.append(looked_for[places, words])
                offsets.append(shifts[places, words])
        return torch.cat(queries), torch.cat(offsets), torch.tensor(word_of), torch.tensor(text_of)

    def vectors(self, inputs: dict[str, Tensor]) -> Tensor:
        """``[B, K, D]`` of the tensors of ``process``, with gradients where they are enabled."""
        tower = next(self.model.vision_model.parameters())
        return self.model.image_vectors(self.model.image_states(inputs["pixel_values"].to(tower.device, tower.dtype)))

    def _batches(self, texts: Sequence[str], size: int) -> Iterator[tuple[list[int], tuple[Tensor, Tensor]]]:
        """Rows of similar length with their tokens."""
        ids = self.ids(texts)
        for rows in batches_by_length([len(row) for row in ids], size, self.device):
            yield rows, self.pad([ids[i] for i in rows])

    def _pairs(self, inputs: dict[str, Tensor], image: list[int], texts: list[str]) -> Tensor:
        vectors, of = self.vectors(inputs), torch.tensor(image, dtype=torch.long)
        found = torch.zeros(len(texts))
        for rows, (tokens, mask) in self._batches(texts, self.batch_size):
            words = pair_logprobs(self.model.word_checks(tokens, mask), vectors[of[rows].to(vectors.device)])
            found[rows] = (words * counted(mask)).sum(dim=1).float().cpu()
        # Two logits whose softmax is the probability.
        return torch.stack([torch.log(-torch.expm1(found.clamp(max=-SMALLEST))), found], dim=1)
