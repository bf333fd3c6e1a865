"""All kinds of attack, in the order in which they are made."""

from __future__ import annotations

from .captions import CAPTIONS
from .clocks import CLOCKS
from .data_files import DATA_FILES
from .disks import DISKS
from .images import IMAGES
from .kills import KILLS
from .model_folders import MODEL_FOLDERS
from .permissions import PERMISSIONS
from .recipes import RECIPES
from .removals import REMOVALS
from .settings import SETTINGS
from .together import TOGETHER

KINDS = (
    CAPTIONS,
    IMAGES,
    DATA_FILES,
    RECIPES,
    MODEL_FOLDERS,
    SETTINGS,
    DISKS,
    REMOVALS,
    CLOCKS,
    TOGETHER,
    PERMISSIONS,
    KILLS,
)
"""The quick ones first: what they leave of their time, the others get."""
