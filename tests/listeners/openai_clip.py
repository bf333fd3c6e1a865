"""A small CLIP in the layout of OpenAI's code: an independent forward pass, and files as its forks save them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from listeners.tiny_listeners import LIMIT, clip_parts, tokenizer
from tellapart.listeners.clip import ClipListener

WIDTH, TEXT_WIDTH, SHARED, SIDE, PATCH, LAYERS = 128, 64, 24, 16, 8, 2


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, width: int, mask=None) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, width // 64)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", QuickGELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))
        self.mask = mask

    def forward(self, x):  # [T, B, D]
        y = self.ln_1(x)
        mask = None if self.mask is None else self.mask[: len(y), : len(y)]
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, width: int, mask=None) -> None:
        super().__init__()
        self.resblocks = nn.Sequential(*(Block(width, mask) for _ in range(LAYERS)))

    def forward(self, x):
        return self.resblocks(x.transpose(0, 1)).transpose(0, 1)


class Visual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(WIDTH))
        self.positional_embedding = nn.Parameter(torch.randn((SIDE // PATCH) ** 2 + 1, WIDTH))
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.transformer = Transformer(WIDTH)
        self.proj = nn.Parameter(torch.randn(WIDTH, SHARED))

    def forward(self, images):
        x = self.conv1(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1) + self.positional_embedding
        return self.ln_post(self.transformer(self.ln_pre(x))[:, 0]) @ self.proj


class OpenAIClip(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.visual = Visual()
        self.transformer = Transformer(TEXT_WIDTH, torch.full((LIMIT, LIMIT), float("-inf")).triu(1))
        self.token_embedding = nn.Embedding(vocabulary, TEXT_WIDTH)
        self.positional_embedding = nn.Parameter(torch.randn(LIMIT, TEXT_WIDTH))
        self.ln_final = nn.LayerNorm(TEXT_WIDTH)
        self.text_projection = nn.Parameter(torch.randn(TEXT_WIDTH, SHARED))
        self.logit_scale = nn.Parameter(torch.tensor(2.3))

    def encode_text(self, ids):
        x = self.token_embedding(ids) + self.positional_embedding[: ids.shape[1]]
        x = self.ln_final(self.transformer(x))
        return x[torch.arange(len(x)), ids.argmax(dim=-1)] @ self.text_projection


def words():
    """EOS has the highest id, as in OpenAI's vocabulary, where the pooled token is found by it."""
    return tokenizer(("<pad>", "<bos>", "<unk>"))


def original_clip(seed: int = 0) -> OpenAIClip:
    torch.manual_seed(seed)
    model = OpenAIClip(len(words())).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "class" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))  # biases and norms must matter
    return model


def base_folder(folder: Path) -> Path:
    """Tokenizer and image processor that go with such a model."""
    ClipListener.from_parts(*clip_parts(words=words())).save(folder)
    return folder


def saved(path: Path, state: dict, *, nested: bool = False) -> Path:
    torch.save({"state_dict": state, "epoch": 3} if nested else state, path)
    return path
