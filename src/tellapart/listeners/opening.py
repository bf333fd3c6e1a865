"""One way to open a listener, whichever kind its folder holds."""

from __future__ import annotations

from pathlib import Path

from tellapart.listeners.clip import ClipListener
from tellapart.listeners.kinds import is_late, trained_folder
from tellapart.listeners.late import LateListener
from tellapart.listeners.pairs import Precision


def open_listener(
    path: str | Path,
    *,
    name: str = "listener",
    prefix: str | None = None,
    dtype: Precision = "float32",
    batch_size: int = 256,
) -> ClipListener | LateListener:
    """A dual encoder or a late-interaction listener, from a folder or a Hugging Face id.

    Args:
        path: a CLIP or SigLIP, a run of train-listener, or a folder of a late-interaction listener such as ``world/judge``'s.
        name: key of its tensors in ``batch.inputs``.
        prefix: put before each text by a dual encoder; default: what was saved with it. Late interaction has none.
        dtype: of the weights.
        batch_size: most images or texts read at once; it changes no value.

    Raises:
        UsageError: it does not exist, lacks a part, or is another kind of model.

    Example:
        >>> judge = open_listener(resolve("world/judge"), name="judge")
        >>> judge.cache_images(dataset)
        >>> Evaluation(dataset, listeners={"judge": judge})
    """
    folder = trained_folder(path)
    if is_late(folder):
        return LateListener.from_pretrained(folder, name=name, batch_size=batch_size, dtype=dtype)
    return ClipListener.from_pretrained(folder, name=name, prefix=prefix, dtype=dtype, batch_size=batch_size)
