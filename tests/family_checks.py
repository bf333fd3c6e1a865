"""What every captioner family must pass, as functions: run by the tests, and by benchmarks/models.py for the docs."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from pictures import CAPTIONS, images
from tellapart.captioners.adapters import LoraOptions
from tellapart.captioners.contract import check_captioner
from tellapart.captioners.huggingface import HuggingFaceCaptioner
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.data.loader import TrainingData
from tellapart.objectives.dico import DiCO
from tellapart.objectives.scst import SCST
from tellapart.objectives.xe import XE
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.types import Decoding, Rollout
from tiny_models import batch_of

TINY = {
    "ViT + GPT-2": "tiny_models:tiny_ved:vit",
    "CLIP + GPT-2": "tiny_models:tiny_ved:clip",
    "BLIP": "tiny_models:tiny_blip",
    "BLIP-2 (OPT)": "tiny.blip2:tiny_blip2:opt",
    "BLIP-2 (T5)": "tiny.blip2:tiny_blip2:t5",
    "InstructBLIP (T5)": "tiny.instructblip:tiny_instructblip:t5",
    "InstructBLIP (Vicuna)": "tiny.instructblip:tiny_instructblip:llama",
    "GIT": "tiny.git:tiny_git",
    "Florence-2": "tiny.florence2:tiny_florence2",
    "LLaVA": "tiny.llava:tiny_llava",
    "PaliGemma": "tiny.paligemma:tiny_paligemma",
    "PaliGemma 2": "tiny.paligemma:tiny_paligemma:gemma2",
    "Idefics3": "tiny.idefics3:tiny_idefics3",
    "SmolVLM": "tiny.idefics3:tiny_smolvlm",
    "Qwen2-VL": "tiny.qwen2_vl:tiny_qwen2_vl",
    "Qwen2.5-VL": "tiny.qwen2_5_vl:tiny_qwen2_5_vl",
    "Qwen3-VL": "tiny.qwen3_vl:tiny_qwen3_vl",
}
"""Family -> ``module:function`` of its tiny model, and a third word where one function makes several."""

METHODS: dict[str, Callable[[HuggingFaceCaptioner], Any]] = {
    "xe": lambda captioner: XE(captioner),
    "scst": lambda captioner: SCST(captioner, lengths, baseline="leave_one_out", num_generations=2, max_new_tokens=6),
    "dico": lambda captioner: DiCO(captioner, lengths, num_beams=2, max_new_tokens=6),
}

VARIANT = {
    "vit": {"tower": "vit"},
    "clip": {"tower": "clip"},
    "opt": {"language": "opt"},
    "t5": {"language": "t5"},
    "llama": {"language": "llama"},
}


def make(family: str, folder: Path, **options: Any) -> HuggingFaceCaptioner:
    """The family's tiny model, saved to ``folder`` and loaded from it."""
    module, function, *variant = TINY[family].split(":")
    chosen = VARIANT.get(variant[0], {"version": variant[0]}) if variant else {}
    return getattr(importlib.import_module(module), function)(folder, **chosen, **options)


def lengths(rollout: Rollout) -> torch.Tensor:
    """A reward that tells captions apart whatever they say: odd token ids are good."""
    return ((rollout.tokens % 2) * rollout.mask).float().sum(dim=1) + 0.01 * rollout.mask.sum(dim=1)


def pictures(count: int) -> CaptionDataset:
    """Pictures of several shapes and sizes, two captions each."""
    sizes = [(32, 32), (48, 32), (32, 64), (40, 40)]
    shaped = [image.resize(sizes[i % 4], Image.Resampling.NEAREST) for i, image in enumerate(images(count, seed=3))]
    arrays = [
        ArrayImage(torch.tensor(list(image.tobytes())).byte().view(image.height, image.width, 3).numpy())
        for image in shaped
    ]
    rows = [Example(str(i), array, tuple(CAPTIONS[2 * i : 2 * i + 2])) for i, array in enumerate(arrays)]
    return CaptionDataset(rows, name="pictures")


@dataclass
class Fit:
    """A finished training: the captioner, its weights before, the folder, the log."""

    captioner: HuggingFaceCaptioner
    before: dict[str, torch.Tensor]
    folder: Path
    history: list[dict[str, Any]]

    @property
    def trained(self) -> int:
        """Parameters that learn."""
        return sum(p.numel() for p in self.captioner.parameters() if p.requires_grad)


