"""Models by name from Python."""

import pytest

import tellapart
from discriminator_fakes import tiny_listener
from tellapart.errors import UsageError
from tellapart.listeners.matcher import ItmMatcher
from tiny.matchers import tiny_blip_itm


def test_a_verifier_is_a_model_that_decides_what_is_true(tmp_path):
    verifier = tellapart.load_verifier(str(tiny_blip_itm(tmp_path / "itm")))
    assert isinstance(verifier, ItmMatcher)
    assert verifier.name == "verifier"
    assert not any(parameter.requires_grad for parameter in verifier.model.parameters())
    tiny_listener().save(tmp_path / "clip")
    with pytest.raises(UsageError, match=r"the verifier .*clip has cosines and does not decide what is true"):
        tellapart.load_verifier(str(tmp_path / "clip"))
