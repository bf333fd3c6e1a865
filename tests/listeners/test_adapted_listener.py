"""Listeners of which only adapters or projections learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from listeners.tiny_listeners import clip_parts, siglip_parts
from pictures import images
from tellapart.data.dataset import Example
from tellapart.data.images import ArrayImage
from tellapart.errors import UsageError
from tellapart.listeners.adapted import ADAPTER, AdaptedListener
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.projections import ProjectionsListener

TEXTS = ["a red dog", "the bus runs on the sofa"]


def adapted(*, seed: int = 0, **options) -> AdaptedListener:
    learner = AdaptedListener(ClipListener.from_parts(*clip_parts(seed=seed)), **options)
    return learner


def moved(learner: AdaptedListener) -> AdaptedListener:
    with torch.no_grad():
        for name, parameter in learner.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    return learner


def embeddings(listener: ClipListener) -> torch.Tensor:
    with torch.no_grad():
        pictures = listener.embed_images(listener.process(images(2))["pixel_values"])
        return torch.cat([pictures, listener.embed_texts(TEXTS)])


def test_adapters_begin_as_nothing_and_are_all_that_learns():
    plain, learner = ClipListener.from_parts(*clip_parts()), adapted(r=3)
    torch.testing.assert_close(embeddings(learner.listener), embeddings(plain))
    trained = {name: parameter for name, parameter in learner.model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".lora_" in name for name in trained)
    towers = {name.split(".")[0] for name in trained}
    assert towers == {"text_model", "vision_model"}
    # Two layers a tower, six linear layers each, two matrices.
    assert len(trained) == 2 * 2 * 6 * 2
    assert {min(parameter.shape) for parameter in trained.values()} == {3}


def test_what_is_saved_needs_no_adapter(tmp_path):
    learner = moved(adapted())
    learner.save(tmp_path / "listener")
    loaded = ClipListener.from_pretrained(tmp_path / "listener")
    torch.testing.assert_close(embeddings(loaded), embeddings(learner.listener), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(embeddings(loaded), embeddings(ClipListener.from_parts(*clip_parts())), atol=1e-3)
    assert not any("lora" in name or "base_layer" in name for name in loaded.model.state_dict())


def test_resuming_reads_the_adapters_back_exactly(tmp_path):
    learner, again = moved(adapted()), adapted()
    learner.save(tmp_path / "listener")
    again.load_weights(tmp_path / "listener")
    first, second = learner.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    with pytest.raises(UsageError, match="adapters are of other layers"):
        adapted(target_modules=r".*\.fc1").load_weights(tmp_path / "listener")
    (tmp_path / "listener" / ADAPTER).unlink()
    with pytest.raises(UsageError, match="lacks the adapters of this listener"):
        again.load_weights(tmp_path / "listener")


def test_what_cannot_be_adapted_is_refused():
    with pytest.raises(UsageError, match=r"listener\.lora cannot be used .*correct it\.$"):
        adapted(target_modules="nothing")
    with pytest.raises(UsageError, match=r"listener\.lora cannot be used \(missing \)"):
        adapted(target_modules="(")
    with pytest.raises(UsageError, match=r"listener\.lora cannot be used"):
        adapted(r=0)


def test_a_siglip_has_no_projections_to_train_alone():
    with pytest.raises(UsageError, match=r"has no projections to train alone.*set listener\.train"):
        ProjectionsListener(ClipListener.from_parts(*siglip_parts()))


def test_projections_know_images_of_an_evaluation_by_the_ids_of_training_images(tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    learner, pictures = ProjectionsListener(ClipListener.from_parts(*clip_parts())), images(2)
    learner.cache_images([Example("x", ArrayImage(np.asarray(pictures[0])))])
    other = learner.with_own_images()
    other.cache_images([Example("x", ArrayImage(np.asarray(pictures[1])))])
    with torch.no_grad():  # as a step does
        learner.model.visual_projection.weight.mul_(
            torch.linspace(0.5, 2.0, len(learner.model.visual_projection.weight))[:, None]
        )
    wanted = normalize(learner.listener.embed_images(learner.listener.process(pictures)["pixel_values"]), dim=-1)
    found = torch.cat([learner.encode_ids(["x"]), other.encode_ids(["x"])])
    torch.testing.assert_close(found, wanted.detach(), atol=1e-5, rtol=1e-5)
