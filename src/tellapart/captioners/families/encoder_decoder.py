"""VisionEncoderDecoderModel: any image tower with a GPT-2 that attends to it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Cache, GenerationConfig

from tellapart.captioners.base import Encoded
from tellapart.captioners.blocks import Gpt2
from tellapart.captioners.decoder import Decoder
from tellapart.captioners.families.base import Family, Processors, as_list, first_given
from tellapart.captioners.families.cross import CrossDecoder
from tellapart.captioners.linear import Linear
from tellapart.errors import UsageError


def encoder_decoder(config: Any) -> type[Family]:
    """The family of a configuration: with an encoder on top of the image tower, over the frames of clips, or neither."""
    kinds = {"encoded_clip": TowerEncoderDecoder, "clip_frames": FramesEncoderDecoder}
    return kinds.get(config.encoder.model_type, EncoderDecoder)


class EncoderDecoder(CrossDecoder):
    """``VisionEncoderDecoderModel`` with a GPT-2 decoder (ViT, CLIP, DeiT, Swin, ... as image tower)."""

    lora_targets = r"decoder\..*\.(c_attn|q_attn|c_proj)"

    def __init__(self, model: Any, processors: Processors, prompt: str | None = None) -> None:
        kind = model.config.decoder.model_type
        if kind != "gpt2":
            raise UsageError(
                f"the decoder of this VisionEncoderDecoderModel is a {kind!r}: only 'gpt2' decoders are supported, "
                "so use another checkpoint or write a Family for it."
            )
        super().__init__(model, processors, prompt)

    @classmethod
    def never_used(cls, config: Any) -> str:
        """Pooling layers; CLIP's last layer norm belongs to its pooling, that of other towers does not."""
        return (
            rf"encoder\.(.*\.)?({'pooler|post_layernorm' if 'clip' in config.encoder.model_type else 'pooler|head'})\."
        )

    def special_tokens(self) -> tuple[list[int], list[int], int]:
        """From the model's configuration, then its decoding defaults, then the decoder's, then the tokenizer's."""
        config, decoding = self.model.config, self.model.generation_config
        places = [config, decoding, config.decoder, self.tokenizer]

        def ids(name: str) -> list[Any]:
            return [getattr(place, name, None) for place in places]

        start = first_given("decoder_start", ids("decoder_start_token_id") + ids("bos_token_id"))
        eos = as_list(first_given("eos", ids("eos_token_id")))
        return [start, *self.prompt_ids()], eos, first_given("pad", [*ids("pad_token_id"), eos[0]])

    def neutralise(self) -> None:
        """Keep the token ids, drop the rest; plain ``generate`` of a saved model then works without arguments."""
        config = self.model.config
        config.decoder_start_token_id, config.pad_token_id = self.start[0], self.pad
        config.eos_token_id = self.eos[0] if len(self.eos) == 1 else self.eos
        self.model.generation_config = GenerationConfig(
            decoder_start_token_id=self.start[0],
            bos_token_id=self.start[0],
            eos_token_id=config.eos_token_id,
            pad_token_id=self.pad,
        )

    @property
    def vision(self) -> nn.Module:
        """The encoder."""
        return self.model.encoder

    @property
    def resizable(self) -> Any:
        """GPT-2."""
        return self.model.decoder

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The encoder's last hidden state."""
        return Encoded(self.model.encoder(pixel_values=inputs["pixel_values"]).last_hidden_state)

    def project(self, encoded: Encoded) -> Encoded:
        """The learned projection between towers of different width, where the model has one."""
        projection = getattr(self.model, "enc_to_dec_proj", None)
        return encoded if projection is None else Encoded(projection(encoded.states), encoded.mask)

    @property
    def embedding(self) -> nn.Module:
        """GPT-2's word embeddings."""
        return self.model.decoder.transformer.wte

    def text(self, embeddings: Tensor, states: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """What leaves GPT-2's final layer norm."""
        return self.model.decoder.transformer(
            # Given ids, it would look for padding at every step and warn; rows are padded on the right only.
            inputs_embeds=embeddings,
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def by_parts(self, linear: Linear) -> Decoder:
        """GPT-2."""
        return Gpt2(self.model.decoder.transformer, linear)

    @property
    def head(self) -> Any:
        """GPT-2's output embedding."""
        return self.model.decoder.lm_head


class TowerEncoderDecoder(EncoderDecoder):
    """The same with an encoder between tower and decoder (``encoded_clip.py``), which trains with the decoder."""

    @property
    def vision(self) -> nn.Module:
        """The tower alone."""
        return self.model.encoder.tower

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The tower's last hidden state."""
        return Encoded(self.vision(pixel_values=inputs["pixel_values"]).last_hidden_state)

    def project(self, encoded: Encoded) -> Encoded:
        """Projection and encoder."""
        return super().project(Encoded(self.model.encoder.encoded(encoded.states), encoded.mask))


class FramesEncoderDecoder(TowerEncoderDecoder):
    """The same over the frames of a clip (``clip_frames.py``): temporal positions and the layers train with the decoder."""

    @property
    def num_frames(self) -> int:
        """The tower's."""
        return self.model.encoder.config.num_frames

    def process(self, images: list[Any]) -> dict[str, Tensor]:
        """``pixel_values [B, F, 3, H, W]`` of B lists of F frames."""
        made = super().process([frame for frames in images for frame in frames])
        return {"pixel_values": made["pixel_values"].unflatten(0, (len(images), -1))}

    def frames_reversed(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each clip backwards."""
        if "states" in inputs:
            frames = inputs["states"].unflatten(1, (self.num_frames, -1))
            return inputs | {"states": frames.flip(1).flatten(1, 2)}
        return inputs | {"pixel_values": inputs["pixel_values"].flip(1)}

    def encode(self, inputs: dict[str, Tensor]) -> Encoded:
        """The tower's states of all frames; trainings that compute a frozen tower's states once give them as ``states``."""
        given = inputs.get("states")
        return Encoded(self.model.encoder.tower_states(inputs["pixel_values"]) if given is None else given)
