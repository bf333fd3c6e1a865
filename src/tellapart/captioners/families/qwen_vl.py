"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images of any size, each as many tokens as it has patches, and positions on three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import Processors, as_list, first_given
from tellapart.captioners.families.prefix import left_padded
from tellapart.captioners.families.prompted import Prompted, side_by_side
from tellapart.errors import UsageError, reason_of

if TYPE_CHECKING:
    from PIL import Image


class Qwen2VL(Prompted):
    """``Qwen2VLForConditionalGeneration`` and ``Qwen2_5_VLForConditionalGeneration``.

    Their own processor needs a video processor, and that torchvision, so image processor and tokenizer are kept apart and
    the prompt is put together here. The tower ends where patches are merged into tokens: the merger trains with the text
    side, as other families' projections do. A state is what the merger makes one token of: ``merge_size ** 2`` neighbouring
    patches, one after the other.
    """

    lora_targets = r"model\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj)"
    default_prompt = "Describe this image."
    plain_template = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n{image}{prompt}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    """What the published chat template writes, for tokenizers that come without it."""
    image_text: ClassVar[str] = "<|image_pad|>"
    framed: ClassVar[str] = "<|vision_start|><|image_pad|><|vision_end|>"
    """An image in ``plain_template``."""

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        vision = model.config.vision_config
        for name, wanted in {
            "patch_size": vision.patch_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "merge_size": vision.spatial_merge_size,
        }.items():
            if (given := getattr(processors.image, name, None)) != wanted:
                raise UsageError(
                    f"the image processor has {name}={given} and the model {wanted}: set {name} in "
                    "preprocessor_config.json to the model's."
                )
        super().__init__(model, processors, prompt)

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """The prompt with one image token, EOS and PAD of the decoding defaults, else of the text model."""
        places = [self.model.generation_config, self.model.config.get_text_config(), self.tokenizer]
        eos = as_list(first_given("eos", [getattr(place, "eos_token_id", None) for place in places]))
        pad = first_given("pad", [*(getattr(place, "pad_token_id", None) for place in places), eos[0]])
        self.caption_lead = "" if self.rendered()[-1:].isspace() else " "
        return self.prompt_tokens(), eos, pad

    def rendered(self, count: int = 1) -> str:
        """The prompt in the tokenizer's chat template, or in the published format, with ``count`` images before its words.

        Raises:
            UsageError: it has more or fewer places for images, or the template cannot be used.
        """
        text = self.plain_template.format(image=count * self.framed, prompt=self.prompt)
        if self.tokenizer.chat_template:
            words = [{"type": "text", "text": self.prompt}] if self.prompt else []
            turn = {"role": "user", "content": [*count * [{"type": "image"}], *words]}
            try:
                text = self.tokenizer.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
            except Exception as error:  # a template is a program: it may raise anything
                raise UsageError(
                    f"the tokenizer's chat template cannot write an image and a prompt ({reason_of(error)}): correct or "
                    "remove it."
                ) from error
        found = self.tokenizer(text, add_special_tokens=False)["input_ids"].count(self.image_token)
        self.require_places(text, found, count, self.image_text)
        return text

    def prompt_tokens(self, count: int = 1) -> list[int]:
        """The tokens of ``rendered``, with one image token per image."""
        return self.tokenizer(self.rendered(count), add_special_tokens=False)["input_ids"]

    @property
    def vision(self) -> nn.Module:
        """The visual model without its merger."""
        return nn.ModuleList(part for name, part in self.model.model.visual.named_children() if "merger" not in name)

    @property
    def mergers(self) -> list[nn.Module]:
        """What turns patches into tokens of the decoder's width."""
        return [self.model.model.visual.merger]

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """``pixel_values [B, N, ...]`` of up to N patches, ``image_grid_thw [B, 3]``, and the prompt's tokens.

        Raises:
            UsageError: the image processor refuses an image.
        """
        try:
            made = self.processors.image(images=images, return_tensors="pt")
        except ValueError as error:
            width, height = max((image.size for image in images), key=lambda size: max(size) / min(size))
            raise UsageError(
                f"an image of {width} x {height} pixels cannot be processed ({reason_of(error)}): leave it out, or correct "
                "preprocessor_config.json."
            ) from error
        grid = made["image_grid_thw"]
        patches = made["pixel_values"].split(grid.prod(dim=1).tolist())
        prompts = [torch.tensor(self._expanded(count)) for count in (grid.prod(dim=1) // self._group).tolist()]
        return {
            "pixel_values": pad_sequence(patches, batch_first=True),
            "image_grid_thw": grid,
            **left_padded(prompts, self.pad),
        }

    def after_image(self, prompt: str) -> list[int]:
        """The tokens behind the image's in a row that asks ``prompt``."""
        ids = self.asking(prompt).prompt_tokens()
        return ids[ids.index(self.image_token) + 1 :]

    def with_prompts(
        self, encoded: Encoded, inputs: dict[str, Tensor], image: Tensor, rows: dict[str, Tensor]
    ) -> Encoded:
        """Positions depend on the prompt, too."""
        found = super().with_prompts(encoded, inputs, image, rows)
        grid = inputs["image_grid_thw"][image.to(inputs["image_grid_thw"].device)]
        found.inputs["positions"] = self._positions(rows | {"image_grid_thw": grid})
        return found

    def together(
        self, encoded: Encoded, inputs: dict[str, Tensor], shown: Sequence[Sequence[int]], prompt: str
    ) -> Encoded:
        """Positions and deepstack states are those of all images of a row."""
        found = super().together(encoded, inputs, shown, prompt)
        images = torch.tensor([image for row in shown for image in row], device=inputs["image_grid_thw"].device)
        found.inputs["positions"] = self._positions(found.inputs | {"image_grid_thw": inputs["image_grid_thw"][images]})
        if "deepstack" in encoded.inputs:
            deeper = side_by_side(encoded.inputs["deepstack"].transpose(1, 2), encoded.mask, shown)
            found.inputs["deepstack"] = deeper.transpose(1, 2)
        return found

    def _expanded(self, count: int) -> list[int]:
        place = self.start.index(self.image_token)
        return self.start[:place] + count * [self.image_token] + self.start[place + 1 :]

    @property
    def _group(self) -> int:
        """Patches in one token."""
        return self.model.config.vision_config.spatial_merge_size**2

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """Patches before merging, and the positions of the prompt; one row per image."""
        pixels, grid = inputs["pixel_values"], inputs["image_grid_thw"]
        columns = torch.arange(pixels.shape[1], device=pixels.device)
        real = columns < grid.prod(dim=1)[:, None]
        mask = real[:, :: self._group]
        first, *deeper = [self._rows(states, mask) for states in self._tower(pixels[real], grid)]
        kept = {**self.kept(inputs), "positions": self._positions(inputs)}
        if deeper:
            kept["deepstack"] = torch.stack(deeper, dim=1)
        return Encoded(first, mask, kept)

    @staticmethod
    def _rows(states: Tensor, mask: Tensor) -> Tensor:
        """``[B, P, D]`` of all images' states ``[sum of P, D]``, 0 where ``mask [B, P]`` is false."""
        return states.new_zeros(*mask.shape, states.shape[-1]).masked_scatter(mask[:, :, None], states)

    def _tower(self, patches: Tensor, grid: Tensor) -> list[Tensor]:
        """What each merger is given, in the order of tokens (inside, Qwen2.5-VL orders patches by windows)."""

        def grouped(module: nn.Module, given: tuple[Tensor], merged: Tensor) -> Tensor:
            return given[0].reshape(len(merged), -1)

        hooks = [merger.register_forward_hook(grouped) for merger in self.mergers]
        try:
            output = self.model.model.visual(patches, grid_thw=grid)
        finally:
            for hook in hooks:
                hook.remove()
        return [output.pooler_output, *getattr(output, "deepstack_features", ())]

    def _positions(self, inputs: dict[str, Tensor]) -> Tensor:
        """``[B, 3, P]`` positions of the prompt: time, height and width."""
        # On the CPU: the model's function reads single numbers.
        ids, mask, grid = (inputs[name].cpu() for name in ("input_ids", "attention_mask", "image_grid_thw"))
        types = (ids == self.image_token).int()
        positions, _ = self.model.model.get_rope_index(ids, types, image_grid_thw=grid, attention_mask=mask)
        return positions.transpose(0, 1).to(inputs["input_ids"].device)

    def prefix_positions(self, encoded: Encoded) -> Tensor:
        """``[3, B, P]``; an image takes as many as its longer side has tokens."""
        return encoded.inputs["positions"].transpose(0, 1)

    def caption_positions(self, encoded: Encoded, image: Tensor, first: int, count: int) -> Tensor:
        """``[3, n, count]``, on from the largest position of the prefix.

        Never from the model's ``rope_deltas``, which are those of whatever it read last.
        """
        after = encoded.inputs["positions"].amax(dim=(1, 2))[image] + 1
        steps = torch.arange(first, first + count, device=after.device)
        return (after[:, None] + steps).expand(3, -1, -1)

    def project(self, encoded: Encoded) -> Tensor:
        """Tokens made of patches by the merger."""
        return self.merged(self.mergers[0], encoded.states)

    def merged(self, merger: nn.Module, states: Tensor) -> Tensor:
        """``[B, P, D]`` tokens of grouped patches ``[B, P, merge_size ** 2 * D']``."""
        patches = states.reshape(-1, states.shape[-1] // self._group)
        return merger(patches).view(*states.shape[:2], -1)

    @property
    def body(self) -> Any:
        """The language model."""
        return self.model.model.language_model


# Qwen3-VL: Qwen2-VL whose first decoder layers also read deeper layers of the image tower.


class Qwen3VL(Qwen2VL):
    """``Qwen3VLForConditionalGeneration``.

    Deepstack (Meng et al., NeurIPS 2024): states of several layers of the tower, each through a merger of its own, are added
    to the image tokens after the first layers of the language model. Caption tokens get none.
    """

    plain_template = "<|im_start|>user\n{image}{prompt}<|im_end|>\n<|im_start|>assistant\n"

    @property
    def mergers(self) -> list[nn.Module]:
        """The last layer's merger, then those of the layers before."""
        visual = self.model.model.visual
        return [visual.merger, *visual.deepstack_merger_list]

    def further(self, encoded: Encoded, image: Tensor, width: int, cache: Cache | None) -> dict[str, Any]:
        """The image tokens among ``width`` columns, and what is added to them; nothing once the prefix is cached."""
        if "deepstack" not in encoded.inputs or (cache is not None and cache.get_seq_length() > 0):
            return {}
        assert encoded.mask is not None
        place = encoded.inputs["input_ids"][image] == self.image_token
        real = encoded.mask[image]
        layers = encoded.inputs["deepstack"].unbind(dim=1)
        return {
            "visual_pos_masks": nn.functional.pad(place, (0, width - place.shape[1])),
            "deepstack_visual_embeds": [
                self.merged(merger, states)[image][real]
                for merger, states in zip(self.mergers[1:], layers, strict=True)
            ],
        }
