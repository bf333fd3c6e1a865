"""Retrieval by a late-interaction listener, in an evaluation."""

import numpy as np
import pytest

from tellapart.data.dataset import CaptionDataset
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.late_scorer import LateScorer
from tiny_late import IDS, pictures, tiny_late

CAPTIONS = dict(zip(IDS, ["a red star", "two shapes", "a blue ring"], strict=True))


@pytest.fixture
def listener():
    found = tiny_late()
    found.cache_images(pictures())
    return found


def test_ranks_are_those_of_the_matrix(listener):
    matrix = listener.logprobs(list(CAPTIONS.values()), IDS).numpy()
    metrics, columns = LateScorer(listener, "judge", hard=2)(CAPTIONS, {})
    for row in range(3):
        rank = 1 + sum(matrix[row, other] >= matrix[row, row] for other in range(3) if other != row)
        back = 1 + sum(matrix[other, row] >= matrix[row, row] for other in range(3) if other != row)
        assert (columns["judge_rank"][row], columns["judge_i2t_rank"][row]) == (rank, back)
        # Two nearest of three are all others.
        assert columns["judge_hard2_R@1"][row] == columns["judge_R@1"][row]
        assert columns["judge_hard2_rank"][row] == rank
        order = sorted((other for other in range(3) if other != row), key=lambda other: -matrix[row, other])
        better = [IDS[other] for other in order if matrix[row, other] >= matrix[row, row]]
        assert columns["judge_confused"][row] == better
    assert any(columns["judge_confused"])
    assert columns["judge_logprob"] == pytest.approx(matrix.diagonal().tolist())
    assert metrics["judge_R@1"] == pytest.approx(np.mean(columns["judge_R@1"]))
    assert metrics["judge_true"] == pytest.approx(100 * np.mean(matrix.diagonal() > np.log(0.5)))
    assert metrics["judge_R@5"] == 100


def test_an_evaluation_measures_with_it(listener):
    evaluation = Evaluation(CaptionDataset(pictures(), name="three"), listeners={"judge": listener})
    result = evaluation.score(CAPTIONS, name="given")
    assert {"judge_R@1", "judge_i2t_R@1", "judge_MRR", "judge_MedR", "judge_true"} <= set(result.metrics)
    assert "judge_CLIPScore" not in result.metrics
    assert result.details["models"]["judge_R@1"]["weights"] == listener.fingerprint()[:12]
    assert result.details["models"]["judge_R@1"]["truncated"] == 0
