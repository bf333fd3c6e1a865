"""A late-interaction listener over the world's words, of random weights, and pictures for it."""

import numpy as np
import torch

from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.listeners.late import LateListener
from tellapart.listeners.late_model import LateConfig, LateModel
from tellapart.world import build_tokenizer
from tellapart.world.backbone import image_processor
from tiny_models import images

IDS = ["x", "y", "z"]


def tiny_late(seed=0, **options) -> LateListener:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = build_tokenizer()
    text = sizes | {"vocab_size": len(words), "max_position_embeddings": 12, "eos_token_id": words.eos_token_id}
    text |= {"pad_token_id": 0, "bos_token_id": words.bos_token_id}
    config = LateConfig(
        vision=sizes | {"image_size": 64, "patch_size": 32}, text=text, dim=8, hidden=8, readings=[3, 2]
    )
    model = LateModel(config)
    torch.nn.init.normal_(model.offsets.weight)  # so that checks differ
    return LateListener(model, image_processor(), words, **options)


def pictures(count=3):
    """Examples of 64 x 64 pixels."""
    made = [image.resize((64, 64)) for image in images(count)]
    return [Example(name, ArrayImage(np.asarray(image))) for name, image in zip(IDS, made, strict=False)]
