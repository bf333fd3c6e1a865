"""The names of the formats, where importing them costs nothing."""

from __future__ import annotations

from typing import Literal

Format = Literal[
    "coco",
    "karpathy",
    "lavis",
    "clipscore",
    "folder",
    "metadata-csv",
    "metadata-parquet",
    "sidecars",
    "sdscripts",
    "webdataset",
    "datasets",
    "flickr",
    "csv",
    "tsv",
]
"""Layouts of images and captions on disk; ``folder`` is a folder of images, with a ``metadata.jsonl`` if any."""

Readable = Literal[Format, "jsonl", "parquet", "clips", "tgif", "msrvtt", "msvd", "unlabelled"]
"""What can be read: these; tables of JSON lines and Parquet; folders of clips; the caption files of TGIF, MSR-VTT and MSVD;
and images without captions in files, tars and videos."""

Link = Literal["copy", "symlink", "none"]
"""How images come along: their bytes, a symbolic link to each, or only their paths."""
