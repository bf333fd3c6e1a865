"""The published vectors of WTF-RL and its baselines, through the objective classes."""

import pytest
import torch
from wtf_fakes import TableCaptioner, TableDiscriminator, TableListener, TableNeighbours, batch_of, learn, step

from given import double, vector
from tellapart.objectives import METHODS
from tellapart.objectives.scst_baselines import SCSTDiscriminator, SCSTGrammar
from tellapart.objectives.wtf_rl import WTFRL

KINDS = {"bs": "drawn", "gt": "human", "gs": "greedy"}


def close(actual, expected, tolerance):
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), double(expected), atol=tolerance, rtol=0.0)


def text_of(row: str) -> str:
    """``bs0`` -> ``0/drawn``."""
    return f"{row[2:]}/{KINDS[row[:2]]}"


def given_cosines(inputs, columns: list[str]) -> tuple[TableCaptioner, TableListener]:
    """Texts whose products with the images are the given ones: the images are unit vectors."""
    texts = {text_of(row): cosines for row, cosines in zip(inputs["row_order"], inputs["sim"], strict=True)}
    images = {name: [float(i == j) for j in range(len(columns))] for i, name in enumerate(columns)}
    return TableCaptioner({text: ([-1.0], [1.0]) for text in texts}), TableListener(texts, images)


def wtf_rl(inputs, method="wtf_rl", **options):
    captioner, listener = given_cosines(inputs, ["0", "1", "a", "b"])
    scores = {f"{i}/drawn": p for i, p in enumerate(inputs["p_d_bs"])}
    scores |= {f"{i}/human": p for i, p in enumerate(inputs["p_d_gt"])}
    near = TableNeighbours({"0": ["a"], "1": ["b"]})
    options = {"temperature": inputs["tau"], "neighbour_ranks": (1,), **METHODS[method].fixed, **options}
    return WTFRL(captioner, listener, near, TableDiscriminator(scores, raw=True), **options)


@pytest.mark.parametrize("combine", ["sum", "half"])
def test_wtf_bicontrastive_reward(combine):
    inputs, expected, tolerance = vector("wtf_bicontrastive_reward")
    [experience] = step(wtf_rl(inputs, combine=combine), [batch_of(["0", "1"])])
    share = inputs["alpha"] * (0.5 if combine == "half" else 1.0)
    for kind, short in (("policy", "bs"), ("reference", "gt")):
        parts = experience.parts[kind]
        close(parts["i2t"] / share, expected[f"i2t_{short}"], tolerance)
        close(parts["t2i"] / share, expected[f"t2i_{short}"], tolerance)
        both = (parts["i2t"] + parts["t2i"]) / inputs["alpha"]
        close(both, expected[f"bicont_{short}_{combine}"], tolerance)
        close(experience.advantages[kind], expected[f"r_{short}_{combine}"], tolerance)


def test_the_unidirectional_reward_is_not_halved():
    inputs, expected, tolerance = vector("wtf_bicontrastive_reward")
    [experience] = step(wtf_rl(inputs, "rl_unidirectional"), [batch_of(["0", "1"])])
    close(experience.advantages["policy"], expected["r_bs_unidirectional"], tolerance)


def test_the_hard_limit_is_the_margin_to_the_best_other():
    inputs, expected, _ = vector("wtf_bicontrastive_reward")
    [experience] = step(wtf_rl(inputs, temperature=1e-6, combine="sum"), [batch_of(["0", "1"])])
    for name in ("i2t", "t2i"):
        close(experience.parts["policy"][name] / inputs["alpha"], expected[f"hard_max_limit_{name}_bs"], 2e-6)


def test_wtf_reward_stability():
    inputs, expected, tolerance = vector("wtf_reward_stability")
    captioner, listener = given_cosines(inputs, ["0", "1"])
    objective = WTFRL(captioner, listener, temperature=inputs["tau"], neighbour_ranks=(), combine="sum")
    [experience] = step(objective, [batch_of(["0", "1"])])
    for kind, short in (("policy", "bs"), ("reference", "gt")):
        for name in ("i2t", "t2i"):  # without a discriminator alpha is 1
            close(experience.parts[kind][name], expected[f"{name}_{short}"], tolerance)


