"""Any Hugging Face captioner of a known family, behind the one interface."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tellapart.captioners.adapters import LoraOptions, adapted, adapted_modules, is_untrained
from tellapart.captioners.asking import BUCKET, asked, drawn_buckets, own_buckets, prepare, reads_context
from tellapart.captioners.base import Captioner, Continuations, Encoded
from tellapart.captioners.continuing import Prefixes, continue_captions
from tellapart.captioners.contrastive import Contrast, Contrasted
from tellapart.captioners.drawing import draw_captions, draw_with_greedy
from tellapart.captioners.families import family_of, require_several_images
from tellapart.captioners.families.base import Family, Processors
from tellapart.captioners.families.prompted import Prompted
from tellapart.captioners.fused import fuse
from tellapart.captioners.learning import Train, checkpoint_layers, freeze, parts_to_train
from tellapart.captioners.liger import require_liger
from tellapart.captioners.loading import read_parts
from tellapart.captioners.modes import RolloutDtype, drawing_in, eval_mode, evaluating, layers_checkpointed
from tellapart.captioners.recorded import Memory, Recording, computes_otherwise
from tellapart.captioners.saving import read_changed_parts, read_weights, write_parts
from tellapart.captioners.scheduled import caption_keys, words_to_read
from tellapart.captioners.scoring import logits_alive, score
from tellapart.captioners.text import CaptionText
from tellapart.captioners.unroll import unroll
from tellapart.draws import base_seed
from tellapart.errors import UsageError, preparing, reading_images
from tellapart.lengths import LengthBuckets, WordRange
from tellapart.ops import describe_weights, require_finite
from tellapart.relaxation import Relaxation, SoftRollout
from tellapart.types import Batch, Decoding, Rollout, Scores

if TYPE_CHECKING:
    from PIL import Image


COMPARED = 2
"""Images whose captions show what drawing in another dtype changes."""

FEW_BEAMS = 1000
"""Beams that any model may be searched with; more only one with as many words."""


class HuggingFaceCaptioner(Captioner):
    """A model, its image processor and its tokenizer.

    Make one with ``from_pretrained`` or ``from_parts``.

    Attributes:
        network: what trains: the model, or peft's wrapper around it.
        family: reads the model; ``family.model`` is the bare model in either case.
        text: reads and writes captions; ``text.cut`` counts the human captions that were cut.
        buckets: lengths that captions can be asked for; none: the captioner has no length buckets.
        asked_bucket: the bucket that drawn captions are asked for; none draws one for each image, keyed by image id.
        may_remember: whether samples may be remembered until they are scored (``remembering``); not with weights in shards.
        changed_parts: parts (``parts``) that train, or have been trained, next to an adapter, and are saved with it.
    """

    def __init__(
        self,
        network: Any,
        family: Family,
        *,
        train: Train = "decoder",
        gradient_checkpointing: bool = False,
        max_caption_tokens: int = 64,
        changed_parts: Sequence[str] = (),
        logits_budget: float | None = None,
        use_liger_kernel: bool = False,
        rollout_dtype: RolloutDtype = "float32",
        buckets: LengthBuckets | None = None,
    ) -> None:
        super().__init__()
        self.buckets = buckets
        self.asked_bucket: int | None = None
        self.may_remember, self._remembers = True, False
        self._memory = Memory()
        if logits_budget is not None and not logits_budget >= 0:
            raise UsageError(f"logits_budget={logits_budget} is not an amount of memory: give GiB, 0 or more.")
        self.logits_budget, self.rollout_dtype = logits_budget, rollout_dtype
        self.use_liger_kernel = use_liger_kernel
        if max_caption_tokens < 1:
            raise UsageError(f"max_caption_tokens={max_caption_tokens} leaves no caption: give at least 1.")
        self.network, self.family, self.feature_size = network, family, family.feature_size
        self.image_processor, self.tokenizer = family.processors.image, family.processors.tokenizer
        self._asks = buckets is not None or reads_context(family)
        self._most_tokens = max_caption_tokens
        self.text = self._text()
        self.trains = train if isinstance(train, str) else list(train)
        fuse(family.model)
        if use_liger_kernel:
            require_liger(family)
        freeze(family, train, adapted=self.has_lora)
        self.changed_parts = tuple(dict.fromkeys((*changed_parts, *parts_to_train(family, train))))
        self.checkpoints_layers = gradient_checkpointing
        if gradient_checkpointing:
            checkpoint_layers(family.model)
        self.eval()  # as transformers' own models once they are loaded; a training chooses its mode

    def __repr__(self) -> str:
        model = self.family.model
        source = getattr(model.config, "name_or_path", "")
        named = f"{type(model).__name__} {source!r}" if source else type(model).__name__
        return f"{type(self).__name__}({named}, {describe_weights(self)}{', LoRA' if self.has_lora else ''})"

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        train: Train = "decoder",
        lora: LoraOptions | None = None,
        dtype: str = "float32",
        gradient_checkpointing: bool = False,
        revision: str | None = None,
        max_caption_tokens: int | None = None,
        prompt: str | None = None,
        quantization: str | None = None,
        logits_budget: float | None = None,
        use_liger_kernel: bool = False,
        rollout_dtype: RolloutDtype = "float32",
        length_buckets: Sequence[int] | None = None,
    ) -> HuggingFaceCaptioner:
        """Load a captioner from a folder (also one with a LoRA adapter) or from the hub.

        Args:
            name_or_path: folder or hub id.
            train: ``decoder`` trains everything but the image tower, ``all`` the image tower too, ``bridge`` only the
                layers between it and a language model; a list of such parts by name (BLIP-2, InstructBLIP: ``query_tokens``,
                ``qformer``, ``projection``) trains these only.
            lora: train a new low-rank adapter on the text side or the image tower instead, or next to such parts.
            dtype: ``float32``, ``bfloat16`` or ``float16``: of the stored weights.
            gradient_checkpointing: recompute layers in the backward pass instead of keeping their activations.
            revision: branch, tag or commit on the hub.
            max_caption_tokens: human captions are cut to this many tokens, and to as many as the decoder has positions for where
                nothing is asked of the image; none takes the saved value, else 64.
            prompt: words the model reads before it writes a caption; none takes the saved ones, else the family's.
            quantization: ``int8`` or ``nf4``: hold the language model's weights so, for training an adapter.
            logits_budget: GiB of logits that scoring with gradients keeps, beyond which it computes them twice; none: 1 on a CPU,
                a tenth of a GPU's memory.
            use_liger_kernel: score with gradients by Liger's fused linear cross-entropy, which keeps no logits; on a GPU only,
                and not where entropies are wanted.
            rollout_dtype: ``float32``; ``bfloat16``: draw captions under autocast; ``tf32``: draw with the factors of products
                rounded to TF32, on CUDA. Scores and their gradients stay as they are, and so does ``draw``.
            length_buckets: most words of each length bucket but the last; none takes the saved ones, if there are any.

        Raises:
            UsageError: something is missing or unreadable, the model is of an unknown family, or options conflict.
        """
        parts = read_parts(name_or_path, dtype=dtype, revision=revision, quantization=quantization)
        captioner = cls.from_parts(
            parts.model,
            parts.processors.image,
            parts.processors.tokenizer,
            processor=parts.processors.joint,
            prompt=parts.manifest.get("prompt") if prompt is None else prompt,
            train=train,
            lora=lora,
            adapter=parts.adapter,
            gradient_checkpointing=gradient_checkpointing,
            max_caption_tokens=parts.manifest.get("max_caption_tokens", 64)
            if max_caption_tokens is None
            else max_caption_tokens,
            logits_budget=logits_budget,
            use_liger_kernel=use_liger_kernel,
            rollout_dtype=rollout_dtype,
            length_buckets=parts.manifest.get("length_buckets") if length_buckets is None else length_buckets,
        )
        require_finite(captioner, f"captioner {name_or_path}")
        if (frames := parts.manifest.get("num_frames")) is not None and captioner.takes_frames:
            captioner.num_frames = frames
        return captioner

    @classmethod
    def from_parts(
        cls,
        model: Any,
        image_processor: Any,
        tokenizer: Any,
        *,
        processor: Any = None,
        prompt: str | None = None,
        train: Train = "decoder",
        lora: LoraOptions | None = None,
        adapter: Path | None = None,
        gradient_checkpointing: bool = False,
        max_caption_tokens: int = 64,
        logits_budget: float | None = None,
        use_liger_kernel: bool = False,
        rollout_dtype: RolloutDtype = "float32",
        length_buckets: Sequence[int] | None = None,
    ) -> HuggingFaceCaptioner:
        """A captioner around a model that is already in memory.

        Args:
            model: of a known family.
            image_processor: its image processor.
            tokenizer: its tokenizer.
            processor: what joins the two, for families that have such a thing.
            prompt: as in ``from_pretrained``.
            train: as in ``from_pretrained``.
            lora: as in ``from_pretrained``; the model must have been loaded from somewhere an adapter can refer to.
            adapter: folder of a saved adapter to continue training.
            gradient_checkpointing: as in ``from_pretrained``.
            max_caption_tokens: as in ``from_pretrained``.
            logits_budget: as in ``from_pretrained``.
            use_liger_kernel: as in ``from_pretrained``.
            rollout_dtype: as in ``from_pretrained``.
            length_buckets: as in ``from_pretrained``; may add tokens to tokenizer and model.

        Raises:
            UsageError: the model is of an unknown family, or options conflict.
        """
        if (lora or adapter) and train == "all":
            raise UsageError(
                "train='all' and lora exclude each other: an adapter leaves the weights below it as they are."
            )
        family = family_of(model, Processors(image_processor, tokenizer, processor), prompt)
        buckets = None if length_buckets is None else LengthBuckets(tuple(length_buckets))
        if buckets is not None:
            prepare(family, buckets, adapted=lora is not None or adapter is not None)
        network = adapted(family, lora, adapter)
        return cls(
            network,
            family,
            train=train,
            gradient_checkpointing=gradient_checkpointing,
            max_caption_tokens=max_caption_tokens,
            changed_parts=() if adapter is None else read_changed_parts(family, adapter),
            logits_budget=logits_budget,
            use_liger_kernel=use_liger_kernel,
            rollout_dtype=rollout_dtype,
            buckets=buckets,
        )

    def ask_length(self, words: WordRange | None) -> WordRange | None:
        """Ask drawn captions for the length bucket that shares most lengths with a range; none draws a bucket for each image.

        Returns:
            The lengths of that bucket.

        Raises:
            UsageError: the captioner has no length buckets.
        """
        if self.buckets is None:
            raise UsageError(
                "the captioner cannot be asked for a length: train one with captioner.length_buckets, or draw several captions."
            )
        self.asked_bucket = None if words is None else self.buckets.nearest(words)
        return None if self.asked_bucket is None else self.buckets.range(self.asked_bucket)

    def set_prompt(self, prompt: str) -> None:
        """Ask the model something else before it writes captions.

        Raises:
            UsageError: the model cannot be asked that.
        """
        frames = self.num_frames if self.takes_frames else None
        before = self.family
        self.family = type(before)(before.model, before.processors, prompt)
        self.family.lockstep, self.family.reads_parts = before.lockstep, before.reads_parts
        if frames is not None:
            self.family.read_frames(frames)
        self._follow_prompt()

    def _follow_prompt(self) -> None:
        """Set what depends on the words of the family's prompt."""
        if self.buckets is not None:
            prepare(self.family, self.buckets, adapted=False)
        self._asks = self.buckets is not None or reads_context(self.family)
        self.text = self._text()

    def _text(self) -> CaptionText:
        self.require_room(1)
        longest, most = self.family.longest, self._most_tokens
        return CaptionText(self.tokenizer, self.family, most if longest is None else min(most, longest))

    @property
    def has_lora(self) -> bool:
        """Whether an adapter trains instead of the model."""
        return self.network is not self.family.model

    @property
    def adapts_text(self) -> bool:
        """Whether an adapter sits on the text side."""
        image = {id(module) for module in self.family.vision.modules()} if self.has_lora else set()
        return self.has_lora and any(id(m) not in image for m in adapted_modules(self.family.model).values())

    @property
    def trains_vision(self) -> bool:
        """Whether gradients reach the image tower."""
        return any(parameter.requires_grad for parameter in self.family.vision.parameters())

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.family.model.parameters()).device

    @property
    def num_frames(self) -> int | None:
        """Frames that the model reads of each clip; none: it reads stills, or features."""
        return self.family.num_frames

    @num_frames.setter
    def num_frames(self, count: int) -> None:
        if not self.family.takes_frames:
            raise AttributeError(
                f"a {self.family.model.config.model_type} captioner reads as many frames as it was made for"
            )
        self.family.read_frames(count)
        self._follow_prompt()

    @property
    def takes_frames(self) -> bool:
        """Whether the family can read clips as a series of images."""
        return self.family.takes_frames

    def reversed_frames(self, batch: Batch) -> Batch | None:
        """The batch with the frames of each clip backwards; none where the model reads no frames."""
        if self.num_frames is None:
            return None
        inputs = {**batch.inputs, self.name: self.family.frames_reversed(batch.inputs[self.name])}
        return replace(batch, inputs=inputs)

    @property
    def eos_token_ids(self) -> list[int]:
        """Ids that end a caption."""
        return self.family.eos

    @property
    def max_caption_tokens(self) -> int:
        """Human captions are cut to this many tokens, EOS counted."""
        return self.text.max_caption_tokens

    def train(self, mode: bool = True) -> HuggingFaceCaptioner:
        """Switch modes; a frozen image tower stays in eval mode, so that its states can be reused."""
        super().train(mode)
        if not self.trains_vision:
            self.family.vision.eval()
        return self

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """The tensors of the family: ``pixel_values [len(images), 3, height, width]``, the prompt's tokens, ...; of a model with
        ``num_frames`` each image is a list of frames."""
        with preparing(self._called):
            return self.family.process(images)

    @property
    def _called(self) -> str:
        """What messages call it."""
        return f"the captioner {getattr(self.family.model, 'name_or_path', '')}".rstrip()

    def encode(self, batch: Batch) -> Encoded:
        """Image states; with gradients if they are enabled and the image tower trains."""
        if self.name not in batch.inputs:
            raise KeyError(f"the batch has no inputs named {self.name!r}: give Collate this captioner's process")
        dtype = self.family.input_dtype
        inputs = {
            key: value.to(self.device, dtype if value.is_floating_point() else None)
            for key, value in batch.inputs[self.name].items()
        }
        enabled = (torch.is_grad_enabled() or self._remembers) and self.trains_vision
        with reading_images(self._called), torch.set_grad_enabled(enabled):
            encoded = self.family.encode(inputs)
        if self.buckets is None:
            return encoded
        return replace(encoded, inputs={**encoded.inputs, BUCKET: self._buckets_of(batch)})

    def _buckets_of(self, batch: Batch) -> Tensor:
        """``[B]``: the length bucket that each image's captions are asked for."""
        assert self.buckets is not None, "there are buckets"
        if self.asked_bucket is not None:
            return torch.full((len(batch),), self.asked_bucket, device=self.device)
        return drawn_buckets(batch.ids, self.buckets).to(self.device)

    def _requests(self, batch: Batch, encoded: Encoded) -> tuple[Encoded, Tensor | None]:
        """States of which each row knows what its image's captions are asked for, and the images' buckets."""
        bucket = encoded.inputs.get(BUCKET)
        rows = torch.arange(len(encoded.states), device=encoded.states.device)
        return self._asked(batch, encoded, rows, bucket)[0], bucket

    def _asked(
        self,
        batch: Batch,
        encoded: Encoded,
        image: Tensor,
        bucket: Tensor | None,
        context_of: Tensor | None = None,
    ) -> tuple[Encoded, Tensor]:
        """States with a row for each image and request, and the row of each caption; as they are where nothing is asked."""
        if not self._asks or not len(image):
            return encoded, image
        inputs = {key: value.to(self.device) for key, value in batch.inputs.get(self.name, {}).items()}
        contexts = batch.contexts
        return asked(
            self.family,
            encoded,
            inputs,
            image,
            buckets=self.buckets,
            bucket=bucket,
            contexts=contexts,
            context_of=context_of,
        )

    def requested(self, rollout: Rollout, encoded: Encoded) -> tuple[Encoded, Tensor]:
        """The states that a rollout's captions are scored with, those of the lengths and contexts asked of them among them, and
        the row of each of the N captions, ``[N]``."""
        image, bucket = rollout.image.to(self.device), rollout.bucket
        if bucket is None and self.buckets is not None:
            bucket = own_buckets(rollout.texts, self.buckets)
        encoded, row = self._asked(rollout.batch, encoded, image, bucket)
        self._require_room_for(rollout, encoded, row)
        return encoded, row

    def _require_room_for(self, rollout: Rollout, encoded: Encoded, row: Tensor) -> None:
        longest = self.family.longest_after(encoded) if self._asks else self.family.longest
        if longest is None or rollout.tokens.shape[1] <= longest:
            return
        # The longest caption may follow another prompt than the longest.
        for place, length in zip(row.tolist(), rollout.lengths.tolist(), strict=True):
            asked = encoded.select([place])
            self.require_room(1, encoded=asked)
            room = self.family.longest_after(asked)
            if room is not None and length > room:
                raise UsageError(
                    f"a caption has {length} tokens, but the model can hold {room} after its prompt: shorten the prompt or its "
                    "context, or lower max_caption_tokens."
                )

    def _written(self, batch: Batch, tokens: Tensor, count: int, bucket: Tensor | None) -> Rollout:
        """Drawn captions, ``count`` per image, and what they were asked for."""
        rollout = self.text.write(batch, tokens, count)
        return rollout if bucket is None else replace(rollout, bucket=bucket.repeat_interleave(count))

    def encode_together(
        self, batch: Batch, shown: Sequence[Sequence[int]], prompt: str, *, encoded: Encoded | None = None
    ) -> Encoded:
        """States of rows that show several images each, in order, and then ask a prompt; captions are drawn and scored with
        them as with those of ``encode``.

        Args:
            batch: B images.
            shown: for each of N rows, the images of the batch that it shows.
            prompt: what is asked after the images.
            encoded: of the batch, if it is known.

        Raises:
            UsageError: the captioner reads one image per prompt, its captions are asked for lengths or read contexts, or a row is
                longer than it can read.

        Example:
            >>> batch = collate([own, other])
            >>> both = captioner.encode_together(batch, [[0, 1]], "What sets the first image apart from the second?")
            >>> captioner.generate(batch.select([0]), Decoding(num_beams=5), encoded=both).texts
        """
        require_several_images(self.family.model.config)
        if self._asks:
            raise UsageError(
                "a prompt with look-alikes has no place for a length or a context: leave lookalikes_in_prompt out, or choose "
                "a captioner without length buckets and without {context} in its prompt."
            )
        assert isinstance(self.family, Prompted)
        encoded = self.encode(batch) if encoded is None else encoded
        inputs = {key: value.to(self.device) for key, value in batch.inputs[self.name].items()}
        return self.family.together(encoded, inputs, shown, prompt)

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """On a CPU in float32, without checkpointed layers and dropout.

        Scoring then reads products instead of computing them: all of a decoder that is read by its parts and has no adapters, of
        others the logits. It also reads the graph of a tower that learns.
        """
        family, plain = self.family, not (self._asks or self.checkpoints_layers)
        plain = plain and self.may_remember and family.reads_parts and self.rollout_dtype == "float32"
        plain = plain and not torch.is_autocast_enabled("cpu")
        plain = plain and not any(map(computes_otherwise, family.model.modules()))  # scoring will be in the same mode
        self._memory = Memory()
        self._remembers = plain and all(
            weight.is_cpu and weight.dtype is torch.float32 for weight in family.model.parameters()
        )
        try:
            yield
        finally:
            self._remembers = False

    def _recording(self, batch: Batch, decoding: Decoding) -> Recording | None:
        if not self._remembers or not decoding.do_sample or decoding.num_beams > 1:
            return None
        rows = len(batch) * (decoding.num_return_sequences + 1)
        count = rows * decoding.max_new_tokens * self.family.vocab_size
        kept, _ = logits_alive(count, self.device, budget=self.logits_budget)
        return Recording(self.family, logits=kept)

    def reusable(self, encoded: Encoded) -> Encoded | None:
        """``encoded`` while the image tower is frozen."""
        return None if self.trains_vision else encoded

    def generate(
        self, batch: Batch, decoding: Decoding, *, encoded: Encoded | None = None, contrast: Contrast | None = None
    ) -> Rollout:
        """Draw captions by a loop of our own, with the decisions of Hugging Face's ``generate``.

        With ``contrast``, captions are drawn by contrastive decoding of the first images of the batch, those whose distractors it
        names, and the rollout's batch is these.
        """
        self.require_room(decoding.max_new_tokens, decoding.num_beams)
        if contrast is None:
            return self._ordinary(batch, decoding, encoded)
        described = batch.select(range(len(contrast.distractors)))
        with evaluating(self):
            encoded = self.encode(batch) if encoded is None else encoded
            images = contrast.images().to(self.device)
            bucket = encoded.inputs[BUCKET][: len(described)] if BUCKET in encoded.inputs else None
            # A distractor is asked what the described image is asked, or lengths and contexts would tell them apart.
            count = images.shape[1]
            asked_of = None if bucket is None else bucket.repeat_interleave(count)
            ready, row = self._asked(batch, encoded, images.flatten(), asked_of, images[:, 0].repeat_interleave(count))
            ready = ready.select(row)
            self.require_room(decoding.max_new_tokens, decoding.num_beams, encoded=ready)
            contrasted, own = (
                Contrasted(self.family, contrast, ready),
                ready.select(range(0, len(row), images.shape[1])),
            )
            with drawing_in(self.rollout_dtype, self.device):
                tokens, _ = draw_captions(contrasted, own, described.ids, decoding, logprobs=False)
        return self._written(described, tokens, decoding.num_return_sequences, bucket)

    def require_room(self, max_new_tokens: int, num_beams: int = 1, *, encoded: Encoded | None = None) -> None:
        """Raise if captions may become longer than the decoder has positions for, or if there are too many beams.

        Args:
            max_new_tokens: longest caption in tokens, its EOS included.
            num_beams: beams per image.
            encoded: the images, whose prompts take positions, too; by default only what every image has before its caption.

        Raises:
            UsageError: naming the option and its largest value.
        """
        longest = self.family.longest if encoded is None else self.family.longest_after(encoded)
        most = max(self.family.vocab_size, FEW_BEAMS)
        if longest is not None and longest < 1:
            raise UsageError(
                f"the prompt is {1 - longest} tokens longer than the model can read before a caption: shorten it."
            )
        if longest is not None and max_new_tokens > longest:
            raise UsageError(
                f"max_new_tokens is {max_new_tokens}, but the model can hold {longest} tokens: give at most {longest}."
            )
        if num_beams > most:
            raise UsageError(f"num_beams is {num_beams}: give at most {most}.")

    def _ordinary(self, batch: Batch, decoding: Decoding, encoded: Encoded | None) -> Rollout:
        with evaluating(self):
            encoded = self.encode(batch) if encoded is None else encoded
        rollout, _ = self._generate(batch, decoding, encoded, dtype=self.rollout_dtype)
        return self._compared(rollout, encoded)

    def generate_with_greedy(
        self, batch: Batch, decoding: Decoding, *, encoded: Encoded | None = None, greedy: Decoding | None = None
    ) -> tuple[Rollout, Rollout]:
        """Samples or beams and greedy captions, drawn in one loop where the longest lengths are the same and, next to samples,
        the restrictions."""
        alone = decoding.greedy() if greedy is None else greedy
        self.require_room(max(decoding.max_new_tokens, alone.max_new_tokens), decoding.num_beams)
        beams = decoding.num_beams > 1 and alone.max_new_tokens == decoding.max_new_tokens
        if not (beams or (decoding.do_sample and alone == decoding.greedy())):
            return super().generate_with_greedy(batch, decoding, encoded=encoded, greedy=alone)
        with evaluating(self):
            encoded = self.encode(batch) if encoded is None else encoded
            ready, bucket = self._requests(batch, encoded)
            self.require_room(decoding.max_new_tokens, decoding.num_beams, encoded=ready)
            recording = self._recording(batch, decoding)
            with drawing_in(self.rollout_dtype, self.device):
                drawn, greedily = draw_with_greedy(recording or self.family, ready, batch.ids, decoding, alone)
        rollout = self._written(batch, drawn, decoding.num_return_sequences, bucket)
        if recording is not None:
            self._memory = Memory(recording.of(rollout), encoded)
        return self._compared(rollout, encoded), self._written(batch, greedily, 1, bucket)

    def draw(self, batch: Batch, decoding: Decoding, *, encoded: Encoded | None = None) -> tuple[Rollout, Tensor]:
        """``generate`` with the ``[N, T]`` raw log-probabilities met while drawing, 0 where masked."""
        if decoding.num_beams > 1:
            raise ValueError("beam search gives no log-probabilities of drawing: score the rollout instead")
        self.require_room(decoding.max_new_tokens)
        rollout, logprobs = self._generate(batch, decoding, encoded, dtype="float32", logprobs=True)
        assert logprobs is not None
        return rollout, logprobs

    def _generate(
        self,
        batch: Batch,
        decoding: Decoding,
        encoded: Encoded | None,
        *,
        dtype: RolloutDtype,
        logprobs: bool = False,
    ) -> tuple[Rollout, Tensor | None]:
        with evaluating(self):
            encoded, bucket = self._requests(batch, self.encode(batch) if encoded is None else encoded)
            self.require_room(decoding.max_new_tokens, decoding.num_beams, encoded=encoded)
            recording = self._recording(batch, decoding)
            with drawing_in(dtype, self.device):
                family = recording or self.family
                tokens, scored = draw_captions(family, encoded, batch.ids, decoding, logprobs=logprobs)
        rollout = self._written(batch, tokens, decoding.num_return_sequences, bucket)
        if recording is not None:
            self._memory = Memory(recording.of(rollout), encoded)
        return rollout, None if scored is None else scored[:, : rollout.tokens.shape[1]]

    def _compared(self, rollout: Rollout, encoded: Encoded) -> Rollout:
        """The rollout with what drawing in another dtype changed, measured on the captions of the first two images."""
        rows = (rollout.image < COMPARED).nonzero().squeeze(1)
        if self.rollout_dtype == "float32" or not len(rows):
            return rollout
        encoded, places = self.requested(rollout, encoded)
        image, tokens, mask = places[rows], rollout.tokens[rows], rollout.mask[rows]
        found = []
        with evaluating(self):
            for dtype in ("float32", self.rollout_dtype):
                with drawing_in(dtype, self.device):
                    found.append(score(self.family, encoded, image, tokens, mask).logprobs)
        difference = (found[0] - found[1]).abs().sum(dim=1) / mask.sum(dim=1)
        return replace(rollout, dtype_difference=difference)

    def continue_from(
        self, rollout: Rollout, decoding: Decoding, *, shortest: int = 1, encoded: Encoded | None = None
    ) -> Continuations:
        """Continuations of every prefix, all sampled at once.

        Raises:
            ValueError: the decoding draws no samples, or captions are longer than it allows.
            UsageError: captions may become longer than the decoder has positions for.
        """
        if not decoding.do_sample or int(rollout.lengths.max()) > decoding.max_new_tokens:
            raise ValueError("continuations are samples, and max_new_tokens must be that of the captions or more")
        self.require_room(decoding.max_new_tokens)
        prefixes = Prefixes.of(rollout.lengths.to(self.device), shortest, decoding.num_return_sequences)
        if not len(prefixes.caption):
            return Continuations(rollout.select([]), prefixes.caption, prefixes.length)
        with evaluating(self):
            encoded = self.encode(rollout.batch) if encoded is None else encoded
            ready, row = self.requested(rollout, encoded)
            self.require_room(decoding.max_new_tokens, encoded=ready)
            with drawing_in(self.rollout_dtype, self.device):
                tokens = continue_captions(self.family, ready, rollout, prefixes, decoding, row=row)
        image = rollout.image.to(self.device)[prefixes.caption]
        bucket = None if rollout.bucket is None else rollout.bucket.to(self.device)[prefixes.caption]
        continued = replace(self.text.write(rollout.batch, tokens, 1), image=image, bucket=bucket)
        return Continuations(continued, prefixes.caption, prefixes.length)

    def unroll(self, batch: Batch, relaxation: Relaxation, *, encoded: Encoded | None = None) -> SoftRollout:
        """Draw one caption of each image, in eval mode but with gradients through the drawn words; with ``multinomial`` they
        are those of ``generate`` with ``do_sample``. Checkpointed by steps if the captioner is checkpointed.

        Raises:
            UsageError: mixtures of words are to be read and the family cannot, or captions may become longer than the decoder has
                positions for.
        """
        self.require_room(relaxation.max_new_tokens)
        checkpointed = self.checkpoints_layers
        with eval_mode(self):
            if encoded is None:
                with layers_checkpointed(self.network if checkpointed else torch.nn.Identity()):
                    encoded = self.encode(batch)
            ready, bucket = self._requests(batch, encoded)
            self.require_room(relaxation.max_new_tokens, encoded=ready)
            tokens, words = unroll(self.family, ready, batch.ids, relaxation, checkpointed=checkpointed)
        return SoftRollout(self._written(batch, tokens, 1, bucket), words)

    def tokenize(self, batch: Batch, texts: Sequence[str], image: Tensor) -> Rollout:
        """Human captions: stripped, without special tokens but the EOS at their end; long ones are cut and lack it.

        Each is asked for the length bucket of its own length.
        """
        rollout = self.text.read(batch, texts, image, self.device)
        if self.buckets is None:
            return rollout
        return replace(rollout, bucket=own_buckets(rollout.texts, self.buckets).to(self.device))

    def own_words(self, rollout: Rollout, probability: float, *, encoded: Encoded | None = None) -> Tensor:
        """Word by word for recurrent captioners; for others in one pass over the rollout (``.scheduled``)."""
        with evaluating(self):
            encoded, row = self.requested(rollout, self.encode(rollout.batch) if encoded is None else encoded)
            return words_to_read(
                self.family,
                encoded,
                row,
                rollout.tokens.to(self.device),
                rollout.mask.to(self.device),
                keys=caption_keys(rollout.batch.ids, rollout.image),
                probability=probability,
                seed=base_seed(),
            )

    def forward(
        self,
        rollout: Rollout,
        *,
        encoded: Encoded | None = None,
        want: Collection[str] = (),
        read: Tensor | None = None,
    ) -> Scores:
        """Score a rollout: ``[N, T]`` float32 log-probabilities under the raw distribution.

        Args:
            rollout: N captions.
            encoded: of its images, if they are known.
            want: ``entropy``, ``hidden``, ``logits``.
            read: ``[N, T]`` words to read in place of the rollout's.

        Raises:
            ValueError: ``want`` names something else than ``entropy``, ``hidden``, ``logits``.
            UsageError: a caption is longer than the decoder has positions for.
        """
        if torch.is_grad_enabled() and not want and read is None and self._memory.is_of(rollout):
            memory, self._memory = self._memory, Memory()
            learns = self.trains_vision
            if (known := memory.score(self.family, encoded, self.logits_budget, vision_learns=learns)) is not None:
                return Scores(known)
            del memory
        device, checkpointed = self.device, self.checkpoints_layers and torch.is_grad_enabled()
        with layers_checkpointed(self.network if checkpointed else torch.nn.Identity()):
            encoded, row = self.requested(rollout, self.encode(rollout.batch) if encoded is None else encoded)
            return score(
                self.family,
                encoded,
                row,
                rollout.tokens.to(device),
                rollout.mask.to(device),
                want=want,
                share_prefix=not checkpointed,
                read=read,
                budget=self.logits_budget,
                liger=self.use_liger_kernel,
            )

    def reference(self) -> ReferenceCaptioner:
        """A frozen copy of the captioner as it is now; frozen weights are shared with it."""
        return ReferenceCaptioner(self)

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors`` (or an adapter), image processor, tokenizer and ``tellapart.json``."""
        write_parts(self, folder)

    def load_weights(self, folder: Path) -> None:
        """Read back, in place and bit for bit, what ``save`` wrote.

        Raises:
            UsageError: the folder lacks them, or they are of another model.
        """
        read_weights(self, folder)


class ReferenceCaptioner:
    """A frozen copy of a captioner: trained weights are copied, frozen weights are shared.

    Its memory cost is the text side in full training, also the image tower if that trains, and next to nothing with LoRA. With
    LoRA the copy is the same base weights with a new adapter that is always switched off. The policy's own adapter is never
    switched, so recomputed activations cannot see the wrong one. An adapter that had been trained before stays on.

    It is not an ``nn.Module``: its weights reach neither optimiser nor checkpoints.
    """

    def __init__(self, captioner: HuggingFaceCaptioner) -> None:
        shared = [parameter for parameter in captioner.parameters() if not parameter.requires_grad]
        memo = {id(thing): thing for thing in [*shared, *vars(captioner.family.processors).values()]}
        self.shares_vision = not captioner.trains_vision
        self.captioner: HuggingFaceCaptioner = copy.deepcopy(captioner, memo)
        self.captioner.requires_grad_(False).eval()
        self.captioner.checkpoints_layers = False
        if self.captioner.has_lora and is_untrained(self.captioner.family.model):
            self.captioner.network.base_model.disable_adapter_layers()

    def __call__(self, rollout: Rollout, *, encoded: Encoded | None = None) -> Scores:
        """Log-probabilities of the rollout, without gradients; ``encoded`` is used only if its tower is frozen."""
        device = rollout.tokens.device
        # What is shared has moved with the captioner already, so one parameter's place says nothing of the others'.
        if any(parameter.device != device for parameter in self.captioner.parameters()):
            self.captioner.to(device)
        with evaluating(self.captioner):
            return self.captioner(rollout, encoded=encoded if self.shares_vision else None)
