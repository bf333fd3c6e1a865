import json
import logging
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from discriminator_fakes import captions as caption_rollout
from discriminator_fakes import pictures, tiny_listener
from tellapart.data.center_crop import center_cropped
from tellapart.data.clips import ClipFile
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.images import ImageFile
from tellapart.data.loader import TrainingData
from tellapart.errors import UsageError
from tellapart.files import cache_dir
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.loading import model_digest
from tellapart.objectives.discriminator import DiscriminatorPretraining
from tellapart.pretraining import discriminator as experiments
from tellapart.pretraining import start_captions
from tellapart.pretraining.discriminator import pretrain, pretrained_discriminator
from tellapart.pretraining.discriminator_accuracy import HeldOut, measure, tell
from tellapart.pretraining.discriminator_settings import DiscriminatorSettings
from tellapart.pretraining.start_captions import StartCaptions, WithCorrupted, alone
from tellapart.rewards.discriminator import MLPDiscriminator, load_discriminator
from tellapart.training.optim import trained_parts
from tellapart.types import Batch
from tiny.idefics3 import tiny_smolvlm
from tiny_models import tiny_ved
from two_processes import run_two

SETTINGS = DiscriminatorSettings(
    pretraining_steps=12, batch_size=8, num_beams=2, max_new_tokens=8, held_out=4, learning_rate=1e-3
)


@pytest.fixture(scope="module")
def captioner():
    return tiny_ved()


@pytest.fixture(scope="module")
def listener():
    return tiny_listener()


@pytest.fixture(scope="module")
def dataset():
    return pictures(40)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, listener):
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(start_captions, "IMAGES_AT_ONCE", 8)
    listener.forget_images()


@pytest.fixture
def parts(captioner, listener, dataset):
    return captioner, listener, dataset, Collate({captioner.name: captioner.process})


def weights(discriminator) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in discriminator.state_dict().values()])


def counting(monkeypatch, captioner) -> list[str]:
    """Ids of the images whose captions are drawn from now on."""
    drawn: list[str] = []
    generate = type(captioner).generate

    def counted(self, batch, decoding, *, encoded=None):
        drawn.extend(batch.ids)
        return generate(self, batch, decoding, encoded=encoded)

    monkeypatch.setattr(type(captioner), "generate", counted)
    return drawn


def mixing(monkeypatch) -> None:
    """From now on a text's embedding depends on the texts it is embedded with, on any CPU."""
    embed = ClipListener._embed_ids

    def mixed(self, ids):
        rows = embed(self, ids)
        return torch.nn.functional.normalize(rows + 0.1 * rows.sum(dim=0), dim=-1)

    monkeypatch.setattr(ClipListener, "_embed_ids", mixed)


def stopping(monkeypatch, *, after: int) -> None:
    """Ctrl-C at a step."""
    loss, calls = MLPDiscriminator.loss, []

    def loss_or_stop(self, real, fake):
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt
        return loss(self, real, fake)

    monkeypatch.setattr(MLPDiscriminator, "loss", loss_or_stop)


def test_the_objective_trains_the_discriminator_alone(parts):
    captioner, listener, dataset, collate = parts
    listener.cache_images(dataset)
    batch = collate(dataset.examples[:6])
    objective = DiscriminatorPretraining(
        MLPDiscriminator(listener),
        lambda images: captioner.generate(images, SETTINGS.decoding()),
        captioner.tokenize,
    )
    assert list(trained_parts(objective)) == ["discriminator"]
    assert len(list(objective.children())) == 1
    torch.manual_seed(5)
    with torch.no_grad():
        sides = objective.collect(batch, 0)
    assert [text in references for text, references in zip(sides.real.texts, batch.references, strict=True)] == [
        True
    ] * 6
    assert sides.fake.texts == captioner.generate(batch, SETTINGS.decoding()).texts
    # which reference is taken depends on the image, not on the batch around it
    torch.manual_seed(5)
    assert objective.collect(batch.select([4, 1]), 0).real.texts == [sides.real.texts[4], sides.real.texts[1]]
    seen = set()
    for seed in range(8):
        torch.manual_seed(seed)
        seen.add(objective.collect(batch.select([0]), 0).real.texts[0])
    assert seen == set(batch.references[0])
    [piece] = objective.losses(sides)
    losses, _ = objective.discriminator.loss(sides.real, sides.fake)
    assert float(piece.loss.detach()) == pytest.approx(float(losses.detach().sum()))
    assert float(piece.weight) == 12
    with pytest.raises(UsageError, match="image 'lonely' has no caption"):
        objective.collect(Batch(["lonely"], [[" "]]), 0)


