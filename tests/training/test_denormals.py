"""Results too small for float32's normal numbers are 0 while training, and are what they were afterwards."""

import pytest
import torch
from training_toys import Toy, toy_config, toy_data

from tellapart.training.denormals import denormals_flushed, flushed
from tellapart.training.loop import train

needs_flushing = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor keeps small numbers")


def halved(number):
    """Computed by torch, and looked at bit by bit: reading a small number may make it 0."""
    return int((torch.full((1,), number) * 0.5).view(torch.int32))


@needs_flushing
def test_smaller_numbers_are_0_within():
    smallest = torch.finfo(torch.float32).tiny
    assert halved(smallest) == 2**22, "half of the smallest normal number is the bit below its exponent"
    with denormals_flushed():
        assert flushed()
        assert halved(smallest) == 0
        assert halved(2 * smallest) == 2**23, "the smallest normal number stays"
        with denormals_flushed():
            assert flushed()
        assert flushed(), "the inner one found it so"
    assert halved(smallest) == 2**22


@needs_flushing
def test_it_is_undone_after_an_error():
    with pytest.raises(ValueError, match="no"), denormals_flushed():
        raise ValueError("no")
    assert not flushed()


@needs_flushing
def test_a_training_runs_so(tmp_path):
    seen = []

    class Looks(Toy):
        def collect(self, batch, step):
            seen.append(flushed())
            return super().collect(batch, step)

    train(Looks(), toy_data(4), toy_config(tmp_path, max_steps=2, per_device_train_batch_size=2))
    assert seen == [True, True]
    assert not flushed()
