"""Real or generated: a learned reward that asks whether a person wrote the caption."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from tellapart.errors import UsageError
from tellapart.files import read_json, write_json
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.remember import RememberingTexts
from tellapart.metrics.ptb import ptb_tokenize
from tellapart.rewards.discriminator_verdict import AccuracyWatch
from tellapart.types import Listener, Rollout

# The folder of a discriminator: its weights, and what they are for.

WEIGHTS, DESCRIPTION = "model.safetensors", "discriminator.json"


def write_folder(module: nn.Module, described: dict[str, Any], folder: Path) -> None:
    """Weights and description, into a folder that may exist."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(module, str(folder / WEIGHTS))
    write_json(folder / DESCRIPTION, {"format": 1, **described})


def read_description(folder: Path) -> dict[str, Any]:
    """``kind``, ``options`` and ``listener`` of a saved discriminator.

    Raises:
        UsageError: the folder holds none, or it cannot be read.
    """
    try:
        described = read_json(folder / DESCRIPTION)
        return {name: described[name] for name in ("kind", "options", "listener")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{folder} holds no discriminator ({DESCRIPTION} cannot be read): give a folder that one was saved to, or a "
            "checkpoint with a discriminator/ in it."
        ) from error


def read_weights(module: nn.Module, expected: dict[str, Any], folder: Path) -> None:
    """Copy the folder's weights into ``module``.

    Args:
        module: what is read into.
        expected: what the folder must say of itself.
        folder: what ``write_folder`` wrote.

    Raises:
        UsageError: they are missing or damaged, or are of another kind, of other options or for another listener.
    """
    found = read_description(folder)
    for name, what in (("kind", "kind"), ("options", "options"), ("listener", "listener (a hash of its weights)")):
        if found[name] != expected[name]:
            raise UsageError(
                f"{folder} holds a discriminator of another {what}, {_short(found[name])} instead of "
                f"{_short(expected[name])}: use it with what it was trained with, or train a new one."
            )
    try:
        load_model(module, str(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UsageError(f"{folder / WEIGHTS} cannot be read: restore it, or train the discriminator again.") from error


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else json.dumps(value)


PERSON, GENERATED = 1, 0
"""Labels, and columns of the logits."""


class Discriminator(nn.Module, ABC):
    """A two-class classifier of captions, each given with its image (WTF-RL: Chaffin, Kijak & Claveau 2024, section 3).

    As a reward it gives ``softmax(logits)[1]``, the probability that a person wrote the caption. It learns by the
    cross-entropy of the two classes, which is the binary cross-entropy of that probability. What it reads comes from a frozen
    listener, which is not a child and gets no gradient. Nothing in it drops out, so train and eval mode are the same.

    Attributes:
        kind: its name in settings and in saved folders.
        learning_rate: what Adam is given unless somebody says otherwise.
        watch: warns when the answers of ``loss`` make it useless; none (the start value) watches nothing.

    Raises:
        ValueError: the listener is an ``nn.Module``, which would make it a child: trained, saved and moved with this one.
    """

    kind: ClassVar[str]
    learning_rate: ClassVar[float]

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        if isinstance(listener, nn.Module):
            raise ValueError("a discriminator's listener must not be an nn.Module: it stays frozen and is not saved")
        self.listener = listener
        self.watch: AccuracyWatch | None = None

    @abstractmethod
    def logits(self, rollout: Rollout) -> Tensor:
        """``[N, 2]`` with gradient: generated, written by a person."""

    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides the listener, as JSON can hold them."""
        return {}

    def forward(self, rollout: Rollout) -> Tensor:
        """``[N]`` probability (0 to 1) that a person wrote the caption, without gradient, on the rollout's device."""
        with torch.no_grad():
            return self._exact(rollout).softmax(dim=1)[:, PERSON].to(rollout.image.device)

    def loss(self, real: Rollout, fake: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Each caption's binary cross-entropy, people's captions first.

        Args:
            real: captions written by people.
            fake: generated captions.

        Returns:
            ``[N_real + N_fake]`` nats with gradient; and detached values per caption: ``discriminator/loss``,
            ``discriminator/accuracy`` (1 where it is classified correctly; a tie is wrong), ``discriminator/real`` and
            ``discriminator/fake`` (the probability that a person wrote it).
        """
        logits = torch.cat([self._exact(real), self._exact(fake)])
        labels = torch.full((len(logits),), GENERATED, device=logits.device)
        labels[: len(real)] = PERSON
        losses = cross_entropy(logits, labels, reduction="none")
        seen = logits.detach()
        right = (seen.gather(1, labels[:, None]) > seen.gather(1, 1 - labels[:, None]))[:, 0].to(losses.dtype)
        probability = seen.softmax(dim=1)[:, PERSON]
        if self.watch is not None:
            self.watch.add(right[: len(real)], right[len(real) :])
        return losses, {
            "discriminator/loss": losses.detach(),
            "discriminator/accuracy": right,
            "discriminator/real": probability[: len(real)],
            "discriminator/fake": probability[len(real) :],
        }

    @cached_property
    def _listener_fingerprint(self) -> str:
        listener = remembered(self.listener)
        return listener.fingerprint() if isinstance(listener, ClipListener) else type(listener).__name__

    def describe(self) -> dict[str, Any]:
        """What must agree for weights to mean the same: kind, options, the listener's fingerprint."""
        return {"kind": self.kind, "options": self.options(), "listener": self._listener_fingerprint}

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors`` and ``discriminator.json``; callers write into a temporary folder and rename it."""
        write_folder(self, self.describe(), folder)

    def load_weights(self, folder: Path) -> None:
        """Read back, in place and bit for bit, what ``save`` wrote.

        Raises:
            UsageError: the folder lacks them, or they are of another kind, of other options or for another listener.
        """
        read_weights(self, self.describe(), folder)

    def _exact(self, rollout: Rollout) -> Tensor:
        # In bfloat16 the probabilities of one image's captions would differ by less than their rounding.
        with torch.autocast(rollout.image.device.type, enabled=False):
            return self.logits(rollout)

    def _images(self, rollout: Rollout) -> Tensor:
        """``[N, D]`` embeddings of each caption's image, without gradient, where this module is."""
        with torch.no_grad():
            images = self.listener.encode_images(rollout.batch)
            return images[rollout.image.to(images.device)].float().to(self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device


class MLPDiscriminator(Discriminator):
    """The discriminator of WTF-RL: ``[image ; caption]`` -> D -> D/2 -> 2 with ReLU between, on unit-norm embeddings of
    width D (1024 -> 512 -> 256 -> 2 on CLIP ViT-B/32; the paper says three layers, the widths are the released code's).

    As in that code, full stops are taken out before the listener reads a caption. It sees what the embedding holds: where
    the listener reads words without their order, a shuffled caption is to it the same caption.

    Args:
        listener: the frozen dual encoder.
    """

    kind = "mlp"
    learning_rate = 7e-5

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        width = listener.encode_texts([""]).shape[1]
        self.layers = nn.Sequential(
            nn.Linear(2 * width, width),
            nn.ReLU(),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, 2),
        )

    def logits(self, rollout: Rollout) -> Tensor:
        """``[N, 2]`` with gradient: generated, written by a person."""
        with torch.no_grad():
            texts = self.listener.encode_texts(plain(rollout.texts))
        return self.layers(torch.cat([self._images(rollout), texts.float().to(self._device)], dim=1))


def plain(texts: Sequence[str]) -> list[str]:
    """Texts as WTF-RL's listener reads them: without full stops and outer blanks (released code)."""
    return [text.replace(".", "").strip() for text in texts]


class TextDiscriminator(Discriminator):
    """Reads the caption word by word, so it sees order, agreement and repetition, which an embedding may hide; ours, not
    the paper's.

    A bidirectional GRU (Cho et al. 2014) over the listener's own, frozen token embeddings, each normalised; its first state
    comes from the image, its two last states and the image go through a hidden layer. Case and punctuation are taken away
    first (as CIDEr counts words): they would give many captioners away at once, and say nothing of style. A caption that
    was cut at the longest length lacks the token for its end.

    Args:
        listener: gives tokens, their embeddings and the image's.
        width: of the GRU, each way.
        see_image: whether it also reads the image; without, it judges the words alone.

    Raises:
        UsageError: the listener is not a CLIP or SigLIP model, so it has no token embeddings to read.
    """

    kind = "text"
    learning_rate = 1e-3

    def __init__(self, listener: Listener, *, width: int = 128, see_image: bool = True) -> None:
        super().__init__(listener)
        self.width, self.see_image = width, see_image
        embedded = _words(listener)[1].shape[1]
        image = listener.encode_texts([""]).shape[1] if see_image else 0
        self.start = nn.Linear(image, 2 * width) if see_image else None
        self.reader = nn.GRU(embedded, width, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(2 * width + image, width), nn.ReLU(), nn.Linear(width, 2))

    def options(self) -> dict[str, Any]:
        """Width and whether it sees the image."""
        return {"width": self.width, "see_image": self.see_image}

    def logits(self, rollout: Rollout) -> Tensor:
        """``[N, 2]`` with gradient: generated, written by a person."""
        images = [self._images(rollout)] if self.start is not None else []
        first = None
        if self.start is not None:
            first = self.start(images[0]).tanh().view(-1, 2, self.width).transpose(0, 1).contiguous()
        _, last = self.reader(_packed(self.listener, rollout.texts, rollout.finished.tolist(), self._device), first)
        return self.head(torch.cat([last[0], last[1], *images], dim=1))


class DotProductDiscriminator(Discriminator):
    """The evaluator of G-GAN (Dai, Fidler, Urtasun & Lin, ICCV 2017, section 3): ``sigmoid(<f(image), h(caption)>)``.

    ``h`` is the last state of an LSTM over the caption's words, ``f`` a linear layer on the image's embedding. Its
    ``logits`` are 0 and the dot product, so that the probability of a person is that sigmoid.

    Departures: image and words are embedded by the frozen listener, where the paper trains its own layers on VGG-16 features.
    Case and punctuation are taken away, as for ``TextDiscriminator``.

    Args:
        listener: gives tokens, their embeddings and the image's.
        width: of the LSTM, and of the space of the dot product.

    Raises:
        UsageError: the listener is not a CLIP or SigLIP model, so it has no token embeddings to read.

    Example::

        evaluator = DotProductDiscriminator(ClipListener.from_pretrained("openai/clip-vit-base-patch32"))
        losses, logs = evaluator.loss(real, generated)
        scores = evaluator(generated)  # [N], 0 to 1
    """

    kind = "dot_product"
    learning_rate = 1e-3

    def __init__(self, listener: Listener, *, width: int = 256) -> None:
        super().__init__(listener)
        self.width = width
        self.image = nn.Linear(listener.encode_texts([""]).shape[1], width)
        self.reader = nn.LSTM(_words(listener)[1].shape[1], width, batch_first=True)

    def options(self) -> dict[str, Any]:
        """The width."""
        return {"width": self.width}

    def logits(self, rollout: Rollout) -> Tensor:
        """``[N, 2]`` with gradient: 0, and the dot product. Equal captions are read once."""
        read = list(zip(rollout.texts, rollout.finished.tolist(), strict=True))
        place = {caption: row for row, caption in enumerate(dict.fromkeys(read))}
        texts, finished = [text for text, _ in place], [ended for _, ended in place]
        _, (last, _) = self.reader(_packed(self.listener, texts, finished, self._device))
        captions = last[0][[place[caption] for caption in read]]
        product = (self.image(self._images(rollout)) * captions).sum(dim=1)
        return torch.stack([torch.zeros_like(product), product], dim=1)


KINDS: dict[str, type[MLPDiscriminator] | type[TextDiscriminator] | type[DotProductDiscriminator]] = {
    kind.kind: kind for kind in (MLPDiscriminator, TextDiscriminator, DotProductDiscriminator)
}
"""Name of a kind -> its class."""


def load_discriminator(path: Path, listener: Listener) -> Discriminator:
    """A saved discriminator.

    Args:
        path: what ``save`` wrote, or a checkpoint that holds it as ``discriminator/``.
        listener: the one it was trained with.

    Raises:
        UsageError: there is none, it cannot be read, or it was trained with another listener.
    """
    folder = path / "discriminator" if (path / "discriminator").is_dir() else path
    described = read_description(folder)
    if described["kind"] not in KINDS:
        raise UsageError(
            f"{folder} holds a discriminator of kind {described['kind']!r}: use one of {', '.join(KINDS)}."
        )
    discriminator = KINDS[described["kind"]](listener, **described["options"])
    discriminator.load_weights(folder)
    return discriminator


def remembered(listener: Listener) -> Listener:
    """The listener itself, without the wrapper that remembers its texts."""
    while isinstance(listener, RememberingTexts):
        listener = listener.listener
    return listener


def _words(listener: Listener) -> tuple[Any, Tensor]:
    """The listener's tokenizer and its ``[V, D]`` token embeddings.

    They are looked up at every use: kept as an attribute, the module that holds them would be a child of the discriminator.
    """
    own = remembered(listener)
    if not isinstance(own, ClipListener):
        raise UsageError(
            "discriminators of kind text and dot_product read the token embeddings of a CLIP or SigLIP listener, which "
            f"{type(own).__name__} is not: use kind mlp."
        )
    return own.tokenizer, own.model.text_model.get_input_embeddings().weight.detach()


def _packed(listener: Listener, texts: Sequence[str], finished: Sequence[bool], device: torch.device) -> PackedSequence:
    """The normalised token embeddings of captions, without gradient, as a recurrent reader takes them."""
    tokenizer, table = _words(listener)
    tokens, lengths = _tokens(texts, finished, tokenizer)
    with torch.no_grad():
        words = table[tokens.to(table.device)].float().to(device)
        words = nn.functional.layer_norm(words, words.shape[-1:])
    return pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)


def _tokens(texts: Sequence[str], finished: Sequence[bool], tokenizer: Any) -> tuple[Tensor, Tensor]:
    """``([N, T] token ids, [N] lengths)`` on the CPU; a caption without any word is its end alone."""
    end, plain = tokenizer.eos_token_id, ptb_tokenize(list(texts), alone=True)
    rows = tokenizer(plain, add_special_tokens=False, verbose=False)["input_ids"] if plain else []
    rows = [[*row, end] if done or not row else row for row, done in zip(rows, finished, strict=True)]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    width = max(map(len, rows), default=1)
    return torch.tensor([row + [end] * (width - len(row)) for row in rows], dtype=torch.long), lengths
