"""The trained stages of the world: the builder of each, its steps, and its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SEEDED = (
    "world/xe",
    "world/xe-sharp",
    "world/lstm",
    "world/att2in2",
    "world/updown",
    "world/blip2",
    "world/video-xe",
    "world/video-lstm",
)
"""Start captioners, which are redrawn while everything else stays the same."""


ALIASES = {"world/sighted": "world/verifier"}
"""Other name -> stage: the verifier is a late-interaction listener, and sees what the plain one does not."""


@dataclass(frozen=True)
class Stage:
    """How a stage is built.

    Args:
        module: of this package, with the builder.
        builder: name of the function ``task -> history`` in it.
        schedules: size of the world -> arguments of ``Schedule``.
        needs: stages it starts from.
        use: what a listener or matching head is for, a key of ``DEMANDS``; its probe is kept next
            to it. Empty: it is neither.
    """

    module: str
    builder: str
    schedules: dict[str, dict[str, Any]]
    needs: tuple[str, ...] = ()
    use: str = ""


_BACKBONE = {
    "full": {"steps": 1000, "batch_size": 128, "learning_rate": 2e-3},
    "small": {"steps": 60, "batch_size": 48, "learning_rate": 2e-3},
}
_XE = {
    # Faster, and relations are not learnt: at 2e-3 they are right in 43 % of samples, at 1e-3 in 91 %.
    "full": {"steps": 1400, "batch_size": 64, "learning_rate": 1e-3, "adam_beta2": 0.98},
    "small": {"steps": 70, "batch_size": 32, "learning_rate": 2e-3},
}
_VERIFIER = {
    "full": {"steps": 1000, "batch_size": 48, "learning_rate": 2e-3, "adam_beta2": 0.98},
    "small": {"steps": 70, "batch_size": 32, "learning_rate": 2e-3, "adam_beta2": 0.98},
}
_JUDGE = {"full": _VERIFIER["full"] | {"steps": 750}, "small": _VERIFIER["small"]}
_PAC = {
    "full": {"steps": 150, "batch_size": 256, "learning_rate": 3e-4},
    "small": {"steps": 60, "batch_size": 128, "learning_rate": 1e-3},
}

_LSTM = {
    "full": {"steps": 600, "batch_size": 128, "learning_rate": 3e-3},
    "small": {"steps": 40, "batch_size": 32, "learning_rate": 3e-3},
}
_ATTENTION = _LSTM | {"small": _LSTM["small"] | {"steps": 20}}


def _sharp(schedules: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of a stage over the sharp tower: in the small world it need not learn as much as the one that it repeats."""
    return schedules | {"small": schedules["small"] | {"steps": 30}}