def test_trained_once_and_kept(parts, monkeypatch, caplog):
    captioner, _, dataset, _ = parts
    drawn = counting(monkeypatch, captioner)
    before = [value.clone() for value in captioner.state_dict().values()]
    with caplog.at_level(logging.INFO):
        first, found = pretrain(*parts, SETTINGS)
    assert sorted(drawn) == sorted(dataset.ids)  # each image once, though the steps went over them two times and more
    assert all(torch.equal(*pair) for pair in zip(before, captioner.state_dict().values(), strict=True))
    assert found.images == 4
    drawn.clear()
    monkeypatch.setattr(experiments, "train", lambda *_, **__: pytest.fail("trained again"))
    again, same = pretrain(*parts, SETTINGS)
    assert (torch.equal(weights(again), weights(first)), same, drawn) == (True, found, [])
    [folder] = [path for path in (cache_dir() / "discriminators").glob("mlp-*") if path.is_dir()]
    assert not folder.name.endswith("unfinished")
    told = json.loads((folder / "pretraining.json").read_text())
    assert told["settings"]["pretraining_steps"] == 12
    assert "discriminator/accuracy" in told["history"][-1]


def test_another_start_model_listener_or_setting_is_another_discriminator(parts, monkeypatch):
    captioner, listener, dataset, _ = parts
    keys = {experiments._key(captioner, listener, dataset, None, SETTINGS)}
    for change in ({"pretraining_steps": 13}, {"kind": "text"}, {"seed": 1}, {"corrupted": 0.5}, {"num_beams": 3}):
        keys.add(experiments._key(captioner, listener, dataset, None, replace(SETTINGS, **change)))
    keys.add(experiments._key(tiny_ved(seed=1), listener, dataset, None, SETTINGS))
    keys.add(experiments._key(captioner, tiny_listener(seed=1), dataset, None, SETTINGS))
    keys.add(experiments._key(captioner, listener, dataset[:39], None, SETTINGS))
    keys.add(experiments._key(captioner, listener, dataset, pictures(5, name="val"), SETTINGS))
    assert len(keys) == 10
    # two kinds against one start model share its captions
    pretrain(*parts, SETTINGS)
    drawn = counting(monkeypatch, captioner)
    pretrain(*parts, replace(SETTINGS, kind="text"))
    assert drawn == []


def test_other_pictures_under_the_same_names_are_captioned_again(listener, tmp_path):
    """Ids and references are equal where files of a folder were replaced, or where another folder has them in another size."""

    def of(path):
        return CaptionDataset([Example("a", ImageFile(path), ("a red dog",))], name="photos")

    small, large, missing = (of(tmp_path / f"{name}.png") for name in ("small", "large", "missing"))
    for side, name in ((8, "small"), (16, "large")):
        Image.effect_noise((side, side), 50).save(tmp_path / f"{name}.png")
    assert len({start_captions.data_digest(each) for each in (small, large, missing)}) == 3
    assert start_captions.data_digest(center_cropped(small)) != start_captions.data_digest(center_cropped(large))
    assert start_captions.data_digest(missing) == TrainingData(missing, Collate({})).fingerprint()
    captioner = tiny_ved()
    keys = {experiments._key(captioner, listener, each, None, SETTINGS) for each in (small, large)}
    assert len(keys) == 2


