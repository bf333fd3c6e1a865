"""VSE++ as a listener: it learns, it reads distributions over words, and it retrieves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, initialization

from tellapart.errors import UsageError, reason_of
from tellapart.files import fresh_folder, read_json, write_json
from tellapart.listeners.cache import NamedPicture
from tellapart.listeners.image_vectors import ImageVectors
from tellapart.listeners.kinds import SETTINGS, VSE
from tellapart.listeners.loading import called, complete, model_digest, vocabulary_of
from tellapart.listeners.words import Words, ids_in, role_id
from tellapart.ops import describe_weights
from tellapart.processors import read_tokenizer
from tellapart.types import Batch

# The recurrent dual encoder of VSE++, as a model that transformers saves and loads.
#
# Importing this module makes it known to ``AutoConfig`` and ``AutoModel``.


class VseConfig(PreTrainedConfig):
    """Configuration of ``VseModel``; the defaults are PSST's.

    Args:
        feature_size: width of the image features.
        word_size: width of the word embeddings.
        hidden_size: width of the GRU's state, and of the space that images and texts share.
        vocab_size: words, special ones included.
        pad_token_id: fills captions after their end.
        bos_token_id: what the GRU reads before the first word.
        eos_token_id: what it reads last.
    """

    model_type: ClassVar[str] = VSE

    feature_size: int = 2048
    word_size: int = 512
    hidden_size: int = 1024
    vocab_size: int = 10_000
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int = 2


class VseModel(PreTrainedModel):
    """A linear layer for images and a GRU for texts, whose outputs are scaled to unit norm.

    Faghri et al. (BMVC 2018, section 3.1), in the sizes that Vered et al. (ICCV 2019) take over: image features of
    2048 and words of 512, both into 1024. Weights begin as in the code of the former: words uniform in [-0.1, 0.1], the
    image layer by Glorot's rule with a bias of 0, the GRU as torch makes it.
    """

    config_class = VseConfig
    main_input_name = "features"
    base_model_prefix = ""

    def __init__(self, config: VseConfig) -> None:
        super().__init__(config)
        self.visual_projection = nn.Linear(config.feature_size, config.hidden_size)
        self.embedding = nn.Embedding(config.vocab_size, config.word_size)
        self.gru = nn.GRU(config.word_size, config.hidden_size, batch_first=True)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            initialization.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, nn.Linear):
            initialization.xavier_uniform_(module.weight)
            initialization.zeros_(module.bias)
        elif isinstance(module, nn.GRU):
            for parameter in module.parameters():
                initialization.uniform_(parameter, -(module.hidden_size**-0.5), module.hidden_size**-0.5)

    def train(self, mode: bool = True) -> VseModel:
        """Switch the mode of everything but the GRU, which has no dropout.

        It always stays in train mode, since cuDNN differentiates a GRU in that mode only, and objectives learn in eval mode.
        """
        super().train(mode)
        self.gru.train()
        return self

    def get_input_embeddings(self) -> nn.Module:
        """Word embeddings."""
        return self.embedding

    def get_image_features(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, hidden_size]``, unit norm.

        Args:
            features: ``[B, feature_size]``, or ``[B, R, feature_size]`` of regions, whose mean is taken.
            mask: ``[B, R]`` bool, which regions are real; none: all.
        """
        if features.ndim == 3:
            real = features.new_ones(features.shape[:2]) if mask is None else mask.to(features.dtype)
            features = torch.einsum("brd,br->bd", features, real) / real.sum(dim=1, keepdim=True).clamp(min=1)
        return _unit(self.visual_projection(features))

    def get_text_features(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """``[N, hidden_size]``, unit norm: the GRU's state after the last real word.

        Args:
            vectors: ``[N, T, word_size]`` embedded words, without BOS, which is read first.
            mask: ``[N, T]`` bool, true up to and including the last real one.
        """
        begin = torch.full((len(vectors), 1), self.config.bos_token_id, device=vectors.device)
        vectors = torch.where(mask[:, :, None], vectors, torch.zeros_like(vectors))
        states, _ = self.gru(torch.cat([self.embedding(begin), vectors], dim=1))
        rows = torch.arange(len(vectors), device=vectors.device)
        return _unit(states[rows, mask.sum(dim=1)])

    def forward(
        self, features: Tensor, input_ids: Tensor, attention_mask: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """``[B, N]`` cosines of B images and N texts.

        Args:
            features: as in ``get_image_features``, with its ``mask``.
            input_ids: ``[N, T]`` words and EOS, without BOS.
            attention_mask: ``[N, T]`` bool.
            mask: of the regions.
        """
        texts = self.get_text_features(self.embedding(input_ids), attention_mask.bool())
        return self.get_image_features(features, mask) @ texts.T


def _unit(embeddings: Tensor) -> Tensor:
    """Rows of norm 1, at least float32."""
    full = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return nn.functional.normalize(full, dim=-1)


AutoConfig.register(VseConfig.model_type, VseConfig, exist_ok=True)
AutoModel.register(VseConfig, VseModel, exist_ok=True)


_IMAGES = "images"


class Vse(nn.Module):
    """A ``VseModel`` with its vocabulary and its images: part of an objective, and retriever.

    Words enter the GRU as ``word_vector @ embedding`` (Vered et al., ICCV 2019, section 4): BOS, the words, and the first
    EOS. What it shares with a captioner is the vocabulary, which is saved with it.

    Args:
        model: the encoder, this module's child.
        tokenizer: its vocabulary.
        images: what it reads of images by their ids; none: only what batches hold.
        name: key of its tensors in ``batch.inputs``.
        reads: key of the image features in ``batch.inputs``, such as a captioner's; by default ``name``.
        words: the captioner whose ids ``embed_words`` and ``embed_tokens`` are given; by default ids are its own.
        batch_size: most images or texts encoded at once without gradients.

    Attributes:
        source: what the model was loaded from, as results call it.

    Raises:
        UsageError: model and vocabulary, or model and image vectors, do not fit, or a word of the captioner is missing.
    """

    def __init__(
        self,
        model: VseModel,
        tokenizer: Any,
        images: ImageVectors | None = None,
        *,
        name: str = "listener",
        reads: str | None = None,
        words: Words | None = None,
        batch_size: int = 256,
    ) -> None:
        super().__init__()
        if max(tokenizer.get_vocab().values()) >= model.config.vocab_size:
            raise UsageError(
                f"the listener's vocabulary has {len(tokenizer)} words, but its model {model.config.vocab_size}: restore "
                "its tokenizer.json."
            )
        if images is not None and images.width != model.config.feature_size:
            raise UsageError(
                f"the image features are {images.width} wide, but the listener was made for {model.config.feature_size}: "
                "give those that it was trained with."
            )
        self.model, self.tokenizer, self.images = model.eval(), tokenizer, images
        self.name, self.reads, self.batch_size, self.source = name, reads or name, batch_size, "vse"
        own = words or Words(tokenizer, model.config.vocab_size, (model.config.eos_token_id,))
        self._ids: Tensor
        self.register_buffer("_ids", ids_in(tokenizer, own, reader="the VSE listener"), persistent=False)

    def __repr__(self) -> str:
        return f"Vse({self.source}, {describe_weights(self)}, name {self.name!r})"

    @classmethod
    def fresh(
        cls,
        tokenizer: Any,
        images: ImageVectors,
        *,
        word_size: int = 512,
        hidden_size: int = 1024,
        **options: Any,
    ) -> Vse:
        """An untrained listener; its weights come from torch's global generator.

        Args:
            tokenizer: its vocabulary, a captioner's.
            images: what it reads of images.
            word_size: width of the word embeddings.
            hidden_size: width of the GRU and of the space.
            options: those of the class.

        Raises:
            UsageError: a width is below 1.
        """
        if word_size < 1 or hidden_size < 1:
            raise UsageError(
                f"listener.new has word_size {word_size} and hidden_size {hidden_size}: give whole numbers of at least 1."
            )
        roles = {f"{role}_token_id": role_id(tokenizer, role) for role in ("pad", "bos", "eos")}
        config = VseConfig(
            feature_size=images.width,
            word_size=word_size,
            hidden_size=hidden_size,
            vocab_size=max(tokenizer.get_vocab().values()) + 1,
            **roles,
        )
        return cls(VseModel(config), tokenizer, images, **options)

    @classmethod
    def from_pretrained(cls, folder: str | Path, images: ImageVectors | None = None, **options: Any) -> Vse:
        """Read the output of ``save``; ``images`` and ``options`` are those of the class.

        Raises:
            UsageError: something is missing or damaged, or ``images`` are of another width.
        """
        path = Path(folder).expanduser()
        try:
            model = complete(VseModel, str(path), "float32")
            listener = cls(model, read_tokenizer(path), images, **options)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"the listener {folder} cannot be loaded ({reason_of(error)}): restore the folder, or train it again."
            ) from error
        listener.source = called(folder)
        return listener

    def save(self, folder: Path) -> None:
        """Model, vocabulary, and whose image embeddings it reads; replaces ``folder``."""
        with fresh_folder(folder) as temporary:
            self.model.save_pretrained(temporary)
            self.tokenizer.save_pretrained(temporary)
            about = self.images.about if self.images is not None else {}
            write_json(temporary / SETTINGS, {"format": 1, _IMAGES: about})

    def load_weights(self, folder: Path) -> None:
        """Read weights back in place.

        Raises:
            UsageError: they are missing, damaged, or of another model.
        """
        try:
            self.model.load_state_dict(complete(VseModel, str(folder), "float32").state_dict())
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"{folder} lacks the weights of this listener ({reason_of(error)}): resume with the model that wrote it."
            ) from error

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.embedding.weight.device

    @property
    def listener(self) -> Vse:
        """What retrieves with these weights, as for a ``TrainedListener``: itself."""
        return self

    def fingerprint(self) -> str:
        """A hash of architecture, weights, vocabulary, and whose image embeddings are read."""
        about = self.images.about if self.images is not None else {}
        return model_digest(self.model, self.model.config.to_dict(), vocabulary_of(self.tokenizer), about)

    def describe(self) -> dict[str, Any]:
        """Model, what it reads of images and the first 12 digits of the fingerprint: what a score belongs to."""
        config = self.model.config
        seen = self.images.about.get("listener") if self.images is not None else None
        images = f"image embeddings of {called(seen)}" if seen else "image features"
        backbone = f"vse, GRU of width {config.hidden_size}, {images} {config.feature_size} wide"
        return {"model": self.source, "backbone": backbone, "weights": self.fingerprint()[:12]}

    def embed_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm, with gradients where they are enabled: of the batch's features, else of those by id.

        Raises:
            UsageError: there are neither, or they are of another width.
        """
        inputs = batch.inputs.get(self.reads, {})
        return self._look(inputs if "features" in inputs else self._by_id(batch.ids))

    def embed_words(self, words: Tensor, mask: Tensor, finished: Tensor | None = None) -> Tensor:
        """``[N, D]``, unit norm, of captions given as vectors over the captioner's vocabulary.

        Args:
            words: ``[N, T, V]``, each a distribution over the vocabulary, or one-hot.
            mask: ``[N, T]`` bool, true on every real word up to and including the first EOS.
            finished: not needed: the last real word is read like any other.
        """
        weight = self.model.embedding.weight
        return self.model.get_text_features(words.to(weight.dtype) @ weight[self._ids], mask)

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """``[N, D]``, unit norm, of captions as ``[N, T]`` ids of the captioner's vocabulary: the same as one-hot words."""
        return self.model.get_text_features(self.model.embedding(self._ids[tokens]), mask)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, with gradients where they are enabled; every text ends with EOS."""
        eos, pad = self.model.config.eos_token_id, self.model.config.pad_token_id
        read = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        rows = [[*row, eos] for row in read]
        width = max(map(len, rows), default=1)
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], dtype=torch.long).view(-1, width)
        mask = torch.arange(width) < torch.tensor([len(row) for row in rows], dtype=torch.long)[:, None]
        return self.model.get_text_features(self.model.embedding(ids.to(self.device)), mask.to(self.device))

    def encode_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm, no gradient; see ``embed_images``."""
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            return self.embed_images(batch)

    def encode_ids(self, ids: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, no gradient, with the weights as they are now.

        Raises:
            UsageError: an image has no features, or was not made known by ``cache_images``.
        """
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            return self._joined(self._look(self._by_id(part)) for part in self._parts(ids))

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """``[M, D]``, unit norm, no gradient."""
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            return self._joined(self.embed_texts(part) for part in self._parts(texts))

    def cache_images(self, dataset: Iterable[NamedPicture]) -> None:
        """Make what it reads of these images available by id; their embeddings are computed when they are asked for, since
        the image side learns."""
        if self.images is not None:
            self.images.prepare(dataset)

    def _by_id(self, ids: Sequence[str]) -> dict[str, Tensor]:
        if self.images is None:
            raise UsageError(
                f"the listener {self.source} reads image features, but of image {ids[0]!r} there are none: name them "
                "(data.features in recipes, --features elsewhere)."
            )
        return self.images(ids)

    def _look(self, inputs: dict[str, Tensor]) -> Tensor:
        features, mask = inputs["features"], inputs.get("mask")
        if features.shape[-1] != self.model.config.feature_size:
            raise UsageError(
                f"the image features are {features.shape[-1]} wide, but the listener {self.source} was made for "
                f"{self.model.config.feature_size}: give those that it was trained with."
            )
        features = features.to(self.device, self.model.dtype)
        return self.model.get_image_features(features, None if mask is None else mask.to(self.device))

    def _parts(self, rows: Sequence[str]) -> Iterator[Sequence[str]]:
        return (rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size))

    def _joined(self, parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([self.model.visual_projection.weight.new_zeros(0, self.model.config.hidden_size), *parts])


def images_of(folder: str | Path) -> dict[str, str]:
    """Whose image embeddings a saved listener reads (``listener``, ``weights``); empty: features that a user names.

    Raises:
        UsageError: the folder does not say.
    """
    path = Path(folder).expanduser() / SETTINGS
    try:
        return dict(read_json(path)[_IMAGES])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is missing or damaged: restore it, or train the listener again.") from error
