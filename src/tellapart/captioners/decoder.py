"""Transformer decoders read by their parts: one word per caption and call, or whole captions at once.

Captions of an image share its keys and values, which are never copied for them, and linear layers see real words only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

from tellapart.captioners.attention import attend_in_step, by_products
from tellapart.captioners.cross import Cross, Folded
from tellapart.captioners.linear import Rows, Sum
from tellapart.captioners.modes import plainly
from tellapart.captioners.reading import Reading, States
from tellapart.captioners.steps import Steps

SHORT = 32
"""Columns before captions up to which keys and values lie word by word on a CPU, and head by head beyond them. With 12 heads of
width 64, attention of 80 captions to 8 words took 0.4 ms a layer instead of 1.3, and to 20 words 1.2 instead of 1.9; of 16
captions to 600 columns it took 8.2 instead of 6.9."""


FEW_STATES = 64
"""States of an image up to which several captions attend to it by ``attend_in_step`` while words are read; with more of them
torch's attention is as quick. Where an image has one caption, it always does: 16 captions attended to 197 states in 0.26 ms
instead of 0.31."""


@dataclass(frozen=True)
class Heads:
    """The heads of rows that hold queries, then keys, then values.

    Args:
        count: H, of keys and of values.
        queries: heads of queries that read each of them (grouped-query attention, Ainslie et al., EMNLP 2023). They are put
            side by side like further rows of words, so that keys and values are not copied for them.
    """

    count: int
    queries: int = 1

    @property
    def total(self) -> int:
        """Of queries, keys and values together."""
        return self.count * (self.queries + 2)

    def split(self, spread: Tensor) -> tuple[Tensor, Tensor]:
        """``[groups, H, queries * size, d]`` queries, and ``[groups, 2, H, size, d]`` keys and values.

        Args:
            spread: ``[groups, total, size, d]``.
        """
        query, both = spread.split([self.count * self.queries, 2 * self.count], dim=1)
        return query.unflatten(1, (self.count, self.queries)).flatten(2, 3), both.unflatten(1, (2, self.count))

    def joined(self, found: Tensor) -> Tensor:
        """``[groups, H * queries, size, d]`` of ``[groups, H, queries * size, d]``."""
        if self.queries == 1:
            return found
        return found.unflatten(2, (self.queries, -1)).flatten(1, 2)

    def seen(self, mask: Tensor | None, hidden: Tensor) -> Tensor | None:
        """What each of ``queries * size`` rows sees, as attention reads it.

        Args:
            mask: ``[..., size or 1, columns]`` bool, what each of ``size`` rows sees; none: everything.
            hidden: any states, for their precision.
        """
        if mask is None or self.queries == 1 or mask.shape[-2] == 1:
            return shown(mask, hidden)
        return shown(torch.cat([mask] * self.queries, dim=-2), hidden)


def shown(mask: Tensor | None, hidden: Tensor) -> Tensor | None:
    """A mask as attention reads it where ``hidden`` lies: ``additive`` on a GPU."""
    return additive(mask, hidden) if mask is not None and mask.is_cuda else mask


def additive(mask: Tensor, hidden: Tensor) -> Tensor:
    """0 where ``mask`` is true and minus infinity elsewhere, in rows that begin at multiples of 8 numbers, as a GPU reads them.

    torch's attention would make this of a mask at every layer.
    """
    kind = mask.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    columns = mask.shape[-1]
    hides = torch.nn.functional.pad(~mask, (0, -columns % 8))
    return torch.zeros_like(hides, dtype=dtype).masked_fill_(hides, -torch.inf)[..., :columns]


def lie_by_word(hidden: Tensor) -> bool:
    """Whether keys and values of captions after the columns ``hidden [B, S, D]`` lie word by word."""
    return hidden.is_cpu and hidden.shape[1] <= SHORT


class Block(ABC):
    """The parts of one layer in eval mode, on rows ``[n, D]``.

    Attributes:
        scale: of the products of queries and keys of words.
        image: attention to the image; none: the layer has none.
    """

    scale: float
    image: Cross | None = None

    @abstractmethod
    def read(self, hidden: Tensor, attend_words: Rows, attend_image: Sum) -> Tensor:
        """``hidden`` after the layer.

        Args:
            hidden: ``[n, D]``.
            attend_words: ``[n, total * d]`` queries, keys and values (``Heads``) -> ``[n, H * queries * d]``.
            attend_image: ``[n, D]`` and the rows ``[n, D]`` that attend -> the sum of the first and what is found.
        """


class Decoder(ABC):
    """A decoder by its parts.

    Args:
        module: the model's own, without its head.
        blocks: its layers.
        heads: of their attention, or of its keys and values.
        queries: as for ``Heads``.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[Block], heads: int, queries: int = 1) -> None:
        self.module, self.blocks, self.heads = module, blocks, Heads(heads, queries)

    @property
    def width(self) -> int:
        """Of the states: D."""
        config: Any = self.module.config
        return int(config.hidden_size)

    @property
    def drops(self) -> bool:
        """Whether a pass through the module now would drop something at random, which reading its parts does not."""
        rates = ("p", "dropout", "attention_dropout", "activation_dropout", "layerdrop")
        training = (part for part in self.module.modules() if part.training)
        found = (getattr(part, name, 0.0) for part in training for name in rates)
        return any(isinstance(rate, float) and rate > 0 for rate in found)

    @abstractmethod
    def placed(self, embeddings: Tensor, positions: int | Tensor) -> Tensor:
        """What the first layer reads: ``embeddings [..., D']`` of words at ``positions``, one for all or ``[...]``, from 0."""

    def angles(self, positions: int | Tensor, hidden: Tensor) -> Tensor | None:
        """``[..., 2, d]``: how far queries and keys are turned at positions ``[...]``; none: ``placed`` says where words are.

        Args:
            positions: as for ``placed``, or with axes first, where the decoder's positions have several.
            hidden: what ``placed`` gave, for its precision.
        """
        return None

    def turned(self, rows: Tensor, angles: Tensor | None) -> Tensor:
        """Queries, keys and values ``[n, total * d]`` after queries and keys were turned by ``angles [n, 2, d]``, if any."""
        return rows

    def finished(self, hidden: Tensor) -> Tensor:
        """What the head reads, given the states after the last layer; the same unless the decoder says otherwise."""
        return hidden


