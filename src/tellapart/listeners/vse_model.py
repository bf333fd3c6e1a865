"""The recurrent dual encoder of VSE++, as a model that transformers saves and loads.

Importing this module makes it known to ``AutoConfig`` and ``AutoModel``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, initialization

from tellapart.listeners.kinds import VSE


class VseConfig(PreTrainedConfig):
    """Configuration of :class:`VseModel`; the defaults are PSST's.

    Args:
        feature_size: width of the image features.
        word_size: width of the word embeddings.
        hidden_size: width of the GRU's state, and of the space that images and texts share.
        vocab_size: words, special ones included.
        pad_token_id: fills captions after their end.
        bos_token_id: what the GRU reads before the first word.
        eos_token_id: what it reads last.
    """

    model_type: ClassVar[str] = VSE

    feature_size: int = 2048
    word_size: int = 512
    hidden_size: int = 1024
    vocab_size: int = 10_000
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int = 2


class VseModel(PreTrainedModel):
    """A linear layer for images and a GRU for texts, whose outputs are scaled to unit norm.

    Faghri et al. (BMVC 2018, section 3.1), in the sizes that Vered et al. (ICCV 2019) take over: image features of
    2048 and words of 512, both into 1024. Weights begin as in the code of the former: words uniform in [-0.1, 0.1], the
    image layer by Glorot's rule with a bias of 0, the GRU as torch makes it.
    """

    config_class = VseConfig
    main_input_name = "features"
    base_model_prefix = ""

    def __init__(self, config: VseConfig) -> None:
        super().__init__(config)
        self.visual_projection = nn.Linear(config.feature_size, config.hidden_size)
        self.embedding = nn.Embedding(config.vocab_size, config.word_size)
        self.gru = nn.GRU(config.word_size, config.hidden_size, batch_first=True)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            initialization.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, nn.Linear):
            initialization.xavier_uniform_(module.weight)
            initialization.zeros_(module.bias)
        elif isinstance(module, nn.GRU):
            for parameter in module.parameters():
                initialization.uniform_(parameter, -(module.hidden_size**-0.5), module.hidden_size**-0.5)

    def train(self, mode: bool = True) -> VseModel:
        """Switch the mode of everything but the GRU, which has no dropout.

        It always stays in train mode, since cuDNN differentiates a GRU in that mode only, and objectives learn in eval mode.
        """
        super().train(mode)
        self.gru.train()
        return self

    def get_input_embeddings(self) -> nn.Module:
        """Word embeddings."""
        return self.embedding

    def get_image_features(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, hidden_size]``, unit norm.

        Args:
            features: ``[B, feature_size]``, or ``[B, R, feature_size]`` of regions, whose mean is taken.
            mask: ``[B, R]`` bool, which regions are real; none: all.
        """
        if features.ndim == 3:
            real = features.new_ones(features.shape[:2]) if mask is None else mask.to(features.dtype)
            features = torch.einsum("brd,br->bd", features, real) / real.sum(dim=1, keepdim=True).clamp(min=1)
        return _unit(self.visual_projection(features))

    def get_text_features(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """``[N, hidden_size]``, unit norm: the GRU's state after the last real word.

        Args:
            vectors: ``[N, T, word_size]`` embedded words, without BOS, which is read first.
            mask: ``[N, T]`` bool, true up to and including the last real one.
        """
        begin = torch.full((len(vectors), 1), self.config.bos_token_id, device=vectors.device)
        vectors = torch.where(mask[:, :, None], vectors, torch.zeros_like(vectors))
        states, _ = self.gru(torch.cat([self.embedding(begin), vectors], dim=1))
        rows = torch.arange(len(vectors), device=vectors.device)
        return _unit(states[rows, mask.sum(dim=1)])

    def forward(
        self, features: Tensor, input_ids: Tensor, attention_mask: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """``[B, N]`` cosines of B images and N texts.

        Args:
            features: as in :meth:`get_image_features`, with its ``mask``.
            input_ids: ``[N, T]`` words and EOS, without BOS.
            attention_mask: ``[N, T]`` bool.
            mask: of the regions.
        """
        texts = self.get_text_features(self.embedding(input_ids), attention_mask.bool())
        return self.get_image_features(features, mask) @ texts.T


def _unit(embeddings: Tensor) -> Tensor:
    """Rows of norm 1, at least float32."""
    full = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return nn.functional.normalize(full, dim=-1)


AutoConfig.register(VseConfig.model_type, VseConfig, exist_ok=True)
AutoModel.register(VseConfig, VseModel, exist_ok=True)
