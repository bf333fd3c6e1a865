"""LlavaNextVideoForConditionalGeneration: LLaVA over the frames of a clip, each pooled to a quarter of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import CLIPImageProcessorPil

from tellapart.captioners.base import Encoded
from tellapart.captioners.families.base import Processors, as_list, first_given
from tellapart.captioners.families.llava import Llava
from tellapart.captioners.families.prefix import left_padded
from tellapart.errors import UsageError
from tellapart.frames import NUM_FRAMES

if TYPE_CHECKING:
    from PIL import Image


class LlavaNextVideo(Llava):
    """``LlavaNextVideoForConditionalGeneration`` (Zhang et al. 2024, "LLaVA-NeXT: A Strong Zero-shot Video Understanding Model").

    A clip is ``num_frames`` frames, 8 unless ``data.num_frames`` is another number. The tower reads each frame, neighbouring
    states are pooled as the configuration says, and the language model reads the frames one after the other. Values equal those
    of the model's own forward for ``pixel_values_videos``. A still is one frame repeated; the tiles in which the model can read
    stills are not used.

    Its own processor needs a video processor, and that torchvision. So image processor and tokenizer are kept apart, and the
    prompt is in the published format, whatever the chat template says. Departure: frames are resized by PIL.
    """

    joint_processor: ClassVar[str | None] = None
    takes_frames = True
    several_images = False
    default_prompt = "Provide a one-sentence caption for the provided video."
    frames: int = NUM_FRAMES

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        if (mode := model.config.spatial_pool_mode) == "conv":
            raise UsageError(
                f"this LLaVA-NeXT-Video pools frames by {mode!r}, which is not supported: use a checkpoint with average or max."
            )
        given = processors.image
        self._frame_processor = CLIPImageProcessorPil(
            **{name: getattr(given, name) for name in ("size", "crop_size", "image_mean", "image_std", "resample")}
        )
        crop, wanted = dict(self._frame_processor.crop_size), model.config.vision_config.image_size
        if (crop["height"], crop["width"]) != (wanted, wanted):
            raise UsageError(
                f"the image processor crops to {crop['height']} x {crop['width']} pixels, but the model reads {wanted} x "
                f"{wanted}: set size and crop_size in preprocessor_config.json to the model's."
            )
        super().__init__(model, processors, prompt)

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """No start token (the prompt is the prefix); EOS and PAD of the decoding defaults, else of the text model."""
        self.caption_lead = self.lead(self.rendered())
        places = [self.model.generation_config, self.model.config.get_text_config(), self.tokenizer]
        eos = as_list(first_given("eos", [getattr(place, "eos_token_id", None) for place in places]))
        return [], eos, first_given("pad", [*(getattr(place, "pad_token_id", None) for place in places), eos[0]])

    @classmethod
    def never_used(cls, config: Any) -> str:
        """What LLaVA does not use, and the line ends of tiles."""
        return rf"(model\.image_newline|{super().never_used(config)})"

    @property
    def image_token(self) -> int:
        """The configuration's video token."""
        return self.model.config.video_token_id

    @property
    def num_frames(self) -> int | None:
        """8, or as many as ``read_frames`` was given."""
        return self.frames

    def read_frames(self, num_frames: int) -> None:
        """Read this many frames."""
        self.frames = num_frames

    def rendered(self, count: int = 1) -> str:
        """The prompt in the published format, with the place of a clip before its words.

        Raises:
            UsageError: it would hold several clips, or its words have a place for one.
        """
        if count > 1:
            raise UsageError("A prompt holds one clip: leave out lookalikes_in_prompt.")
        place = self._place
        text = self.plain_template.format(image=place, prompt=self.prompt)
        self.require_places(text, text.count(place), 1, place)
        return text

    @property
    def _place(self) -> str:
        return self.tokenizer.convert_ids_to_tokens(self.image_token)

    def after_image(self, prompt: str) -> list[int]:
        """The tokens that follow the clip's in a row that asks ``prompt``."""
        place = self._place
        return self.tokens_after(place, self.asking(prompt).rendered().rpartition(place)[2])

    @property
    def _tokens_per_frame(self) -> int:
        config = self.model.config
        side = config.vision_config.image_size // config.vision_config.patch_size
        return (side // config.spatial_pool_stride) ** 2

    def process(self, images: list[Any]) -> dict[str, Tensor]:
        """``pixel_values [B, F, 3, H, W]`` and the prompt's tokens.

        Args:
            images: B lists of F frames; an image counts as one frame repeated.
        """
        clips: list[Sequence[Image.Image]] = [
            clip if isinstance(clip, (list, tuple)) else [clip] * self.frames for clip in images
        ]
        flat = [frame for clip in clips for frame in clip]
        pixels = self._frame_processor(images=flat, return_tensors="pt")["pixel_values"]
        own = self.prompt_tokens()
        place = own.index(self.image_token)
        found = [
            torch.tensor(own[:place] + len(clip) * self._tokens_per_frame * [self.image_token] + own[place + 1 :])
            for clip in clips
        ]
        return {"pixel_values": pixels.unflatten(0, (len(clips), -1)), **left_padded(found, self.pad)}

    def frames_reversed(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each clip backwards."""
        return inputs | {"pixel_values": inputs["pixel_values"].flip(1)}

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """Pooled hidden states of the layers that are read, frame after frame."""
        pixels = inputs["pixel_values"]
        read = self.model.model.vision_resampler(self.chosen(pixels.flatten(0, 1)))
        return self.seen(inputs, read.unflatten(0, pixels.shape[:2]).flatten(1, 2))
