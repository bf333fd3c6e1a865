"""Steps of beam search that write words where no beam needs what is there."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tellapart.captioners.attention import by_products
from tellapart.captioners.decoder import Beginning, Decoder, DecoderSteps, lie_by_word


class ReusingSteps(DecoderSteps):
    """Beams of a decoder on a CPU, without gradients.

    Most beams of a step continue few of those before it, so most words that were read belong to no beam any longer: of the 95
    that 5 beams of 20 words read, 33 did at the end. Columns are as many as the image with most such words has needed, not as all
    words that were read: a quarter fewer for 48 images.

    Args:
        decoder: as for ``DecoderSteps``, and so are the others.
        beginning: of B images, after which keys and values ``lie_by_word``.
        embed: of words.
        count: rows per image.
        longest: most words of a caption.
    """

    def __init__(self, decoder: Decoder, beginning: Beginning, embed: nn.Module, *, count: int, longest: int) -> None:
        super().__init__(decoder, beginning, embed, count=count, longest=longest, beams=True)
        self._ancestors = self._own.new_zeros(len(self._own), count, 0)
        self._order = torch.arange(count, device=self.image.device)

    @staticmethod
    def suits(beginning: Beginning) -> bool:
        """Whether these steps can be taken: keys and values lie word by word, and nothing that is written over is needed.

        The order of words, and so of sums, depends on the other images. In float32 that changes last bits, in 16 bits captions.
        """
        return by_products(beginning.hidden) and lie_by_word(beginning.hidden)

    def _seen_by_beams(self) -> Tensor:
        """``[B, 1, beams, start + columns]`` bool: the beginning, and the words of each beam's own caption.

        Of the columns that are free in an image its beams take the last: those that no word was written to yet are among them,
        since the fullest image needs just these.
        """
        free = ~self._ancestors.any(dim=1)
        more = max(0, self._count - int(free.sum(dim=1).min()))
        rank = pad(free, (0, more), value=True).cumsum(dim=1)
        places = torch.searchsorted(rank, rank[:, -1:] - self._order)
        self._length += more
        self._ancestors = pad(self._ancestors, (0, more)).scatter_(2, places[:, :, None], value=True)
        groups, room = len(places), self._words[0].shape[3]
        rows = ((self._start + places) * groups + torch.arange(groups, device=places.device)[:, None]).flatten()
        self._rows = torch.stack([rows, rows + room * groups])
        return self._with_beginning(self._ancestors)

    def _written(self, words: Tensor, new: Tensor) -> Tensor:
        """``[groups, 2, heads, columns, d]``: those of every beam's new word at the place that it took."""
        groups, _, heads, room, width = words.shape
        flat = words.permute(1, 3, 0, 2, 4).view(2 * room * groups, heads * width)
        flat[self._rows] = new.permute(1, 0, 3, 2, 4).reshape(2, groups * self._count, heads * width)
        return words[:, :, :, : self._length]
