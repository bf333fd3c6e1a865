"""A late-interaction listener over the world's words, of random weights, and pictures for it."""

import numpy as np
import torch
from transformers import CLIPImageProcessorPil

from pictures import images
from tellapart.clip_frames import ClipFrames
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.listeners.late import LateListener
from tellapart.listeners.late_model import LateConfig, LateModel
from tellapart.world import build_tokenizer
from tellapart.world.backbone import image_processor

IDS = ["x", "y", "z"]


SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def tiny_late(seed=0, **options) -> LateListener:
    return _late(SIZES | {"image_size": 64, "patch_size": 32}, image_processor(), seed, options)


def late_of_clips(tower: ClipFrames, seed=0, **options) -> LateListener:
    """Around a tower of clips; its pictures are of 32 x 32 pixels."""
    processor = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    made = _late(tower.config.to_dict() | {"model_type": "clip_frames"}, processor, seed, options)
    made.model.vision_model.load_state_dict(tower.state_dict())
    return made


def _late(vision, processor, seed, options) -> LateListener:
    torch.manual_seed(seed)
    words = build_tokenizer()
    text = SIZES | {"vocab_size": len(words), "max_position_embeddings": 12, "eos_token_id": words.eos_token_id}
    text |= {"pad_token_id": 0, "bos_token_id": words.bos_token_id}
    model = LateModel(LateConfig(vision=vision, text=text, dim=8, hidden=8, readings=[3, 2]))
    torch.nn.init.normal_(model.offsets.weight)  # so that checks differ
    return LateListener(model, processor, words, **options)


def pictures(count=3):
    """Examples of 64 x 64 pixels."""
    made = [image.resize((64, 64)) for image in images(count)]
    return [Example(name, ArrayImage(np.asarray(image))) for name, image in zip(IDS, made, strict=False)]
