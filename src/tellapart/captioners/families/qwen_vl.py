"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images of any size, each as many tokens as it has patches, and positions on three axes.

Qwen2-VL and Qwen2.5-VL also read clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache

from tellapart.captioners.base import Encoded
from tellapart.captioners.decoder import Beginning, Decoder
from tellapart.captioners.families.base import Processors, as_list, first_given
from tellapart.captioners.families.prefix import left_padded
from tellapart.captioners.families.prompted import Prompted, side_by_side
from tellapart.captioners.families.qwen_tower import attend_together
from tellapart.captioners.linear import Rows
from tellapart.errors import UsageError, reason_of

if TYPE_CHECKING:
    from PIL import Image

FRAME_TOKENS = 768
"""Most tokens of a group of frames of a clip, as in the published video processor; a still may have more."""

SECONDS = 1.0
"""Time between the frames of a clip."""


class Qwen2VL(Prompted):
    """``Qwen2VLForConditionalGeneration`` and ``Qwen2_5_VLForConditionalGeneration``.

    Their own processor needs a video processor, and that torchvision, so image processor and tokenizer are kept apart and
    the prompt is put together here. The tower ends where patches are merged into tokens: the merger trains with the text
    side, as other families' projections do. A state is what the merger makes one token of: ``merge_size ** 2`` neighbouring
    patches, one after the other.

    Clips are read as videos (Wang et al. 2024, "Qwen2-VL", section 2.1; Bai et al. 2025, "Qwen2.5-VL", section 2.1): a patch
    spans ``temporal_patch_size`` frames, 2 in published models, and time is the first axis of positions. An odd number of frames
    is filled up with the last one. Values equal those of the model's own forward for ``pixel_values_videos``.

    Departures: frames are resized by the image processor (PIL), not by torchvision. Sources of clips do not say when a frame
    is shown, so Qwen2.5-VL, whose positions count seconds, is given frames that are one second apart.
    """

    takes_frames: ClassVar[bool] = True
    frames: int | None = None

    lora_targets = r"model\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj)"
    default_prompt = "Describe this image."
    plain_template = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n{image}{prompt}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    """What the published chat template writes, for tokenizers that come without it."""
    image_text: ClassVar[str] = "<|image_pad|>"
    video_text: ClassVar[str] = "<|video_pad|>"
    framed: ClassVar[str] = "<|vision_start|>{}<|vision_end|>"
    """An image or a clip in ``plain_template``."""

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
        attend_together(model.model.visual)

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """The prompt with one image token, EOS and PAD of the decoding defaults, else of the text model."""
        places = [self.model.generation_config, self.model.config.get_text_config(), self.tokenizer]
        eos = as_list(first_given("eos", [getattr(place, "eos_token_id", None) for place in places]))
        pad = first_given("pad", [*(getattr(place, "pad_token_id", None) for place in places), eos[0]])
        self.caption_lead = "" if self.rendered()[-1:].isspace() else " "
        return self.prompt_tokens(), eos, pad

    def rendered(self, count: int = 1) -> str:
        """The prompt in the tokenizer's chat template, or in the published format, with ``count`` images, or a clip, before its
        words.

        Raises:
            UsageError: it has more or fewer places for images, it would hold several clips, or the template cannot be used.
        """
        if self.frames is not None and count > 1:
            raise UsageError("A prompt holds one clip: leave out lookalikes_in_prompt.")
        stills = self.frames is None
        article, kind, place = ("an", "image", self.image_text) if stills else ("a", "video", self.video_text)
        text = self.plain_template.format(image=count * self.framed.format(place), prompt=self.prompt)
        if self.tokenizer.chat_template:
            words = [{"type": "text", "text": self.prompt}] if self.prompt else []
            turn = {"role": "user", "content": [*count * [{"type": kind}], *words]}
            try:
                text = self.tokenizer.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
            except Exception as error:  # a template is a program: it may raise anything
                raise UsageError(
                    f"the tokenizer's chat template cannot write {article} {kind} and a prompt ({reason_of(error)}): correct or "
                    "remove it."
                ) from error
        found = self.tokenizer(text, add_special_tokens=False)["input_ids"].count(self.image_token)
        self.require_places(text, found, count, place)
        return text

    def prompt_tokens(self, count: int = 1) -> list[int]:
        """The tokens of ``rendered``, with one image token per image."""
        return self.tokenizer(self.rendered(count), add_special_tokens=False)["input_ids"]

    @property
    def image_token(self) -> int:
        """The configuration's image token, or its video token where clips are read."""
        config = self.model.config
        return config.image_token_id if self.frames is None else config.video_token_id

    @property
    def num_frames(self) -> int | None:
        """As many as ``read_frames`` was given."""
        return self.frames

    def read_frames(self, num_frames: int) -> None:
        """Read clips instead of stills."""
        self.frames = num_frames
        self.start, self.eos, self.pad = self.special_tokens()

    @property
    def vision(self) -> nn.Module:
        """The visual model without its merger."""
        return nn.ModuleList(part for name, part in self.model.model.visual.named_children() if "merger" not in name)

    @property
    def mergers(self) -> list[nn.Module]:
        """What turns patches into tokens of the decoder's width."""
        return [self.model.model.visual.merger]

    def process(self, images: list[Any]) -> dict[str, Tensor]:
        """``pixel_values [B, N, ...]`` of up to N patches, ``image_grid_thw [B, 3]``, and the prompt's tokens.

        Args:
            images: B images, or B lists of frames where clips are read; the grid then counts groups of frames first.

        Raises:
            UsageError: the image processor refuses an image.
        """
        grid, patches = self._patches(images) if self.frames is None else self._patches_of_clips(images)
        prompts = [torch.tensor(self._expanded(count)) for count in (grid.prod(dim=1) // self._group).tolist()]
        return {
            "pixel_values": pad_sequence(patches, batch_first=True),
            "image_grid_thw": grid,
            **left_padded(prompts, self.pad),
        }

    def _patches(self, images: Sequence[Image.Image], **options: Any) -> tuple[Tensor, list[Tensor]]:
        """``[B, 3]`` numbers of patches in time, height and width, and the patches of each image."""
        try:
            made = self.processors.image(images=images, return_tensors="pt", **options)
        except ValueError as error:
            width, height = max((image.size for image in images), key=lambda size: max(size) / min(size))
            raise UsageError(
                f"an image of {width} x {height} pixels cannot be processed ({reason_of(error)}): leave it out, or correct "
                "preprocessor_config.json."
            ) from error
        grid = made["image_grid_thw"]
        return grid, list(made["pixel_values"].split(grid.prod(dim=1).tolist()))

    def _patches_of_clips(self, clips: Sequence[Sequence[Image.Image]]) -> tuple[Tensor, list[Tensor]]:
        """The same of clips: each patch has its first picture from the first frame of a group, and so on."""
        span, size = self._span, self.processors.image.size
        full = [[*clip, *(-len(clip) % span) * [clip[-1]]] for clip in clips]
        most = FRAME_TOKENS * self._group * self.model.config.vision_config.patch_size**2
        longest = min(size["longest_edge"], most)
        bounds = {"shortest_edge": min(size["shortest_edge"], longest), "longest_edge": longest}
        grids, stills = self._patches([frame for clip in full for frame in clip], size=bounds)
        found, start = [], 0
        for clip in full:
            # Of each frame, the image processor made patches in which all pictures are that frame.
            frames = self._pictures(torch.stack(stills[start : start + len(clip)])).unflatten(0, (-1, span))
            found.append(frames.diagonal(dim1=1, dim2=4).transpose(-1, -2).flatten(2).flatten(0, 1))
            start += len(clip)
        grid = grids[:: len(full[0])].clone()
        grid[:, 0] = len(full[0]) // span
        return grid, found

    def _pictures(self, patches: Tensor) -> Tensor:
        """``[..., channels, pictures, pixels]`` of patches ``[..., D]``."""
        pixels = self.model.config.vision_config.patch_size**2
        return patches.unflatten(-1, (-1, self._span, pixels))

    def frames_reversed(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each clip backwards."""
        pixels = inputs["pixel_values"].clone()
        for row, (groups, height, width) in zip(pixels, inputs["image_grid_thw"].tolist(), strict=True):
            real = row[: groups * height * width]
            real[:] = self._pictures(real.unflatten(0, (groups, -1))).flip(0, 3).flatten(2).flatten(0, 1)
        return inputs | {"pixel_values": pixels}

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

    @property
    def _span(self) -> int:
        """Frames in one patch."""
        return self.model.config.vision_config.temporal_patch_size

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
        given: dict[str, Any] = {"image_grid_thw": grid}
        if self.frames is not None:
            types *= 2
            given = {"video_grid_thw": grid, "second_per_grid_ts": [SECONDS * self._span] * len(grid)}
        positions, _ = self.model.model.get_rope_index(ids, types, attention_mask=mask, **given)
        return positions.transpose(0, 1).to(inputs["input_ids"].device)

    def prefix_positions(self, encoded: Encoded) -> Tensor:
        """``[3, B, P]``; an image takes as many as its longer side has tokens."""
        return encoded.inputs["positions"].transpose(0, 1)

    def caption_positions(self, encoded: Encoded, image: Tensor, first: int | Tensor, count: int) -> Tensor:
        """``[3, n, count]``, on from the largest position of the prefix.

        Never from the model's ``rope_deltas``, which are those of whatever it read last.
        """
        after = encoded.inputs["positions"].amax(dim=(1, 2))[image] + 1
        steps = torch.arange(count, device=after.device)
        return (after[:, None] + first + steps).expand(3, -1, -1)

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
    to the image tokens after the first layers of the language model. Caption tokens get none. Clips are not read: its videos
    have the time of each group of frames in the prompt.
    """

    takes_frames = False
    plain_template = "<|im_start|>user\n{image}{prompt}<|im_end|>\n<|im_start|>assistant\n"

    @property
    def mergers(self) -> list[nn.Module]:
        """The last layer's merger, then those of the layers before."""
        visual = self.model.model.visual
        return [visual.merger, *visual.deepstack_merger_list]

    def beginning(self, decoder: Decoder, encoded: Encoded, embed: Rows) -> Beginning:
        """With what deepstack adds to the image tokens."""
        begun = super().beginning(decoder, encoded, embed)
        if "deepstack" not in encoded.inputs:
            return begun
        assert encoded.mask is not None
        place = (encoded.inputs["input_ids"] == self.image_token)[:, :, None]
        nothing = torch.zeros_like(begun.hidden)
        found = [
            nothing.masked_scatter(place, self.merged(merger, states)[encoded.mask].to(nothing.dtype))
            for merger, states in zip(self.mergers[1:], encoded.inputs["deepstack"].unbind(dim=1), strict=True)
        ]
        return replace(begun, deeper=found)

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
