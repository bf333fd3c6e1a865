"""The loop with a real (tiny) captioner and a published method."""

import pytest
import torch

from pictures import CAPTIONS, images
from tellapart.data.dataset import CaptionDataset, Collate, Example
from tellapart.data.loader import TrainingData
from tellapart.objectives.scst import SCST
from tellapart.training.config import TrainConfig
from tellapart.training.loop import train
from tellapart.training.start import two_pictures
from tiny_models import tiny_ved


class Picture:
    def __init__(self, image):
        self.image = image

    def open(self):
        return self.image

    def fingerprint(self):
        return str(hash(self.image.tobytes()))


def overlap(rollout):
    """Share of a caption's words that its references use, minus a little for length."""
    rewards = []
    for text, references in zip(rollout.texts, rollout.references(), strict=True):
        known, words = set(" ".join(references).split()), text.split()
        rewards.append(sum(word in known for word in words) / (1 + len(words)) - 0.01 * len(words))
    return torch.tensor(rewards)


def run(folder, *, batch=4, pieces=1, **options):
    captioner = tiny_ved(layers=1)
    examples = [Example(str(i), Picture(image), tuple(CAPTIONS[i : i + 2])) for i, image in enumerate(images(6))]
    data = TrainingData(CaptionDataset(examples, name="pictures"), Collate({captioner.name: captioner.process}))
    objective = SCST(captioner, overlap, num_generations=3, max_new_tokens=8, kl_coef=0.1, kl_in="loss")
    config = TrainConfig(
        output_dir=folder,
        learning_rate=1e-3,
        max_steps=options.pop("max_steps", 4),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=pieces,
        logging_steps=1,
        **options,
    )
    return captioner, train(objective, data, config)


def largest_difference(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.float() - b.float()).abs().max()) for a, b in pairs)


def test_micro_batches_draw_the_same_captions_and_learn_the_same(tmp_path):
    start = tiny_ved(layers=1)
    # An epsilon above the gradients' rounding keeps AdamW from turning its noise into whole steps.
    whole, one = run(tmp_path / "whole", adam_epsilon=1e-3)
    cut, four = run(tmp_path / "cut", batch=1, pieces=4, adam_epsilon=1e-3)
    assert largest_difference(whole, start) > 1e-4, "it learns"
    assert largest_difference(whole, cut) < 1e-6
    for line, other in zip(one.history, four.history, strict=True):
        assert line["reward"] == pytest.approx(other["reward"], abs=1e-6)
        assert line["loss"] == pytest.approx(other["loss"], abs=1e-5)


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    """Also the KL term: its reference is the start model, not the checkpoint."""
    whole, one = run(tmp_path / "whole", save_steps=2)
    (tmp_path / "cut").mkdir()
    (tmp_path / "whole" / "checkpoint-2").rename(tmp_path / "cut" / "checkpoint-2")
    resumed, two = run(tmp_path / "cut", resume_from_checkpoint="last")
    assert largest_difference(whole, resumed) == 0
    for line, other in zip(one.history[2:], two.history, strict=True):
        assert line["step"] == other["step"]
        assert line["kl"] == other["kl"] != 0  # an estimate from few samples, of either sign
        assert line["loss"] == other["loss"]


def test_pictures_that_look_alike_do_not_check_a_captioner():
    """A copy in another file, with eight other pictures behind it, ended a training before it began."""
    first, *others = [Picture(image) for image in images(4)]
    copy = Picture(first.image)
    copy.fingerprint = lambda: "another file"
    captioner = tiny_ved()
    dataset = CaptionDataset(
        [Example(str(i), picture, ("a",)) for i, picture in enumerate([first, copy, *others])], name="x"
    )
    chosen = two_pictures(dataset, Collate({captioner.name: captioner.process}))
    assert [example.id for example in chosen] == ["0", "2"]
