"""What other trainers call: the contract of TRL's reward functions and of verl's compute_score, on tiny models.

TRL calls ``reward_func(prompts=..., completions=..., completion_ids=..., trainer_state=..., **columns)``, every argument a list
of one entry per completion, reads ``__name__``, and takes a list of floats or None. verl calls ``compute_score(data_source=...,
solution_str=..., ground_truth=..., extra_info=...)``, its batch manager the same with plurals.
"""

from __future__ import annotations

import io
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import tellapart
from listeners.tiny_listeners import clip_parts
from pictures import CAPTIONS, images
from tellapart.data.decoding import decode
from tellapart.errors import UsageError
from tellapart.listeners.clip import ClipListener
from tellapart.metrics.frequencies import DocumentFrequencies
from tellapart.rewards import for_trl, for_verl
from tellapart.rewards.similarity import RefSimilarity, Similarity
from tellapart.rewards.trainers import KnownImages, Scorer, _opened
from tellapart.types import Batch, Rollout
from tiny.language_models import saved
from tiny.matchers import tiny_blip_itm

GENERATIONS = 3
SAID = [
    f"{colour} {animal} {place}"
    for animal in ("dog", "cat", "bus")
    for colour in ("red", "blue", "big")
    for place in ("on the sofa", "runs")
]
"""Captions in words that the tiny listener knows."""


@pytest.fixture
def listener():
    return ClipListener.from_parts(*clip_parts())


def called_by_trl(reward, texts, *, conversational=False, **columns):
    """As TRL's ``_calculate_rewards`` does, with the columns repeated for each generation."""
    completions = [[{"role": "assistant", "content": text}] for text in texts] if conversational else list(texts)
    found = reward(
        prompts=["Describe."] * len(texts),
        completions=completions,
        completion_ids=[[1, 2]] * len(texts),
        trainer_state=object(),
        log_extra=None,
        **columns,
    )
    tensor = torch.tensor([math.nan if value is None else value for value in found])  # what TRL makes of it
    assert tensor.shape == (len(texts),)
    return found


