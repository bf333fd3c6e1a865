"""Training a listener's text tower together with a head that tells captions from corrupted ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tellapart.data.corruptions import corrupt
from tellapart.draws import base_seed
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.pooled import embed_and_pool
from tellapart.listeners.trained import freeze_vision, image_embeddings
from tellapart.objectives.contrastive import contrast, draw_texts, generators, in_buckets
from tellapart.ranges import NonNegativeFloat, PositiveInt, in_range
from tellapart.rewards.grammar import GRAMMATICAL, GrammarHead, GrammarListener, plain
from tellapart.types import Batch, ObjectiveModule, StepOutput


@dataclass(frozen=True)
class Spoilt:
    """A text of each image of a batch, and the same text corrupted.

    Args:
        batch: B images.
        texts: B references, as plain words.
        corrupted: B texts made from them.
        cut: ``[B]`` bool, references that the model cannot take all of, so that their corruption may be behind the cut.
    """

    batch: Batch
    texts: list[str]
    corrupted: list[str]
    cut: Tensor


class ContrastiveGrammar(ObjectiveModule):
    """Symmetric InfoNCE and a grammar head, for the text side of CLIP (Cho et al., Findings of NAACL 2022, section 3.2).

    ``L = InfoNCE(image, reference) + weight * CE(head)``, the cross-entropy being the mean over references (grammatical) and
    corruptions (not), one of each per image. Image tower and image projection are frozen; text tower, text projection,
    temperature and head learn as one part, ``listener``, whose folder in a checkpoint is a listener's, with the head's files.

    Departures from the released code: equal texts of a batch are one candidate and are not negatives of each other's images
    (as in ``Contrastive``); the temperature stays at 100 or below; texts carry the listener's prefix here too, where the code
    adds "A photo depicts" only when it scores; corruptions always differ from their text, replace words in different places,
    may be at the very end and leave a word; references that are too long for the model are left to InfoNCE; of SigLIP the image
    side is frozen with its pooling, and the loss is not SigLIP's. Corruptions are not candidates, as there.

    Args:
        listener: the dual encoder; its image side is frozen here.
        head: of the width of its text tower.
        vocabulary: distinct words that corruptions put in.
        weight: of the head's cross-entropy, in nats like InfoNCE's.
        buckets: number of groups of similar length that texts are read in, which saves padding and changes nothing else.

    Raises:
        ValueError: a weight or number cannot be used, or the vocabulary is empty.
    """

    decomposes = False

    @in_range
    def __init__(
        self,
        listener: ClipListener,
        head: GrammarHead,
        *,
        vocabulary: Sequence[str],
        weight: NonNegativeFloat = 1.0,
        buckets: PositiveInt = 3,
    ) -> None:
        super().__init__()
        if not vocabulary:
            raise ValueError("the vocabulary of the corruptions is empty: give at least one word")
        freeze_vision(listener)
        self.listener = GrammarListener(listener, head)
        self.encoder, self.vocabulary, self.weight, self.buckets = listener, list(vocabulary), weight, buckets

    def collect(self, batch: Batch, step: int) -> Spoilt:
        """Draw one reference for each image, and corrupt it.

        Raises:
            UsageError: an image has no reference.
        """
        seed = base_seed()
        texts = plain(draw_texts(batch, seed))
        spoilt = [corrupt(text, rng, self.vocabulary) for text, rng in zip(texts, generators(batch, seed), strict=True)]
        cut = torch.tensor(self.encoder.too_long(texts), dtype=torch.bool)
        return Spoilt(batch, texts, [found.text for found in spoilt], cut)

    def losses(self, experience: Spoilt) -> Iterator[StepOutput]:
        """One piece: the loss summed over images."""
        candidates = list(dict.fromkeys(experience.texts))
        wrong = list(dict.fromkeys(experience.corrupted))
        read = in_buckets([*candidates, *wrong], self._read, self.buckets)
        embeddings, pooled = read[:, : -self._width], read[:, -self._width :]
        images = image_embeddings(self.encoder, experience.batch)
        true = _places(experience.texts, candidates).to(images.device)
        clip, _, logs = contrast(self.encoder, images, embeddings[: len(candidates)], true)
        with torch.autocast(pooled.device.type, enabled=False):
            logits = self.listener.head(pooled)
        false = len(candidates) + _places(experience.corrupted, wrong).to(images.device)
        grammar, told = self._grammar(logits, true, false, experience.cut.to(images.device))
        loss = clip + self.weight * grammar
        logs |= {"clip_loss": clip.detach(), "grammar_loss": grammar.detach(), **told}
        yield StepOutput(loss.sum(), loss.new_tensor(float(len(loss))).detach(), logs)

    @property
    def _width(self) -> int:
        return self.listener.head.width

    def _read(self, texts: list[str]) -> Tensor:
        """``[M, E + D]``: embeddings, followed by the states they are projected from."""
        return torch.cat(embed_and_pool(self.encoder, texts), dim=1)

    def _grammar(self, logits: Tensor, true: Tensor, false: Tensor, cut: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """``[B]`` cross-entropy, the mean of a reference and its corruption, 0 where the reference is cut; and logs."""
        right, wrong = torch.full_like(true, GRAMMATICAL), torch.full_like(true, 1 - GRAMMATICAL)
        both = cross_entropy(logits[true], right, reduction="none") + cross_entropy(
            logits[false], wrong, reduction="none"
        )
        said = logits.argmax(dim=1) == GRAMMATICAL
        logs = {
            "grammar/references_accuracy": said[true][~cut].float().detach(),
            "grammar/corrupted_accuracy": (~said[false])[~cut].float().detach(),
        }
        return torch.where(cut, torch.zeros_like(both), both / 2), logs


def _places(texts: Sequence[str], among: Sequence[str]) -> Tensor:
    place = {text: i for i, text in enumerate(among)}
    return torch.tensor([place[text] for text in texts])
