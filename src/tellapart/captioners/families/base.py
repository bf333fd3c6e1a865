"""What one model family does differently."""

from __future__ import annotations

import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from tellapart.captioners.base import Encoded
from tellapart.captioners.beams import ReusingSteps
from tellapart.captioners.decoder import Beginning, Decoder, DecoderSteps, read_captions
from tellapart.captioners.fixed import FixedDecoderSteps
from tellapart.captioners.graphs import Recorder
from tellapart.captioners.linear import Linear, Rows, weights_of
from tellapart.captioners.reading import States, choose_reading
from tellapart.captioners.shortlist import KeptShortlist, Shortlist, quick
from tellapart.captioners.steps import CachedSteps, Steps
from tellapart.errors import UsageError, quoted
from tellapart.lengths import length_tokens

if TYPE_CHECKING:
    from PIL import Image

_log = logging.getLogger(__name__)

ASKED = "asked"
"""Name of the tokens in ``Encoded.inputs`` that an image's captions are asked by, ``[B, K]``: read after the start tokens."""


CONTEXT = "{context}"
"""The place of an image's context in a prompt."""


@dataclasses.dataclass(frozen=True)
class Processors:
    """What turns images and words into a model's inputs.

    Args:
        image: the image processor.
        tokenizer: the tokenizer.
        joint: the family's own processor around both, where the family has one.
    """

    image: Any
    tokenizer: Any
    joint: Any = None