def expected(kind, listener, pictures, texts, references=None):
    """The reward of a recipe, of images that come with the batch."""
    inputs = {listener.name: listener.process(list(pictures))}
    batch = Batch([str(i) for i in range(len(pictures))], references or [[] for _ in pictures], inputs)
    image = torch.arange(len(pictures)).repeat_interleave(len(texts) // len(pictures))
    tokens = torch.zeros(len(texts), 1, dtype=torch.long)
    rollout = Rollout(batch, image, list(texts), tokens, tokens == 0, torch.ones(len(texts)).bool())
    return kind(listener)(rollout).tolist()


@pytest.mark.parametrize("conversational", [False, True])
@pytest.mark.parametrize("column", ["image", "images"])
def test_trl_gets_the_reward_of_recipes(listener, conversational, column):
    pictures, texts = images(2), SAID[: 2 * GENERATIONS]
    shown = [picture for picture in pictures for _ in range(GENERATIONS)]
    reward = for_trl("clip_s", model=listener)
    assert reward.__name__ == "clip_s"
    columns = {column: shown if column == "image" else [[picture] for picture in shown]}
    found = called_by_trl(reward, texts, conversational=conversational, **columns)
    assert found == pytest.approx(expected(Similarity, listener, pictures, texts), abs=1e-6)
    assert all(isinstance(value, float) for value in found)
    assert len(set(found)) == len(found)


def test_references_and_rows_without_an_image(listener):
    pictures, texts, references = images(2), SAID[:2], [[SAID[5]], [SAID[6], SAID[7]]]
    reward = for_trl("ref_clip_s", model=listener, references="captions")
    found = called_by_trl(reward, texts, image=pictures, captions=references)
    assert found == pytest.approx(expected(RefSimilarity, listener, pictures, texts, references), abs=1e-6)
    found = called_by_trl(reward, texts, image=[pictures[0], None], captions=references)
    assert found[1] is None
    assert found[0] is not None
    with pytest.raises(UsageError, match="name their column as images="):
        called_by_trl(reward, texts, captions=references)
    with pytest.raises(UsageError, match="name their column as references="):
        called_by_trl(reward, texts, image=pictures)
    with pytest.raises(UsageError, match="2 images"):
        called_by_trl(reward, texts, images=[pictures, pictures], captions=references)


def test_pictures_are_embedded_once_in_batches_and_weights_stay(listener):
    """Whatever form they come in; equal pixels are one picture, and the oldest embeddings are dropped."""
    calls, embed = [], listener.embed_images
    listener.embed_images = lambda pixels: calls.append(len(pixels)) or embed(pixels)
    before = {key: value.clone() for key, value in listener.model.state_dict().items()}
    reward = for_trl("clip_s", model=listener)
    pictures = images(3)
    shown = [picture for picture in pictures for _ in range(GENERATIONS)]
    first = called_by_trl(reward, SAID[:9], image=shown)
    assert calls == [3]
    again = called_by_trl(reward, SAID[:9], image=[picture.copy() for picture in shown])
    assert calls == [3]
    assert again == first
    assert all(torch.equal(value, before[key]) for key, value in listener.model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in listener.model.parameters())
    known = KnownImages(listener, most=2)
    for group in (pictures[:2], pictures[2:]):
        known.see({str(id(picture)): picture for picture in group})
    assert list(known._known) == [str(id(picture)) for picture in pictures[1:]]


def test_pictures_as_files_and_bytes(listener, tmp_path):
    (picture,) = images(1)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(buffer.getvalue())
    reward = for_trl("clip_s", model=listener)
    forms = [picture, str(path), path, buffer.getvalue(), {"bytes": buffer.getvalue(), "path": None}]
    forms.append({"bytes": None, "path": str(path)})
    found = called_by_trl(reward, [SAID[0]] * len(forms), image=forms)
    assert found == pytest.approx([found[0]] * len(forms), abs=1e-6)
    for given, told in (
        ("no/such.png", "cannot be read"),
        (b"nonsense", "an image given as bytes is not a"),
        ({"bytes": None, "path": None}, "an image is given as NoneType"),
        ({"bytes": None}, "an image is given as NoneType"),
        (torch.zeros(3, 4, 4), "an image is given as Tensor"),
    ):
        with pytest.raises(UsageError, match=told):
            called_by_trl(reward, SAID[:1], image=[given])


def encoded(picture, **options):
    buffer = io.BytesIO()
    picture.save(buffer, **options)
    return buffer.getvalue()


def test_pictures_are_decoded_as_those_of_a_recipe(tmp_path):
    """Turned by EXIF, transparent, of 16 bits: the reward saw other pictures than a training's."""
    left = Image.new("RGB", (8, 4), "red")
    left.paste("blue", (0, 0, 4, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(left, format="JPEG", exif=exif)
    clear = encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 0)), format="PNG")
    grey = encoded(Image.fromarray(np.full((4, 4), 40_000, np.uint16)), format="PNG")
    for number, data in enumerate((turned, clear, grey)):
        path = tmp_path / str(number)
        path.write_bytes(data)
        for given in (data, path, str(path), {"bytes": data, "path": "x"}):
            assert np.array_equal(_opened(given)[1], decode(data, "x"))
    assert _opened(turned)[1].size == (4, 8)
    assert _opened(Image.open(io.BytesIO(clear)))[1].getpixel((0, 0)) == (255, 255, 255)
    assert _opened(Image.open(io.BytesIO(grey)))[1].getpixel((0, 0)) == (156, 156, 156)


def test_threads_take_turns():
    """verl's reward loop calls from a pool of threads."""
    inside, most = [], []

    def reward(rollout):
        inside.append(rollout)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()
        return torch.ones(len(rollout))

    scorer = Scorer("slow", reward)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: scorer([text], None, None), SAID))
    assert found == [[1.0]] * len(SAID)
    assert set(most) == {1}


