"""The decoders that are read by their parts: GPT-2, BERT's (BLIP, GIT), OPT, BART and Llama's, as transformers has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GemmaModel,
    LlamaModel,
    MistralModel,
    Qwen2_5_VLTextModel,
    Qwen2Model,
    Qwen2VLTextModel,
    Qwen3Model,
    Qwen3VLTextModel,
)
from transformers.activations import GELUActivation
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.opt.modeling_opt import OPTDecoder

from tellapart.captioners.cross import Cross
from tellapart.captioners.decoder import Block, Decoder, Heads
from tellapart.captioners.linear import Linear, Rows, Sum, weights_of

SMALL = 2**20
"""Weights of this many numbers or fewer are joined with others that read the same rows: one product costs less than three, and
the joined copy of larger ones more memory than it saves time."""


def _affine(linear: Linear, *modules: Any) -> Rows:
    """What the modules make of the same rows, side by side."""
    plain = [pair for pair in map(weights_of, modules) if pair is not None]
    if len(plain) < len(modules):
        linear.elsewhere()
        return modules[0] if len(modules) == 1 else lambda rows: torch.cat([module(rows) for module in modules], dim=-1)
    if len(plain) == 1:
        return lambda rows: linear.product(rows, *plain[0])
    weights, biases = [weight for weight, _ in plain], [bias for _, bias in plain if bias is not None]
    if any(weight.numel() > SMALL for weight in weights) or 0 < len(biases) < len(plain):
        return lambda rows: torch.cat([linear.product(rows, *pair) for pair in plain], dim=-1)
    weight, bias = torch.cat(weights), torch.cat(biases) if biases else None
    return lambda rows: linear.product(rows, weight, bias)


def _added(linear: Linear, module: Any) -> Sum:
    """The sum of ``[n, D]`` and ``module`` on ``[n, D']``."""
    if (found := weights_of(module)) is None:
        linear.elsewhere()
        return lambda to, rows: to + module(rows)
    return lambda to, rows: linear.added(to, rows, *found)


def _cross(linear: Linear, query: Any, out: Any, *states: Any, scale: float) -> Cross:
    """Attention to the image by these modules, of which ``states`` make keys, then values."""
    pairs = weights_of(query), weights_of(out)
    return Cross(_affine(linear, *states), _affine(linear, query), _added(linear, out), scale, *pairs)


KINDS: dict[type[nn.Module], str] = {GELUActivation: "gelu", nn.ReLU: "relu"}
"""Activations that can be part of a product."""


def _activated(linear: Linear, module: Any, act: nn.Module) -> Rows:
    """``act`` of ``module`` on ``[n, D]``."""
    kind = act.approximate.replace("none", "gelu") if type(act) is nn.GELU else KINDS.get(type(act))
    if (found := weights_of(module)) is None:
        linear.elsewhere()
        return lambda rows: act(module(rows))
    if kind is None:
        return lambda rows: act(linear.product(rows, *found))
    return lambda rows: linear.activated(rows, *found, kind)


def _normed(module: nn.LayerNorm) -> Rows:
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda rows: torch.layer_norm(rows, shape, weight, bias, eps)


class Gpt2Block(Block):
    """A ``GPT2Block`` with cross-attention."""

    def __init__(self, block: Any, linear: Linear) -> None:
        attention, cross, mlp = block.attn, block.crossattention, block.mlp
        self.scale = attention.scaling
        self._word_norm, self._word_in = _normed(block.ln_1), _affine(linear, attention.c_attn)
        self._word_out = _added(linear, attention.c_proj)
        self._image_norm = _normed(block.ln_cross_attn)
        self.image = _cross(linear, cross.q_attn, cross.c_proj, cross.c_attn, scale=cross.scaling)
        self._norm, self._widen, self._narrow = (
            _normed(block.ln_2),
            _activated(linear, mlp.c_fc, mlp.act),
            _added(linear, mlp.c_proj),
        )

    def read(self, hidden: Tensor, attend_words: Rows, attend_image: Sum) -> Tensor:
        """Norms before attention and linear layers."""
        hidden = self._word_out(hidden, attend_words(self._word_in(self._word_norm(hidden))))
        hidden = attend_image(hidden, self._image_norm(hidden))
        return self._narrow(hidden, self._widen(self._norm(hidden)))


class Gpt2(Decoder):
    """A ``GPT2Model`` with cross-attention."""

    def __init__(self, model: Any, linear: Linear) -> None:
        super().__init__(model, [Gpt2Block(block, linear) for block in model.h], model.config.num_attention_heads)
        self._places, self._norm = model.wpe.weight, _normed(model.ln_f)

    def placed(self, embeddings: Tensor, positions: int | Tensor) -> Tensor:
        """Positions are added."""
        return embeddings + self._places[positions]

    def finished(self, hidden: Tensor) -> Tensor:
        """The last layer norm."""
        return self._norm(hidden)


class BertBlock(Block):
    """A ``BlipTextLayer`` or ``GitLayer``."""

    def __init__(self, layer: Any, linear: Linear) -> None:
        attention, cross = layer.attention, getattr(layer, "crossattention", None)
        own = attention.self
        self.scale = own.attention_head_size**-0.5
        self._word_in = _affine(linear, own.query, own.key, own.value)
        self._word_out, self._word_norm = _added(linear, attention.output.dense), _normed(attention.output.LayerNorm)
        if cross is not None:
            seen = cross.self
            self.image = _cross(linear, seen.query, cross.output.dense, seen.key, seen.value, scale=self.scale)
            self._image_norm = _normed(cross.output.LayerNorm)
        self._widen = _activated(linear, layer.intermediate.dense, layer.intermediate.intermediate_act_fn)
        self._narrow, self._norm = _added(linear, layer.output.dense), _normed(layer.output.LayerNorm)

    def read(self, hidden: Tensor, attend_words: Rows, attend_image: Sum) -> Tensor:
        """Norms after the sums."""
        hidden = self._word_norm(self._word_out(hidden, attend_words(self._word_in(hidden))))
        if self.image is not None:
            hidden = self._image_norm(attend_image(hidden, hidden))
        return self._norm(self._narrow(hidden, self._widen(hidden)))


class Bert(Decoder):
    """The decoder of BLIP or GIT.

    Args:
        model: a ``BlipTextModel`` or ``GitModel``.
    """

    def __init__(self, model: Any, linear: Linear) -> None:
        blocks = [BertBlock(layer, linear) for layer in model.encoder.layer]
        super().__init__(model, blocks, model.config.num_attention_heads)
        embeddings = model.embeddings
        self._places, self._norm = embeddings.position_embeddings.weight, _normed(embeddings.LayerNorm)

    def placed(self, embeddings: Tensor, positions: int | Tensor) -> Tensor:
        """Positions are added, then everything is normalised."""
        return self._norm(embeddings + self._places[positions])


OFFSET = 2
"""Rows before the first position in the tables of OPT and BART."""


class OptBlock(Block):
    """An ``OPTDecoderLayer``."""

    def __init__(self, layer: Any, linear: Linear) -> None:
        attention = layer.self_attn
        self.scale, self._before = attention.scaling, layer.do_layer_norm_before
        self._word_in = _affine(linear, attention.q_proj, attention.k_proj, attention.v_proj)
        self._word_out, self._word_norm = _added(linear, attention.out_proj), _normed(layer.self_attn_layer_norm)
        self._widen, self._narrow = _activated(linear, layer.fc1, layer.activation_fn), _added(linear, layer.fc2)
        self._norm = _normed(layer.final_layer_norm)

    def read(self, hidden: Tensor, attend_words: Rows, attend_image: Sum) -> Tensor:
        """Norms before, of OPT-350m after."""
        if self._before:
            hidden = self._word_out(hidden, attend_words(self._word_in(self._word_norm(hidden))))
            return self._narrow(hidden, self._widen(self._norm(hidden)))
        hidden = self._word_norm(self._word_out(hidden, attend_words(self._word_in(hidden))))
        return self._norm(self._narrow(hidden, self._widen(hidden)))


class Opt(Decoder):
    """An ``OPTDecoder``."""

    def __init__(self, model: Any, linear: Linear) -> None:
        super().__init__(model, [OptBlock(layer, linear) for layer in model.layers], model.config.num_attention_heads)
        self._places, self._into, self._out = model.embed_positions.weight, model.project_in, model.project_out
        self._norm = None if model.final_layer_norm is None else _normed(model.final_layer_norm)

    def placed(self, embeddings: Tensor, positions: int | Tensor) -> Tensor:
        """Positions are added, of OPT-350m after a projection."""
        wide = embeddings if self._into is None else self._into(embeddings)
        return wide + self._places[positions + OFFSET]

    def finished(self, hidden: Tensor) -> Tensor:
        """The last layer norm, of OPT-350m a projection."""
        hidden = hidden if self._norm is None else self._norm(hidden)
        return hidden if self._out is None else self._out(hidden)


class BartBlock(Block):
    """A ``BartDecoderLayer``."""

    def __init__(self, layer: Any, linear: Linear) -> None:
        own, cross = layer.self_attn, layer.encoder_attn
        self.scale = own.scaling
        self._word_in = _affine(linear, own.q_proj, own.k_proj, own.v_proj)
        self._word_out, self._word_norm = _added(linear, own.out_proj), _normed(layer.self_attn_layer_norm)
        self.image = _cross(linear, cross.q_proj, cross.out_proj, cross.k_proj, cross.v_proj, scale=cross.scaling)
        self._image_norm = _normed(layer.encoder_attn_layer_norm)
        self._widen, self._narrow = _activated(linear, layer.fc1, layer.activation_fn), _added(linear, layer.fc2)
        self._norm = _normed(layer.final_layer_norm)

    def read(self, hidden: Tensor, attend_words: Rows, attend_image: Sum) -> Tensor:
        """Norms after the sums."""
        hidden = self._word_norm(self._word_out(hidden, attend_words(self._word_in(hidden))))
        hidden = self._image_norm(attend_image(hidden, hidden))
        return self._norm(self._narrow(hidden, self._widen(hidden)))


class Bart(Decoder):
    """A ``BartDecoder``."""

    def __init__(self, model: Any, linear: Linear) -> None:
        super().__init__(
            model, [BartBlock(layer, linear) for layer in model.layers], model.config.decoder_attention_heads
        )
        self._places, self._norm = model.embed_positions.weight, _normed(model.layernorm_embedding)

    def placed(self, embeddings: Tensor, positions: int | Tensor) -> Tensor:
        """Positions are added, then everything is normalised."""
        return self._norm(embeddings + self._places[positions + OFFSET])


class LlamaBlock(Block):
    """A ``LlamaDecoderLayer``, or one of its kin.

    Args:
        layer: the module.
        linear: computes its linear layers.
        heads: of its attention.
    """

    def __init__(self, layer: Any, linear: Linear, heads: Heads) -> None:
        own, mlp = layer.self_attn, layer.mlp
        self.scale = own.scaling
        self._word_in, self._word_out = _affine(linear, own.q_proj, own.k_proj, own.v_proj), _added(linear, own.o_proj)
        if hasattr(own, "q_norm"):
            self._word_in = _by_head(self._word_in, heads, _root_normed(own.q_norm), _root_normed(own.k_norm))
        self._word_norm, self._norm = _root_normed(layer.input_layernorm), _root_normed(layer.post_attention_layernorm)
        self._gate, self._widen = _activated(linear, mlp.gate_proj, mlp.act_fn), _affine(linear, mlp.up_proj)
        self._narrow = _added(linear, mlp.down_proj)

    def read(self, hidden: Tensor, attend_words: Rows, attend_image: Sum) -> Tensor:
        """Norms before attention and the gated linear layers."""
        hidden = self._word_out(hidden, attend_words(self._word_in(self._word_norm(hidden))))
        rows = self._norm(hidden)
        return self._narrow(hidden, self._gate(rows) * self._widen(rows))


class Llama(Decoder):
    """A ``LlamaModel``, or another of ``LLAMAS``.

    Args:
        model: the module.
        linear: computes its linear layers.
    """

    def __init__(self, model: Any, linear: Linear) -> None:
        config = model.config
        heads = config.num_key_value_heads
        queries = config.num_attention_heads // heads
        blocks = [LlamaBlock(layer, linear, Heads(heads, queries)) for layer in model.layers]
        super().__init__(model, blocks, heads, queries)
        self._rotary, self._norm = model.rotary_emb, _root_normed(model.norm)
        self._axes = type(model) in THREE_AXES

    def placed(self, embeddings: Tensor, positions: int | Tensor) -> Tensor:
        """Positions turn queries and keys."""
        return embeddings

    def angles(self, positions: int | Tensor, hidden: Tensor) -> Tensor:
        """Cosines, and sines of which the first half is negative."""
        assert isinstance(positions, Tensor), "captions that follow an image have positions of their own"
        alone = positions.dim() == 1
        places = positions[None] if alone else positions
        # The models read positions on three axes; those of words are the same on all.
        cosine, sine = self._rotary(hidden, places[None] if self._axes and places.dim() == 2 else places)
        half = sine.shape[-1] // 2
        angles = torch.stack([cosine, torch.cat([-sine[..., :half], sine[..., half:]], dim=-1)], dim=-2)
        return angles[0] if alone else angles

    def turned(self, rows: Tensor, angles: Tensor | None) -> Tensor:
        """Each pair of numbers, ``d / 2`` apart, by its angle (Su et al., RoFormer, 2021)."""
        assert angles is not None, "queries and keys have no place without angles"
        apart = rows.unflatten(1, (self.heads.total, -1))
        turning, values = apart.split([self.heads.total - self.heads.count, self.heads.count], dim=1)
        cosine, sine = angles[:, :1], angles[:, 1:]
        turned = torch.addcmul(turning * cosine, turning.roll(turning.shape[2] // 2, dims=2), sine)
        return torch.cat([turned, values], dim=1).flatten(1)

    def finished(self, hidden: Tensor) -> Tensor:
        """The last norm."""
        return self._norm(hidden)


def _root_normed(module: Any) -> Rows:
    if isinstance(module, GemmaRMSNorm):
        shifted = 1.0 + module.weight.float()
        return lambda rows: torch.rms_norm(rows.float(), shifted.shape, shifted, module.eps).type_as(rows)
    weight, eps = module.weight, module.variance_epsilon
    return lambda rows: torch.rms_norm(rows, weight.shape, weight, eps)


def _by_head(rows_of: Rows, heads: Heads, query: Rows, key: Rows) -> Rows:
    """Each head's queries and keys after their norms, next to the values (Qwen3)."""
    sizes = [heads.count * heads.queries, heads.count, heads.count]

    def normed(rows: Tensor) -> Tensor:
        queries, keys, values = rows_of(rows).unflatten(1, (heads.total, -1)).split(sizes, dim=1)
        return torch.cat([query(queries), key(keys), values], dim=1).flatten(1)

    return normed


THREE_AXES = frozenset({Qwen2VLTextModel, Qwen2_5_VLTextModel, Qwen3VLTextModel})
"""Whose positions are those of time, height and width."""

LLAMAS = frozenset({LlamaModel, MistralModel, Qwen2Model, Qwen3Model, GemmaModel}) | THREE_AXES
FIXED_ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Angles that depend on a position alone, and not on how much is read."""


def decoder_of(model: Any, linear: Linear) -> Decoder | None:
    """The parts of a decoder that reads image and prompt before its captions; none where it has others.

    Args:
        model: a language model without its head.
        linear: computes its linear layers.
    """
    if isinstance(model, OPTDecoder):
        return Opt(model, linear)
    if type(model) not in LLAMAS or model.rotary_emb.rope_type not in FIXED_ROTATIONS:
        return None
    # Mistral's layers all see a window, those of Qwen2 each as its attention says.
    windows = [getattr(layer.self_attn, "sliding_window", None) for layer in model.layers]
    windows += [model.config.sliding_window] if isinstance(model, MistralModel) else []
    return None if any(window is not None for window in windows) else Llama(model, linear)
