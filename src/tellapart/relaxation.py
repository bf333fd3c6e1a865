"""Records and protocol of gradients through drawn words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from tellapart.ranges import PositiveFloat, PositiveInt, UnitFloat, require_fields
from tellapart.types import Batch, Rollout


@dataclass(frozen=True)
class Relaxation:
    """How drawn words are passed on so that gradients flow back through them (Vered et al., ICCV 2019, section 4).

    Args:
        estimator: ``multinomial`` draws from the distribution, ``gumbel`` takes the maximum of perturbed logits; in both cases
            gradients flow as if the distribution itself (for ``gumbel`` the perturbed one) had been passed.
        rho: probability (0 to 1) that a step of a caption passes the whole distribution instead of the drawn word, the paper's
            rho; 0 is straight-through. The authors' code has the opposite polarity.
        temperature: of the perturbed distribution; ``gumbel`` only.
        feed_soft: whether what is passed is also what the captioner reads next, so that gradients flow through time too;
            else it reads the drawn word.
        max_new_tokens: longest caption in tokens, its EOS included.
        gradient_through_eos: whether the step that draws the first EOS passes on what any other step does; else it passes the
            one-hot EOS without gradient.

    Raises:
        ValueError: a number or name cannot be used.
    """

    estimator: Literal["multinomial", "gumbel"] = "multinomial"
    rho: UnitFloat = 0.25
    temperature: PositiveFloat = 1.0
    feed_soft: bool = True
    max_new_tokens: PositiveInt = 17
    gradient_through_eos: bool = True

    def __post_init__(self) -> None:
        require_fields(self)


@dataclass(frozen=True)
class SoftRollout:
    """One drawn caption of each image, with words that gradients flow through.

    Args:
        rollout: the drawn words.
        words: ``[N, T, V]``, each step's vector over the vocabulary, as wide as ``rollout.tokens``: a distribution where the
            step passed it, else one-hot, in either case with gradient; after the first EOS the one-hot EOS, without. The
            first EOS itself is of either kind (``Relaxation.gradient_through_eos``).
    """

    rollout: Rollout
    words: Tensor


class SoftListener(Protocol):
    """A listener that reads distributions over words as well as texts: an ``nn.Module``, and a child of the objective that
    trains it. Unlike those of a ``Listener``, its embeddings have gradients where they are enabled."""

    @property
    def name(self) -> str:
        """Key of its tensors in ``batch.inputs``."""
        ...

    def embed_images(self, batch: Batch) -> Tensor:
        """``[B, D]``, unit norm."""
        ...

    def embed_words(self, words: Tensor, mask: Tensor, finished: Tensor | None = None) -> Tensor:
        """``[N, D]``, unit norm, of captions given as vectors over the captioner's vocabulary.

        Args:
            words: ``[N, T, V]``, each a distribution over the vocabulary, or one-hot.
            mask: ``[N, T]`` bool, true on every real word up to and including the first EOS.
            finished: ``[N]`` bool, captions whose last real word was drawn as EOS, whatever its vector is; none: those whose
                last vector is EOS.
        """
        ...

    def embed_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """``[N, D]``, unit norm, of captions as ``[N, T]`` ids of the captioner's vocabulary: the same as one-hot words."""
        ...