@dataclass(frozen=True)
class Beginning:
    """What the captions of B images follow.

    Args:
        hidden: ``[B, S, D]``, what the first layer reads.
        position: of a caption's first word, or ``[B]`` of them.
        seen: ``[B or 1, 1, S, S]`` bool, which columns each column sees; none: those up to its own.
        real: ``[B, S]`` bool, the columns that captions see; none: all.
        states: ``[B, P, D']``, what the layers attend to of the image; none: nothing.
        mask: ``[B, P]`` bool of real states, or none.
        angles: ``[B, S, 2, d]`` of the columns, or none.
        deeper: ``[B, S, D]`` each, what is added to the columns after the first layers, one layer after the other.
    """

    hidden: Tensor
    position: int | Tensor
    seen: Tensor | None = None
    real: Tensor | None = None
    states: Tensor | None = None
    mask: Tensor | None = None
    angles: Tensor | None = None
    deeper: Sequence[Tensor] = ()

    def positions(self, image: Tensor, words: int | Tensor) -> int | Tensor:
        """Of the words ``words`` (from 0) of captions of the images ``[n]``."""
        return words + (self.position if isinstance(self.position, int) else self.position[image])

    def columns(self) -> Tensor:
        """``[B or 1, 1, S, S]``: ``seen``."""
        if self.seen is not None:
            return self.seen
        width = self.hidden.shape[1]
        return torch.ones(1, 1, width, width, dtype=torch.bool, device=self.hidden.device).tril()


