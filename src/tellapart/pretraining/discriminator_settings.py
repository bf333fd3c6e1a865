"""What a discriminator is and how it is pre-trained. Imports no torch, so that the command line can show it at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tellapart.errors import UsageError
from tellapart.ranges import NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat, require_fields

if TYPE_CHECKING:
    from tellapart.types import Decoding


@dataclass(frozen=True, kw_only=True)
class DiscriminatorSettings:
    """The real/generated discriminator of WTF-RL, or the evaluator of G-GAN, and its pre-training against the start model.

    Args:
        kind: mlp reads the listener's embeddings (WTF-RL); text reads the words in their order; dot_product compares image and
            caption (G-GAN).
        see_image: whether kind text reads the image too.
        path: a saved discriminator to start from, or a checkpoint that holds one, instead of pre-training; its own kind
            is kept.
        pretraining_steps: optimiser steps of pre-training; 0 starts from random weights.
        learning_rate: of pre-training; null takes 7e-5 for mlp (the paper) and 1e-3 for the others.
        batch_size: images in a step of pre-training, with one reference and one generated caption each.
        num_beams: beams of the generated captions.
        no_repeat_ngram_size: no n-gram of this size occurs twice in them; 0 allows all.
        do_sample: sample the generated captions instead; needs num_beams 1.
        max_new_tokens: longest generated caption in tokens.
        corrupted: share (0 to 1) of the generated captions of pre-training that are replaced by a corrupted reference (words
            repeated, removed, replaced or shuffled); the paper has none.
        mismatched: also pre-train against people's captions of other images, one per image and step (G-GAN).
        held_out: training images kept out of pre-training, to measure the accuracy on; at most a tenth of all.
        seed: seed of weights, held-out images and sampling.

    Raises:
        ValueError: a value is outside its range.
        UsageError: options contradict each other.
    """

    kind: Literal["mlp", "text", "dot_product"] = "mlp"
    see_image: bool = True
    path: Path | None = None
    pretraining_steps: NonNegativeInt = 1000
    learning_rate: PositiveFloat | None = None
    batch_size: PositiveInt = 64
    num_beams: PositiveInt = 5
    no_repeat_ngram_size: NonNegativeInt = 3
    do_sample: bool = False
    max_new_tokens: PositiveInt = 40
    corrupted: UnitFloat = 0.0
    mismatched: bool = False
    held_out: NonNegativeInt = 500
    seed: int = 0

    def __post_init__(self) -> None:
        require_fields(self)
        if self.do_sample and self.num_beams > 1:
            raise UsageError(
                f"discriminator.do_sample with num_beams={self.num_beams} is not supported: set num_beams=1, or leave "
                "do_sample out."
            )
        if not self.see_image and self.kind != "text":
            raise UsageError(
                f"discriminator.see_image is for kind text, and {self.kind} reads the image always: leave it out."
            )

    def decoding(self) -> Decoding:
        """How the generated captions are drawn, one per image."""
        from tellapart.types import Decoding

        return Decoding(
            num_beams=self.num_beams,
            do_sample=self.do_sample,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            max_new_tokens=self.max_new_tokens,
        )