def test_other_frames_of_clips_are_another_discriminator(listener):
    def clips(sampling):
        examples = [Example("a", ClipFile(Path("a.mp4"), sampling), ("a red dog",))]
        return CaptionDataset(examples, name="clips")

    uniform, key_frames = clips("uniform"), clips("key_frames")
    cropped = center_cropped(key_frames)
    captioner = tiny_smolvlm()
    keys = [experiments._key(captioner, listener, of, None, SETTINGS) for of in (uniform, key_frames, cropped)]
    # As they were before frames counted, where nothing is asked for.
    assert start_captions.captioner_digest(captioner) == model_digest(
        captioner, type(captioner).__name__, captioner.family.prompt
    )
    assert start_captions.data_digest(uniform) == TrainingData(uniform, Collate({})).fingerprint()
    for captioner.num_frames in (2, 4):
        keys.append(experiments._key(captioner, listener, uniform, None, SETTINGS))
    assert len(set(keys)) == 5


@pytest.mark.parametrize("rows_mix", [False, True])
def test_a_stopped_pretraining_goes_on_to_the_same_weights(rows_mix, parts, monkeypatch, tmp_path):
    if rows_mix:
        mixing(monkeypatch)
    whole, found = pretrain(*parts, SETTINGS)
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "second"))
    with monkeypatch.context() as patch:
        stopping(patch, after=7)
        with pytest.raises(KeyboardInterrupt):
            pretrain(*parts, SETTINGS)
    [work] = (cache_dir() / "discriminators").glob("*-unfinished")
    assert (work / "checkpoint-7" / "discriminator" / "discriminator.json").is_file()
    load_discriminator(work / "checkpoint-7", parts[1])
    drawn = counting(monkeypatch, parts[0])
    steps: list[int] = []
    collect = DiscriminatorPretraining.collect
    monkeypatch.setattr(
        DiscriminatorPretraining,
        "collect",
        lambda self, batch, step: (steps.append(step), collect(self, batch, step))[1],
    )
    resumed, same = pretrain(*parts, SETTINGS)
    assert steps == [7, 8, 9, 10, 11]
    assert drawn == []
    assert torch.equal(weights(resumed), weights(whole))
    assert same == found
    assert not list((cache_dir() / "discriminators").glob("*-unfinished"))


def test_what_a_kill_left_of_a_finished_pretraining_is_removed(parts, monkeypatch):
    """The checkpoints stayed in the cache where the kill came between the last write and their removal."""
    with monkeypatch.context() as patch:
        patch.setattr("tellapart.pretraining.discriminator.shutil.rmtree", lambda *_, **__: None)
        first, _ = pretrain(*parts, SETTINGS)
    assert list((cache_dir() / "discriminators").glob("*-unfinished/checkpoint-*"))
    monkeypatch.setattr(experiments, "train", lambda *_, **__: pytest.fail("trained again"))
    again, _ = pretrain(*parts, SETTINGS)
    assert torch.equal(weights(again), weights(first))
    assert not list((cache_dir() / "discriminators").glob("*-unfinished"))