class _Slots:
    """Rows ``[n, D]`` laid out as ``[groups, size, D]``, and back; a group may have fewer than ``size``.

    Args:
        group: ``[n]``, the group of each row.
        place: ``[n]``, its place in the group.
        groups: how many there are.
        size: rows of the largest.
    """

    def __init__(self, group: Tensor, place: Tensor, groups: int, size: int) -> None:
        self.shape = groups, size
        # where rows fill every slot in order, nothing has to move
        self._slot = group * size + place if len(group) < groups * size or (group.diff() < 0).any() else None

    def grouped(self, rows: Tensor) -> Tensor:
        """``[groups, size, D]``, zero where no row is."""
        if self._slot is not None:
            rows = rows.new_zeros(self.shape[0] * self.shape[1], rows.shape[1]).index_copy(0, self._slot, rows)
        return rows.view(*self.shape, -1)

    def spread(self, rows: Tensor, heads: int) -> Tensor:
        """``[groups, heads, size, d]`` of ``grouped``."""
        return self.grouped(rows).view(*self.shape, heads, -1).transpose(1, 2)

    def gather(self, spread: Tensor) -> Tensor:
        """The rows of ``[groups, heads, size, d]``."""
        return self.rows(spread.transpose(1, 2).flatten(2))

    def rows(self, grouped: Tensor) -> Tensor:
        """The rows of ``[groups, size, D]``."""
        rows = grouped.flatten(0, 1)
        # by index_select the gradient is added up in one go, by an index in brackets it is sorted first on a GPU
        return rows if self._slot is None else rows.index_select(0, self._slot)


def _by_image(image: Tensor, images: int) -> _Slots:
    """Rows ``[n]`` of images in any order, those of an image in their own order."""
    order = image.argsort(stable=True)
    counts = torch.bincount(image, minlength=images)
    begins = counts.cumsum(0) - counts
    place = torch.empty_like(image)
    place[order] = torch.arange(len(image), device=image.device) - begins[image[order]]
    return _Slots(image, place, images, int(counts.max()))


class _Image:
    """Keys and values of the image, and attention of rows to them.

    Args:
        decoder: whose.
        beginning: with the image's states.
        image: ``[n]``, the image of each row.
    """

    def __init__(self, decoder: Decoder, beginning: Beginning, image: Tensor) -> None:
        states, mask, heads = beginning.states, beginning.mask, decoder.heads.count
        self.mask = None
        if mask is not None and states is not None:
            self.mask = decoder.heads.seen(mask.bool()[:, None, None], states)
        self._decoder = decoder
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._folded: list[Folded] = []
        self.slots: _Slots | None = None
        if states is None:
            return
        self.slots = _by_image(image, len(states))
        for block in decoder.blocks:
            keys, values = self._part(block).states(states).unflatten(2, (2, heads, -1)).permute(2, 0, 3, 1, 4).unbind()
            self._kept.append((keys.contiguous(), values.contiguous()))

    @staticmethod
    def _part(block: Block) -> Cross:
        assert block.image is not None, "a decoder is given states that its layers attend to"
        return block.image

    def fold(self) -> None:
        """Put the linear layers around attention into keys and values from now on, where that is quicker (``Folded``)."""
        if self.slots is None or self.mask is not None:
            return
        pairs = zip(map(self._part, self._decoder.blocks), self._kept, strict=True)
        folded = (Folded.of(part, *kept, self.slots.shape[1]) for part, kept in pairs)
        found = [layer for layer in folded if layer is not None]
        self._folded = found if len(found) == len(self._kept) else []

    def attend(self, number: int, to: Tensor, rows: Tensor) -> Tensor:
        """``[n, D]`` of layer ``number``: ``to [n, D]`` plus what ``rows [n, D]`` find."""
        assert self.slots is not None, "only a decoder that attends to the image asks"
        if self._folded and torch.is_inference_mode_enabled():
            found = self._folded[number].attend(self.slots.grouped(to), self.slots.grouped(rows))
            return self.slots.rows(found)
        keys, values = self._kept[number]
        part = self._part(self._decoder.blocks[number])
        query = self.slots.spread(part.query(rows), keys.shape[1])
        if torch.is_inference_mode_enabled() and (query.shape[2] == 1 or keys.shape[2] <= FEW_STATES):
            found = attend_in_step(query, keys, values, self.mask, part.scale)
        else:
            found = attend(query, keys, values, attn_mask=self.mask, scale=part.scale)
        return part.out(to, self.slots.gather(found))

    def select(self, images: Tensor) -> None:
        """Go on with the images at these places."""
        self._kept = [(keys[images], values[images]) for keys, values in self._kept]
        self._folded = [layer.select(images) for layer in self._folded]
        self.mask = None if self.mask is None else self.mask[images]


