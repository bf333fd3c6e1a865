"""Training of matching heads: an image's own text against false ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tellapart.draws import base_seed, mix_seeds, uniforms
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.matcher import MATCH, ItmMatcher
from tellapart.listeners.matching import MATCHING_FAMILIES
from tellapart.listeners.trained import image_embeddings
from tellapart.objectives.contrastive import HardNegative, draw_texts, generators
from tellapart.ranges import PositiveInt, in_range
from tellapart.types import Batch, ObjectiveModule, StepOutput

OWN, OTHER, ALIKE, FALSE = "own", "other", "alike", "false"
"""Kinds of pairs: an image with its text, with the text of any other image, with that of one like it, with its own made false."""

_UNUSED = ("vision_projection", "text_projection", "vision_proj", "text_proj")
"""Parts of BLIP and BLIP-2 that only their contrastive half reads."""


@dataclass(frozen=True)
class Matches:
    """P pairs of an image and a text.

    Args:
        batch: B images.
        image: ``[P]`` long, the row of ``batch`` of each pair.
        texts: P texts.
        kinds: P of ``own``, ``other``, ``alike``, ``false``.
    """

    batch: Batch
    image: Tensor
    texts: list[str]
    kinds: list[str]


class MatchingHead(ObjectiveModule):
    """Image-text matching (BLIP: Li et al. 2022, section 3.2; BLIP-2: Li et al. 2023, section 3.1): does this text go with this
    image? ``L = mean over pairs of cross-entropy(match or not)``.

    Each image comes with its own text, with the text of another image of the batch, with ``similar``, with one that seems to
    suit it, too, and with ``negative``, with its own text made false in one way or several. Another image's text that is the
    same as its own is left out, and so is a text that cannot be made false. Another image's text may be true of the image, too.
    It counts as no match, as in the papers. This makes the head prefer detailed texts over short ones, the more so the more
    similar the images are.

    Departures: BLIP and BLIP-2 exchange images, too, and draw only those that their contrastive half, which learns next to the
    head, finds similar; here a finished listener judges that, and one other text of two is drawn among all of the batch, since a
    head that begins with random weights learns nothing from look-alikes alone. Texts made false are not in the papers.

    Args:
        matcher: what learns, as the part ``matcher``; of its model all but the image tower and the contrastive half, which no
            pair reaches.
        negative: makes a text false, or gives back the same where it cannot; none trains without.
        negatives: how often that is done to each text; equal results count once.
        similar: draws a further text in proportion to its exponential similarity with the image, at its own temperature;
            none trains without.
        train_vision: whether the image tower learns, too.
        buckets: number of groups of similar length that pairs are read in, which saves padding and changes nothing else.

    Raises:
        ValueError: a number is outside its range.
    """

    decomposes = False

    @in_range
    def __init__(
        self,
        matcher: ItmMatcher,
        *,
        negative: HardNegative | None = None,
        negatives: PositiveInt = 1,
        similar: ClipListener | None = None,
        train_vision: bool = False,
        buckets: PositiveInt = 3,
    ) -> None:
        super().__init__()
        self.matcher, self.reader = matcher.model, matcher
        self.family = MATCHING_FAMILIES[self.matcher.config.model_type][1]
        self.negative, self.negatives, self.similar, self.buckets = negative, negatives, similar, buckets
        self.matcher.requires_grad_(True).vision_model.requires_grad_(train_vision)
        for name in _UNUSED:
            if hasattr(self.matcher, name):
                getattr(self.matcher, name).requires_grad_(False)

    def collect(self, batch: Batch, step: int) -> Matches:
        """Draw one text for each image, and its false ones; they follow from image ids and seed.

        Raises:
            UsageError: an image has no text.
        """
        seed = base_seed()
        own = draw_texts(batch, seed)
        rows = [(i, text, OWN) for i, text in enumerate(own)]
        # Some other image, all equally likely.
        shares = uniforms(batch.ids, 1, mix_seeds(seed, OTHER))[:, 0].tolist()
        others = [own[(i + 1 + int(share * (len(own) - 1))) % len(own)] for i, share in enumerate(shares)]
        rows += [(i, text, OTHER) for i, text in enumerate(others) if text != own[i]]
        if self.similar is not None:
            rows += [(i, own[j], ALIKE) for i, j in self._alike(self.similar, batch, own, seed)]
        if self.negative is not None:
            for i, (text, rng) in enumerate(zip(own, generators(batch, seed), strict=True)):
                false = dict.fromkeys(self.negative(text, rng) for _ in range(self.negatives))
                rows += [(i, made, FALSE) for made in false if made != text]
        image, texts, kinds = zip(*rows, strict=True)
        return Matches(batch, torch.tensor(image), list(texts), list(kinds))

    def _alike(self, listener: ClipListener, batch: Batch, own: list[str], seed: int) -> Iterator[tuple[int, int]]:
        """For each image the place of a text that suits it but is not its own; none where all texts are the same."""
        with torch.no_grad():
            cosines = image_embeddings(listener, batch) @ listener.embed_texts(own).T
            logits = (listener.logit_scale.exp() * cosines).cpu()
        same = torch.tensor([[text == other for other in own] for text in own])
        shares = logits.masked_fill(same, -torch.inf).double().softmax(dim=1)
        for i, share in enumerate(uniforms(batch.ids, 1, mix_seeds(seed, ALIKE))[:, 0].tolist()):
            if not same[i].all():
                # The last place has all of the sum, whatever was lost in rounding.
                place = int((shares[i].cumsum(dim=0) <= share).sum())
                yield i, min(place, int(shares[i].nonzero()[-1]))

    def losses(self, matches: Matches) -> Iterator[StepOutput]:
        """One piece: the cross-entropy summed over pairs."""
        logits = self.logits(matches)
        match = torch.tensor([kind == OWN for kind in matches.kinds], device=logits.device)
        targets = torch.where(match, MATCH, 1 - MATCH)
        loss = cross_entropy(logits.float(), targets, reduction="none")
        right = (logits.argmax(dim=1) == targets).float().detach()
        logs = {"loss/pairs": loss.detach()}
        for kind in dict.fromkeys(matches.kinds):
            logs[f"accuracy/{kind}"] = right[[i for i, own in enumerate(matches.kinds) if own == kind]]
        yield StepOutput(loss.sum(), loss.new_tensor(float(len(loss))).detach(), logs)

    def logits(self, matches: Matches) -> Tensor:
        """``[P, 2]`` logits (no match, match), with gradient."""
        pictures = matches.batch.inputs[self.reader.name]["pixel_values"]
        tower = next(self.matcher.vision_model.parameters())
        with torch.set_grad_enabled(torch.is_grad_enabled() and tower.requires_grad):
            states = self.family.image_states(self.matcher, pictures.to(tower.device, tower.dtype))
        order = sorted(range(len(matches.texts)), key=lambda i: len(matches.texts[i]))
        size = -(-len(order) // self.buckets)
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        found = torch.cat([self._read(states, matches, group) for group in groups])
        place = torch.empty(len(order), dtype=torch.long)
        place[torch.tensor(order)] = torch.arange(len(order))
        return found[place.to(found.device)]

    def _read(self, states: Tensor, matches: Matches, group: list[int]) -> Tensor:
        read = self.reader.tokenizer(
            [matches.texts[i] for i in group],
            padding=True,
            truncation=True,
            max_length=self.family.positions(self.matcher),
            return_tensors="pt",
        ).to(states.device)
        image = matches.image[group].to(states.device)
        return self.family.logits(self.matcher, states[image], read["input_ids"], read["attention_mask"])
