"""CLIP, Long-CLIP, SigLIP and SigLIP 2 as listeners: the frozen encoder of a reward, a judge, or a model to be trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from tellapart.errors import UsageError, preparing, reading_images, reason_of
from tellapart.files import cache_dir, fresh_folder, read_json, write_json
from tellapart.frames import Opener, frames_wanted, seen_as
from tellapart.listeners.batches import batches_by_length
from tellapart.listeners.cache import EmbeddingStore, EmbeddingTable, NamedPicture, by_id
from tellapart.listeners.loading import backbone, called, load_dual_encoder, model_digest, vocabulary_of
from tellapart.listeners.texts import TEXT_FAMILIES
from tellapart.ops import describe_weights
from tellapart.processors import require_known
from tellapart.progress import bar, track
from tellapart.sentences import split_sentences
from tellapart.types import Batch

logger = logging.getLogger(__name__)

PREFIX = "A photo depicts "
"""The prompt with which CLIP-S and PAC-S read captions (Hessel et al. 2021)."""

Pooling = Literal["whole", "sentence_mean", "sentence_max"]
"""How texts longer than a model reads become one embedding."""

SETTINGS = "listener.json"
_IMAGES_A_FILE = 4096


class ClipListener:
    """A transformers ``CLIPModel``, ``SiglipModel`` or ``Siglip2Model``, or a ``Clip4Clip``
    that reads clips, with its processors and its prompt.

    It is deliberately no ``nn.Module``: an objective that holds one as its reward neither trains nor saves it. Train
    ``.model`` through ``embed_images`` and ``embed_texts``, which carry gradients; ``encode_*`` never do and run in
    eval mode.

    Attributes:
        model: the encoder.
        name: key of its tensors in ``batch.inputs``.
        prefix: put before every text.
        batch_size: most images or texts encoded at once without gradients.
        text_pooling: how long texts are read: ``whole`` (cut where they are too long), or sentence by sentence, as the mean
            (``sentence_mean``) or the element-wise maximum (``sentence_max``) of the sentences' embeddings, scaled to unit norm.
            A text of one sentence has the same embedding in all three. A definition of our own.
        truncated: share (0 to 1) of the texts of the last encoding that were too long for the model and were cut.
        source: what the model was loaded from, as results call it.
    """

    def __init__(
        self,
        model: Any,
        image_processor: Any,
        tokenizer: Any,
        *,
        name: str = "listener",
        prefix: str = PREFIX,
        batch_size: int = 256,
        text_pooling: Pooling = "whole",
    ) -> None:
        """See ``from_parts``."""
        self.model: Any = model.eval()
        kind = self.model.config.model_type
        if kind not in TEXT_FAMILIES:
            raise UsageError(f"a listener of type {kind!r} is not supported: use one of {', '.join(TEXT_FAMILIES)}.")
        self.image_processor, self.tokenizer = image_processor, tokenizer
        self.name, self.prefix, self.batch_size, self.truncated = name, prefix, batch_size, 0.0
        self.text_pooling: Pooling = text_pooling
        self.source = kind
        self._texts = TEXT_FAMILIES[kind](tokenizer, self.model.config.text_config)
        self._table = EmbeddingTable()
        self._table_of = ""  # fingerprint under which the table was filled
        self._told_of_truncation = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source}, {describe_weights(self.model)}, prefix {self.prefix!r}, name {self.name!r})"

    @classmethod
    def from_parts(cls, model: Any, image_processor: Any, tokenizer: Any, **options: Any) -> ClipListener:
        """A listener of a model in memory; ``options`` are ``name``, ``prefix``, ``batch_size`` and
        ``text_pooling``.

        Raises:
            UsageError: the model is of another family, or model and tokenizer disagree on EOS.
        """
        return cls(model, image_processor, tokenizer, **options)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        name: str = "listener",
        prefix: str | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        batch_size: int = 256,
        base: str | Path | None = None,
        text_pooling: Pooling = "whole",
    ) -> ClipListener:
        """A listener from a folder, a Hugging Face id, or a checkpoint file in OpenAI's layout.

        Args:
            path: the folder, the id of a CLIP or SigLIP model, or a ``.pth`` file such as the encoder of PAC-S.
            name: key of its tensors in ``batch.inputs``.
            prefix: put before every text; by default what ``save`` stored, else ``"A photo depicts "``.
            dtype: of the weights; embeddings are float32 in any case.
            batch_size: most images or texts encoded at once without gradients.
            text_pooling: how long texts are read; see the attribute.
            base: for a ``.pth`` file, whose tokenizer and image processor go with it; by default OpenAI's ViT-B/32.

        Raises:
            UsageError: the folder does not exist, lacks a part, or holds another kind of model.
        """
        model, processor, tokenizer = load_dual_encoder(path, dtype, base=base)
        if prefix is None:
            prefix = _stored_prefix(Path(path).expanduser() / SETTINGS)
        options: dict[str, Any] = {"prefix": prefix, "batch_size": batch_size, "text_pooling": text_pooling}
        listener = cls(model, processor, tokenizer, name=name, **options)
        listener.source = called(path)
        return listener

    def save(self, folder: Path) -> None:
        """Model, processors and prompt, so that ``from_pretrained`` gives the same listener; replaces ``folder``. How long texts
        are pooled is not kept: whoever opens it says so."""
        with fresh_folder(folder) as temporary:
            for part in (self.model, self.image_processor, self.tokenizer):
                part.save_pretrained(temporary)
            write_json(temporary / SETTINGS, {"prefix": self.prefix})

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> ClipListener:
        """Move the model; returns the listener."""
        self.model.to(device)
        return self

    @property
    def logit_scale(self) -> nn.Parameter:
        """Scalar parameter: the logarithm of what cosines are multiplied by in the contrastive loss."""
        return self.model.logit_scale

    def fingerprint(self) -> str:
        """A hash of all that determines an embedding: architecture, weights, image preprocessing, vocabulary,
        prefix."""
        configs = [self.model.config.to_dict(), self.image_processor.to_dict()]
        pooling = () if self.text_pooling == "whole" else (self.text_pooling,)
        return model_digest(self.model, *configs, vocabulary_of(self.tokenizer), self.prefix, *pooling)

    def describe(self) -> dict[str, Any]:
        """Model, backbone, first 12 digits of the fingerprint, prefix and dtype: what a score by this listener belongs
        to."""
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        described = {"model": self.source, "backbone": backbone(self.model.config), "weights": self.fingerprint()[:12]}
        described |= {"prefix": self.prefix, "dtype": dtype}
        return described | ({} if self.text_pooling == "whole" else {"text_pooling": self.text_pooling})

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Of each text whether the model cannot take all of it; sentence by sentence, all of some sentence."""
        parts = self._parts(texts)
        ids = self._texts.ids([self.prefix + part for own in parts for part in own]) if texts else []
        cut = iter([len(self._texts.cut(row)) < len(row) for row in ids])
        return [max(next(cut) for _ in own) for own in parts]

    def _parts(self, texts: Sequence[str]) -> list[list[str]]:
        """The parts of each text that are read separately: its sentences, or all of it."""
        if self.text_pooling == "whole":
            return [[text] for text in texts]
        sentences = map(split_sentences, texts)
        return [own if len(own) > 1 else [text] for text, own in zip(texts, sentences, strict=True)]

    def _pooled(self, rows: Tensor, parts: Sequence[Sequence[str]]) -> Tensor:
        """``[M, D]`` of the parts' embeddings, one row per text."""
        if self.text_pooling == "whole":
            return rows
        of_text = rows.split([len(own) for own in parts])
        pool = torch.mean if self.text_pooling == "sentence_mean" else torch.amax
        return torch.stack(
            [nn.functional.normalize(pool(own, dim=0), dim=-1) if len(own) > 1 else own[0] for own in of_text]
        )

    def leading_ids(self) -> list[int]:
        """Token ids before the words of every text: BOS, if there is one, and the prefix."""
        return self._texts.ids([self.prefix])[0][:-1]

    @property
    def num_frames(self) -> int | None:
        """Frames that the model reads of each clip; none: it reads stills."""
        return getattr(self.model.config, "num_frames", None)

    def process(self, images: list[Any]) -> dict[str, Tensor]:
        """RGB images -> ``{"pixel_values": [B, 3, height, width]}``, on the CPU; of lists of frames ``[B, F, 3, ...]``.

        Of a SigLIP 2 with patches of any number (NaFlex) ``pixel_values`` are ``[B, P, values]``, and ``pixel_attention_mask``
        ``[B, P]`` and ``spatial_shapes`` ``[B, 2]`` come with them.
        """
        frames = self.num_frames
        flat = images if frames is None else [frame for clip in images for frame in clip]
        with preparing(self.source):
            found = self.image_processor(images=flat, return_tensors="pt")
        inputs = {name: found[name] for name in self.image_processor.model_input_names if name in found}
        return inputs if frames is None else {name: row.unflatten(0, (-1, frames)) for name, row in inputs.items()}

    def embed_images(self, pixel_values: Tensor, **shapes: Tensor) -> Tensor:
        """``[B, D]`` float32, unit norm, with gradients where they are enabled; ``shapes`` are the further tensors of
        ``process``."""
        weights = next(self.model.parameters())
        further = {name: value.to(weights.device) for name, value in shapes.items()}
        with reading_images(self.source):
            features = self.model.get_image_features(
                pixel_values=pixel_values.to(weights.device, weights.dtype), **further
            )
        return nn.functional.normalize(features.pooler_output.float(), dim=-1)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]`` float32, unit norm, with gradients where they are enabled; all texts in one forward pass."""
        parts = self._parts(texts)
        ids = self._ids([part for own in parts for part in own])
        return self._pooled(self._embed_ids([self._texts.cut(row) for row in ids]), parts)

    def encode_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm, no gradient: from ``batch.inputs[name]`` if present, else from the cache by id.

        Raises:
            UsageError: there are neither tensors nor cached embeddings of an image.
        """
        if self.name not in batch.inputs:
            return self.encode_ids(batch.ids)
        return self._embed_inputs(batch.inputs[self.name])

    def _embed_inputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Of the tensors of ``process``, without gradients."""
        further = {name: value for name, value in inputs.items() if name != "pixel_values"}
        pixels = inputs["pixel_values"].split(self.batch_size)
        rows = [slice(place * self.batch_size, (place + 1) * self.batch_size) for place in range(len(pixels))]

        def embed(chunk: tuple[Tensor, slice]) -> Tensor:
            return self.embed_images(chunk[0], **{name: value[chunk[1]] for name, value in further.items()})

        return self._without_gradients(embed, zip(pixels, rows, strict=True))

    def encode_ids(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, of images passed to ``cache_images`` before.

        Raises:
            UsageError: an id is not among them.
        """
        try:
            return self._table.look_up(ids).to(self.device)
        except KeyError as error:
            raise UsageError(
                f"the listener {self.name!r} has no embedding of image {error.args[0]!r}: "
                "cache the images of its data set first, or put its tensors into the batch."
            ) from error

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, no gradient. Each distinct text is embedded once, among others of its length."""
        if self.text_pooling == "whole":
            return self._encode(texts)
        parts = self._parts(texts)
        pooled = (
            self._pooled(self._encode([part for own in parts for part in own]), parts) if parts else self._encode([])
        )
        if self.truncated:
            self.truncated = sum(self.too_long(texts)) / len(texts)
        return pooled

    def text_batches(self, texts: Sequence[str]) -> list[list[int]]:
        """Places of the texts that are best read at once, by length."""
        return self._batches([self._texts.cut(row) for row in self._texts.ids([self.prefix + text for text in texts])])

    def _batches(self, ids: Sequence[list[int]]) -> list[list[int]]:
        return batches_by_length([self._texts.width(row) for row in ids], self.batch_size, self.device)

    def _encode(self, texts: Sequence[str]) -> Tensor:
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return self._encode([""])[:0]
        ids = [self._texts.cut(row) for row in self._ids(distinct)]
        batches = self._batches(ids)
        embeddings = self._without_gradients(self._embed_ids, ([ids[i] for i in batch] for batch in batches))
        row_of = {distinct[i]: row for row, i in enumerate(chain.from_iterable(batches))}
        return embeddings[[row_of[text] for text in texts]]

    def cache_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Make the images' embeddings available by id, from disk where they were computed before.

        They are kept under the cache folder by the listener's fingerprint and each image's content, so that equal
        pictures are embedded once, also across data sets and runs. Call it again after changing the weights.

        Each file on disk holds whole batches, so the same call embeds the same batches after a stop. A picture that
        another data set had in common was embedded in the batches of that one: its last bits may be others.

        Args:
            dataset: examples with ``id`` and ``image``.

        Raises:
            UsageError: an image cannot be read, or an id was cached for another picture before.
        """
        fingerprint = self.fingerprint()
        if fingerprint != self._table_of:
            self.forget_images()
            self._table_of = fingerprint
        examples = by_id(dataset)
        num_frames = frames_wanted(self)
        hashing = track(examples.items(), "hashing images")
        key_of = {name: seen_as(example.image, num_frames) for name, example in hashing}
        example_of = {key: examples[name] for name, key in key_of.items()}
        store = EmbeddingStore(cache_dir() / "embeddings" / fingerprint)
        known = store.load(list(example_of))
        missing = {key: example for key, example in example_of.items() if key not in known}
        self._table.add(key_of, known | self._embed_and_store(missing, store))

    def with_own_images(self) -> Self:
        """The same model, which knows no image yet: those of an evaluation may have the ids of training images."""
        other = copy(self)
        other.forget_images()
        return other

    def forget_images(self) -> None:
        """Drop the embeddings held in memory (those on disk stay), so that ids may name other pictures."""
        self._table = EmbeddingTable()

    @contextmanager
    def other_images(self) -> Iterator[None]:
        """Within, no image is known and ids may name other pictures; afterwards those that were known are known again."""
        before = self._table, self._table_of
        self.forget_images()
        try:
            yield
        finally:
            self._table, self._table_of = before

    def _embed_and_store(self, missing: dict[str, NamedPicture], store: EmbeddingStore) -> dict[str, Tensor]:
        keys, done, opener = list(missing), dict[str, Tensor](), Opener.of(self.process)
        with bar(f"{self.name}: embedding images", len(keys)) as running, ThreadPoolExecutor() as pool:
            for start in range(0, len(keys), _IMAGES_A_FILE):
                part = keys[start : start + _IMAGES_A_FILE]
                rows = []
                for first in range(0, len(part), self.batch_size):
                    some = part[first : first + self.batch_size]
                    images = list(pool.map(lambda key: opener.single(missing[key].image), some))
                    rows.append(self._embed_inputs(self.process(images)).cpu())
                    running.advance(len(some))
                store.add(part, torch.cat(rows))
                done |= dict(zip(part, torch.cat(rows), strict=True))
        return done

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of the prefixed texts, not cut; counts those that will be."""
        ids = self._texts.ids([self.prefix + text for text in texts])
        cut = sum(len(self._texts.cut(row)) < len(row) for row in ids)
        self.truncated = cut / max(len(ids), 1)
        if cut and not self._told_of_truncation:
            self._told_of_truncation = True
            logger.warning("listener %r: %d of %d texts are too long and are cut.", self.name, cut, len(ids))
        return ids

    def _embed_ids(self, ids: Sequence[list[int]]) -> Tensor:
        require_known(ids, self.model.config.text_config.vocab_size, self.source)
        inputs = {key: value.to(self.device) for key, value in self._texts.pad(ids).items()}
        return nn.functional.normalize(self.model.get_text_features(**inputs).pooler_output.float(), dim=-1)

    def _without_gradients(self, embed: Callable[[Any], Tensor], chunks: Iterable[Any]) -> Tensor:
        """``embed`` over chunks in eval mode; the model's mode is restored."""
        training = self.model.training
        self.model.eval()
        try:
            # Rounded by the caller's autocast, cosines would decide between captions that are nearly as good.
            with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
                return torch.cat([embed(chunk) for chunk in chunks])
        finally:
            self.model.train(training)


def _stored_prefix(path: Path) -> str:
    """The prefix that ``save`` wrote, else ``PREFIX``.

    Raises:
        UsageError: there is a file without it.
    """
    if not path.is_file():
        return PREFIX
    try:
        prefix = read_json(path)["prefix"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({reason_of(error)}): restore it.") from error
    if not isinstance(prefix, str):
        raise UsageError(f"{path} has prefix {prefix!r}, which is not text: restore it.")
    return prefix