def test_a_pretraining_stopped_at_its_end_is_measured_alike(parts, monkeypatch, tmp_path):
    """What the last step read is unknown to the process that measures."""
    mixing(monkeypatch)
    captioner, listener, dataset, collate = parts
    few = [replace(example, references=dataset[i % 5].references) for i, example in enumerate(dataset)]
    parts = captioner, listener, CaptionDataset(few, name="image"), collate
    answers: list[torch.Tensor] = []
    forward = MLPDiscriminator.forward

    def spied(self, rollout):
        answers.append(forward(self, rollout))
        return answers[-1]

    monkeypatch.setattr(MLPDiscriminator, "forward", spied)
    pretrain(*parts, SETTINGS)
    whole = answers.copy()
    answers.clear()
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "second"))
    with monkeypatch.context() as patch:
        patch.setattr(experiments, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(*parts, SETTINGS)
    pretrain(*parts, SETTINGS)
    assert len(whole) == 2
    assert all(torch.equal(*pair) for pair in zip(whole, answers, strict=True))


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_stopped_drawing_goes_on(parts, monkeypatch):
    captioner, _, dataset, collate = parts
    wanted = dataset.ids[:30]
    whole = start_captions.start_captions(captioner, dataset, wanted, collate, SETTINGS.decoding())
    [path] = (cache_dir() / "discriminators" / "captions").glob("*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    assert [name for line in lines for name in json.loads(line)["ids"]] == wanted
    path.write_text("".join(lines[:2]) + lines[2][:40])  # killed within the third batch
    drawn = counting(monkeypatch, captioner)
    again = start_captions.start_captions(captioner, dataset, wanted, collate, SETTINGS.decoding())
    assert drawn == wanted[16:]
    assert (again.texts, again.finished) == (whole.texts, whole.finished)
    assert path.read_text() == "".join(lines)


@pytest.mark.parametrize(
    "before", [[], [3], [8, 9, 10, 11, 12, 13, 14, 15], list(range(5, 37)), list(range(39, -1, -1))]
)
def test_what_was_drawn_before_changes_no_caption(before, parts, monkeypatch):
    """Not even where a caption depends on the batch that it is drawn in."""
    captioner, _, dataset, collate = parts
    generate = type(captioner).generate

    def naming_the_batch(self, batch, decoding, *, encoded=None):
        rollout = generate(self, batch, decoding, encoded=encoded)
        return replace(rollout, texts=[f"{name} of {','.join(batch.ids)}" for name in rollout.ids()])

    monkeypatch.setattr(type(captioner), "generate", naming_the_batch)
    ids = dataset.ids
    if before:
        start_captions.start_captions(captioner, dataset, [ids[i] for i in before], collate, SETTINGS.decoding())
    drawn = counting(monkeypatch, captioner)
    found = start_captions.start_captions(captioner, dataset, ids[:30], collate, SETTINGS.decoding()).texts
    batches = [ids[:8], ids[8:16], ids[16:24], ids[24:30]]
    assert found == {name: f"{name} of {','.join(batch)}" for batch in batches for name in batch}
    assert len(drawn) == (22 if before == list(range(8, 16)) else 30)


def test_samples_follow_from_seed_and_image(parts):
    captioner, _, dataset, collate = parts
    sampled = replace(SETTINGS, num_beams=1, do_sample=True).decoding()
    one = start_captions.start_captions(captioner, dataset, dataset.ids[:20], collate, sampled, seed=1)
    two = start_captions.start_captions(captioner, dataset, dataset.ids[:20], collate, sampled, seed=2)
    assert one.texts != two.texts
    few = start_captions.start_captions(captioner, dataset[3:9], dataset.ids[3:9], collate, sampled, seed=1)
    assert few.texts == {name: one.texts[name] for name in dataset.ids[3:9]}


def test_captions_keep_whether_they_ended(captioner):
    kept = StartCaptions({"a": "a red circle", "b": "a blue"}, {"a": True, "b": False}, captioner.tokenize)
    rollout = kept(Batch(["b", "a"], [[], []]))
    assert rollout.texts == ["a blue", "a red circle"]
    assert rollout.finished.tolist() == [False, True]


def test_held_out_images_are_never_learned_from(parts, monkeypatch):
    learned: set[str] = set()
    collect = DiscriminatorPretraining.collect

    def spied(self, batch, step):
        learned.update(batch.ids)
        return collect(self, batch, step)

    measured: list[str] = []
    monkeypatch.setattr(DiscriminatorPretraining, "collect", spied)
    monkeypatch.setattr(
        experiments,
        "measure",
        lambda d, held, *_, **__: (measured.extend(held.ids), HeldOut(len(held), 0.7, 0.7, 0.7))[1],
    )
    pretrain(*parts, SETTINGS)
    assert len(measured) == 4
    assert not learned & set(measured)
    assert learned | set(measured) == set(parts[2].ids)
    measured.clear()
    val = pictures(6, name="val")
    pretrain(*parts, SETTINGS, held_out=val)
    assert measured == val.ids


def test_held_out_images_with_ids_of_other_training_images_are_refused(parts):
    """The accuracy was that of the held-out captions with the training images of these ids."""
    val = pictures(6, name="val")
    named = [replace(example, id=f"image-{place}") for place, example in enumerate(val)]
    with pytest.raises(UsageError, match="image id 'image-0' names two different pictures"):
        pretrain(*parts, SETTINGS, held_out=CaptionDataset(named, name="val"))


def test_few_steps_draw_few_captions(parts, monkeypatch):
    drawn = counting(monkeypatch, parts[0])
    pretrain(*parts, replace(SETTINGS, pretraining_steps=2, held_out=0))
    assert len(drawn) == len(set(drawn)) == 16
    pretrain(*parts, replace(SETTINGS, pretraining_steps=3, held_out=0))
    assert len(drawn) == len(set(drawn)) == 24  # longer ones share them


def test_other_images_held_out_share_the_captions(parts, monkeypatch):
    pretrain(*parts, SETTINGS)
    drawn = counting(monkeypatch, parts[0])
    pretrain(*parts, replace(SETTINGS, seed=1))
    pretrain(*parts, replace(SETTINGS, held_out=2))
    assert drawn == []


def test_held_out_accuracy_counts_both_sides(captioner, dataset):
    class Table(MLPDiscriminator):
        def __init__(self):
            torch.nn.Module.__init__(self)

        def forward(self, rollout):
            return torch.tensor([float(text) for text in rollout.texts])

    def read(batch, texts, image):
        return caption_rollout(["0.9"] * len(texts), batch=batch)

    class Reads:
        tokenize = staticmethod(read)

    drawn = StartCaptions(
        dict(zip(dataset.ids, ["0.1", "0.2", "0.5", "0.7"] * 10, strict=True)),
        dict.fromkeys(dataset.ids, True),
        lambda batch, texts, image: caption_rollout(texts, batch=batch),
    )
    assert measure(Table(), dataset, drawn, Reads()) == HeldOut(40, 0.75, 1.0, 0.5)


def test_what_is_said_of_the_accuracy(caplog):
    with caplog.at_level(logging.INFO):
        tell("mlp", HeldOut(500, 0.508, 0.5, 0.516))
        tell("text", HeldOut(500, 0.83, 0.8, 0.86))
        tell("text", None)
    useless, fair, unknown = caplog.records
    assert useless.levelname == unknown.levelname == "WARNING"
    assert "tells 50.8 % of the captions of 500 images that it did not learn from right" in useless.getMessage()
    assert fair.levelname == "INFO"
    assert "the text discriminator tells 83.0 % of the captions of 500 images" in fair.getMessage()
    assert "hold some images out" in unknown.getMessage()


def test_the_factory_starts_from_a_folder_or_from_nothing(parts, tmp_path):
    trained = pretrained_discriminator(*parts, SETTINGS)
    assert trained.watch is not None
    trained.save(tmp_path / "saved")
    loaded = pretrained_discriminator(*parts, DiscriminatorSettings(kind="text", path=tmp_path / "saved"))
    assert isinstance(loaded, MLPDiscriminator)
    assert loaded.watch is not None
    assert torch.equal(weights(loaded), weights(trained))
    state = torch.random.get_rng_state()
    fresh = [pretrained_discriminator(*parts, replace(SETTINGS, pretraining_steps=0, seed=seed)) for seed in (0, 0, 1)]
    assert torch.equal(weights(fresh[0]), weights(fresh[1]))
    assert not torch.equal(weights(fresh[0]), weights(fresh[2]))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_spoilt_references_in_place_of_captions(captioner, dataset):
    batch = Collate({})(dataset.examples[:20])
    kept = StartCaptions(dict.fromkeys(dataset.ids, "a star"), dict.fromkeys(dataset.ids, False), captioner.tokenize)
    spoilt = WithCorrupted(kept, captioner.tokenize, 0.5, ["moon", "table"])
    torch.manual_seed(0)
    rollout = spoilt(batch)
    changed = [text != "a star" for text in rollout.texts]
    assert 4 <= sum(changed) <= 16
    assert rollout.finished.tolist() == changed
    torch.manual_seed(0)
    assert spoilt(batch.select([7, 3])).texts == [rollout.texts[7], rollout.texts[3]]
    for share, replaced in ((0.0, 0), (1.0, 20)):
        texts = replace(spoilt, share=share)(batch).texts
        assert sum(text != "a star" for text in texts) == replaced
    assert not any(text in references for text, references in zip(texts, batch.references, strict=True))


def test_pretraining_with_spoilt_references(parts):
    pure, _ = pretrain(*parts, SETTINGS)
    mixed, _ = pretrain(*parts, replace(SETTINGS, corrupted=0.5))
    assert not torch.equal(weights(pure), weights(mixed))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "oracle"}, "kind='oracle' must be one of mlp, text, dot_product"),
        ({"pretraining_steps": -1}, "pretraining_steps=-1 must be at least 0"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"corrupted": 1.5}, "corrupted=1.5 must be from 0 to 1"),
        ({"see_image": False}, "discriminator.see_image is for kind text, and mlp reads the image always"),
        ({"do_sample": True}, "do_sample with num_beams=5 is not supported: set num_beams=1"),
    ],
)
def test_settings_that_cannot_be_used(options, said):
    with pytest.raises((UsageError, ValueError), match=said):
        DiscriminatorSettings(**options)


