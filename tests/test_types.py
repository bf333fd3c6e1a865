"""Selecting and joining the records that stages exchange."""

import pytest
import torch

from given import images
from tellapart.draws import base_seed, gumbels, mix_seeds, normals, uniforms
from tellapart.types import Batch, Decoding, Rollout


def rollout(batch: Batch, lengths: list[int], image: list[int]) -> Rollout:
    mask = torch.tensor([[t < n for t in range(max(lengths))] for n in lengths])
    tokens = torch.arange(mask.numel()).view_as(mask) * mask
    texts = [f"caption {i}" for i in range(len(lengths))]
    return Rollout(batch, torch.tensor(image), texts, tokens, mask, torch.ones(len(lengths)).bool())


def test_select_keeps_captions_and_drops_trailing_padding():
    drawn = rollout(images(2), [2, 5, 3], [0, 1, 1])
    chosen = drawn.select([2, 0])
    assert chosen.texts == ["caption 2", "caption 0"]
    assert chosen.image.tolist() == [1, 0]
    assert chosen.tokens.shape == (2, 3)
    assert chosen.lengths.tolist() == [3, 2]
    assert chosen.ids() == ["1", "0"]


def test_concat_pads_to_the_longest_and_refuses_other_batches():
    batch = images(2)
    joined = Rollout.concat([rollout(batch, [2], [0]), rollout(batch, [4, 1], [1, 0])])
    assert joined.tokens.shape == (3, 4)
    assert joined.lengths.tolist() == [2, 4, 1]
    with pytest.raises(ValueError, match="same batch"):
        Rollout.concat([rollout(batch, [2], [0]), rollout(images(2), [2], [0])])


def test_batch_select_takes_rows_of_every_tensor():
    batch = Batch(["a", "b", "c"], [["1"], [], ["3"]], {"captioner": {"pixel_values": torch.arange(3.0)}})
    chosen = batch.select([2, 2, 0])
    assert chosen.ids == ["c", "c", "a"]
    assert chosen.references == [["3"], ["3"], ["1"]]
    assert chosen.inputs["captioner"]["pixel_values"].tolist() == [2.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 0},
        {"num_beams": 2, "do_sample": True},
        {"num_return_sequences": 3},
        {"do_sample": True, "temperature": 0.0},
        {"top_p": 0.0},
        {"no_repeat_ngram_size": -1},
        {"min_new_tokens": -1},
        {"min_new_tokens": 9, "max_new_tokens": 8},
        {"num_beams": 2, "length_penalty": float("nan")},
    ],
)
def test_impossible_decodings_are_refused(options):
    with pytest.raises(ValueError, match=r"must|need|supported|no caption could end"):
        Decoding(**options)


def test_draws_belong_to_an_image_not_to_its_place():
    alone, together = uniforms(["b"], 4, seed=7), uniforms(["a", "b"], 4, seed=7)
    assert torch.equal(alone[0], together[1])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(uniforms(["b"], 4, seed=8), alone)
    assert mix_seeds(1, 23) != mix_seeds(12, 3)


def test_draws_are_those_of_earlier_versions():
    """Else a run of before would be drawn otherwise with the same seed: its captions, noise and first weights."""
    torch.manual_seed(3)
    assert (base_seed(), mix_seeds("x", 1)) == (937055941807507096, 8329686251584702286)
    expected = [0.6695165583120394, 0.5329305587963499, 0.9036152604395543, 0.7732567312177774]
    assert uniforms(["a", "b"], 2, seed=7).flatten().tolist() == pytest.approx(expected, abs=1e-12)
    assert gumbels(["a"], 2, seed=7).tolist()[0] == pytest.approx([0.1594820062552576, -1.0426899098297995], abs=1e-12)
    assert normals(["a"], 2, seed=7).tolist()[0] == pytest.approx([1.0450233100241668, -0.5488601289560693], abs=1e-12)
