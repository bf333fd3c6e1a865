"""Reference-free and reference-aware scores from cosines of a dual encoder.

Every caption and every reference must have been embedded with the scorer's prompt prefix ("A photo depicts ").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

CLIP_WEIGHT, PAC_WEIGHT = 2.5, 2.0
"""w of CLIP-S (Hessel et al. 2021) and of PAC-S (Sarto et al. 2023, equation 3), whose encoder was trained for it."""


def clip_s(cosines: ArrayLike, *, weight: float = CLIP_WEIGHT) -> np.ndarray:
    """CLIP-S ``= w * max(cos(image, caption), 0)``, w = 2.5 (Hessel et al. 2021, section 3). ``[N]``."""
    return weight * np.maximum(np.asarray(cosines, np.float64), 0.0)


def refclip_s(cosines: ArrayLike, reference_cosines: Sequence[ArrayLike], *, weight: float = CLIP_WEIGHT) -> np.ndarray:
    """RefCLIP-S: harmonic mean of CLIP-S (with its w) and the best reference's cosine (clamped at 0, *without* w).

    Args:
        cosines: ``[N]`` image with caption.
        reference_cosines: N lists, caption with each of its references.
        weight: w of CLIP-S.

    Returns:
        ``[N]``; 0 where either score is 0, NaN where a cosine is.

    Raises:
        ValueError: a caption has no reference.
    """
    image = clip_s(cosines, weight=weight)
    rows = [np.asarray(row, np.float64) for row in reference_cosines]
    if not all(row.size for row in rows):
        raise ValueError("RefCLIP-S compares with references, and a caption has none")
    text = np.array([np.maximum(row.max(), 0.0) for row in rows])
    total = image + text
    return np.divide(
        2 * image * text, total, out=np.where(np.isnan(total), np.nan, 0.0), where=(image != 0) & (text != 0)
    )