def test_other_rewards(listener, tmp_path):
    pictures, texts = images(2), CAPTIONS[:2]
    matcher = called_by_trl(for_trl("itm", model=tiny_blip_itm(tmp_path / "itm"), device="cpu"), texts, image=pictures)
    assert len(set(matcher)) == 2
    truth = for_trl("truth", model=tmp_path / "itm", device="cpu", floor=-1e-9)
    assert called_by_trl(truth, texts, image=pictures) == pytest.approx([0, 0], abs=1e-6)
    likely = called_by_trl(for_trl("language_model", model=saved(tmp_path / "lm"), device="cpu"), texts)
    assert all(value < 0 for value in likely)
    frequencies = DocumentFrequencies.from_references({str(i): [text] for i, text in enumerate(CAPTIONS)}, end="<eos>")
    cider = for_trl("cider_d", model=frequencies)
    found = called_by_trl(cider, texts, references=[[texts[0]], texts[0]])
    assert found[0] == pytest.approx(10)
    assert found[1] < found[0]


def test_what_cannot_be_given_away(listener):
    for name, told in (
        ("likelihood", "gallery"),
        ("oracle", "scenes"),
        ("context", "matcher and contexts of a training"),
        ("clip_t", "clip_s"),
    ):
        with pytest.raises(UsageError, match=told):
            for_trl(name, model=listener)
    with pytest.raises(UsageError, match="reward cider_d lacks its document frequencies: give model="):
        for_trl("cider_d")
    with pytest.raises(UsageError, match="reward clip_s lacks its listener: give model="):
        for_trl("clip_s")


def test_what_trainers_give_besides_text(listener, tmp_path):
    """A call of a tool has no text, a conversation may be empty, a caption missing; columns of another length do not fit."""
    reward = for_trl("clip_s", model=listener)
    picture = images(1)[0]
    conversations = [[{"role": "assistant", "content": None}], [], [{"role": "assistant", "content": SAID[0]}], ""]
    found = reward(completions=conversations, image=[picture] * 4)
    said = reward(completions=[SAID[0], ""], image=[picture] * 2)
    assert found == pytest.approx([said[1], said[1], said[0], said[1]], abs=1e-5)
    with pytest.raises(UsageError, match="1 images came with 2 captions"):
        reward(completions=SAID[:2], image=[picture])
    cider = for_trl(
        "cider_d", model=DocumentFrequencies.from_references({text: [text] for text in CAPTIONS[:9]}, end="<eos>")
    )
    assert cider(completions=SAID[:1], references=[[SAID[0], None]]) == cider(
        completions=SAID[:1], references=[[SAID[0]]]
    )
    with pytest.raises(UsageError, match="3 references came with 1 captions"):
        cider(completions=SAID[:1], references=[SAID[0]] * 3)


def test_numbers_out_of_range_are_sentences(tmp_path):
    matcher = tiny_blip_itm(tmp_path / "itm")
    for name, option in (("truth", {"floor": 3}), ("claim_f1", {"true_from": 3})):
        with pytest.raises(UsageError, match=f"reward {name}: "):
            for_trl(name, model=matcher, device="cpu", **option)


@pytest.mark.parametrize("make", [for_trl, for_verl])
def test_options_that_are_none(listener, tmp_path, make):
    with pytest.raises(UsageError, match=r"'clampp' is not an option of reward clip_s: did you mean clamp\?"):
        make("clip_s", model=listener, clampp=True)
    with pytest.raises(UsageError, match="'listener' is not an option of reward clip_s"):
        make("clip_s", model=listener, listener=listener)
    for name in ("clip_s", "itm", "language_model", "grammar", "cider_d"):
        with pytest.raises(UsageError, match="'dtyp' is not an option of opening the model"):
            make(name, model=tmp_path, opening={"dtyp": "bfloat16"})
    with pytest.raises(UsageError, match="for a model given by its path or id"):
        make("clip_s", model=listener, opening={"dtype": "bfloat16"})
    with pytest.raises(UsageError, match="reward meteor reads no model: leave model= out"):
        make("meteor", model=tmp_path)
    for name, stage in (("clip_s", "world/xe"), ("itm", "world/verifier"), ("language_model", "world/language_model")):
        with pytest.raises(
            UsageError, match=f"'{stage}' is a stage of the built-in world, .* its folder, tellapart.world"
        ):
            make(name, model=stage)