def test_settings_cost_no_torch():
    code = "import sys, tellapart.pretraining.discriminator_settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_second_process_waits(tmp_path, caplog):
    order: list[str] = []

    def second():
        with alone(tmp_path / "thing"):
            order.append("second")

    with caplog.at_level(logging.WARNING):
        with alone(tmp_path / "thing"):
            thread = threading.Thread(target=second)
            thread.start()
            time.sleep(0.2)
            order.append("first")
        thread.join()
    assert order == ["first", "second"]
    assert "waiting for another process" in caplog.text


TWO = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
import torch
torch.set_num_threads(1)
import torch.distributed as dist
from filelock import FileLock, Timeout
from discriminator_fakes import pictures, tiny_listener
from tellapart.data.dataset import Collate
from tellapart.pretraining.discriminator import pretrain
from tellapart.pretraining.start_captions import alone
from test_discriminator_pretraining import SETTINGS
from tiny_models import tiny_ved

rank, folder = os.environ["RANK"], Path(sys.argv[1])
with alone(folder / "thing"):
    time.sleep(2 * int(rank))  # the main process is through long before the other looks
    try:
        FileLock(folder / "thing.lock").acquire(timeout=0)
    except Timeout:
        (folder / f"held-{rank}").touch()
os.environ["TELLAPART_CACHE"] = str(folder / rank)  # as on two machines without a common disk
captioner = tiny_ved()
discriminator, _ = pretrain(
    captioner, tiny_listener(), pictures(40), Collate({captioner.name: captioner.process}), SETTINGS
)
discriminator.save(folder / f"trained-{rank}")
dist.destroy_process_group()
"""


def test_ctrl_c_says_that_the_same_command_goes_on(parts, monkeypatch):
    loss, calls = MLPDiscriminator.loss, []

    def loss_and_signal(self, real, fake):
        calls.append(1)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return loss(self, real, fake)

    monkeypatch.setattr(MLPDiscriminator, "loss", loss_and_signal)
    told = r"pre-training of the discriminator stopped at step 5 of 12; the same command resumes"
    with pytest.raises(KeyboardInterrupt, match=told) as stopped:
        pretrain(*parts, SETTINGS)
    assert "resume_from_checkpoint" not in str(stopped.value)


def test_a_stopped_pretraining_starts_anew_with_other_steps(parts, monkeypatch):
    five = replace(SETTINGS, batch_size=5)
    with monkeypatch.context() as patch:
        stopping(patch, after=7)
        with pytest.raises(KeyboardInterrupt):
            pretrain(*parts, five)
    monkeypatch.setattr(experiments, "_share", lambda *_: 4)  # as with two processes, which share out the five images
    discriminator, _ = pretrain(*parts, five)
    assert discriminator is not None
    assert not list((cache_dir() / "discriminators").glob("*unfinished"))


@pytest.mark.slow
def test_processes_of_a_launch_hold_together_and_train_together(parts, monkeypatch, tmp_path):
    # the second process finds the result, the first does not
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "1"))
    pretrain(*parts, SETTINGS)
    script, here = tmp_path / "script.py", Path(__file__).resolve().parent
    script.write_text(TWO)
    run_two(str(script), str(tmp_path), timeout=100, PYTHONPATH=f"{here}:{here.parent}")
    assert sorted(path.name for path in tmp_path.glob("held-*")) == ["held-0", "held-1"]
    assert all((tmp_path / f"trained-{rank}" / "discriminator.json").is_file() for rank in "01")
    for rank in "01":
        [folder] = [path for path in (tmp_path / rank / "discriminators").glob("mlp-*") if path.is_dir()]
        assert (folder / "pretraining.json").is_file()