def fit(family: str, method: str, folder: Path, *, lora: bool = False, out: str = "run", **options: Any) -> Fit:
    """A few steps of a method on the tiny model that is (or will be) in ``folder``."""
    if (folder / "model").is_dir():
        load = {"lora": LoraOptions(r=2)} if lora else {}
        captioner = HuggingFaceCaptioner.from_pretrained(folder / "model", **load)
    else:
        captioner = make(family, folder / "model", **({"lora": LoraOptions(r=2)} if lora else {}))
    before = {name: p.detach().clone() for name, p in captioner.named_parameters()}
    config = TrainConfig(
        **{
            "output_dir": folder / out,
            "learning_rate": 1e-3,
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
            **options,
        }
    )
    data = TrainingData(pictures(6), Collate({captioner.name: captioner.process}))
    result = train(METHODS[method](captioner), data, config)
    return Fit(captioner, before, folder / out, result.history)


def check_contract(family: str, folder: Path) -> None:
    """The start-up check, also on images of several sizes."""
    captioner = make(family, folder / "model")
    check_captioner(captioner, batch_of(captioner, 3))
    check_captioner(captioner, Collate({captioner.name: captioner.process})(list(pictures(4))))


def check_training(result: Fit) -> None:
    """The log is finite; what learns has changed and what is frozen has not."""
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in result.history if "loss" in line)
    changed = {name for name, p in result.captioner.named_parameters() if not torch.equal(p, result.before[name])}
    learning = {name for name, p in result.captioner.named_parameters() if p.requires_grad}
    assert changed <= learning
    assert len(changed) > 0.5 * len(learning), sorted(learning - changed)
    if result.captioner.has_lora:
        assert all("lora_" in name for name in learning)


def fit_for_resuming(family: str, folder: Path) -> Fit:
    """Two steps of SCST, with a checkpoint of each."""
    return fit(family, "scst", folder, out="scst", save_steps=1)


def check_resume(family: str, folder: Path, whole: Fit) -> None:
    """Two steps (``whole``, of :func:`fit_for_resuming`) are one, and one more after resuming, to the bit."""
    (folder / "cut").mkdir()
    (whole.folder / "checkpoint-1").rename(folder / "cut" / "checkpoint-1")
    cut = fit(family, "scst", folder, out="cut", save_steps=1, resume_from_checkpoint="last")
    # The folder has a checkpoint and no log, so that a training which began anew would have both steps.
    assert [line["step"] for line in cut.history if "loss" in line] == [2]
    for (name, one), (_, other) in zip(
        whole.captioner.named_parameters(), cut.captioner.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name


def check_reload(result: Fit) -> None:
    """Plain transformers (with an adapter: plain peft) reads the last checkpoint, and its model writes our captions.

    The plain model is read by the same family class, so that only the weights and processors on disk are in question; that
    the family computes what the plain model's own forward computes is each family's own test.
    """
    from transformers import AutoModelForImageTextToText

    saved = result.folder / "checkpoint-2" / "captioner"
    captioner = result.captioner.eval()
    if captioner.has_lora:
        from peft import PeftModel

        settings = json.loads((saved / "adapter_config.json").read_text())
        base = AutoModelForImageTextToText.from_pretrained(settings["base_model_name_or_path"])
        plain = PeftModel.from_pretrained(base, str(saved)).merge_and_unload()
    else:
        plain, report = AutoModelForImageTextToText.from_pretrained(saved, output_loading_info=True)
        assert not report["unexpected_keys"]
        assert not report["mismatched_keys"]
    again = HuggingFaceCaptioner.from_pretrained(saved).eval()
    read = HuggingFaceCaptioner.from_parts(
        plain,
        again.image_processor,
        again.tokenizer,
        processor=again.family.processors.joint,
        prompt=captioner.family.prompt,
    ).eval()
    batch = batch_of(read, 3)
    ours, theirs = (one.generate(batch, Decoding(max_new_tokens=8)) for one in (captioner, read))
    assert ours.texts == theirs.texts
    torch.testing.assert_close(captioner(ours).logprobs, read(ours).logprobs, atol=1e-5, rtol=0)
