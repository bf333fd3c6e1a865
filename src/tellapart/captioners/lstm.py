"""The recurrent captioners of the SCST, PSST, SLE and Up-Down papers, as models that transformers saves and loads.

They read image *features*, not pixels, so they have no image tower. Importing this module makes their configurations known
to ``AutoConfig`` and ``AutoModelForImageTextToText``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel, initialization

State = tuple[Tensor, Tensor]
"""``(h, c)``, each ``[n, hidden_size]``; of ``UpDown`` twice as wide, both of its LSTMs side by side."""


class FcLstmConfig(PreTrainedConfig):
    """Configuration of ``FcLstm``.

    Args:
        feature_size: width of the image features.
        hidden_size: width of the word embeddings and of the LSTM's states.
        vocab_size: words, special ones included.
        dropout: rate before and after the LSTM, in train mode.
        pad_token_id: fills captions after their end.
        bos_token_id: what the LSTM reads before the first word.
        eos_token_id: ends a caption.
        unk_token_id: replaces rare words in human captions; never drawn.
    """

    model_type: ClassVar[str] = "fc_lstm"

    feature_size: int = 2048
    hidden_size: int = 512
    vocab_size: int = 10_000
    dropout: float = 0.5
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int = 2
    unk_token_id: int = 3
    tie_word_embeddings: bool = False


class Att2in2Config(FcLstmConfig):
    """Configuration of ``Att2in2``: that of ``FcLstm``, and the attention's width.

    Args:
        attention_size: width in which regions and state are compared.
    """

    model_type: ClassVar[str] = "att2in2"

    attention_size: int = 512


class UpDownConfig(Att2in2Config):
    """Configuration of ``UpDown``: that of ``Att2in2`` with the paper's width."""

    model_type: ClassVar[str] = "updown"

    hidden_size: int = 1000


