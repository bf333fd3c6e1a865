"""A critic: what a caption's return is expected to be at each of its tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.base import Encoded
from tellapart.captioners.critic_head import Head, value_head
from tellapart.captioners.critic_states import AdaptedStates, OwnStates
from tellapart.captioners.modes import quiet
from tellapart.errors import UsageError
from tellapart.types import Rollout

if TYPE_CHECKING:
    from tellapart.captioners.huggingface import HuggingFaceCaptioner

WEIGHTS = "model.safetensors"


class Critic(nn.Module):
    """Values of hidden states of the captioner's language model, with an adapter that only this pass uses.

    VLRM (Dzabraev, Kunitsyn & Ivaniuta, 2024, section 3): a large head on the language model's states, LoRA on the language
    model while values are computed and never while captions are drawn or scored. The value of a token is read from the state
    that predicts it, so it cannot know the token. Nothing of a loss on values reaches the captioner: image states and
    the captioner's weights count as constants. Its parameters are the head's and the adapter's alone; the captioner
    is no child, and is neither trained nor saved through it.

    Without an adapter (an LSTM has no projections to adapt) the captioner's own states are read, without gradients: the
    head is then all that learns. States are read in eval mode; the adapter's dropout follows the mode of the critic.

    Departures: the paper's drawing of the head was not published (see :func:`critic_head.residual_head`); it names LoRA of
    6 million weights, which rank 16 on queries and values of OPT-2.7B comes near to (5.2 million).

    Args:
        captioner: whose states are read.
        head: ``residual``, or ``linear``, which is known to collapse.
        blocks: residual blocks; the paper's size is 5 at D = 2560.
        lora: the adapter; none reads the captioner's own states.

    Raises:
        UsageError: the head is unknown or empty, or the captioner cannot be adapted.
    """

    def __init__(
        self,
        captioner: HuggingFaceCaptioner,
        *,
        head: Head = "residual",
        blocks: int = 2,
        lora: LoraOptions | None = None,
    ) -> None:
        super().__init__()
        model = captioner.family.model
        size = model.get_output_embeddings().weight.shape[1]
        precise = torch.promote_types(captioner.family.head_dtype, torch.float32)
        self.head = value_head(head, size, blocks).to(captioner.device, precise)
        self.states = OwnStates(captioner) if lora is None else AdaptedStates(captioner, lora)
        self._captioner = (captioner,)  # in a tuple, where nn.Module does not look for children
        # The very parameters of the twin: peft computes with them, the critic owns, moves and saves them.
        self.adapter = nn.ParameterDict({name.replace(".", "/"): p for name, p in self.states.parameters().items()})

    def train(self, mode: bool = True) -> Critic:
        """Switch modes; the captioner's modules are not among them."""
        super().train(mode)
        self.states.train(mode)
        return self

    def forward(self, rollout: Rollout, *, encoded: Encoded | None = None) -> Tensor:
        """``[N, T]`` values on the returns' scale, float32 (of a model in float64, float64); 0 where masked.

        Args:
            rollout: captions.
            encoded: their images, if they are known.
        """
        with torch.no_grad():
            encoded = self._captioner[0].encode(rollout.batch) if encoded is None else encoded
        if not bool(rollout.mask.any()):
            return encoded.states.new_zeros(rollout.mask.shape, dtype=self.head.value.weight.dtype)
        states, place = self.states(rollout, _detached(encoded))
        values = self.head(states)
        return values.new_zeros(rollout.mask.shape).index_put(place, values)

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors`` (the head) and, with LoRA, ``adapter/`` in peft's format."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in self.head.state_dict().items()}, folder / WEIGHTS)
        with quiet():
            self.states.save(folder)

    def load_weights(self, folder: Path) -> None:
        """Read back, in place and bit for bit, what :meth:`save` wrote.

        Raises:
            UsageError: the folder lacks it, or it is of another critic.
        """
        try:
            self.head.load_state_dict(load_file(folder / WEIGHTS))
            with quiet():
                self.states.load_weights(folder)
        except Exception as error:  # each reader has its own exceptions, and all mean that the folder will not do
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".:")
            raise UsageError(
                f"folder {folder} lacks the weights of this critic ({reason}): give the folder it was saved to, with the "
                "same critic.head, blocks and lora."
            ) from error


def _detached(encoded: Encoded) -> Encoded:
    inputs = {name: tensor.detach() for name, tensor in encoded.inputs.items()}
    return replace(encoded, states=encoded.states.detach(), inputs=inputs)
