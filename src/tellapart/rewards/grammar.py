"""How grammatical a text tower finds a caption: the grammar head of Cho et al. (Findings of NAACL 2022, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tellapart.errors import UsageError
from tellapart.files import write_json
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.kinds import trained_folder
from tellapart.listeners.loading import called, model_digest, vocabulary_of
from tellapart.listeners.pooled import encode_pooled, pooled_width
from tellapart.listeners.trained import TrainedListener
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.types import Rollout

HEAD_WEIGHTS, HEAD_SETTINGS = "grammar_head.safetensors", "grammar_head.json"
"""The files of a head, next to those of the listener whose text tower it reads."""

GRAMMATICAL = 1
"""Column of the logits; the other one is of corrupted texts."""

_BRACKETS = frozenset(f"-{bracket}-" for bracket in ("lrb", "rrb", "lsb", "rsb", "lcb", "rcb"))


def plain(texts: Sequence[str]) -> list[str]:
    """Texts as the head reads them: lower-case words without punctuation and brackets, one space apart (PTB tokens).

    Cho et al. train on such words. With its full stop, a shuffled or shortened reference would be known by where the stop is,
    and a caption written without one would look corrupted.
    """
    words = (text.split() for text in ptb_tokenize(texts, alone=True))
    return [" ".join(word for word in caption if word not in _BRACKETS) for caption in words]


class GrammarHead(nn.Module):
    """``Linear(D, D) - ReLU - Linear(D, 2)`` without biases, on the pooled feature of a text before its projection.

    D is the width of the text tower. The released code has the width of the *projected* space between the two layers, which
    is the same in OpenAI's models.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.hidden = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, 2, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        """``[M, D]`` -> ``[M, 2]`` logits; column ``GRAMMATICAL`` is that of grammatical texts."""
        return self.output(self.hidden(pooled.to(self.hidden.weight.dtype)).relu())

    def probability(self, pooled: Tensor) -> Tensor:
        """``[M, D]`` -> ``[M]`` probability of being grammatical, 0 to 1."""
        return self(pooled).softmax(dim=1)[:, GRAMMATICAL]

    def save(self, folder: Path) -> None:
        """Write weights and width into an existing folder, next to what is there."""
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(weights, folder / HEAD_WEIGHTS)
        write_json(folder / HEAD_SETTINGS, {"format": 1, "width": self.width, "texts": "lower-case PTB words"})

    def load_weights(self, folder: Path) -> None:
        """Read weights back in place.

        Raises:
            UsageError: they are missing, damaged, or of another width.
        """
        try:
            self.load_state_dict(load_file(folder / HEAD_WEIGHTS))
        except FileNotFoundError as error:
            raise UsageError(
                f"{folder} holds no grammar head ({HEAD_WEIGHTS}): name a folder that tellapart train-listener --grammar "
                "wrote, or world/grammar."
            ) from error
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UsageError(
                f"{folder / HEAD_WEIGHTS} is damaged or of another model than a text tower of width {self.width}: restore "
                "the folder, or train the head again with tellapart train-listener --grammar."
            ) from error


def make_head(listener: ClipListener) -> GrammarHead:
    """A new head for the listener's text tower, on its device, drawn from torch's global generator."""
    return GrammarHead(pooled_width(listener)).to(listener.device)


class GrammarListener(TrainedListener):
    """A listener and its head as one part of an objective: its folder in a checkpoint loads as either."""

    def __init__(self, listener: ClipListener, head: GrammarHead) -> None:
        super().__init__(listener)
        self.head = head

    def save(self, folder: Path) -> None:
        """Write the listener, and the head next to it; replaces ``folder``."""
        super().save(folder)
        self.head.save(folder)

    def load_weights(self, folder: Path) -> None:
        """Read both back in place.

        Raises:
            UsageError: something is missing, damaged, or of another model.
        """
        super().load_weights(folder)
        self.head.load_weights(folder)


class Grammar:
    """The head's probability that a caption is grammatical, 0 to 1.

    It is a classifier's opinion: it was taught to tell human captions from corrupted ones, and says nothing of faults it was
    not shown. Captions get the listener's prefix, ``"A photo depicts "`` for CLIP as it is, and are read as ``plain``
    words. A caption without any word gets 0, which no training has taught: nothing would otherwise keep a captioner from
    becoming empty.

    No ``nn.Module``: an objective that holds it neither trains nor saves it.

    Args:
        listener: whose text tower the head was trained with.
        head: as trained.
    """

    def __init__(self, listener: ClipListener, head: GrammarHead) -> None:
        self.listener, self.head = listener, head.eval()
        if head.width != pooled_width(listener):
            raise UsageError(
                f"the grammar head reads features of width {head.width}, but the listener's text tower has "
                f"{pooled_width(listener)}: load both from the folder they were trained into."
            )

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        batch_size: int = 256,
    ) -> Grammar:
        """A head with its text tower, from what ``train-listener --grammar`` wrote.

        Args:
            path: the folder of the listener, or the run's.
            dtype: of the tower's weights; probabilities are float32 in any case.
            batch_size: most captions read at once.

        Raises:
            UsageError: there is no such folder, it holds no head, or something in it is damaged.
        """
        folder = Path(trained_folder(path)).expanduser()
        if not folder.is_dir():
            raise UsageError(
                f"the grammar head's folder {path} does not exist: train one with tellapart train-listener --grammar, or "
                "take world/grammar."
            )
        if not (folder / HEAD_SETTINGS).is_file():
            raise UsageError(
                f"{folder} holds no grammar head ({HEAD_SETTINGS}): name a folder that tellapart train-listener --grammar "
                "wrote, or world/grammar."
            )
        listener = ClipListener.from_pretrained(folder, name="grammar", dtype=dtype, batch_size=batch_size)
        listener.source = called(path)
        head = GrammarHead(pooled_width(listener))
        head.load_weights(folder)
        return cls(listener, head)

    def to(self, device: torch.device | str) -> Grammar:
        """Move tower and head; returns the reward."""
        self.listener.to(device)
        self.head.to(device)
        return self

    def identity(self) -> str:
        """Name and hash, for a line of how something was measured."""
        described = [self.listener.prefix, vocabulary_of(self.listener.tokenizer)]
        return f"{self.listener.source} [{model_digest(GrammarListener(self.listener, self.head), *described)[:12]}]"

    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """``[M]`` float32, without gradient."""
        words = plain(texts)
        with torch.no_grad(), torch.autocast(self.listener.device.type, enabled=False):
            scores = self.head.probability(encode_pooled(self.listener, words))
        spoken = torch.tensor([bool(text) for text in words], dtype=torch.bool, device=scores.device)
        return scores.where(spoken, 0.0)

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        return self.probabilities(rollout.texts).to(rollout.image.device)


def grammaticality(grammar: Grammar) -> Grammar:
    """The reward ``grammar``: a grammar head is one as it is.

    Args:
        grammar: the head with its text tower.
    """
    return grammar