@pytest.mark.parametrize("make", [for_trl, for_verl])
def test_a_device_that_is_not_here(listener, make):
    with pytest.raises(UsageError, match=r"device is 'gpu9', which cannot be used here \(.*\): name another, or leave"):
        make("clip_s", model=listener, device="gpu9")


def test_verl_calls_one_or_many(listener, tmp_path):
    pictures, texts = images(2), SAID[:2]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    infos = [{"image": str(tmp_path / f"{number}.png"), "index": number} for number in range(2)]
    compute_score = for_verl("clip_s", model=listener)
    wanted = expected(Similarity, listener, pictures, texts)
    one = compute_score(data_source="photos", solution_str=texts[0], ground_truth=None, extra_info=infos[0])
    assert one == pytest.approx(wanted[0], abs=1e-6)
    assert isinstance(one, float)
    assert compute_score("photos", texts[1], "", infos[1], reward_router_address=None) == pytest.approx(
        wanted[1], abs=1e-6
    )
    many = compute_score(
        data_sources=["photos"] * 2, solution_strs=texts, ground_truths=["", ""], extra_infos=infos, some_kwarg=1
    )
    assert many == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(UsageError, match="extra_info as 'image'"):
        compute_score("photos", texts[0], "", None)


def test_verl_reads_references_of_the_ground_truth(listener, tmp_path):
    (picture,) = images(1)
    picture.save(tmp_path / "0.png")
    compute_score = for_verl("ref_clip_s", model=listener)
    info = {"image": str(tmp_path / "0.png")}
    truth = compute_score("photos", SAID[0], SAID[3], info)
    assert truth == compute_score("photos", SAID[0], None, info | {"references": [SAID[3]]})
    assert truth == pytest.approx(expected(RefSimilarity, listener, [picture], SAID[:1], [[SAID[3]]])[0], abs=1e-6)


def test_what_a_reward_does_not_read_is_not_looked_at(tmp_path):
    """verl gives every reward the ground truth of the data, whatever that is."""
    model = saved(tmp_path / "lm")
    compute_score = for_verl("language_model", model=model, device="cpu")
    said = compute_score("x", "a red car", None, {})
    for truth in (7, {"target": "y"}, {"a": 1}):
        assert compute_score("x", "a red car", truth, {"references": 3}) == said
    assert for_trl("language_model", model=model, device="cpu")(["a red car"], references=[3]) == [said]


def test_references_are_captions_or_lists_of_them(listener, tmp_path):
    (picture,) = images(1)
    picture.save(tmp_path / "0.png")
    compute_score, info = for_verl("ref_clip_s", model=listener), {"image": str(tmp_path / "0.png")}
    truth = compute_score("photos", SAID[0], SAID[3], info)
    for missing in (None, [], [""], " "):
        assert compute_score("photos", SAID[0], SAID[3], info | {"references": missing}) == truth
    assert compute_score("photos", SAID[0], [" ", SAID[3]], info) == truth
    with pytest.raises(UsageError, match=r"references of a row are a mapping \(target\): give a caption, or a list"):
        compute_score("photos", SAID[0], {"target": SAID[3]}, info)
    with pytest.raises(UsageError, match=r"references of a row are 7: give a caption, or a list"):
        compute_score("photos", SAID[0], 7, info)


def test_they_are_of_the_package():
    assert tellapart.rewards.for_trl is for_trl
    with pytest.raises(AttributeError, match="for_others"):
        _ = tellapart.rewards.for_others
