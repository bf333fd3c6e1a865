"""Objectives that take several turns in a step: one part learns before another one uses it."""

from __future__ import annotations

from dataclasses import replace

import torch
from training_toys import Toy, toy_config, toy_data

from tellapart.training.loop import train
from tellapart.types import StepOutput


class TwoTurns(Toy):
    """The critic learns first; the captioner's target is then what the critic says."""

    turns = 2

    def collect(self, batch, step):
        return replace(super().collect(batch, step), target=None)

    def prepare(self, experiences, gather):
        if not hasattr(self, "before") or experiences[0].target is None:
            self.before = self.critic.weight.detach().clone()
            return [replace(e, target=torch.empty(0)) for e in experiences]
        assert not torch.equal(self.before, self.critic.weight), (
            "the first turn was applied before the second is prepared"
        )
        assert not torch.is_grad_enabled()
        assert not self.training
        return [replace(e, target=self.critic(e.batch.inputs["toy"]["x"])[:, 0]) for e in experiences]

    def losses(self, experience):
        x = experience.batch.inputs["toy"]["x"]
        if not len(experience.target):
            error = self.critic(x)[:, 0] - 1
            yield StepOutput((error**2).sum(), torch.tensor(float(len(x))), {"critic": error.detach()})
            return
        error = self.captioner(x)[:, 0] - experience.target
        yield StepOutput((error**2).sum(), torch.tensor(float(len(x))), {"captioner": error.detach()})


def test_a_part_learns_before_the_next_turn_is_prepared(tmp_path):
    objective = TwoTurns()
    history = train(objective, toy_data(), toy_config(tmp_path, max_steps=3)).history
    for line in history:
        assert line["grad_norm/captioner"] > 0
        assert line["grad_norm/critic"] > 0
        assert {"critic", "captioner"} <= set(line)
        assert line["learning_rate/captioner"] == 0.01
    # one turn of each part by hand: the same weights
    other = TwoTurns()
    losses = []
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.0)
    from tellapart.data.loader import Cut

    for [batch] in toy_data().batches(Cut(8), seed=3, stop=3):
        x = batch.inputs["toy"]["x"]
        total = 0.0
        for turn in range(2):
            wanted = torch.ones(8) if turn == 0 else other.critic(x)[:, 0].detach()
            part = (other.critic, other.captioner)[turn].eval()
            loss = ((part(x)[:, 0] - wanted) ** 2).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach())
        losses.append(total)
    torch.testing.assert_close([line["loss"] for line in history], losses)
    for mine, theirs in zip(objective.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_micro_batches_share_the_turns(tmp_path):
    whole, parts = TwoTurns(), TwoTurns()
    train(whole, toy_data(), toy_config(tmp_path / "one", max_steps=2))
    cut = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    train(parts, toy_data(), toy_config(tmp_path / "four", max_steps=2, **cut))
    for mine, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


class Alternating(Toy):
    """Captioner and critic learn in turns, a step each."""

    period = 2

    def losses(self, experience):
        name = "critic" if experience.step % 2 else "captioner"
        x = experience.batch.inputs["toy"]["x"]
        error = getattr(self, name)(x)[:, 0] - 1
        yield StepOutput((error**2).sum(), torch.tensor(float(len(x))), {name: error.detach()})


def test_of_parts_that_learn_in_turns_each_is_logged(tmp_path):
    """Every ten steps fall on the critic's turn; the captioner's is the step before."""
    history = train(Alternating(), toy_data(), toy_config(tmp_path, max_steps=23, logging_steps=10)).history
    told = [(line["step"], "captioner" in line, "critic" in line) for line in history]
    assert told == [(step, step % 2 == 1, step % 2 == 0) for step in (9, 10, 19, 20, 22, 23)]
    assert all(line["grad_norm/captioner"] > 0 for line in history if "captioner" in line)
