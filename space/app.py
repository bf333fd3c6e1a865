"""Upload photos that look alike; each gets a caption that tells it from the others. ``python app.py`` serves it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import gradio as gr
from captions import MOST, Described, describe, likeness

from tellapart import Apart, UsageError, load_captioner, load_listener, load_verifier

CAPTIONER = os.environ.get("CAPTIONER", "Salesforce/blip-image-captioning-base")
LISTENER = os.environ.get("LISTENER", "openai/clip-vit-base-patch32")
VERIFIER = os.environ.get("VERIFIER", "Salesforce/blip-itm-base-coco")
HEADINGS = ["photo", "caption", "rival", "margin", "told apart"]
WIDTHS = ["20%", "44%", "20%", "8%", "8%"]


def load() -> Apart:
    """The models that the environment names."""
    verifier = load_verifier(VERIFIER) if VERIFIER else None
    return Apart(load_captioner(CAPTIONER), load_listener(LISTENER), verifier=verifier)


def row(found: Described) -> list[str]:
    """A result as the table shows it."""
    if found.error:
        return [found.photo, found.error, "", "", ""]
    margin = "" if found.margin is None else f"{found.margin:.3f}"
    return [found.photo, found.caption, found.rival, margin, "no" if found.confused else "yes"]


def build(apart: Apart) -> gr.Blocks:
    """The page.

    Args:
        apart: captioner, listener and perhaps verifier.
    """

    def run(paths: Sequence[str] | None) -> tuple[list, list[list[str]], list[list[str]]]:
        try:
            results = describe(apart, paths or [])
            readable = [(path, found) for path, found in zip(paths or [], results, strict=True) if not found.error]
            alike = likeness(apart.listener, [path for path, _ in readable])
        except UsageError as error:
            raise gr.Error(str(error)) from error
        shown = [(path, found.caption) for path, found in readable]
        matrix = [
            [found.photo, *(f"{cosine:.2f}" for cosine in cosines)]
            for (_, found), cosines in zip(readable, alike, strict=True)
        ]
        table = gr.Dataframe(value=matrix, headers=["photo", *(found.photo.partition(":")[0] for _, found in readable)])
        return shown, [row(found) for found in results], table

    with gr.Blocks(title="Captions apart") as page:
        gr.Markdown(
            "# Captions apart\n"
            f"Upload 2 to {MOST} photos that look alike. Each gets a caption that fits it and none of the others. "
            "The *rival* is the photo that the caption fits next best; a margin above 0 tells the two apart."
        )
        photos = gr.File(label="Photos", file_count="multiple", file_types=["image"], type="filepath", height=180)
        start = gr.Button("Write captions", variant="primary")
        gallery = gr.Gallery(label="Captions", columns=4, object_fit="contain")
        table = gr.Dataframe(
            label="Rivals and margins", headers=HEADINGS, interactive=False, wrap=True, column_widths=WIDTHS
        )
        matrix = gr.Dataframe(label="Likeness (cosines of the listener)", interactive=False)
        start.click(run, photos, [gallery, table, matrix], api_name="captions")
    return page


if __name__ == "__main__":
    build(load()).launch()
