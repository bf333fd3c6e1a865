"""The captioner's interface to the rest of the package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from tellapart.errors import UsageError
from tellapart.lengths import LengthBuckets
from tellapart.ops import describe_weights
from tellapart.relaxation import Relaxation, SoftRollout
from tellapart.types import Batch, Decoding, Index, Rollout, Scores

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Continuations:
    """Captions that continue prefixes of given ones.

    Args:
        rollout: M captions; each begins with the tokens of its prefix.
        caption: ``[M]`` long, the given caption that the prefix is of.
        length: ``[M]`` long, tokens of the prefix.
    """

    rollout: Rollout
    caption: Tensor
    length: Tensor


@dataclass(frozen=True)
class Encoded:
    """Images as the captioner's decoder reads them: computed once per image, shared by drawing and scoring.

    Args:
        states: ``[B, P, D]`` image states.
        mask: ``[B, P]`` bool, or none when every position is real.
        inputs: further tensors the decoder needs, each with B rows: the tokens of the prompt, say.
    """

    states: Tensor
    mask: Tensor | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)

    def select(self, index: Index) -> Encoded:
        """The images at ``index`` (repeats allowed)."""
        mask = None if self.mask is None else self.mask[index]
        return Encoded(self.states[index], mask, {name: value[index] for name, value in self.inputs.items()})


class FrozenReference(Protocol):
    """A captioner as it was when training began; holds no trainable state and is not an ``nn.Module``."""

    def __call__(self, rollout: Rollout, *, encoded: Encoded | None = None) -> Scores:
        """Log-probabilities of the rollout, without gradients."""
        ...


class Captioner(nn.Module, ABC):
    """The only code that knows a model's insides: draws captions, reads human ones, scores any.

    ``name`` is the key of its tensors in ``Batch.inputs``.
    """

    name: str = "captioner"
    feature_size: int | None = None
    """Width of the image features it reads; none: it reads pictures, through ``process``."""
    buckets: LengthBuckets | None = None
    """Lengths that captions can be asked for; none: it cannot be asked."""

    def __repr__(self) -> str:
        """One line; the layers are those of the model."""
        return f"{type(self).__name__}({describe_weights(self)})"

    @property
    def num_frames(self) -> int | None:
        """Frames that it reads of each clip, which ``process`` is given as a list per clip; none: it reads stills."""
        return None

    @property
    def takes_frames(self) -> bool:
        """Whether ``num_frames`` may be set, although the model itself reads stills."""
        return False

    def reversed_frames(self, batch: Batch) -> Batch | None:
        """The batch with the frames of each clip backwards, for the start-up check; none where it reads no frames."""
        return None

    @property
    def eos_token_ids(self) -> list[int]:
        """Ids that end a caption."""
        raise NotImplementedError(f"{type(self).__name__} does not name the ids that end its captions")

    @abstractmethod
    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """RGB images -> the tensors ``encode`` reads, one row per image; safe to call in a worker process."""

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Let what encoding and sampling compute inside be kept until the samples are scored, which is then quicker.

        Only the latest samples are remembered, and only until they are scored with gradients once.
        """
        yield

    @abstractmethod
    def encode(self, batch: Batch) -> Encoded:
        """Image states; with gradients if they are enabled and the vision side trains."""

    @abstractmethod
    def reusable(self, encoded: Encoded) -> Encoded | None:
        """``encoded`` if it stays valid within a step with gradients (the vision side is frozen), else None."""

    @abstractmethod
    def generate(self, batch: Batch, decoding: Decoding, *, encoded: Encoded | None = None) -> Rollout:
        """Draw ``B * num_return_sequences`` captions, image by image; never has gradients, always in eval mode.

        Sampling is keyed by image id and one draw from torch's global generator (``draws.uniforms``), so it does not
        depend on how images are batched.
        """

    def generate_with_greedy(
        self, batch: Batch, decoding: Decoding, *, encoded: Encoded | None = None, greedy: Decoding | None = None
    ) -> tuple[Rollout, Rollout]:
        """Samples or beams, as ``generate`` draws them, and the greedy caption of each image.

        Args:
            batch: B images.
            decoding: of the samples or beams.
            encoded: of the batch, if it is known.
            greedy: of the greedy captions; none: under the same restrictions as the samples or beams.
        """
        encoded = self.encode(batch) if encoded is None else encoded
        alone = decoding.greedy() if greedy is None else greedy
        return self.generate(batch, decoding, encoded=encoded), self.generate(batch, alone, encoded=encoded)

    def draw(self, batch: Batch, decoding: Decoding, *, encoded: Encoded | None = None) -> tuple[Rollout, Tensor]:
        """``generate``, with the ``[N, T]`` raw log-probabilities met while drawing (not for beam search).

        Only the start-up contract needs it, to hold drawing against scoring.
        """
        raise NotImplementedError(f"{type(self).__name__} does not tell the log-probabilities of its drawing")

    def unroll(self, batch: Batch, relaxation: Relaxation, *, encoded: Encoded | None = None) -> SoftRollout:
        """Draw one caption of each image, in eval mode but with gradients through the drawn words.

        Random numbers are keyed by image id, as those of ``generate``.

        Raises:
            UsageError: this captioner's decoder cannot read mixtures of words.
        """
        raise UsageError(
            f"{type(self).__name__} cannot read mixtures of words, which gradients through words need: choose another "
            "captioner, or a method that scores captions, such as reinforce_joint."
        )

    def continue_from(
        self, rollout: Rollout, decoding: Decoding, *, shortest: int = 1, encoded: Encoded | None = None
    ) -> Continuations:
        """Sample ``num_return_sequences`` continuations of every prefix of captions, from ``shortest`` tokens up to all but the
        last; never has gradients, always in eval mode.

        Random numbers are keyed by image id, as those of ``generate``.

        Args:
            rollout: one caption of each image, none longer than ``decoding.max_new_tokens``.
            decoding: of the samples; ``max_new_tokens`` counts the prefix.
            shortest: tokens of the shortest prefix; 0 starts from the beginning.
            encoded: of the rollout's batch, if it is known.

        Example::

            sixteen = Decoding(do_sample=True, num_return_sequences=16, max_new_tokens=20)
            found = captioner.continue_from(rollout, sixteen)
            values = group_mean(reward(found.rollout), found.caption)
        """
        raise NotImplementedError(f"{type(self).__name__} cannot continue captions")

    @abstractmethod
    def tokenize(self, batch: Batch, texts: Sequence[str], image: Tensor) -> Rollout:
        """Human captions as a rollout: the model's EOS is appended, nothing is prepended; long ones are cut and marked
        unfinished. ``image`` is ``[N]`` long, the row of ``batch`` each text is of."""

    def own_words(self, rollout: Rollout, probability: float, *, encoded: Encoded | None = None) -> Tensor:
        """``[N, T]``: a rollout's words, each replaced by a word drawn from the captioner with this probability.

        For scheduled sampling: ``forward`` reads them and scores the rollout's own. Without gradients, in eval mode; keyed
        by image id and the caption's place among those of its image.

        Raises:
            UsageError: this captioner cannot read other words than it scores.
        """
        raise UsageError(
            f"{type(self).__name__} cannot read other words than it scores: set objective.scheduled_sampling to 0, or choose "
            "another captioner."
        )

    @abstractmethod
    def forward(
        self,
        rollout: Rollout,
        *,
        encoded: Encoded | None = None,
        want: Collection[str] = (),
        read: Tensor | None = None,
    ) -> Scores:
        """Score a rollout: the one differentiable entry. ``want`` may name ``entropy``, ``hidden``, ``logits``; ``read`` are
        words ``[N, T]`` to read in place of the rollout's, which are scored (``own_words``)."""

    @abstractmethod
    def reference(self) -> FrozenReference:
        """A frozen copy of the captioner as it is now (with LoRA: the same weights, adapter off)."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights (safetensors), processor and tokenizer so that plain ``transformers``/``peft`` can load them.

        Only complete folders are promised: callers write into a temporary folder and rename it.
        """

    @abstractmethod
    def load_weights(self, folder: Path) -> None:
        """Read back, in place, what ``save`` wrote (used on resume).

        Raises:
            UsageError: the folder lacks them.
        """