STAGES = {
    "world/backbone": Stage("backbone", "build_backbone", _BACKBONE),
    "world/judge-backbone": Stage("backbone", "build_backbone", _BACKBONE),
    "world/listener": Stage(
        "listeners",
        "build_listener",
        {
            # Longer, and it begins to prefer sentences to their words, which CLIP hardly does.
            "full": {"steps": 250, "batch_size": 128, "learning_rate": {"vision": 6e-4, "listener": 2e-3}},
            "small": {"steps": 40, "batch_size": 32, "learning_rate": {"vision": 6e-4, "listener": 2e-3}},
        },
        needs=("world/backbone",),
        use="similarity",
    ),
    "world/verifier": Stage("verifier", "build_verifier", _VERIFIER, needs=("world/backbone",), use="truth"),
    "world/judge": Stage("verifier", "build_judge", _JUDGE, needs=("world/judge-backbone",), use="judge"),
    "world/negclip": Stage(
        "listeners",
        "build_negclip",
        {
            # After 1500 steps, with nearly these rates of false texts, binding is right in 73 %, after 2500 in 91 %.
            "full": {"steps": 2500, "batch_size": 64, "learning_rate": {"vision": 3e-4, "listener": 1e-3}},
            "small": {"steps": 30, "batch_size": 32, "learning_rate": {"vision": 3e-4, "listener": 1e-3}},
        },
        needs=("world/listener",),
        use="similarity",
    ),
    "world/grammar": Stage(
        "grammar_head",
        "build_grammar",
        {
            "full": {"steps": 500, "batch_size": 128, "learning_rate": 3e-3},
            "small": {"steps": 80, "batch_size": 48, "learning_rate": 5e-3},
        },
        needs=("world/listener",),
    ),
    "world/xe": Stage(
        "captioner",
        "build_xe",
        _XE,
        needs=("world/backbone",),
    ),
    # The backbone knows 99.1 % of the shapes on val, this one 99.8 %.
    "world/sharp-backbone": Stage(
        "backbone",
        "build_backbone",
        {"full": _BACKBONE["full"] | {"steps": 4000}, "small": _BACKBONE["small"] | {"steps": 80}},
    ),
    "world/sharp-verifier": Stage(
        "verifier", "build_verifier", _sharp(_VERIFIER), needs=("world/sharp-backbone",), use="truth"
    ),
    "world/xe-sharp": Stage("captioner", "build_xe", _sharp(_XE), needs=("world/sharp-backbone",)),
    "world/lstm": Stage("lstm", "build_lstm", _LSTM, needs=("world/backbone",)),
    "world/att2in2": Stage("lstm", "build_lstm", _ATTENTION, needs=("world/backbone",)),
    "world/updown": Stage("lstm", "build_lstm", _ATTENTION, needs=("world/backbone",)),
    "world/blip2-backbone": Stage("blip2", "build_tower", _BACKBONE),
    "world/blip2": Stage(
        "blip2",
        "build_blip2",
        {
            # After 1400 steps textures were right in 75 %, places in 64 %, and 71 % of sampled captions were true.
            "full": {"steps": 3000, "batch_size": 64, "learning_rate": 1e-3, "adam_beta2": 0.98},
            "small": {"steps": 40, "batch_size": 32, "learning_rate": 2e-3, "adam_beta2": 0.98},
        },
        needs=("world/blip2-backbone",),
    ),
    "world/itm": Stage(
        "itm",
        "build_itm",
        {
            # With AdamW's usual 0.999 it depended on the processor whether colours were learnt in 2000 steps.
            "full": {"steps": 3000, "batch_size": 48, "learning_rate": 1e-3, "adam_beta2": 0.98},
            "small": {"steps": 20, "batch_size": 32, "learning_rate": 2e-3, "adam_beta2": 0.98},
        },
        needs=("world/blip2-backbone", "world/listener"),
        use="match",
    ),
    "world/pac": Stage("pac", "build_pac", _PAC, ("world/listener", "world/xe"), use="similarity"),
    "world/language_model": Stage(
        "language_model",
        "build_language_model",
        {
            "full": {"steps": 600, "batch_size": 128, "learning_rate": 2e-3},
            "small": {"steps": 25, "batch_size": 48, "learning_rate": 4e-3},
        },
    ),
    "world/video-backbone": Stage(
        "video.tower",
        "build_tower",
        {
            "full": {"steps": 2000, "batch_size": 64, "learning_rate": 1.5e-3, "adam_beta2": 0.98},
            "small": {"steps": 30, "batch_size": 32, "learning_rate": 2e-3},
        },
        needs=("world/backbone",),
    ),
    "world/video-listener": Stage(
        "video.listener",
        "build_listener",
        {
            "full": {"steps": 2200, "batch_size": 48, "learning_rate": 2e-3, "adam_beta2": 0.98},
            "small": {"steps": 25, "batch_size": 32, "learning_rate": 2e-3, "adam_beta2": 0.98},
        },
        needs=("world/video-backbone",),
        use="motion",
    ),
    "world/video-xe": Stage(
        "video.captioner",
        "build_xe",
        {
            "full": {"steps": 1200, "batch_size": 32, "learning_rate": 1e-3, "adam_beta2": 0.98},
            "small": {"steps": 30, "batch_size": 32, "learning_rate": 2e-3},
        },
        needs=("world/video-backbone",),
    ),
    "world/video-lstm": Stage(
        "video.lstm",
        "build_lstm",
        {
            "full": {"steps": 900, "batch_size": 128, "learning_rate": 3e-3},
            "small": {"steps": 30, "batch_size": 32, "learning_rate": 3e-3},
        },
        needs=("world/video-backbone",),
    ),
}
