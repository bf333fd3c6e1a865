"""MSR-VTT's captions (Xu et al., CVPR 2016): ``videodatainfo.json``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tellapart.data.captions import field, require_unicode, texts
from tellapart.data.dataset import Example
from tellapart.data.formats.base import InFile, ReadOnly, identifier
from tellapart.data.formats.clip_folder import ClipFinder, root_of_clips
from tellapart.data.formats.splits import in_order
from tellapart.errors import UsageError


class MsrVtt(ReadOnly, InFile):
    """``{"videos": [{"video_id", "split"}], "sentences": [{"video_id", "caption"}]}``, all splits in one or several files
    (``train_val_videodatainfo.json`` and ``test_videodatainfo.json``).

    A clip's id is its ``video_id``, which is also the name of its file without ending, anywhere below the given folder, else
    that of the file. Sentences of clips that no file lists are an error.
    """

    name = "msrvtt"
    usual = re.compile(r"videodatainfo|msr.?vtt", re.IGNORECASE)
    spans_splits = True
    divided = True

    @classmethod
    def is_index(cls, content: Any) -> bool:
        """Whether a parsed file lists videos and sentences."""
        return isinstance(content, dict) and isinstance(content.get("videos"), list) and "sentences" in content

    @cached_property
    def _videos(self) -> dict[str, str]:
        """Clip -> its split, in the files' order."""
        found: dict[str, str] = {}
        for file in self.files:
            for video in field(self.place.content(file), "videos", file, "the file", list):
                name = identifier(video, "video_id", file, "a video")
                split = field(video, "split", file, f"video {name!r}", str)
                require_unicode(split, file, "'split' of a video")
                if found.setdefault(name, split) != split:
                    raise UsageError(f"{file}: video {name!r} is in splits {found[name]!r} and {split!r}: correct one.")
        return found

    def splits(self) -> list[str]:
        """The splits that videos are of."""
        return in_order(self._videos.values())

    def read(self, splits: Sequence[str]) -> list[Example]:
        """Their clips, in the order of the files.

        Raises:
            UsageError: a record is broken, or no clips are found.
        """
        captions: dict[str, list[str]] = {name: [] for name in self._videos}
        for file in self.files:
            for number, sentence in enumerate(
                field(self.place.content(file), "sentences", file, "the file", list), start=1
            ):
                what = f"sentence {number}"
                name = identifier(sentence, "video_id", file, what)
                if name not in captions:
                    raise UsageError(f"{file}: {what} is of video {name!r}, which is not listed: correct or remove it.")
                captions[name] += texts(field(sentence, "caption", file, what), file, what)
        finder = ClipFinder(root_of_clips(self.place, self.files[0]), self.place)
        finder.require_any(self.files[0])
        return [
            Example(name, finder.find(name), tuple(captions[name]))
            for name, split in self._videos.items()
            if split in splits
        ]
