"""Which words one pass over whole captions reads: every word of each, or those of captions that begin alike once.

Beams differ in their last words, and samples of a sure captioner are often the same. Words that captions of an image begin
with then make a tree, of which every node is read once and sees the nodes above it, as in tree attention (Miao et al., SpecInfer,
2024). States, log-probabilities and gradients differ in their last bits from those of captions that are read one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LINEAR = 7
"""What the linear layers of a decoder of width D cost a word, in units of D words that one word sees: they take about ``28 D^2``
operations, where the decoder attends to an image, and each word that is seen takes ``4 D``."""

GAIN = 0.9
"""Share of the cost of reading captions one by one that reading them together may have: finding the tree costs something, too."""

ON_GPU = 2e12
"""Operations that reading captions together must save on a GPU, where a tree takes more kernels.
BLIP-base with 160 captions saves 4e11: its DiCO step took 266 ms on an H100 together and 216 one by one."""


@dataclass(frozen=True)
class States:
    """States that predict the M words of captions.

    Args:
        hidden: ``[m, D]``.
        index: ``[M]``, the state of each word, never falling.
        place: (row, column) of each word, ``[M]`` both.
    """

    hidden: Tensor
    index: Tensor
    place: tuple[Tensor, Tensor]

    def each(self) -> Tensor:
        """``[M, D]``: that of every word."""
        return self.hidden[self.index]


@dataclass(frozen=True)
class Reading:
    """R words that a pass reads of N captions of B images; the last word of a caption is never read.

    Args:
        row: ``[R]``, a caption that has the word.
        column: ``[R]``, its place in it.
        image: ``[R]``.
        group: ``[R]``, in which of G groups attention has it: a word sees words of its own group only.
        place: ``[R]``, its place in the group.
        owner: ``[G]``, the image of each group.
        sees: ``[size, size]``, or ``[G, 1, size, size]`` by group, bool: whether the word at one place sees the word at another.
        node: ``[N, T - 1]``, which of the R was read as each caption's word at that place, where one was.
    """

    row: Tensor
    column: Tensor
    image: Tensor
    group: Tensor
    place: Tensor
    owner: Tensor
    sees: Tensor
    node: Tensor

    def cost(self, width: int) -> int:
        """Of a decoder of this width; the unit is one word that sees another."""
        return _cost(len(self.row), len(self.owner), self.sees.shape[-1], width)

    def states(self, first: Tensor, read: Tensor, image: Tensor, mask: Tensor) -> States:
        """The states that predict the captions' words.

        Args:
            first: ``[B, D]``, states that predict the first words.
            read: ``[R, D]``, states after the words that were read.
            image: ``[N]``, of each caption.
            mask: ``[N, T]`` bool, a run of true from the left.
        """
        begins = mask[:, 0].nonzero().squeeze(1)
        here, index = image[begins].unique(return_inverse=True)
        row, column = mask[:, 1:].nonzero(as_tuple=True)
        index = torch.cat([index, len(here) + self.node[row, column]])
        order = index.argsort(stable=True)
        place = torch.cat([begins, row]), torch.cat([torch.zeros_like(begins), column + 1])
        return States(torch.cat([first[here], read]), index[order], (place[0][order], place[1][order]))

    def to(self, device: torch.device) -> Reading:
        """On a device."""
        return Reading(**{name: value.to(device) for name, value in vars(self).items()})


def _cost(words: int, groups: int, size: int, width: int) -> int:
    """Attention computes every place of every group."""
    return words * LINEAR * width + groups * size**2


def one_by_one(image: Tensor, mask: Tensor) -> Reading:
    """Every word of every caption; the arguments are those of ``choose_reading``."""
    row, column = mask[:, 1:].nonzero(as_tuple=True)
    size = int(column.max()) + 1 if len(column) else 0
    sees = torch.ones(size, size, dtype=torch.bool, device=mask.device).tril()
    node = (mask[:, 1:].flatten().cumsum(0) - 1).clamp(min=0).view(mask[:, 1:].shape)
    return Reading(row, column, image[row], row, column, image, sees, node)


class Tree:
    """The words of captions, those before which captions of an image are the same once; there is at least one.

    Args:
        image: ``[N]``, the image of each caption.
        tokens: ``[N, T]``.
        mask: ``[N, T]`` bool, a run of true from the left.
    """

    def __init__(self, image: Tensor, tokens: Tensor, mask: Tensor) -> None:
        self._node, parent, count = torch.zeros_like(tokens[:, 1:]), image, 0
        vocabulary, rows = int(tokens.max()) + 1, []
        for number in range(self._node.shape[1]):
            reads = mask[:, number + 1].nonzero().squeeze(1)
            found, place = (parent[reads] * vocabulary + tokens[reads, number]).unique(return_inverse=True)
            self._node[reads, number] = count + place
            # the first caption of each: which one of several would be written is not defined otherwise
            rows.append(torch.full_like(found, len(image)).scatter_reduce(0, place, reads, "amin"))
            parent, count = self._node[:, number], count + len(found)
        self._row = torch.cat(rows)
        self._column = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(found) for found in rows]))
        self._image = image[self._row]
        self._owner, self._group = self._image.unique(return_inverse=True)
        order, counts = self._group.argsort(stable=True), torch.bincount(self._group)
        self._place, self._size = torch.empty_like(order), int(counts.max())
        self._place[order] = torch.arange(count) - (counts.cumsum(0) - counts)[self._group[order]]

    def cost(self, width: int) -> int:
        """As of a reading."""
        return _cost(len(self._row), len(self._owner), self._size, width)

    def reading(self) -> Reading:
        """Every word sees those above it in the tree."""
        node, row, column, group, place = self._node, self._row, self._column, self._group, self._place
        above = torch.where(torch.arange(node.shape[1]) <= column[:, None], place[node[row]], place[:, None])
        sees = torch.zeros(len(self._owner) * self._size, self._size, dtype=torch.bool)
        sees[group * self._size + place] = torch.zeros(len(row), self._size, dtype=torch.bool).scatter_(1, above, True)
        by_group = sees.view(len(self._owner), 1, self._size, self._size)
        return Reading(row, column, self._image, group, place, self._owner, by_group, node)


def least_saved(device: torch.device, width: int, layers: int) -> float:
    """Of the cost of reading captions, what reading them together must save on a device.

    Args:
        device: where the decoder is.
        width: of the decoder.
        layers: of the decoder.
    """
    return 0.0 if device.type == "cpu" else ON_GPU / (4 * width * layers)


def choose_reading(image: Tensor, tokens: Tensor, mask: Tensor, width: int, layers: int) -> Reading:
    """How to read captions: together or one by one, whichever costs less.

    Args:
        image: ``[N]``, the image of each caption.
        tokens: ``[N, T]`` caption tokens.
        mask: ``[N, T]`` bool, a run of true from the left.
        width: of the decoder.
        layers: of the decoder.
    """
    alone = one_by_one(image, mask)
    if not len(alone.row) or len(image) == len(image.unique()):
        return alone
    least = least_saved(tokens.device, width, layers)
    if alone.cost(width) <= least:
        return alone
    # On a GPU every column would wait for the device.
    tree = Tree(image.cpu(), tokens.cpu(), mask.cpu())
    cost = tree.cost(width)
    pays = cost <= GAIN * alone.cost(width) and alone.cost(width) - cost >= least
    return tree.reading().to(image.device) if pays else alone