def _split(rows: Tensor, size: int, heads: Heads) -> tuple[Tensor, Tensor]:
    """``heads.split`` of rows ``[groups * size, total * d]``."""
    if heads.queries == 1:
        # the same in fewer views, which take a few percent of a small decoder's time
        apart = rows.view(-1, size, 3, heads.count, rows.shape[1] // heads.total).permute(0, 2, 3, 1, 4)
        return apart[:, 0], apart[:, 1:]
    return heads.split(rows.view(-1, size, heads.total, rows.shape[1] // heads.total).transpose(1, 2))


def _joined(found: Tensor, heads: Heads) -> Tensor:
    """``[groups * size, H * queries * d]`` of ``[groups, H, queries * size, d]``."""
    return _by_row(heads.joined(found))


def _by_row(joined: Tensor) -> Tensor:
    """``[groups * size, heads * d]`` of ``[groups, heads, size, d]``."""
    return joined.transpose(1, 2).reshape(-1, joined.shape[1] * joined.shape[3])


def _columns_seen(rows: Tensor, size: int, heads: Heads, seen: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """``[groups * size, H * queries * d]`` of columns that see each other, and their keys and values as ``heads.split`` has them.

    Columns are many: keys and values are copied for grouped queries, since ``heads.seen`` would copy a mask of size x size.

    Args:
        rows: ``[groups * size, total * d]``.
        size: columns of each group.
        heads: of the attention.
        seen: ``[groups or 1, 1, size, size]``, as ``shown`` gives it.
        scale: of the products of queries and keys.
    """
    if heads.queries == 1:
        query, both = _split(rows, size, heads)
        keys, values = both.unbind(1)
    else:
        spread = rows.view(-1, size, heads.total, rows.shape[1] // heads.total).transpose(1, 2)
        query, keys, values = spread.split([heads.count * heads.queries, heads.count, heads.count], dim=1)
        both = torch.stack([keys, values], dim=1)
        keys, values = (part.repeat_interleave(heads.queries, dim=1) for part in (keys, values))
    return _by_row(attend(query, keys, values, attn_mask=seen, scale=scale)), both


class _Pass:
    """Words of captions after their beginning, in one pass.

    Rows are the columns of the beginning, image by image, then the words.

    Args:
        decoder: whose.
        beginning: of B images.
        reading: R words.
        angles: ``[R, 2, d]`` of the words, where the beginning has some.
    """

    def __init__(self, decoder: Decoder, beginning: Beginning, reading: Reading, angles: Tensor | None) -> None:
        self.decoder, self.owner = decoder, reading.owner
        self.size, self.width = beginning.hidden.shape[:2]
        self.deeper = [more.flatten(0, 1) for more in beginning.deeper]
        self.angles = None
        if beginning.angles is not None and angles is not None:
            self.angles = torch.cat([beginning.angles.flatten(0, 1), angles])
        self.columns = None
        if self.width > 1 or decoder.heads.queries > 1:
            self.columns = shown(beginning.columns(), beginning.hidden)
        self.words: _Slots | None = None
        if len(reading.row):
            self.words = _Slots(reading.group, reading.place, len(reading.owner), reading.sees.shape[-1])
        own = torch.arange(self.size, device=reading.image.device).repeat_interleave(self.width)
        self.seen = _Image(decoder, beginning, torch.cat([own, reading.image]))
        self.before = decoder.heads.seen(self._before(beginning.real, reading.sees), beginning.hidden)

    def _before(self, real: Tensor | None, sees: Tensor) -> Tensor:
        """``[size, S + size]``, or for each group, bool: what each word sees."""
        allowed = torch.nn.functional.pad(sees, (self.width, 0), value=True)
        if real is None:
            return allowed
        known = torch.nn.functional.pad(real[self.owner], (0, sees.shape[-1]), value=True)
        return allowed & known[:, None, None]

    def attend_words(self, scale: float, rows: Tensor) -> Tensor:
        """``[B * S + R, D]``, given queries, keys and values ``[B * S + R, total * d]``."""
        heads = self.decoder.heads
        begun, words = self._apart(self.decoder.turned(rows, self.angles))
        if self.columns is None:  # a single column sees itself only
            _, both = _split(begun, self.width, heads)
            found = [_joined(both[:, 1], heads)]
        else:
            columns, both = _columns_seen(begun, self.width, heads, self.columns, scale)
            found = [columns]
        if self.words is not None:
            query, more = heads.split(self.words.spread(words, heads.total))
            key, value = torch.cat([both[self.owner], more], dim=3).unbind(1)
            seen = attend(query, key, value, attn_mask=self.before, scale=scale)
            found.append(self.words.gather(heads.joined(seen)))
        return torch.cat(found)

    def _apart(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Those of the beginning and those of the words."""
        count = self.size * self.width
        return rows.split([count, len(rows) - count])

    def run(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, D]`` states after the beginning and ``[R, D]`` after the words, given what the first layer reads."""
        for number, block in enumerate(self.decoder.blocks):
            hidden = block.read(
                hidden,
                partial(self.attend_words, block.scale),
                partial(self.seen.attend, number),
            )
            if number < len(self.deeper):
                begun, words = self._apart(hidden)
                hidden = torch.cat([begun + self.deeper[number], words])
        begun, words = self._apart(hidden)
        last = begun.view(self.size, self.width, -1)[:, -1]
        return self.decoder.finished(last), self.decoder.finished(words)


def read_captions(
    decoder: Decoder,
    begin: Callable[[Rows], Beginning],
    embed: Rows,
    image: Tensor,
    tokens: Tensor,
    mask: Tensor,
    reading: Reading,
) -> States:
    """States that predict every word, of all captions in one pass, with gradients.

    Linear layers see the beginning once per image and real words only, whatever the captions' lengths; an image's keys and
    values are read once for all of its words.

    Args:
        decoder: in eval mode, or without anything random.
        begin: what the captions of B images follow, given what embeds its words.
        embed: of words.
        image: ``[N]``, the image of each caption.
        tokens: ``[N, T]`` caption tokens.
        mask: ``[N, T]`` bool, a run of true from the left.
        reading: of these captions.
    """
    looked_up = _Together(embed, tokens[reading.row, reading.column])
    beginning = begin(looked_up)
    positions = beginning.positions(reading.image, reading.column)
    words = decoder.placed(looked_up.words(), positions)
    reader = _Pass(decoder, beginning, reading, decoder.angles(positions, words))
    run = reader.run(torch.cat([beginning.hidden.flatten(0, 1), words]))
    return reading.states(*run, image, mask)


class _Together:
    """Embeds words of a beginning along with those of captions: each look-up has a gradient as large as the vocabulary.

    Args:
        embed: of words.
        tokens: ``[R]``, of the captions.
    """

    def __init__(self, embed: Rows, tokens: Tensor) -> None:
        self._embed, self._tokens = embed, tokens
        self._words: Tensor | None = None

    def __call__(self, start: Tensor) -> Tensor:
        """Embeddings of ``start [B, S]``."""
        found = self._embed(torch.cat([start.flatten(), self._tokens]))
        self._words = found[start.numel() :]
        return found[: start.numel()].view(*start.shape, -1)

    def words(self) -> Tensor:
        """``[R, D]`` embeddings of the captions' words."""
        return self._embed(self._tokens) if self._words is None else self._words


class DecoderSteps(Steps):
    """The layers of a decoder, called by their parts.

    Captions of an image share the image's keys and values, which are never copied for them. Beams are not reordered in
    memory: all beams of an image read the same keys, and a mask tells each which words are its own. Adapters and
    quantised layers are read through their modules.

    Args:
        decoder: in eval mode.
        beginning: of B images.
        embed: of words.
        count: rows per image.
        longest: most words of a caption.
        beams: whether the rows of an image are beams.
        kept: whether the products are kept, to compute gradients with them.
    """

    def __init__(
        self,
        decoder: Decoder,
        beginning: Beginning,
        embed: nn.Module,
        *,
        count: int,
        longest: int,
        beams: bool,
        kept: bool = False,
    ) -> None:
        size, start = beginning.hidden.shape[:2]
        device = beginning.hidden.device
        self._decoder, self._beginning, self._embed, self._count, self._beams = decoder, beginning, embed, count, beams
        self._kept = kept
        self._step = count if beams else 1  # columns that a word of every caption takes
        self.image = torch.arange(size, device=device).repeat_interleave(count)
        self._begun = self.image  # the image of each row, among those of the beginning
        self._start = self._length = start
        self._read = 0
        self._seen = _Image(decoder, beginning, torch.arange(size, device=device).repeat_interleave(start))
        self._words: Sequence[Tensor] = []
        self.first = self._begin(beginning, longest)
        if self._seen.slots is not None:
            self._seen.slots = _by_image(self.image, size)
        rows = beginning.real if beams or beginning.real is None else beginning.real[self.image]
        self._real = rows  # [B or n, S]
        own = torch.eye(count, dtype=torch.bool, device=device)
        self._own = own[:, None].expand(size, -1, -1, -1)  # a beam's own word of a step, among those of its image
        self._ancestors = self._own[:, :, :0]

    def _begin(self, beginning: Beginning, longest: int) -> Tensor:
        """``[B, D]`` states after the beginning, whose keys and values are remembered."""
        decoder, size, start = self._decoder, len(beginning.hidden), self._start
        room = longest * self._count if self._beams else longest
        columns = shown(beginning.columns(), beginning.hidden)
        angles = None if beginning.angles is None else beginning.angles.flatten(0, 1)

        def attend_columns(number: int, scale: float, rows: Tensor) -> Tensor:
            found, both = _columns_seen(decoder.turned(rows, angles), start, decoder.heads, columns, scale)
            kept = both if self._beams else both[self.image]
            if number == 0:
                self._words = self._roomy(kept, len(kept), start + room)
            self._words[number][:, :, :, :start] = kept
            return found

        hidden = beginning.hidden.flatten(0, 1)
        for number, block in enumerate(decoder.blocks):
            hidden = block.read(
                hidden,
                partial(attend_columns, number, block.scale),
                partial(self._seen.attend, number),
            )
            if number < len(beginning.deeper):
                hidden = hidden + beginning.deeper[number].flatten(0, 1)
        return decoder.finished(hidden.view(size, start, -1)[:, -1])

    def _roomy(self, like: Tensor, groups: int, room: int) -> tuple[Tensor, ...]:
        """``[groups, 2, heads, room, d]`` of each layer for keys and values such as ``like [n, 2, heads, S, d]``, laid out as is
        quickest.

        On a CPU all layers have one memory. glibc returns memory to the system beyond twice the largest block that was freed, of
        at most 32 MB: one large block stays mapped for the next batch, and several smaller ones do not.
        """
        layers, heads, width = len(self._decoder.blocks), like.shape[2], like.shape[4]
        if not like.is_cpu:
            return tuple(like.new_empty(groups, 2, heads, room, width) for _ in range(layers))
        if lie_by_word(self._beginning.hidden):
            whole = like.new_empty(layers, 2, room, groups, heads, width).permute(0, 3, 1, 4, 2, 5)
        else:
            whole = like.new_empty(layers, 2, groups, heads, room, width).transpose(1, 2)
        return tuple(whole[layer] for layer in range(layers))  # gradients allow no change of what unbind gives

    def read(self, words: Tensor) -> Tensor:
        """The words' embeddings through every layer."""
        with self.inference():
            if self._read == 0 and torch.is_inference_mode_enabled():
                self._seen.fold()
            positions = self._beginning.positions(self._begun, self._read)
            before = self._seen_by_beams() if self._beams else self._seen_by_captions()
            self._read += 1
            return self._through_layers(words, positions, before)

    def inference(self) -> AbstractContextManager[Any]:
        """torch's inference mode on a CPU, which spares operations what gradients would need of their results: greedy search of
        48 images took 44 ms instead of 48. Not under autocast, which would keep weights that it has cast for later passes."""
        return torch.inference_mode() if plainly(self.image) and not self._kept else nullcontext()

    def _through_layers(self, words: Tensor, positions: int | Tensor, seen: Tensor | None) -> Tensor:
        """``[n, D]``, given the words, their positions and what they see."""
        hidden = self._decoder.placed(self._embed(words), positions)
        angles, seen = self._decoder.angles(positions, hidden), self._decoder.heads.seen(seen, hidden)
        if seen is not None and by_products(hidden):
            seen = additive(seen, hidden)
        for number, block in enumerate(self._decoder.blocks):
            hidden = block.read(
                hidden,
                partial(self._attend_words, number, seen, angles, block.scale),
                partial(self._seen.attend, number),
            )
        return self._decoder.finished(hidden)

    def _seen_by_captions(self) -> Tensor | None:
        """Takes a column for the next word; ``[n, 1, 1, start + words]`` bool where some of the beginning is not real."""
        self._length += 1
        if self._real is None:
            return None
        return torch.nn.functional.pad(self._real, (0, self._read + 1), value=True)[:, None, None]

    def _seen_by_beams(self) -> Tensor:
        """Takes columns for the next words; ``[B, 1, beams, start + words * beams]`` bool: the beginning, and the words of each
        beam's own caption."""
        self._length += self._step
        self._ancestors = torch.cat([self._ancestors, self._own], dim=2)
        return self._with_beginning(self._ancestors)

    def _with_beginning(self, ancestors: Tensor) -> Tensor:
        """``[B, 1, beams, start + columns]`` bool: the beginning, then ``ancestors [B, beams, ...]`` as columns."""
        if self._real is None:
            start = ancestors.new_ones(*ancestors.shape[:2], self._start)
        else:
            start = self._real[:, None].expand(-1, self._count, -1)
        return torch.cat([start, ancestors.flatten(2)], dim=2)[:, None]

    def _attend_words(
        self, number: int, seen: Tensor | None, angles: Tensor | None, scale: float, rows: Tensor
    ) -> Tensor:
        heads = self._decoder.heads
        query, both = _split(self._decoder.turned(rows, angles), self._step, heads)
        keys, values = self._written(self._words[number], both).unbind(1)
        return _joined(attend_in_step(query, keys, values, seen, scale), heads)

    def _written(self, words: Tensor, new: Tensor) -> Tensor:
        """``[groups, 2, heads, columns, d]``: the keys and values to attend to, once the ``new`` ones are among ``words``."""
        words[:, :, :, self._length - self._step : self._length] = new
        return words[:, :, :, : self._length]

    def keep(self, rows: Tensor) -> None:
        """What is left moves together."""
        before = self.image.unique_consecutive()
        images, group = self.image[rows].unique_consecutive(return_inverse=True)
        here = torch.searchsorted(before, images)
        self.image, self._begun = self.image[rows], self._begun[rows]
        moved = here if self._beams else rows
        roomy = self._roomy(self._words[0], len(moved), self._words[0].shape[3])
        for words, kept in zip(self._words, roomy, strict=True):
            by_word, of = kept.permute(3, 0, 1, 2, 4), words.permute(3, 0, 1, 2, 4)
            by_word[: self._length] = of[: self._length, moved]
        self._words = roomy
        self._real = None if self._real is None else self._real[moved]
        if self._seen.slots is not None:
            self._seen.slots = _by_image(group, len(images))
        if len(images) < len(before):
            self._seen.select(here)
            self._own, self._ancestors = self._own[here], self._ancestors[here]

    def follow(self, parent: Tensor) -> None:
        """Each beam takes over which words are its parent's."""
        self._ancestors = self._parents(parent)

    def _parents(self, parent: Tensor) -> Tensor:
        """The ancestors of each row's parent, those of rows ``parent [n]``."""
        within = parent.view(-1, self._count) % self._count
        index = within.view(*within.shape, *[1] * (self._ancestors.dim() - 2))
        return self._ancestors.gather(1, index.expand_as(self._ancestors))
