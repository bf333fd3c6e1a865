"""Scoring what was just drawn without its forward products: drawing takes their results down, scoring reads them.

Sampling computes every product of the decoder's linear layers that scoring the same captions would compute again. A recording
keeps the results per word; scoring then runs attention, norms and activations only, and its backward pass is the usual one.
Of a decoder that is read through its modules only the logits are kept, the largest product of a small captioner.
Values are those of drawing: they differ from a scoring pass's in their last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tellapart.captioners.base import Encoded
from tellapart.captioners.decoder import DecoderSteps, read_captions
from tellapart.captioners.families.base import Family
from tellapart.captioners.linear import Linear
from tellapart.captioners.reading import States, choose_reading
from tellapart.captioners.scoring import token_logprobs, token_states
from tellapart.captioners.shortlist import Shortlist
from tellapart.captioners.steps import Steps
from tellapart.captioners.unchanged import Weights
from tellapart.products import ACTIVATIONS, product_gradients
from tellapart.types import Rollout


class _Known(torch.autograd.Function):
    """``found``, the product of ``rows [M, K]`` with the transpose of ``weight [N, K]`` plus ``bias [N]``; its backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, found: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return found.detach()  # as it is, autograd would take it for a view

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *product_gradients(ctx, gradient), None


class _KnownSum(torch.autograd.Function):
    """``found``, the same product plus ``to [M, N]``; its backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, to: Tensor, found: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return found.detach()  # as it is, autograd would take it for a view

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *product_gradients(ctx, gradient), gradient, None


class _Taken(Linear):
    """Computes products and takes them down, pass after pass.

    Attributes:
        passes: the results of every pass, in the order in which they were computed.
        whole: whether all linear layers were computed here, and none by its own module.
    """

    def __init__(self) -> None:
        self.passes: list[list[Tensor]] = [[]]
        self.whole = True

    def elsewhere(self) -> None:
        """The recording lacks a layer."""
        self.whole = False

    def _taken(self, found: Tensor) -> Tensor:
        if self.whole:
            self.passes[-1].append(found)
        return found

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Taken down as it is."""
        return self._taken(super().product(rows, weight, bias))

    def added(self, to: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The sum is taken down."""
        return self._taken(super().added(to, rows, weight, bias))

    def activated(self, rows: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
        """What is activated is taken down: the backward pass of the activation reads it."""
        return ACTIVATIONS[kind][2](self._taken(super().product(rows, weight, bias)))


class _Read(Linear):
    """Reads products in the order in which they were computed.

    Args:
        found: gives the next result.
    """

    def __init__(self, found: Callable[[], Tensor]) -> None:
        self._found = found

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As it was taken down."""
        flat = rows.reshape(-1, rows.shape[-1])
        found = self._found().view(len(flat), -1)
        return _Known.apply(flat, weight, bias, found).view(*rows.shape[:-1], -1)

    def added(self, to: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The sum that was taken down."""
        return _KnownSum.apply(rows, weight, bias, to, self._found())

    def activated(self, rows: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
        """The activation is computed again."""
        return ACTIVATIONS[kind][2](_Known.apply(rows, weight, bias, self._found()))


class RecordedSteps(Steps):
    """The steps of a decoder, which know which rows each pass read.

    Args:
        inner: the steps.
        taken: what they compute; none: they compute through modules.
    """

    def __init__(self, inner: Steps, taken: _Taken | None) -> None:
        self._inner, self.taken = inner, taken
        self.first, self.image = inner.first, inner.image
        self._rows = torch.arange(len(inner.image), device=inner.image.device)
        self.read_rows: list[Tensor] = []

    def read(self, words: Tensor) -> Tensor:
        """A pass."""
        if self.taken is not None:
            self.taken.passes.append([])
        self.read_rows.append(self._rows)
        return self._inner.read(words)

    def keep(self, rows: Tensor) -> None:
        """Later passes read these rows only."""
        self._inner.keep(rows)
        self.image, self._rows = self._inner.image, self._rows[rows]

    def follow(self, parent: Tensor) -> None:
        """Samples follow none."""
        raise NotImplementedError("beams are not recorded")


class Recording:
    """Takes the place of a family in sampling, and keeps what its decoder computes.

    Args:
        family: the model.
        logits: whether the logits are kept, too.

    Example::

        recording = Recording(captioner.family, logits=True)
        tokens, greedy = draw_with_greedy(recording, encoded, batch.ids, decoding, decoding.greedy())
    """

    def __init__(self, family: Family, *, logits: bool) -> None:
        self.family = family
        self.eos, self.pad, self.never_drawn = family.eos, family.pad, family.never_drawn
        self._taken, self._steps = _Taken(), cast("RecordedSteps | None", None)
        self._count = 0
        plain = family.plain_head is not None and family.softcap is None
        self._logits: list[Tensor] | None = [] if logits and plain else None
        self._state = Weights.of(family.model.parameters())

    def before_captions(self, encoded: Encoded) -> Tensor:
        """Those of the family."""
        return self.family.before_captions(encoded)

    def steps(self, encoded: Encoded, count: int, longest: int, *, beams: bool = False) -> Steps:
        """Steps of samples. Those of beams are not recorded: few of their words are left to read, and a product that keeps its
        result cannot compute an activation along."""
        decoder = None if beams else self.family.decoder(self._taken)
        if decoder is not None and self._taken.whole:
            begun = self.family.beginning(decoder, encoded, self.family.embed)
            inner = DecoderSteps(
                decoder, begun, self.family.embedding, count=count, longest=longest, beams=False, kept=True
            )
            self._steps = RecordedSteps(inner, self._taken)
        elif self._logits is not None and not beams:
            self._steps = RecordedSteps(self.family.steps(encoded, count, longest), None)
        else:
            self._logits = None
            return self.family.steps(encoded, count, longest, beams=beams)
        self._count = count
        return self._steps

    def exact_logits(self, hidden: Tensor) -> Tensor:
        """Those of the family."""
        logits = self.family.exact_logits(hidden)
        if self._logits is not None:
            self._logits.append(logits)
        return logits

    def shortlist(self) -> Shortlist | None:
        """None: samples need all logits."""
        return None

    def of(self, rollout: Rollout) -> Recorded | None:
        """What scoring the drawn captions needs; none where something of it was not recorded.

        Args:
            rollout: the captions as drawn, those of an image before one that is left out, if there are fewer than were drawn.
        """
        steps = self._steps
        if steps is None or not steps.read_rows:
            return None
        passes = None if steps.taken is None else steps.taken.passes
        images = len(rollout.batch)
        drawn = torch.arange(images * self._count, device=rollout.image.device).view(images, self._count)
        drawn = drawn[:, : len(rollout) // images].flatten()
        return Recorded(rollout, drawn, steps.read_rows, passes, self._logits, self._state)


@dataclass(frozen=True)
class Recorded:
    """What drawing computed of the captions of a rollout; read once.

    Args:
        rollout: N captions.
        drawn: ``[N]``, the row that each was drawn in.
        rows: the rows that each pass after the first read, rising.
        passes: the products of every pass: the image's and the beginning's first, then those of each word; none: logits only.
        logits: of every pass, or none.
        state: of the weights.
    """

    rollout: Rollout
    drawn: Tensor
    rows: list[Tensor]
    passes: list[list[Tensor]] | None
    logits: list[Tensor] | None
    state: Weights

    def is_of(self, rollout: Rollout) -> bool:
        """Whether the rollout is this one."""
        own = self.rollout
        return rollout.tokens is own.tokens and rollout.mask is own.mask and rollout.image is own.image

    def score(self, family: Family, encoded: Encoded, budget: float | None) -> Tensor:
        """``[N, T]`` log-probabilities of the rollout, 0 where masked.

        Args:
            family: the model, in eval mode.
            encoded: states of the images.
            budget: as for ``logits_alive``.
        """
        tokens, mask = self.rollout.tokens, self.rollout.mask
        logits: Callable[[Tensor, list[Tensor]], Tensor]
        if self.passes is None:
            states = token_states(family, encoded, self.rollout.image, tokens, mask)
            # Of the words that one state predicts, the first.
            words = torch.arange(len(states.index), device=states.index.device)
            first = words.new_zeros(len(states.hidden)).scatter_reduce(
                0, states.index, words, "amin", include_self=False
            )
            logits = partial(self._logits_of, states.place[0][first], states.place[1][first])
        else:
            states, gathers = self._read(family, encoded, self.passes)
            logits = gathers.gathered

        def head(hidden: Tensor) -> Tensor:
            if self.logits is None or family.plain_head is None:
                return family.exact_logits(hidden)
            weight, bias = family.plain_head
            return _Known.apply(family.before_head(hidden), weight, bias, logits(self.logits.pop(0), self.logits))

        chosen, _ = token_logprobs(head, states, tokens[states.place], family.vocab_size, entropy=False, budget=budget)
        return chosen.new_zeros(mask.shape).index_put(states.place, chosen)

    def _read(self, family: Family, encoded: Encoded, passes: list[list[Tensor]]) -> tuple[States, _Words]:
        """States that predict the words, by the products of drawing."""
        tokens, mask, image = self.rollout.tokens, self.rollout.mask, self.rollout.image
        decoder = family.decoder(_Read(lambda: next(results)))
        assert decoder is not None, "it was drawn by its parts"
        reading = choose_reading(image, tokens, mask, decoder.width, len(decoder.blocks))
        words = _Words(self.drawn, self.rows, reading.row, reading.column)
        results = _results(passes, words)
        begin = partial(family.beginning, decoder, encoded)
        return read_captions(decoder, begin, family.embed, image, tokens, mask, reading), words

    def _logits_of(self, caption: Tensor, column: Tensor, first: Tensor, passes: list[Tensor]) -> Tensor:
        """``[M, V]`` logits that predicted M words; ``passes`` is emptied.

        Args:
            caption: ``[M]``, that of each word.
            column: ``[M]``, its place in the caption.
            first: ``[B, V]``, of the first words of every image's captions.
            passes: of the later words, pass after pass.
        """
        words = _Words(self.drawn, [self.drawn, *self.rows], caption, column)
        found = [first.index_select(0, self.rollout.image), *passes]
        passes.clear()
        return words.gathered(first[:0], found)


def _results(passes: list[list[Tensor]], words: _Words) -> Iterator[Tensor]:
    """The image's products, then those of the beginning and the words together; each is dropped when it is read."""
    beginning, *rest = passes
    begun = len(beginning) - len(rest[0])
    for number in range(len(beginning)):
        first = beginning.pop(0)
        yield first if number < begun else words.gathered(first, [one.pop(0) for one in rest])


class _Words:
    """Where words of captions are among the rows of the passes that read them.

    Args:
        drawn: ``[N]``, the row that each caption was drawn in.
        rows: the rows that each pass read, rising.
        caption: ``[R]``, that of each word.
        column: ``[R]``, the pass that each word belongs to.
    """

    def __init__(self, drawn: Tensor, rows: list[Tensor], caption: Tensor, column: Tensor) -> None:
        self._count, self._places = len(caption), list[tuple[Tensor | slice, Tensor]]()
        for number, read in enumerate(rows):
            place = (column == number).nonzero().squeeze(1)
            row = torch.searchsorted(read.contiguous(), drawn[caption[place]])
            # Words that are read together lie pass by pass, and are then copied once.
            joined = len(place) > 0 and int(place[-1] - place[0]) + 1 == len(place)
            self._places.append((slice(int(place[0]), int(place[-1]) + 1) if joined else place, row))

    def gathered(self, first: Tensor, passes: list[Tensor]) -> Tensor:
        """``[m + R, D]``: ``first [m, D]``, and of every word its row of the pass that read it; ``passes`` is emptied."""
        made = first.new_empty(len(first) + self._count, first.shape[1])
        made[: len(first)] = first
        rest = made[len(first) :]
        for place, row in self._places:
            if isinstance(place, slice):
                torch.index_select(passes.pop(0), 0, row, out=rest[place])
            else:
                rest.index_copy_(0, place, passes.pop(0).index_select(0, row))
        return made


def computes_otherwise(part: nn.Module) -> bool:
    """Whether a part is in train mode; an LSTM without dropout, which stays in it, computes the same in both."""
    return part.training and not (isinstance(part, nn.RNNBase) and part.dropout == 0)


class Memory:
    """What a captioner remembers of the latest samples; copies of the captioner do not.

    Args:
        recorded: the samples; none: nothing is remembered.
        encoded: states of their images, with a graph where the tower learns.
    """

    def __init__(self, recorded: Recorded | None = None, encoded: Encoded | None = None) -> None:
        self.recorded = recorded
        self.encoded = None if recorded is None else encoded

    def __deepcopy__(self, memo: dict[int, Any]) -> Memory:
        return Memory()

    def is_of(self, rollout: Rollout) -> bool:
        """Whether these captions are remembered."""
        return self.recorded is not None and self.recorded.is_of(rollout)

    def score(
        self, family: Family, encoded: Encoded | None, budget: float | None, *, vision_learns: bool
    ) -> Tensor | None:
        """``[N, T]`` log-probabilities of the remembered samples; none where the model has changed, other states of the images
        are given, or a part of the model is in train mode, so that it would not compute what it drew with."""
        if self.recorded is None or self.encoded is None or not self.recorded.state.hold(family.model.parameters()):
            return None
        if encoded is not None and encoded is not self.encoded:
            return None
        if self.encoded.states.requires_grad != vision_learns or any(map(computes_otherwise, family.model.modules())):
            return None
        return self.recorded.score(family, self.encoded, budget)
