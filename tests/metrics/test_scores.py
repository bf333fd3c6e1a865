import numpy as np
import pytest

from given import vector
from tellapart.metrics.scores import PAC_WEIGHT, clip_s, refclip_s


def test_clip_and_pac_scores_vector():
    inputs, expected, tolerance = vector("clip_and_pac_scores")
    image, references = inputs["cos_image_caption"], inputs["cos_caption_refs"]
    for name, values in {
        "clip_s": clip_s(image),
        "refclip_s": refclip_s(image, references),
        "pac_s": clip_s(image, weight=PAC_WEIGHT),
        "refpac_s": refclip_s(image, references, weight=PAC_WEIGHT),
    }.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=tolerance, err_msg=name)


def test_what_is_not_a_number_stays_so():
    """It became 0, which an average takes for a caption that fits nothing."""
    found = refclip_s([np.nan, 0.3, 0.3, -0.1], [[0.5], [np.nan, 0.5], [0.0], [0.5]])
    np.testing.assert_array_equal(found, [np.nan, np.nan, 0.0, 0.0])
    with pytest.raises(ValueError, match="a caption has none"):
        refclip_s([0.3], [[]])


def test_ragged_references():
    # 2 * 0.5 * 0.4 / 0.9 with w * 0.2 = 0.5
    np.testing.assert_allclose(refclip_s([0.2, 0.2], [[0.4], [0.1, 0.4, -1]]), [0.4 / 0.9] * 2, atol=1e-12)
