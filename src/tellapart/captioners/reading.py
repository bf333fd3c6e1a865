"""Which words one pass over whole captions reads: every word of each, or those of captions that begin alike once.

Beams differ in their last words, and samples of a sure captioner are often the same. Words that captions of an image begin
with then make a tree, of which every node is read once and sees the nodes above it, as in tree attention (Miao et al., SpecInfer,
2024). States, and so log-probabilities and gradients, are those of reading each caption by itself, up to their last bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LINEAR = 7
"""What the linear layers of a decoder cost a word, next to its attention to one other word, in widths of the decoder: about
``28 D^2`` operations and ``4 D``."""

GAIN = 0.9
"""Share of the cost of reading captions one by one that reading them together may have: finding the tree costs something, too."""


@dataclass(frozen=True)
class States:
    """States that predict the M words of captions.

    Args:
        hidden: ``[m, D]``.
        index: ``[M]``, the state of each word, rising.
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

    @property
    def size(self) -> int:
        """Places of a group."""
        return self.sees.shape[-1]

    def cost(self, width: int) -> int:
        """Of a decoder of this width, in operations of attention."""
        return len(self.row) * (LINEAR * width + self.size)

    def states(self, first: Tensor, read: Tensor, image: Tensor, mask: Tensor) -> States:
        """The states that predict the captions' words.

        Args:
            first: ``[B, D]``, of the first words.
            read: ``[R, D]``, after the words that were read.
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


def one_by_one(image: Tensor, mask: Tensor) -> Reading:
    """Every word of every caption; the arguments are those of ``reading``."""
    row, column = mask[:, 1:].nonzero(as_tuple=True)
    size = int(column.max()) + 1 if len(column) else 0
    sees = torch.ones(size, size, dtype=torch.bool, device=mask.device).tril()
    node = (mask[:, 1:].flatten().cumsum(0) - 1).clamp(min=0).view(mask[:, 1:].shape)
    return Reading(row, column, image[row], row, column, image, sees, node)


def together(image: Tensor, tokens: Tensor, mask: Tensor, images: int) -> Reading:
    """Words before which captions of an image are the same once; the arguments are those of ``reading``."""
    node, rows, parent, count = torch.zeros_like(tokens[:, 1:]), [], image, 0
    vocabulary = int(tokens.max()) + 1
    for number in range(node.shape[1]):
        reads = mask[:, number + 1].nonzero().squeeze(1)
        found, place = (parent[reads] * vocabulary + tokens[reads, number]).unique(return_inverse=True)
        node[reads, number] = count + place
        rows.append(torch.empty_like(found).index_put((place,), reads))
        parent, count = node[:, number], count + len(found)
    row = torch.cat(rows)
    column = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(found) for found in rows]))
    group = image[row]
    order, counts = group.argsort(stable=True), torch.bincount(group, minlength=images)
    place = torch.empty_like(group)
    place[order] = torch.arange(count) - (counts.cumsum(0) - counts)[group[order]]
    above = torch.where(torch.arange(node.shape[1]) <= column[:, None], place[node[row]], place[:, None])
    size = int(counts.max())
    sees = torch.zeros(images * size, size, dtype=torch.bool)
    sees[group * size + place] = torch.zeros(count, size, dtype=torch.bool).scatter_(1, above, True)
    return Reading(row, column, group, group, place, torch.arange(images), sees.view(images, 1, size, size), node)


def reading(image: Tensor, tokens: Tensor, mask: Tensor, *, images: int, width: int) -> Reading:
    """How to read captions, whichever costs less.

    Args:
        image: ``[N]``, the image of each caption.
        tokens: ``[N, T]`` caption tokens.
        mask: ``[N, T]`` bool, a run of true from the left.
        images: B.
        width: of the decoder.
    """
    alone = one_by_one(image, mask)
    if not len(alone.row) or len(image) == images == len(image.unique()):
        return alone
    # On a GPU every column would wait for the device.
    shared = together(image.cpu(), tokens.cpu(), mask.cpu(), images)
    return shared.to(image.device) if shared.cost(width) <= GAIN * alone.cost(width) else alone
