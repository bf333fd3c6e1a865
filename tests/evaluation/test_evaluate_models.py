"""The evaluation with a real (tiny) captioner instead of one that says what it is told."""

from dataclasses import replace

import pytest
import torch
from evaluation_fakes import FixedListener

from pictures import images
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.rerank import Rerank
from tellapart.types import Decoding
from tiny_models import tiny_ved


def pictures(count: int) -> CaptionDataset:
    import numpy as np

    references = ("a red star", "a star on the left")
    examples = [
        Example(f"p{i}", ArrayImage(np.asarray(picture)), references) for i, picture in enumerate(images(count))
    ]
    return CaptionDataset(examples, name="pictures")


def test_batch_size_changes_no_caption_and_training_goes_on_undisturbed():
    captioner = tiny_ved()
    captioner.train()
    collate = Collate({captioner.name: captioner.process})
    sampled = Decoding(do_sample=True, max_new_tokens=8)
    modes = [module.training for module in captioner.modules()]
    weights = {name: tensor.clone() for name, tensor in captioner.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()

    results = [
        Evaluation(
            pictures(7), collate, listeners={"judge": FixedListener("j")}, decoding=sampled, batch_size=batch_size
        )(captioner)
        for batch_size in (1, 3, 7)
    ]

    assert results[0].captions == results[1].captions == results[2].captions
    assert results[0].per_image == results[1].per_image == results[2].per_image
    assert len(set(results[0].captions.values())) > 1
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in captioner.modules()] == modes
    assert all(torch.equal(tensor, weights[name]) for name, tensor in captioner.state_dict().items())


def test_beam_search_is_measured_too():
    captioner = tiny_ved()
    collate = Collate({captioner.name: captioner.process})
    result = Evaluation(pictures(4), collate, decoding=Decoding(num_beams=3, max_new_tokens=6))(captioner)
    assert list(result.captions) == ["p0", "p1", "p2", "p3"]
    assert "one caption each (beam 3, max_new_tokens=6)" in result.protocol.line()
    assert 0 <= result.metrics["unfinished"] <= 100


def test_reranking_keeps_the_beam_of_the_highest_reward():
    """The first of equal ones, image by image, however images are batched."""
    captioner = tiny_ved()
    collate, dataset = Collate({captioner.name: captioner.process}), pictures(5)
    search = Decoding(num_beams=4, max_new_tokens=6)
    rerank = Rerank(lambda rollout: torch.tensor([float(len(set(text))) for text in rollout.texts]), "letters")
    every = captioner.generate(collate(dataset.examples), replace(search, num_return_sequences=4))
    beams = [every.texts[first : first + 4] for first in range(0, 20, 4)]
    expected = [max(own, key=lambda text: len(set(text))) for own in beams]
    assert expected != [own[0] for own in beams]
    for batch_size in (2, 5):
        evaluation = Evaluation(dataset, collate, decoding=search, rerank=rerank, batch_size=batch_size)
        result = evaluation(captioner)
        assert list(result.captions.values()) == expected
        assert "(beam 4, max_new_tokens=6, best of these by letters)" in result.protocol.line()
    with pytest.raises(UsageError, match="num_beams is 1, but reranking chooses among several beams"):
        Evaluation(dataset, collate, rerank=rerank)
