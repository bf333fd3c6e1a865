"""How a marker says that something was measured on the world's test split, beside the setting that it names.

A setting's key names the models and the world that a training begins with. It does not name how captions were drawn, which
references they were compared with, or which version compared them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tellapart.types import Decoding

SOFTWARE = "software"


def measured_on_test(size: str, decodings: Mapping[str, Decoding]) -> dict[str, str]:
    """Package and version, digest of the test split's ids and references, and each decoding in words.

    Args:
        size: of the world.
        decodings: name -> how captions were drawn, with seed 0 where they were sampled.
    """
    from tellapart.evaluation.evaluate import describe_decoding
    from tellapart.evaluation.protocol import software

    drawn = {name: describe_decoding(decoding, 0) for name, decoding in decodings.items()}
    return {SOFTWARE: software(), "digest": _digest(size), **drawn}


def without_software(protocol: Mapping[str, str]) -> dict[str, str]:
    """What a study compares: its trainings outlive a version, which markers note for the reader."""
    return {name: value for name, value in protocol.items() if name != SOFTWARE}


@cache
def _digest(size: str) -> str:
    from tellapart.evaluation.protocol import data_digest
    from tellapart.world import load_world

    return data_digest(load_world("test", size=size).references)
