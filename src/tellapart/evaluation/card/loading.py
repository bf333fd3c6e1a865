"""How a card's reader loads the captioner: in plain ``transformers`` wherever that is possible."""

from __future__ import annotations

from pathlib import Path

from tellapart.captioners.saving import CHANGED_PARTS
from tellapart.files import read_object

PLAIN = """\
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

name = "{name}"
model = AutoModelForImageTextToText.from_pretrained(name).eval()
image = Image.open("photo.jpg").convert("RGB")
pixels = AutoImageProcessor.from_pretrained(name)(image, return_tensors="pt").pixel_values
ids = model.generate(pixel_values=pixels, max_new_tokens=40)
print(AutoTokenizer.from_pretrained(name).decode(ids[0], skip_special_tokens=True))"""

PROMPTED = """\
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

name = "{name}"
model = AutoModelForImageTextToText.from_pretrained(name).eval()
processor = AutoProcessor.from_pretrained(name)
image = Image.open("photo.jpg").convert("RGB")
inputs = processor(images=image, text={prompt!r}, return_tensors="pt")
prompted = 0 if model.config.get_text_config().is_encoder_decoder else inputs["input_ids"].shape[1]
ids = model.generate(**inputs, max_new_tokens=40)[:, prompted:]
print(processor.batch_decode(ids, skip_special_tokens=True)[0])"""

CHAT = """\
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

name = "{name}"
model = AutoModelForImageTextToText.from_pretrained(name).eval()
processor = AutoProcessor.from_pretrained(name)
turn = {{"role": "user", "content": [{{"type": "image"}}, {{"type": "text", "text": {prompt!r}}}]}}
text = processor.apply_chat_template([turn], add_generation_prompt=True)
image = Image.open("photo.jpg").convert("RGB")
bos = processor.tokenizer.bos_token  # some templates write it, and then it must not be added
begun = bool(bos) and text.startswith(bos)
inputs = processor(images=[image], text=[text], add_special_tokens=not begun, return_tensors="pt")
ids = model.generate(**inputs, max_new_tokens=40)[:, inputs["input_ids"].shape[1] :]
print(processor.batch_decode(ids, skip_special_tokens=True)[0])"""

ADAPTER = """\
from peft import PeftModel
from transformers import AutoModelForImageTextToText

model = AutoModelForImageTextToText.from_pretrained("{base}")
model = PeftModel.from_pretrained(model, "{name}").eval()"""

ADAPTER_AND_PARTS = """\
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText
from transformers.utils import cached_file

model = AutoModelForImageTextToText.from_pretrained("{base}")
# layers that were trained in full, next to the adapter
model.load_state_dict(load_file(cached_file("{name}", "parts.safetensors")), strict=False)
model = PeftModel.from_pretrained(model, "{name}").eval()"""

SNIPPETS = {
    "vision-encoder-decoder": PLAIN,
    "blip": PLAIN,
    "git": PLAIN,
    "blip-2": PROMPTED,
    "instructblip": PROMPTED,
    "florence2": PROMPTED,
    "paligemma": PROMPTED,
    "llava": CHAT,
    "idefics3": CHAT,
    "smolvlm": CHAT,
    "qwen2_vl": CHAT,
    "qwen2_5_vl": CHAT,
    "qwen3_vl": CHAT,
}
"""Type of model -> code; others are loaded by tellapart only."""


OWN_ENCODER = "encoded_clip"
"""An encoder that transformers knows only once tellapart is imported, inside a model of its own."""

_LEAD = {"paligemma": "<image>"}
"""Text that a processor needs before the prompt."""


def model_type(captioner: Path) -> str:
    """The type of model in a captioner's folder, as transformers calls it; of one whose encoder is a class of ours that of the
    encoder; empty where it is unknown."""
    encoder = read_object(captioner / "config.json").get("encoder")
    if isinstance(encoder, dict) and encoder.get("model_type") == OWN_ENCODER:
        return OWN_ENCODER
    for file in ("tellapart.json", "config.json"):
        found = read_object(captioner / file).get("model_type")
        if found:
            return str(found)
    return ""


def is_adapter(captioner: Path) -> bool:
    """Whether the folder holds an adapter only."""
    return (captioner / "adapter_config.json").is_file()


def library(captioner: Path) -> str:
    """The library that loads it, by the hub's name."""
    if is_adapter(captioner):
        return "peft"
    return "transformers" if model_type(captioner) in SNIPPETS else "tellapart"


def loading_code(captioner: Path, name: str, base: str | None) -> str | None:
    """Code that captions a photo without tellapart, or None where tellapart is needed, as it is for clips.

    Args:
        captioner: its folder.
        name: what it will be loaded by: a hub id, or a folder.
        base: the model an adapter belongs to.
    """
    if is_adapter(captioner):
        code = ADAPTER_AND_PARTS if (captioner / CHANGED_PARTS).is_file() else ADAPTER
        return code.format(name=name, base=base or "the base model")
    snippet, manifest = SNIPPETS.get(model_type(captioner)), read_object(captioner / "tellapart.json")
    prompt = _LEAD.get(model_type(captioner), "") + str(manifest.get("prompt") or "")
    return None if snippet is None or "num_frames" in manifest else snippet.format(name=name, prompt=prompt)