class Family(ABC):
    """A loaded model, read as "image states, then hidden states of caption tokens, then logits".

    This is all a new architecture has to supply; drawing, scoring, adapters and saving are written on top of it. A
    family holds its model without owning it (it is not an ``nn.Module``).

    Args:
        model: the loaded model.
        processors: its processors; the tokenizer is asked only for ids that the model's configuration does not name.
        prompt: words the model reads before it writes a caption; none takes the family's ``default_prompt``.

    Attributes:
        start: ids the decoder reads before a caption's first token.
        eos: ids that end a caption; the first is the one appended to human captions.
        pad: id that fills rows after their end; may equal an EOS id.
        prompt: the words of the prompt.
        length_ids: tokens that ask for length buckets, in order; none where the tokenizer has no such tokens.
        recorder: makes the graphs of drawing.
        caption_lead: the text between prompt and caption: put before human captions when they are tokenized, since
            byte-level tokenizers write a word differently after a space.

    Raises:
        UsageError: the configuration lacks a token id, or the architecture is one this family cannot read.
    """

    lora_targets: ClassVar[str]
    """Regular expression of the text side's projections, matched against full module names."""
    vision_lora_targets: ClassVar[str | None] = None
    """The same for the image tower's attention; none: a recipe must name the modules."""
    joint_processor: ClassVar[str | None] = None
    """Name of the class in transformers that joins image processor and tokenizer; none: they are read apart."""
    default_prompt: ClassVar[str] = ""
    """The family's default prompt."""
    several_images: ClassVar[bool] = False
    """Whether one prompt can hold several images."""
    parts: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Parts between the image tower and a language model that can train while both are frozen: name -> regular expression,
    matched against full parameter names. Together they are the bridge; empty: the decoder itself reads the image."""
    reads_features: ClassVar[bool] = False
    """Whether the model reads image features instead of pictures."""
    takes_frames: ClassVar[bool] = False
    """Whether a model of stills can also read the frames of a clip, as many as ``read_frames`` is given."""
    recurrent: ClassVar[bool] = False
    """Whether the model reads words one after the other, so that drawing a word while reading costs no further pass."""
    asks_in_words: ClassVar[bool] = False
    """Whether the prompt is a text that may differ between images (``with_prompts``)."""

    start: list[int]
    eos: list[int]
    pad: int
    caption_lead: str = ""
    lockstep: bool = False
    """Whether processes share the layers' weights: all of them must then call each layer equally often, whatever their
    captions, so captions are scored in one pass of one shape (``training/sharding.py``)."""
    reads_parts: bool = True
    """Whether a layer's parts may be called in place of the layer, where the family knows a faster way through them."""

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        self.model, self.processors, self.tokenizer = model, processors, processors.tokenizer
        self.prompt = self.default_prompt if prompt is None else prompt
        self.start, self.eos, self.pad = self.special_tokens()
        self._shortlist, self.recorder = KeptShortlist(), Recorder()
        self.length_ids = self._length_ids()
        if left_out := unheard_defaults(model):
            told = ", ".join(f"{name} {quoted(value, 40)}" for name, value in left_out.items())
            _log.warning(
                "the checkpoint's generation_config has %s, which is left out: captions are drawn by what the model scores",
                told,
            )
        self.neutralise()

    def _length_ids(self) -> list[int]:
        added = self.tokenizer.get_added_vocab()
        return [added[name] for name in length_tokens(len(added)) if name in added]

    def add_tokens(self, names: list[str]) -> None:
        """Add special tokens that are read before captions and never drawn; the embeddings grow where they must.

        Raises:
            UsageError: this family reads no such tokens.
        """
        embeddings = self.resizable
        self.tokenizer.add_tokens(names, special_tokens=True)
        self.length_ids = self._length_ids()
        if max(self.length_ids) >= self.vocab_size:
            embeddings.resize_token_embeddings(max(self.length_ids) + 1, mean_resizing=False)

    @property
    def resizable(self) -> Any:
        """The part of the model whose vocabulary can grow.

        Raises:
            UsageError: this family reads no tokens between its start and the caption.
        """
        raise UsageError(
            f"a {self.model.config.model_type} captioner cannot be asked for a length: leave captioner.length_buckets out, or "
            "choose a VisionEncoderDecoder, BLIP, GIT, BLIP-2 with OPT, LLaVA, PaliGemma, Idefics3, SmolVLM or Qwen-VL."
        )

    def require_known_tokens(self) -> None:
        """Raise where an id names no word: reading it would end in an index error, on a GPU without saying where.

        Raises:
            UsageError: naming the id.
        """
        known = self.vocab_size
        for what, ids in {"start": self.start, "end": self.eos, "padding": [self.pad]}.items():
            for token in ids:
                if not 0 <= token < known:
                    raise UsageError(
                        f"the {what} token's id is {token}, but the captioner knows ids from 0 to {known - 1}: correct it in "
                        "config.json or generation_config.json."
                    )

    @classmethod
    def never_used(cls, config: Any) -> str:
        """Regular expression of the parameters that no caption loss reaches, matched against the start of names."""
        return r"(?!)"

    @classmethod
    def load_joint(cls, name: str, **options: Any) -> Any:
        """The family's own processor from a folder or the hub; none where the family has none."""
        if cls.joint_processor is None:
            return None
        import transformers

        return getattr(transformers, cls.joint_processor).from_pretrained(name, **options)

    @abstractmethod
    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """``(start, eos, pad)`` ids of this model, with its prompt."""

    @abstractmethod
    def neutralise(self) -> None:
        """Replace the checkpoint's decoding defaults (penalties, forced tokens), which a saved model would keep."""

    @property
    @abstractmethod
    def vision(self) -> nn.Module:
        """The image tower: what ``train="decoder"`` leaves frozen."""

    @property
    def layers(self) -> list[nn.Module]:
        """Layers of the image tower and of the decoder, whose weights are gathered one layer at a time in sharded training;
        empty: the model has none that are called as modules."""
        found = [module for module in self.model.modules() if isinstance(module, GradientCheckpointingLayer)]
        inner = {id(part) for layer in found for part in layer.modules() if part is not layer}
        return [layer for layer in found if id(layer) not in inner]

    @property
    def feature_size(self) -> int | None:
        """Width of the features that the model reads; none: it reads pictures."""
        return None

    @property
    def num_frames(self) -> int | None:
        """Frames that the model reads of each clip; none: it reads stills."""
        return None

    def read_frames(self, num_frames: int) -> None:
        """Read this many frames of each clip from now on; asked only where the family ``takes_frames``."""
        raise NotImplementedError

    def frames_reversed(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of ``process`` with the frames of each clip backwards; asked only where there are frames."""
        raise NotImplementedError

    @property
    def never_drawn(self) -> list[int]:
        """Ids that human captions may hold and drawn ones may not, and those that ask for lengths."""
        return self.length_ids

    @property
    def longest(self) -> int | None:
        """Most tokens of a caption, its EOS included, that the decoder has positions for; none where it has no such bound. Images
        and prompts count where the decoder has a table of positions."""
        return self.left(self.shortest_prefix)

    def longest_after(self, encoded: Encoded) -> int | None:
        """``longest`` after what is asked of these images."""
        return self.longest

    @property
    def shortest_prefix(self) -> int:
        """Columns that are before the caption of every image."""
        return len(self.start)

    def left(self, prefix: int) -> int | None:
        """Most tokens of a caption that ``prefix`` columns leave."""
        config = self.model.config
        text = getattr(config, "decoder", None) or config.get_text_config()
        places = getattr(text, "max_position_embeddings", None)
        # the last token of a caption is never read
        return None if places is None else places - prefix - bool(self.length_ids) + 1

    @property
    def input_dtype(self) -> torch.dtype:
        """What ``encode`` is given numbers in: the tower's own."""
        return next(self.vision.parameters()).dtype

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.head.out_features

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """The tensors that ``encode`` reads, one row per image."""
        return {"pixel_values": self.processors.image(images=images, return_tensors="pt")["pixel_values"]}

    @abstractmethod
    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The image tower's output; nothing that belongs to the text side may be applied yet."""

    @abstractmethod
    def new_cache(self) -> Cache:
        """An empty cache."""

    @abstractmethod
    def prefix(self, encoded: Encoded, cache: Cache) -> Tensor:
        """``[B, D]``: hidden states that predict the first caption token of every image; fills ``cache``."""

    @property
    def embedding(self) -> nn.Module:
        """The layer that embeds caption tokens, before anything of their place is added.

        Raises:
            UsageError: this family has no such layer: its captions are read in another way.
        """
        raise UsageError(
            f"a {self.model.config.model_type} captioner cannot read mixtures of words: set feed_soft to false, so that it "
            "reads the drawn words, or choose another captioner."
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """``[n, t, D]`` input embeddings of ``tokens [n, t]``."""
        return self.embedding(tokens)

    def word_embeddings(self) -> Tensor:
        """``[V, D]``: what ``embed`` gives for every word, with gradients; a mixture of words is embedded by its product
        with them.

        Raises:
            UsageError: this family has no layer that embeds words.
        """
        layer = self.embedding
        if type(layer) is nn.Embedding and len(layer.weight) == self.vocab_size:
            return layer.weight
        # Some layers scale what they look up, and an adapter may sit on one: what they give is asked of them.
        return layer(torch.arange(self.vocab_size, device=next(layer.parameters()).device))

    def decode(self, tokens: Tensor, encoded: Encoded, image: Tensor, cache: Cache) -> Tensor:
        """``[n, t, D]`` hidden states at caption ``tokens [n, t]``; the rest as for ``decode_embedded``."""
        return self.decode_embedded(self.embed(tokens), encoded, image, cache)

    @abstractmethod
    def decode_embedded(self, embeddings: Tensor, encoded: Encoded, image: Tensor, cache: Cache) -> Tensor:
        """``[n, t, D]`` hidden states at words given by their embeddings.

        Args:
            embeddings: ``[n, t, D']`` of caption words that follow on from ``cache``; left as they are.
            encoded: states of B images.
            image: ``[n]``, the image of each row.
            cache: keys and values of what came before, n rows; extended in place.
        """

    def by_parts(self, linear: Linear) -> Decoder | None:
        """The decoder by its parts, whose linear layers ``linear`` computes; none: this family reads it through its modules, word
        by word and by length."""
        return None

    def decoder(self, linear: Linear) -> Decoder | None:
        """``by_parts`` where they may be read as they are; none where a module's weights are fetched when it is called."""
        return self.by_parts(linear) if self.reads_parts and not self._spread else None

    @property
    def _spread(self) -> bool:
        """Whether accelerate has put parts of the model on several devices, or all of it elsewhere."""
        places = getattr(self.model, "hf_device_map", None) or {}
        return len(set(places.values())) > 1 or (bool(places) and next(self.model.parameters()).is_meta)

    def beginning(self, decoder: Decoder, encoded: Encoded, embed: Rows) -> Beginning:
        """What the captions of B images follow; asked only of a family that reads its decoder by its parts.

        Args:
            decoder: its parts.
            encoded: states of B images.
            embed: embeds words, as ``embed`` of the family does.
        """
        raise NotImplementedError

    def steps(self, encoded: Encoded, count: int, longest: int, *, beams: bool = False) -> Steps:
        """What reads one word of every caption per call, without gradients.

        Args:
            encoded: states of B images.
            count: captions per image.
            longest: most words of a caption.
            beams: whether captions of an image are beams, which may continue one another.
        """
        if (decoder := self.decoder(Linear())) is None:
            cache = self.new_cache()
            first = self.prefix(encoded, cache)
            return self.cached_steps(encoded, cache, first, count=count, longest=longest, beams=beams)
        begun = self.beginning(decoder, encoded, self.embed)
        if self.replays(encoded.states.device):
            return FixedDecoderSteps(
                decoder, begun, self.embedding, count=count, longest=longest, beams=beams, recorder=self.recorder
            )
        if beams and ReusingSteps.suits(begun):
            return ReusingSteps(decoder, begun, self.embedding, count=count, longest=longest)
        return DecoderSteps(decoder, begun, self.embedding, count=count, longest=longest, beams=beams)

    def cached_steps(
        self, encoded: Encoded, cache: Cache, first: Tensor, *, count: int, longest: int, beams: bool
    ) -> Steps:
        """``steps`` through the modules of the model, on from a ``cache`` that ``prefix`` filled.

        Args:
            encoded: states of B images.
            cache: their keys and values, B rows.
            first: ``[B, D]``, what ``prefix`` gave.
            count: captions per image.
            longest: most words of a caption.
            beams: whether captions of an image are beams.
        """
        return CachedSteps(self, encoded, cache, first, count=count, longest=longest)

    def before_captions(self, encoded: Encoded) -> Tensor:
        """``[B, S]`` ids that the decoder reads before an image's captions, below 0 where there is none.

        Here the start tokens, then those that the captions are asked by.
        """
        states = encoded.states
        start = torch.tensor(self.start, dtype=torch.long, device=states.device).expand(len(states), -1)
        return torch.cat([start, encoded.inputs[ASKED]], dim=1) if ASKED in encoded.inputs else start

    def replays(self, device: torch.device) -> bool:
        """Whether reading a word is recorded as a CUDA graph: on a GPU, where all weights lie on it as they are."""
        changed = self._spread or getattr(self.model, "is_quantized", False)
        return device.type == "cuda" and not self.lockstep and not changed

    def read_captions(self, encoded: Encoded, image: Tensor, tokens: Tensor, mask: Tensor) -> States | None:
        """States that predict every word, of captions of any lengths in one pass.

        Args:
            encoded: states of B images.
            image: ``[N]``, the image of each caption.
            tokens: ``[N, T]`` caption tokens.
            mask: ``[N, T]`` bool, a run of true from the left; some caption has a word.

        Returns:
            none where this family reads captions by length, or something in it is random.
        """
        if (decoder := self.decoder(Linear())) is None or decoder.drops:
            return None
        begin = partial(self.beginning, decoder, encoded)
        reading = choose_reading(image, tokens, mask, decoder.width, len(decoder.blocks))
        return read_captions(decoder, begin, self.embed, image, tokens, mask, reading)

    @abstractmethod
    def teacher_forced(self, tokens: Tensor, encoded: Encoded, image: Tensor) -> Tensor:
        """``[n, T, D]``: the hidden states that predict each of ``tokens [n, T]``, in one pass without a cache."""

    @property
    @abstractmethod
    def head(self) -> Any:
        """The output embedding: the linear layer that gives the logits."""

    @property
    def plain_head(self) -> tuple[Tensor, Tensor | None] | None:
        """``([V, D'], [V] or None)`` of the output embedding; none of one with an adapter or in another form."""
        return weights_of(self.head)

    @property
    def softcap(self) -> float | None:
        """Bound c of the logits x, which become ``c tanh(x / c)``; none: they stay as they are."""
        return None

    def before_head(self, hidden: Tensor) -> Tensor:
        """``[..., D']``: what the output embedding reads of hidden states ``[..., D]``."""
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., V]`` raw logits of hidden states ``[..., D]``."""
        logits = self.head(self.before_head(hidden))
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    @property
    def head_dtype(self) -> torch.dtype:
        """What the output embedding is held in."""
        return self.head.weight.dtype

    def exact_logits(self, hidden: Tensor) -> Tensor:
        """``[..., V]`` logits in float32 (of a model in float64, float64), whatever autocast says.

        In bfloat16 a logit of 20 is rounded by 0.06, which is more than an update changes it by; with weights in float32
        the head is therefore computed in float32.
        """
        with torch.autocast(hidden.device.type, enabled=False):
            logits = self.logits(hidden.to(self.head_dtype))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def shortlist(self) -> Shortlist | None:
        """What finds the highest ``exact_logits`` of a batch of captions without computing all; none where it would not pay."""
        plain = self.plain_head
        if plain is None or self.softcap is not None or not quick(plain[0]):
            return None
        return self._shortlist.of(self.head, plain, self.before_head)

    def prompt_ids(self) -> list[int]:
        """The prompt's tokens without special ones; sets ``caption_lead`` as a prompt of plain words needs it."""
        ids = self.tokenizer(self.prompt, add_special_tokens=False)["input_ids"] if self.prompt else []
        self.caption_lead = " " if ids and not self.prompt[-1].isspace() else ""
        return ids


_CHANGES_SCORES = {
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
}
"""Decoding defaults that change which words a model prefers and that no option here has, with their values that do nothing."""


def unheard_defaults(model: Any) -> dict[str, Any]:
    """Decoding defaults of a checkpoint that change which words it prefers and are not followed here.

    Training needs captions that are drawn from what the model scores.
    """
    defaults = getattr(model, "generation_config", None)
    given = {name: getattr(defaults, name, None) for name in _CHANGES_SCORES}
    return {name: value for name, value in given.items() if value not in (None, [], {}, _CHANGES_SCORES[name])}


def first_given(what: str, candidates: Iterable[Any]) -> Any:
    """The first candidate that is not None: an id, or a list of them.

    Raises:
        UsageError: all of them are None, or it can be no id.
    """
    for candidate in candidates:
        if candidate is not None:
            as_list(candidate, what)
            return candidate
    raise UsageError(
        f"the model's configuration and tokenizer name no {what} token: set {what}_token_id in config.json."
    )


def as_list(ids: int | list[int], what: str = "eos") -> list[int]:
    """Configurations name one id or a list of them.

    Raises:
        UsageError: there is none, or one is not a whole number.
    """
    found = list(ids) if isinstance(ids, list | tuple) else [ids]
    if not found or any(type(token) is not int for token in found):
        raise UsageError(
            f"{what}_token_id is {quoted(ids)}, which can be no token: correct it in config.json or generation_config.json."
        )
    return found
