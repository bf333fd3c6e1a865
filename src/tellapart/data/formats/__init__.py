"""Layouts of images and captions: one small module a format, found by name or by the look of a path."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tellapart.data.formats.base import Layout

FORMATS = {
    "datasets": "tellapart.data.formats.hub:Datasets",
    "karpathy": "tellapart.data.formats.karpathy:Karpathy",
    "coco": "tellapart.data.formats.coco:Coco",
    "lavis": "tellapart.data.formats.lavis:Lavis",
    "sdscripts": "tellapart.data.formats.sdscripts:SdScripts",
    "clipscore": "tellapart.data.formats.clipscore:ClipScore",
    "flickr": "tellapart.data.formats.flickr:Flickr",
    "webdataset": "tellapart.data.formats.webdataset:WebDataset",
    "metadata-csv": "tellapart.data.formats.metadata:MetadataCsv",
    "metadata-parquet": "tellapart.data.formats.metadata:MetadataParquet",
    "csv": "tellapart.data.formats.table:Csv",
    "tsv": "tellapart.data.formats.table:Tsv",
    "sidecars": "tellapart.data.formats.sidecars:Sidecars",
    "folder": "tellapart.data.formats.metadata:Folder",
}
"""Format -> ``module:class``."""

READ_ONLY = {
    "jsonl": "tellapart.data.formats.table:JsonLines",
    "parquet": "tellapart.data.formats.table:Parquet",
    "clips": "tellapart.data.formats.clip_folder:ClipFolder",
    "tgif": "tellapart.data.formats.tgif:Tgif",
    "msrvtt": "tellapart.data.formats.msrvtt:MsrVtt",
    "msvd": "tellapart.data.formats.msvd:Msvd",
}
"""The same of formats that are not written."""

_FIRST, _LAST = ("clips", "tgif", "msrvtt", "msvd"), ("sidecars", "folder")
LOOKED_FOR = (*_FIRST, *(name for name in (*FORMATS, *READ_ONLY) if name not in _FIRST + _LAST), *_LAST)
"""Looks are compared in this order: what only one format can be, first."""


def layout(name: str) -> type[Layout]:
    """The class that reads and writes a format; imports its module."""
    module, attribute = (FORMATS | READ_ONLY)[name].split(":")
    found: type[Layout] = vars(import_module(module))[attribute]
    return found
