"""Idefics3ForConditionalGeneration and SmolVLMForConditionalGeneration, whose images are cut into tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.prompted import Prompted
from tellapart.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image


COUNTS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight"),
    *("nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
)
"""Number of frames -> its word; larger ones are written in digits."""


class Idefics3(Prompted):
    """``Idefics3ForConditionalGeneration`` and ``SmolVLMForConditionalGeneration``, which differ in name only.

    An image is several tiles, depending on its shape; tiles are padded to those of the batch's largest image. Which are
    real is read from the processor's mask: the models' own forward takes every tile of zeros for padding. SmolVLM's
    processor also reads videos, for which it needs packages that images do not; Idefics3's reads the same files.

    Clips are read as SmolVLM2 reads videos (Marafioti et al. 2025, "SmolVLM", section 3): a series of whole frames, each one
    tile, in the words of transformers' processor. Departure: sources of clips do not say when a frame is shown, so the
    prompt places frames one second apart.
    """

    takes_frames = True
    frames: int | None = None

    joint_processor = "Idefics3Processor"
    lora_targets = r".*text_model\..*\.(q_proj|k_proj|v_proj|o_proj)"
    default_prompt = "Provide a one-sentence caption for this image."
    plain_template = "User:{image}{prompt}<end_of_utterance>\nAssistant:"

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """The end of an utterance comes first among the EOS ids: it is what ends an answer."""
        start, eos, pad = super().special_tokens()
        end = self.tokenizer.convert_tokens_to_ids(self.processors.joint.end_of_utterance_token)
        return start, [end, *(token for token in eos if token != end)], pad

    @property
    def num_frames(self) -> int | None:
        """As many as ``read_frames`` was given."""
        return self.frames

    def read_frames(self, num_frames: int) -> None:
        """Read clips instead of stills."""
        self.frames = num_frames
        self.start, self.eos, self.pad = self.special_tokens()

    def rendered(self, count: int = 1) -> str:
        """The prompt with its images in it, or with the frames of one clip in the place of an image.

        Raises:
            UsageError: the prompt has other places for images, or would hold several clips.
        """
        text, place = super().rendered(count), self.processors.joint.image_token
        if self.frames is None:
            return text
        if count > 1:
            raise UsageError("A prompt holds one clip: leave out lookalikes_in_prompt.")
        before, _, after = text.partition(place)
        number = COUNTS[self.frames] if self.frames < len(COUNTS) else str(self.frames)
        time = f"{self.frames // 3600}:{self.frames // 60 % 60:02d}:{self.frames % 60:02d}"
        shown = "".join(f"\nFrame from {i // 60:02d}:{i % 60:02d}:{place}" for i in range(self.frames))
        intro = f"You are provided the following series of {number} frames from a {time} [H:MM:SS] video.\n"
        return f"{before}{intro}{shown}\n\n{after}"

    def lead(self, prompt: str) -> str:
        """As of the prompt with one image, which ends alike."""
        return super().lead(self._render())

    def processor_options(self) -> dict[str, Any]:
        """Frames are not cut into tiles."""
        return {} if self.frames is None else {"do_image_splitting": False}

    def frames_reversed(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each clip backwards."""
        return inputs | {name: inputs[name].flip(1) for name in ("pixel_values", "patch_mask")}

    @property
    def vision(self) -> nn.Module:
        """The vision model, without the connector."""
        return self.model.model.vision_model

    def process(self, images: list[Image.Image]) -> dict[str, Tensor]:
        """``pixel_values [B, tiles, 3, H, W]`` and, instead of a mask of pixels, ``patch_mask [B, tiles, h, w]``."""
        inputs = super().process(images)
        size = self.model.config.vision_config.patch_size
        pixels = inputs.pop("pixel_attention_mask").unfold(2, size, size).unfold(3, size, size)
        return inputs | {"patch_mask": pixels.flatten(-2).bool().any(dim=-1)}

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The tower's states of real tiles, neighbouring ones put together as the connector does before it projects."""
        patches, connector = inputs["patch_mask"], self.model.model.connector
        real = patches.flatten(2).any(dim=2)
        read = self.vision(inputs["pixel_values"][real], patch_attention_mask=patches[real]).last_hidden_state
        read = connector.pixel_shuffle(read, connector.scale_factor)
        tiles = read.new_zeros(*real.shape, *read.shape[1:])
        tiles = tiles.index_put(real.nonzero(as_tuple=True), read)
        mask = real[:, :, None].expand(tiles.shape[:3])
        return self.seen(inputs, tiles.flatten(1, 2), mask.flatten(1))

    def project(self, encoded: Encoded) -> Tensor:
        """The connector's linear layer."""
        return self.model.model.connector.modality_projection(encoded.states)

    @property
    def body(self) -> Any:
        """The text model."""
        return self.model.model.text_model
