"""The captioner as it was when training began."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from tellapart.captioners.adapters import is_untrained
from tellapart.captioners.base import Encoded
from tellapart.captioners.modes import evaluating
from tellapart.types import Rollout, Scores

if TYPE_CHECKING:
    from tellapart.captioners.huggingface import HuggingFaceCaptioner


class ReferenceCaptioner:
    """A frozen twin of a captioner: what trains is copied, what is frozen is shared.

    So it costs the text side in full training, the image tower too only if that trains, and next to nothing with LoRA,
    where it is the same base weights with a fresh adapter switched off for good (in the twin: the policy's adapter is
    never switched, hence no recomputed activation can see the wrong one). An adapter that had been trained before stays
    on.

    It is no ``nn.Module``: its weights reach neither optimiser nor checkpoints.
    """

    def __init__(self, captioner: HuggingFaceCaptioner) -> None:
        shared = [parameter for parameter in captioner.parameters() if not parameter.requires_grad]
        memo = {id(thing): thing for thing in [*shared, *vars(captioner.family.processors).values()]}
        self.shares_vision = not captioner.trains_vision
        self.captioner: HuggingFaceCaptioner = copy.deepcopy(captioner, memo)
        self.captioner.requires_grad_(False).eval()
        self.captioner.checkpoints_layers = False
        if self.captioner.has_lora and is_untrained(self.captioner.family.model):
            self.captioner.network.base_model.disable_adapter_layers()

    def __call__(self, rollout: Rollout, *, encoded: Encoded | None = None) -> Scores:
        """Log-probabilities of the rollout, without gradients; ``encoded`` is used only if its tower is frozen."""
        device = rollout.tokens.device
        # What is shared has moved with the captioner already, so one parameter's place says nothing of the others'.
        if any(parameter.device != device for parameter in self.captioner.parameters()):
            self.captioner.to(device)
        with evaluating(self.captioner):
            return self.captioner(rollout, encoded=encoded if self.shares_vision else None)