class LstmModel(PreTrainedModel):
    """Shared by all of these captioners: word embeddings, dropout and the output layer."""

    main_input_name = "features"
    base_model_prefix = ""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)

    def _init_weights(self, module: nn.Module) -> None:
        """Embeddings uniform in [-0.1, 0.1]; the other layers as torch makes them: uniform, by their width."""
        if isinstance(module, nn.Embedding):
            initialization.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, nn.Linear | nn.LSTM):
            width = module.in_features if isinstance(module, nn.Linear) else module.hidden_size
            for parameter in module.parameters(recurse=False):
                initialization.uniform_(parameter, -(width**-0.5), width**-0.5)

    def get_input_embeddings(self) -> nn.Module:
        """Word embeddings."""
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        """The layer that gives logits."""
        return self.head

    def start(self, features: Tensor) -> State:
        """The state before the first word."""
        raise NotImplementedError

    def keep(self, features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """The image states that every step reads, one row per image.

        Args:
            features: of n images.
            mask: ``[n, R]`` bool, which regions are real; none: all.
        """
        return ()

    def run(self, words: Tensor, state: State, kept: tuple[Tensor, ...], mask: Tensor | None) -> tuple[Tensor, State]:
        """``[n, t, hidden_size]`` states after each of ``words [n, t, hidden_size]``, and the last state.

        Args:
            words: embeddings of what is read.
            state: of n rows.
            kept: what ``keep`` gave, of the images of these n rows.
            mask: ``[n, R]`` bool, which regions are real; none: all.
        """
        raise NotImplementedError

    def forward(self, features: Tensor, input_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[n, t, V]`` logits of what follows each of ``input_ids [n, t]``, which begin with BOS, one row per image."""
        state, kept = self.start(features), self.keep(features, mask)
        return self.head(self.run(self.embedding(input_ids), state, kept, mask)[0])


class FcLstm(LstmModel):
    """An LSTM that receives the image once, as its first state.

    Chen and Jin (CVPR 2020, section 5: the ResNet-152 vector through one fully connected layer, LSTM of 512), after Vinyals
    et al. (CVPR 2015). The layer's output is both h and c; the paper names the state only, the authors' code for another
    system sets both. Dropout of 0.5 before and after the LSTM is that code's, too.
    """

    config_class = FcLstmConfig

    def __init__(self, config: FcLstmConfig) -> None:
        super().__init__(config)
        self.image_projection = nn.Linear(config.feature_size, config.hidden_size)
        self.lstm = nn.LSTM(config.hidden_size, config.hidden_size, batch_first=True)
        self.post_init()

    def train(self, mode: bool = True) -> FcLstm:
        """Switch dropout on or off; the LSTM inside has none.

        It always stays in train mode, since cuDNN differentiates an LSTM in that mode only, and captioners learn in eval
        mode.
        """
        super().train(mode)
        self.lstm.train()
        return self

    def start(self, features: Tensor) -> State:
        """From ``features [n, D]`` or ``[n, 1, D]``."""
        first = self.image_projection(features.flatten(1))
        return first, first

    def run(self, words: Tensor, state: State, kept: tuple[Tensor, ...], mask: Tensor | None) -> tuple[Tensor, State]:
        """All words in one call of the fused LSTM; a single one by its cell, since the fused LSTM lays out its weights again in
        every call (on a CPU three times the cost of the step)."""
        words = self.dropout(words)
        if words.shape[1] == 1:
            hidden, cell = torch.lstm_cell(words[:, 0], state, *self.lstm.parameters())
            return self.dropout(hidden[:, None]), (hidden, cell)
        hidden, cell = (part[None].contiguous() for part in state)
        states, (hidden, cell) = self.lstm(words, (hidden, cell))
        return self.dropout(states), (hidden[0], cell[0])


class AttentiveLstm(LstmModel):
    """Attention to image regions, ``softmax(w tanh(K r + Q h))``, from a state that begins as zeros."""

    cells: ClassVar[int] = 1
    """LSTMs whose states are kept side by side."""

    region_key: nn.Linear
    state_query: nn.Linear
    attention_score: nn.Linear

    def start(self, features: Tensor) -> State:
        """Zeros, for ``features [n, R, D]``."""
        zeros = features.new_zeros(len(features), self.cells * self.config.hidden_size)
        return zeros, zeros

    def attend(self, hidden: Tensor, regions: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """``[n, D]``: ``regions [n, R, D]``, weighted by how well ``keys [n, R, A]`` go with ``hidden [n, hidden_size]``."""
        scores = self.attention_score((keys + self.state_query(hidden)[:, None]).tanh()).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return torch.einsum("nr,nrd->nd", scores.softmax(dim=1), regions)


class Att2in2(AttentiveLstm):
    """An LSTM whose cell input also reads an attended mixture of image regions.

    Rennie et al. (CVPR 2017, section 3.2 and appendix): Att2in, its in-gate's nonlinearity a maxout of two units::

        i, f, o = sigmoid(W x + U h)           x: the word, h: the last state; a third of the gates each
        z       = max of the two halves of (W' x + U' h + V a)
        c'      = f c + i z,   h' = o tanh(c')

    where ``a`` is the mean of the embedded regions, weighted by ``softmax(w tanh(K r + Q h))``. The state begins as zeros:
    all the image enters through ``a``. As in the code that PSST builds on, words and regions pass a ReLU and dropout.
    """

    config_class = Att2in2Config

    def __init__(self, config: Att2in2Config) -> None:
        super().__init__(config)
        size, width = config.hidden_size, config.attention_size
        self.region_projection = nn.Linear(config.feature_size, size)
        self.region_key = nn.Linear(size, width)
        self.state_query = nn.Linear(size, width)
        self.attention_score = nn.Linear(width, 1)
        self.word_gates = nn.Linear(size, 5 * size)
        self.state_gates = nn.Linear(size, 5 * size)
        self.attended_gates = nn.Linear(size, 2 * size)
        self.post_init()

    def keep(self, features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Embedded regions ``[n, R, hidden_size]`` and their keys ``[n, R, attention_size]``."""
        regions = self.dropout(self.region_projection(features).relu())
        return regions, self.region_key(regions)

    def step(self, word: Tensor, state: State, kept: tuple[Tensor, ...], mask: Tensor | None) -> State:
        """The next state, from ``word [n, 5 * hidden_size]``, the gates' share of the word."""
        (hidden, cell), (regions, keys) = state, kept
        size = self.config.hidden_size
        gates = word + self.state_gates(hidden)
        enters, stays, leaves = gates[:, : 3 * size].sigmoid().chunk(3, dim=1)
        inner = gates[:, 3 * size :] + self.attended_gates(self.attend(hidden, regions, keys, mask))
        cell = stays * cell + enters * torch.maximum(*inner.chunk(2, dim=1))
        return leaves * cell.tanh(), cell

    def run(self, words: Tensor, state: State, kept: tuple[Tensor, ...], mask: Tensor | None) -> tuple[Tensor, State]:
        """Step by step; the words' share of the gates is computed at once."""
        gates = self.word_gates(self.dropout(words.relu()))
        states = []
        for word in gates.unbind(dim=1):
            state = self.step(word, state, kept, mask)
            states.append(state[0])
        return self.dropout(torch.stack(states, dim=1)), state


class UpDown(AttentiveLstm):
    """Up-Down: an LSTM that attends to image regions, and one that writes.

    Anderson et al. (CVPR 2018, section 3.2, equations 1 to 7)::

        h1, c1 = LSTM1([h2', v, e], h1', c1')     h1', c1', h2', c2': the last states; e: the word; v: the mean region
        a      = regions weighted by softmax(w tanh(K r + Q h1))
        h2, c2 = LSTM2([a, h1], h2', c2')         the next word is read from h2

    Regions enter as they are given. Departures: each LSTM has one bias; torch's layer has two, whose sum is all that counts.
    The word embeddings are as wide as the states (1,000 in the paper, too). Dropout on words and on h2 is not in the paper; it
    is on only where a training leaves dropout on. ruotianluo's code, which calls this model ``updown``, first embeds regions
    and mean in the width of the states, by a linear layer, ReLU and dropout.

    Example::

        config = UpDownConfig(feature_size=2048, vocab_size=10_010)
        logits = UpDown(config)(features, input_ids)  # [n, 36, 2048], [n, t] -> [n, t, 10010]
        model = AutoModelForImageTextToText.from_pretrained("runs/coco_updown_xe/best/captioner")
    """

    config_class = UpDownConfig
    cells = 2

    def __init__(self, config: UpDownConfig) -> None:
        super().__init__(config)
        seen, size, width = config.feature_size, config.hidden_size, config.attention_size
        self.region_key = nn.Linear(seen, width, bias=False)
        self.state_query = nn.Linear(size, width, bias=False)
        self.attention_score = nn.Linear(width, 1, bias=False)
        # LSTM1: the shares of the word, the image and the states in its gates, which are in torch's order: i, f, g, o
        self.word_gates = nn.Linear(size, 4 * size)
        self.image_gates = nn.Linear(seen, 4 * size, bias=False)
        self.state_gates = nn.Linear(2 * size, 4 * size, bias=False)
        # LSTM2
        self.attended_gates = nn.Linear(seen, 4 * size)
        self.language_gates = nn.Linear(2 * size, 4 * size, bias=False)
        self.post_init()

    def keep(self, features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Regions ``[n, R, D]``, their keys ``[n, R, attention_size]``, and the share of their mean in the gates of LSTM1."""
        real = features.new_ones(features.shape[:2]) if mask is None else mask.to(features.dtype)
        mean = torch.einsum("nr,nrd->nd", real / real.sum(dim=1, keepdim=True), features)
        return features, self.region_key(features), self.image_gates(mean)

    def step(self, word: Tensor, state: State, kept: tuple[Tensor, ...], mask: Tensor | None) -> State:
        """The next state of both LSTMs, from ``word [n, 4 * hidden_size]``, the word's share of the gates of LSTM1."""
        (_, language), (first, second) = (part.chunk(2, dim=1) for part in state)
        regions, keys, image = kept
        attention, first = _lstm_cell(word + image + self.state_gates(state[0]), first)
        attended = self.attend(attention, regions, keys, mask)
        gates = self.attended_gates(attended) + self.language_gates(torch.cat([attention, language], dim=1))
        written, second = _lstm_cell(gates, second)
        return torch.cat([attention, written], dim=1), torch.cat([first, second], dim=1)

    def run(self, words: Tensor, state: State, kept: tuple[Tensor, ...], mask: Tensor | None) -> tuple[Tensor, State]:
        """Step by step; the words' share of the gates is computed at once."""
        gates = self.word_gates(self.dropout(words))
        states = []
        for word in gates.unbind(dim=1):
            state = self.step(word, state, kept, mask)
            states.append(state[0][:, self.config.hidden_size :])
        return self.dropout(torch.stack(states, dim=1)), state


def _lstm_cell(gates: Tensor, cell: Tensor) -> State:
    """``(h, c)`` of an LSTM from its gates ``[n, 4 * size]`` before their nonlinearities, in the order i, f, g, o."""
    enters, stays, inner, leaves = gates.chunk(4, dim=1)
    cell = stays.sigmoid() * cell + enters.sigmoid() * inner.tanh()
    return leaves.sigmoid() * cell.tanh(), cell


LSTMS: dict[str, tuple[type[FcLstmConfig], type[LstmModel]]] = {
    "fc_lstm": (FcLstmConfig, FcLstm),
    "att2in2": (Att2in2Config, Att2in2),
    "updown": (UpDownConfig, UpDown),
}
"""``model_type`` -> configuration and model."""

for _config, _model in LSTMS.values():
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModelForImageTextToText.register(_config, _model, exist_ok=True)
