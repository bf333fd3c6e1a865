"""The training methods: one file each, listed here by name. Nothing heavy is imported until a method is chosen."""

from __future__ import annotations

from tellapart.installed import Offers
from tellapart.objectives.method import Method

__all__ = ["METHODS", "SHIPPED", "Method"]

_SLE = "Chen & Jin (2020)"
_WTF_RL, _WTF_NEEDS = "tellapart.objectives.wtf_rl:WTFRL", ("listener", "neighbours", "discriminator")
_CHAFFIN = "Chaffin et al. (2024)"
_VLRM = "Dzabraev et al. (2024)"
_JOINT, _VERED = ("reward", "own_listener"), "Vered et al. (2019)"
_ST = {"rho": 0.0, "feed_soft": False}


SHIPPED: dict[str, Method] = {
    "xe": Method(
        "teacher forcing on human captions: the start model of every other method",
        "tellapart.objectives.xe:XE",
        needs_references=True,
        paper="Williams & Zipser (1989); captioning: Vinyals et al. (2015)",
    ),
    "scst": Method(
        "REINFORCE with a greedy, leave-one-out or beam-mean baseline, optionally with KL to the start model",
        "tellapart.objectives.scst:SCST",
        needs_references=False,
        needs=("reward",),
        paper="Rennie et al. (2017)",
        rewards=("cider_d",),
    ),
    "dico": Method(
        "the best of k beams against the weighted others, relative to the start model",
        "tellapart.objectives.dico:DiCO",
        needs_references=False,
        needs=("reward",),
        holds_start=True,
        paper="Moratelli et al. (2024)",
        rewards=("clip_s",),
    ),
    "dpo": Method(
        "the best of k candidates against the worst, relative to the start model: dico with all weight on one loser",
        "tellapart.objectives.dpo:DPO",
        needs_references=False,
        needs=("reward",),
        holds_start=True,
        paper="Rafailov et al. (2023)",
        rewards=("clip_s",),
    ),
    "rloo": Method(
        "scst against the mean of the image's other captions, whole captions, KL to the start model in the reward",
        "tellapart.objectives.scst:SCST",
        needs_references=False,
        needs=("reward",),
        fixed={"baseline": "leave_one_out", "reduction": "seq_sum", "kl_in": "reward"},
        paper="Ahmadian et al. (2024)",
        rewards=("clip_s",),
    ),
    "grpo": Method(
        "advantages normalised among the captions of an image, ratios clipped, KL to the start model in the loss",
        "tellapart.objectives.grpo:GRPO",
        needs_references=False,
        needs=("reward",),
        paper="Shao et al. (2024)",
        rewards=("clip_s",),
    ),
    "sll": Method(
        "self-critical training with s samples per image: the comparator of sle",
        "tellapart.objectives.sle:SLL",
        needs_references=False,
        needs=("reward",),
        paper=_SLE,
        rewards=("cider_d",),
    ),
    "sll_me": Method(
        "sll with a maximum-entropy term along the samples",
        "tellapart.objectives.sle:SLLME",
        needs_references=False,
        needs=("reward",),
        paper=_SLE,
        rewards=("cider_d",),
    ),
    "sle": Method(
        "sll that also rewards samples of an image for being far from one another",
        "tellapart.objectives.sle:SLE",
        needs_references=False,
        needs=("reward", "distance"),
        paper=_SLE,
        rewards=("cider_d",),
    ),
    "wtf": Method(
        "teacher forcing weighted by each human caption's own contrastive reward",
        _WTF_RL,
        needs_references=True,
        needs=_WTF_NEEDS,
        fixed={"trajectories": ("reference",)},
        paper=_CHAFFIN,
    ),
    "rl": Method(
        "REINFORCE on a contrastive reward, caption and image against all others of a step",
        _WTF_RL,
        needs_references=True,
        needs=_WTF_NEEDS,
        fixed={"trajectories": ("policy",)},
        paper=_CHAFFIN,
    ),
    "wtf_rl": Method(
        "wtf and rl together: human captions keep the language, drawn ones tell images apart",
        _WTF_RL,
        needs_references=True,
        needs=_WTF_NEEDS,
        fixed={"trajectories": ("policy", "reference")},
        paper=_CHAFFIN,
    ),
    "rl_unidirectional": Method(
        "rl whose captions are compared with captions only: a baseline of wtf_rl",
        _WTF_RL,
        needs_references=True,
        needs=_WTF_NEEDS,
        fixed={"trajectories": ("policy",), "direction": "i2t"},
        paper=_CHAFFIN,
    ),
    "scst_discriminator": Method(
        "a beam against the greedy caption, plus a discriminator in training: a baseline of wtf_rl",
        "tellapart.objectives.scst_baselines:SCSTDiscriminator",
        needs_references=True,
        needs=("listener", "discriminator"),
        paper=_CHAFFIN,
    ),
    "scst_grammar": Method(
        "a beam against the greedy caption, by CLIP-S and a grammar head: a baseline of wtf_rl",
        "tellapart.objectives.scst_baselines:SCSTGrammar",
        needs_references=False,
        needs=("listener", "grammar"),
        paper="Cho et al. (2022); " + _CHAFFIN,
    ),
    "psst": Method(
        "captioner and listener learn together: gradients through words, some passed as whole distributions",
        "tellapart.objectives.psst:PSST",
        needs_references=False,
        needs=_JOINT,
        through_words=True,
        paper=_VERED,
        rewards=("cider_d",),
    ),
    "st_multinomial": Method(
        "psst that passes drawn words only, straight through: a baseline of it",
        "tellapart.objectives.psst:PSST",
        needs_references=False,
        needs=_JOINT,
        through_words=True,
        fixed={"estimator": "multinomial", "temperature": 1.0, **_ST},
        paper=_VERED,
        rewards=("cider_d",),
    ),
    "st_gumbel": Method(
        "the same by Gumbel-softmax",
        "tellapart.objectives.psst:PSST",
        needs_references=False,
        needs=_JOINT,
        through_words=True,
        fixed={"estimator": "gumbel", **_ST},
        paper="Jang et al. (2017); " + _VERED,
        rewards=("cider_d",),
    ),
    "gumbel_annealed": Method(
        "st_gumbel whose temperature falls",
        "tellapart.objectives.psst:GumbelAnnealed",
        needs_references=False,
        needs=_JOINT,
        through_words=True,
        paper="Jang et al. (2017); " + _VERED,
        rewards=("cider_d",),
    ),
    "reinforce_joint": Method(
        "captioner and listener learn in turns, by REINFORCE: a baseline of psst, for any listener",
        "tellapart.objectives.joint:ReinforceJoint",
        needs_references=True,
        needs=_JOINT,
        paper=_VERED,
        rewards=("cider_d",),
    ),
    "luo2018": Method(
        "REINFORCE with a frozen listener's hinge, added to the reward: a baseline of psst",
        "tellapart.objectives.joint:Luo2018",
        needs_references=False,
        needs=_JOINT,
        keeps=("own_listener",),
        paper="Luo et al. (2018)",
        rewards=("cider_d",),
    ),
    "listener_only": Method(
        "a listener learns on the captions of a captioner that stays: the frozen speaker of psst's table 3",
        "tellapart.objectives.joint:ListenerOnly",
        needs_references=False,
        needs=("own_listener",),
        keeps=("captioner",),
        paper=_VERED,
    ),
    "sr_pl": Method(
        "REINFORCE on CIDEr and a frozen listener's hinge; images without captions join every step: a baseline of psst",
        "tellapart.objectives.sr_pl:SRPL",
        needs_references=False,
        needs=(*_JOINT, "unlabelled"),
        keeps=("own_listener",),
        paper="Liu et al. (2018)",
        rewards=("cider_d",),
    ),
    "g_gan": Method(
        "a conditional GAN: a captioner with noise against an evaluator, feedback at every word: a baseline of psst",
        "tellapart.objectives.g_gan:GGAN",
        needs_references=True,
        needs=("listener", "noise", "other_captions", "discriminator"),
        required=("discriminator",),
        paper="Dai et al. (2017)",
    ),
    "vlrm": Method(
        "an actor-critic on a matcher's and a language model's scores, with penalties token by token; no human captions",
        "tellapart.objectives.vlrm:VLRM",
        needs_references=False,
        needs=("reward", "critic", "penalties"),
        paper=_VLRM,
        rewards=("itm", "language_model"),
    ),
    "vlrm_rs": Method(
        "vlrm without the language model, whose captions must also be told apart within the whole batch",
        "tellapart.objectives.vlrm:VLRMRS",
        needs_references=False,
        needs=("reward", "listener", "critic", "penalties"),
        paper=_VLRM,
        rewards=("itm",),
    ),
}
"""Name -> method of this package."""

METHODS: Offers[Method] = Offers(SHIPPED, "tellapart.methods", "method", Method.of)
"""The same, and those that installed packages bring (docs/add_a_method.md)."""
