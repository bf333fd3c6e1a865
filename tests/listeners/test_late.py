"""Late interaction: words against the tokens of an image, where one false word vetoes a text."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from discriminator_fakes import tiny_listener
from tellapart.data.dataset import Example
from tellapart.errors import UsageError
from tellapart.listeners import late, late_model
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.kinds import is_late
from tellapart.listeners.late import LateListener
from tellapart.listeners.late_model import EASY, LateModel, counted, pair_logprobs, word_logprobs
from tellapart.listeners.mining import mine
from tellapart.listeners.opening import open_listener
from tellapart.rewards.matchers import open_matcher
from tellapart.rewards.matching import Matching
from tellapart.types import Batch, Rollout
from tiny.clip_frames import FRAMES, clips, tiny_tower
from tiny_late import IDS, late_of_clips, pictures, tiny_late

TEXTS = ["a red star", "a blue ring above a star", "two shapes", "a red star"]


@pytest.fixture
def listener() -> LateListener:
    found = tiny_late(batch_size=2)
    found.cache_images(pictures())
    return found


def slow_logprob(queries, offsets, vectors) -> float:
    """One word of one text, in plain Python: the sum over checks of log sigmoid(max over tokens of t.e + b)."""
    total = 0.0
    for query, offset in zip(queries.tolist(), offsets.tolist(), strict=True):
        best = max(sum(a * b for a, b in zip(query, vector, strict=True)) for vector in vectors.tolist())
        total -= math.log1p(math.exp(-(best + offset)))
    return total


def test_scores_of_pairs_and_of_words_are_those_of_plain_python(monkeypatch):
    monkeypatch.setattr(late_model, "WORDS", 5)  # twelve words are read in three parts
    torch.manual_seed(0)
    queries, offsets, vectors = torch.randn(3, 4, 2, 5), torch.randn(3, 4, 2), torch.randn(3, 6, 5)
    words = pair_logprobs((queries, offsets), vectors)
    every = word_logprobs(queries.flatten(0, 1), offsets.flatten(0, 1), vectors).unflatten(0, (3, 4))
    for n in range(3):
        for t in range(4):
            assert words[n, t].item() == pytest.approx(slow_logprob(queries[n, t], offsets[n, t], vectors[n]), rel=1e-4)
            for m in range(3):
                slow = slow_logprob(queries[n, t], offsets[n, t], vectors[m])
                assert every[n, t, m].item() == pytest.approx(slow, rel=1e-4)


def test_one_failed_check_outweighs_any_number_of_right_ones():
    # Ten right words at a logit of 10 cost 10 * log(1 + e^-10) = 0.0005 nats, one wrong at -8 costs log(1 + e^8) = 8.0003.
    offsets = torch.full((1, 11, 1), 10.0)
    offsets[0, 4] = -8.0
    found = pair_logprobs((torch.zeros(1, 11, 1, 2), offsets), torch.zeros(1, 3, 2)).sum()
    assert found.item() == pytest.approx(-8.0003 - 0.0005, abs=1e-3)


def test_every_check_passes_easily_at_first():
    model = LateModel(tiny_late().model.config)
    assert model.offsets.weight.abs().max() == 0
    assert set(model.offsets.bias.tolist()) == {EASY}


def test_pairs_equal_the_models_own_forward_and_the_matrix(listener):
    matrix = listener.logprobs(TEXTS, IDS)
    assert matrix.shape == (4, 3)
    torch.testing.assert_close(matrix[0], matrix[3])
    found = listener.match_ids(IDS, [TEXTS] * 3)
    for column, (example, logits) in enumerate(zip(pictures(), found, strict=True)):
        pixels = listener.process([example.image.open()])["pixel_values"]
        tokens, mask = listener.tokens(TEXTS)
        with torch.no_grad():
            own = listener.model(pixels.expand(4, -1, -1, -1), tokens, mask)
        torch.testing.assert_close(logits[:, 1], own, atol=1e-5, rtol=0)
        torch.testing.assert_close(matrix[:, column], own, atol=1e-5, rtol=0)
        # Two logits whose softmax is the probability.
        torch.testing.assert_close(logits.softmax(dim=1)[:, 1], own.exp(), atol=1e-5, rtol=0)
    assert matrix.std() > 1e-3


def test_words_after_the_same_beginning_are_checked_once(listener, monkeypatch):
    texts = ["a red star", "a red ring", "a red star above a ring", "two red shapes"]
    alone = torch.cat([listener.logprobs([text], IDS) for text in texts])
    checked = []
    monkeypatch.setattr(
        late, "word_logprobs", lambda words, *others: checked.append(len(words)) or word_logprobs(words, *others)
    )
    torch.testing.assert_close(listener.logprobs(texts, IDS), alone)
    # "a red star", "ring", "above a ring", "two red shapes", and an end of each text
    assert checked == [3 + 1 + 3 + 3 + 4]
    monkeypatch.setattr(late, "TEXTS", 3)
    monkeypatch.setattr(late, "IMAGES", 2)
    torch.testing.assert_close(listener.logprobs(texts, IDS), alone)
    assert len(checked) == 1 + 2 * 2


def test_as_a_reward_it_gives_log_probabilities(listener):
    batch = Batch(["z", "x"], [[], []])
    tokens = torch.zeros(3, 1, dtype=torch.long)
    rollout = Rollout(batch, torch.tensor([0, 1, 0]), TEXTS[:3], tokens, tokens.bool(), tokens[:, 0].bool())
    expected = listener.logprobs(TEXTS[:3], IDS)[[0, 1, 2], [2, 0, 2]]
    torch.testing.assert_close(Matching(listener)(rollout), expected, atol=1e-5, rtol=0)


def test_what_is_saved_gives_the_same_scores(listener, tmp_path):
    listener.save(tmp_path / "saved")
    assert is_late(tmp_path / "saved")
    loaded = LateListener.from_pretrained(tmp_path / "saved")
    loaded.cache_images(pictures())
    torch.testing.assert_close(loaded.logprobs(TEXTS, IDS), listener.logprobs(TEXTS, IDS))
    assert loaded.fingerprint() == listener.fingerprint() != tiny_late(seed=1).fingerprint()
    assert loaded.describe() == listener.describe() | {"model": "saved"}


def test_a_folder_tells_which_kind_of_listener_it_holds(listener, tmp_path):
    listener.save(tmp_path / "run" / "listener")
    dual = tiny_listener(seed=1)
    dual.save(tmp_path / "dual")
    late = open_listener(tmp_path / "run", name="judge")
    assert isinstance(late, LateListener)
    assert late.name == "judge"
    assert isinstance(open_listener(tmp_path / "dual"), ClipListener)
    matcher = open_matcher(tmp_path / "run")
    assert isinstance(matcher, LateListener)
    assert not any(parameter.requires_grad for parameter in matcher.model.parameters())
    with pytest.raises(UsageError, match=r"matcher\.autocast is bfloat16, but the listener"):
        open_matcher(tmp_path / "run", autocast="bfloat16")


def test_long_texts_are_cut_before_their_end_token_and_told(listener):
    long = " ".join(["red"] * 30)
    assert listener.too_long(["a star", long]) == [False, True]
    tokens, mask = listener.tokens([long])
    assert tokens.shape == (1, 12)
    assert tokens[0, -1] == listener.tokenizer.eos_token_id
    assert counted(mask).sum() == 11  # all but BOS


def test_images_are_compared_token_by_token_for_mining(listener):
    embeddings = listener.encode_ids(IDS)
    assert embeddings.shape == (3, 5 * 8)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(
        embeddings[0], torch.nn.functional.normalize(listener.vectors_of(["x"]).flatten(), dim=0)
    )


def test_it_mines_neighbours(listener, tmp_path, monkeypatch):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    found = mine(tiny_late(), pictures(), 1, same_above=1.1)
    similar = listener.encode_ids(IDS) @ listener.encode_ids(IDS).T
    similar.fill_diagonal_(-1)
    assert found.of(IDS) == [[IDS[row]] for row in similar.argmax(dim=1).tolist()]


def test_unknown_images_and_folders_are_told(listener, tmp_path):
    with pytest.raises(UsageError, match="has no vectors of image 'w'"):
        listener.logprobs(["a star"], ["x", "w"])
    with pytest.raises(UsageError, match=r"cannot be loaded|does not exist"):
        LateListener.from_pretrained(tmp_path / "nothing")


@dataclass(frozen=True)
class Frames:
    """A clip that is its frames."""

    pictures: list

    def open(self):
        return self.pictures[len(self.pictures) // 2]

    def frames(self, num_frames):
        assert num_frames == len(self.pictures)
        return self.pictures

    def fingerprint(self):
        return str([np.asarray(picture).sum() for picture in self.pictures])


def test_of_clips_every_frame_is_read_and_their_order_matters(tmp_path):
    made = late_of_clips(tiny_tower(layers=1))
    made.save(tmp_path / "clips")
    listener = LateListener.from_pretrained(tmp_path / "clips")
    assert listener.num_frames == FRAMES
    assert listener.describe()["backbone"].endswith("patch 16, 1 layers over 4 frames")
    (forward,), (one, two) = clips(1), clips(2, seed=1)
    vectors = listener.vectors(listener.process([forward, forward[::-1], one]))
    assert vectors.shape == (3, 5, 8)  # a class token and four places
    assert not torch.allclose(vectors[0], vectors[1], atol=1e-3)
    matcher = open_matcher(tmp_path / "clips")
    dataset = [Example(name, Frames(frames)) for name, frames in (("x", one), ("y", two))]
    matcher.know_images(dataset)
    listener.cache_images(dataset)
    found = torch.stack([matcher.score(row) for row in matcher.match_ids(["x", "y"], [TEXTS[:2], TEXTS[:2]])])
    torch.testing.assert_close(found, listener.logprobs(TEXTS[:2], ["x", "y"]).T, atol=1e-5, rtol=0)


def test_embeddings_of_images_are_of_unit_norm_in_any_precision():
    """Else pictures merge, or change places, by the rounding of their norms."""
    listener = tiny_late()
    listener.model.to(torch.bfloat16)
    listener.cache_images(pictures())
    found = listener.encode_ids(IDS)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3), atol=1e-6, rtol=0)


def test_an_id_that_names_two_pictures_is_refused():
    listener, (first, second, *_) = tiny_late(), pictures()
    with pytest.raises(UsageError, match="names two different pictures"):
        listener.cache_images([first, replace(second, id=first.id)])
    listener.cache_images([first, first])


def test_equal_pictures_fit_a_text_equally_well(monkeypatch):
    """Read in other batches, or compared in other places of a product, a copy would win or lose by its last bits."""
    listener, originals, read = tiny_late(batch_size=2), pictures(), []
    copies = [replace(example, id=f"copy of {example.id}") for example in originals]
    process = listener.process
    monkeypatch.setattr(listener, "process", lambda images: read.extend(images) or process(images))
    everything = [*originals, *copies]
    listener.cache_images(everything)
    assert len(read) == len(originals)
    names = [example.id for example in everything]
    found = listener.logprobs(TEXTS, names)
    assert found.shape == (4, 6)
    assert torch.equal(found[:, :3], found[:, 3:])
    assert torch.equal(found[:, :3], listener.logprobs(TEXTS, names[:3]))
    assert torch.equal(listener.encode_ids(names[:3]), listener.encode_ids(names[3:]))


def test_an_id_stays_that_of_its_picture_until_the_weights_change():
    listener, (first, second, *_) = tiny_late(), pictures()
    listener.cache_images([first])
    before = listener.vectors_of([first.id])
    with pytest.raises(UsageError, match="names two different pictures"):
        listener.cache_images([replace(second, id=first.id)])
    assert torch.equal(listener.vectors_of([first.id]), before)
    with torch.no_grad():
        for parameter in listener.model.vision_model.parameters():
            parameter.mul_(1.5)
    listener.cache_images([first])
    fresh = tiny_late()
    fresh.model.load_state_dict(listener.model.state_dict())
    fresh.cache_images([first])
    assert torch.equal(listener.vectors_of([first.id]), fresh.vectors_of([first.id]))
    assert not torch.equal(listener.vectors_of([first.id]), before)