@pytest.mark.parametrize("reduction", ["seq_mean", "seq_sum"])
@pytest.mark.parametrize(("method", "name"), [("rl", "RL"), ("wtf", "WTF"), ("wtf_rl", "WTF_RL")])
def test_wtf_losses(method, name, reduction):
    inputs, expected, tolerance = vector("wtf_losses")
    width = len(inputs["logp_gt"][0])
    rows, scores = {}, {}
    for short, kind in (("bs", "drawn"), ("gt", "human")):
        for i in range(2):
            row, mask = inputs[f"logp_{short}"][i], inputs[f"mask_{short}"][i]
            rows[f"{i}/{kind}"] = row + [-9.0] * (width - len(row)), mask + [0.0] * (width - len(mask))
            scores[f"{i}/{kind}"] = inputs[f"reward_{short}"][i]
    captioner = TableCaptioner(rows)
    listener = TableListener({text: [1.0, 0.0] for text in rows}, {"0": [1.0, 0.0], "1": [0.0, 1.0]})
    # with alpha 0 the reward is the discriminator's, which answers what it is told
    objective = WTFRL(
        captioner,
        listener,
        discriminator=TableDiscriminator(scores, raw=True),
        alpha=0.0,
        neighbour_ranks=(),
        greedy_candidate=False,
        reduction=reduction,
        **METHODS[method].fixed,
    )
    loss = learn(objective, step(objective, [batch_of(["0", "1"])]))
    close(loss, expected[f"{name}_{reduction}"], tolerance)
    junk = torch.tensor([mask for _, mask in rows.values()]) == 0
    assert not captioner.logprobs.grad[junk].any()
    # what the released code computes: the drawn term twice, over padded lengths
    padded = [
        sum(p * m for p, m in zip(*pair, strict=True)) / 3
        for pair in zip(inputs["logp_bs"], inputs["mask_bs"], strict=True)
    ]
    released = -2 * sum(r * p for r, p in zip(inputs["reward_bs"], padded, strict=True)) / 2
    assert released == pytest.approx(0.0143, abs=1e-9)
    assert abs(loss - released) > 1e-3


def test_scst_discriminator_reward():
    inputs, expected, tolerance = vector("wtf_bicontrastive_reward")
    captioner, listener = given_cosines(inputs, ["0", "1", "a", "b"])
    scores = {f"{i}/drawn": p for i, p in enumerate(inputs["p_d_bs"])} | {"0/human": 0.0, "1/human": 0.0}
    objective = SCSTDiscriminator(captioner, listener, TableDiscriminator(scores, raw=True))
    [experience] = step(objective, [batch_of(["0", "1"])])
    close(experience.advantages["policy"], expected["scst_discriminator_r_bs"], tolerance)
    assert set(experience.advantages) == {"policy"}


def test_scst_grammar_reward():
    inputs, expected, tolerance = vector("scst_grammar_reward")
    ids = ["0", "1", "2"]
    texts, grammatical = {}, {}
    for kind, name in (("drawn", "sample"), ("greedy", "greedy")):
        texts |= {f"{i}/{kind}": [cosine] for i, cosine in enumerate(inputs[f"cos_{name}"])}
        grammatical |= {f"{i}/{kind}": p for i, p in enumerate(inputs[f"p_grammar_{name}"])}
    listener = TableListener(texts, {i: [1.0] for i in ids})
    captioner = TableCaptioner({text: ([-1.0], [1.0]) for text in texts})
    objective = SCSTGrammar(captioner, listener, lambda rollout: double([grammatical[t] for t in rollout.texts]))
    [experience] = step(objective, [batch_of(ids)])
    parts = experience.parts["policy"]
    single = 1e-7  # CLIP-S is float32
    close(parts["clip_s"], expected["clip_adv"], 4 * single)
    close(parts["grammar"], expected["grammar_adv"], tolerance)
    close(experience.advantages["policy"], expected["total"], 4 * single)
