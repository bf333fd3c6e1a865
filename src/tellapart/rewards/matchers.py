"""The kinds of matchers, and one function to open any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tellapart.captioners.families import FAMILIES
from tellapart.errors import UsageError, reason_of
from tellapart.files import existing
from tellapart.listeners.kinds import VSE, is_checkpoint, is_late, trained_folder
from tellapart.listeners.matching import MATCHING_FAMILIES
from tellapart.listeners.pairs import Precision
from tellapart.listeners.texts import TEXT_FAMILIES

if TYPE_CHECKING:
    from tellapart.listeners.dual import DualMatcher
    from tellapart.listeners.late import LateListener
    from tellapart.listeners.matcher import ItmMatcher
    from tellapart.rewards.yes_no import YesNoMatcher

    AnyMatcher = ItmMatcher | DualMatcher | LateListener | YesNoMatcher

Kind = Literal["auto", "itm", "dual", "late", "yes_no", "vqa_score"]

ASKED = ("yes_no", "vqa_score")
"""Kinds that are asked a question."""

_OF_TYPE = {**dict.fromkeys(MATCHING_FAMILIES, "itm"), **dict.fromkeys(TEXT_FAMILIES, "dual")}
"""``model_type`` of a configuration -> kind of matcher; every other one is asked."""


def open_matcher(
    path: str | Path,
    *,
    kind: Kind = "auto",
    question: str | None = None,
    name: str = "matcher",
    batch_size: int = 32,
    dtype: Precision = "float32",
    autocast: Precision = "float32",
    scaled: bool = False,
) -> AnyMatcher:
    """A frozen matcher from a folder or a Hugging Face id.

    Args:
        path: BLIP or BLIP-2 with a matching head; a CLIP or SigLIP, also a run of train-listener or a ``.pth`` file; a
            late-interaction listener; or an instruct vision-language model.
        kind: ``itm`` (score: positive logit), ``dual`` (cosine), ``late`` (log-probability), ``yes_no`` (log-odds) or
            ``vqa_score`` (probability of Yes to the published question); ``auto`` tells by the configuration and never takes
            the last one.
        question: what a ``yes_no`` or ``vqa_score`` model is asked, with ``{caption}`` in it; none takes the kind's own.
        name: key of its tensors in ``batch.inputs``.
        batch_size: most images, and most texts, read at once; it changes no score.
        dtype: of the weights.
        autocast: precision of matrix products, for weights in float32; ``dual`` and ``late`` have none.
        scaled: let a ``dual`` give the logit of its own loss instead of the cosine.

    Raises:
        UsageError: there is no such model, it is of another kind, or an option is not for its kind.
    """
    # Here and not above: the options of a recipe are read from this module without transformers.
    from tellapart.listeners.clip import ClipListener
    from tellapart.listeners.dual import DualMatcher
    from tellapart.listeners.late import LateListener
    from tellapart.listeners.matcher import ItmMatcher
    from tellapart.rewards.vqa_score import VqaScoreMatcher
    from tellapart.rewards.yes_no import YesNoMatcher

    found = kind_of(path) if kind == "auto" else kind
    if question is not None and found not in ASKED:
        raise UsageError(f"matcher.question is for models that are asked, but {path} is of kind {found}: leave it out.")
    if scaled and found != "dual":
        raise UsageError(f"matcher.scaled is for dual encoders, but {path} is of kind {found}: leave it out.")
    if autocast != "float32" and found in ("dual", "late"):
        what = "dual encoder" if found == "dual" else "listener"
        raise UsageError(f"matcher.autocast is {autocast}, but the {what} {path} has none: set matcher.dtype instead.")
    common: dict[str, Any] = {"name": name, "batch_size": batch_size, "dtype": dtype}

    def dual() -> AnyMatcher:
        return DualMatcher(ClipListener.from_pretrained(trained_folder(path), **common), scaled=scaled)

    openers: dict[str, Callable[[], AnyMatcher]] = {
        "itm": lambda: ItmMatcher.from_pretrained(path, autocast=autocast, **common),
        "dual": dual,
        "late": lambda: LateListener.from_pretrained(trained_folder(path), **common),
        "yes_no": lambda: YesNoMatcher.from_pretrained(path, question=question, autocast=autocast, **common),
        "vqa_score": lambda: VqaScoreMatcher.from_pretrained(path, question=question, autocast=autocast, **common),
    }
    matcher = openers[found]()
    matcher.model.requires_grad_(False)
    return matcher


def kind_of(path: str | Path) -> str:
    """What a model's configuration says it is."""
    from transformers import AutoConfig

    if is_checkpoint(path):
        return "dual"
    if is_late(path):
        return "late"
    source = existing(trained_folder(path), "matcher")
    try:
        model_type = AutoConfig.from_pretrained(source).model_type
    except (OSError, ValueError) as error:
        # A VSE's type is none that transformers knows, and neither is a checkpoint of another library.
        if f"`{VSE}`" in str(error):
            raise UsageError(f"{path} is a VSE, which is not a matcher: name a CLIP, a SigLIP or a BLIP.") from error
        if (Path(source) / "adapter_config.json").is_file():
            raise UsageError(f"{path} is an adapter: merge it into its model, and name that as the matcher.") from error
        raise UsageError(
            f"the matcher {path} cannot be loaded ({reason_of(error)}): check the folder or the id."
        ) from error
    if model_type not in _OF_TYPE and model_type not in FAMILIES:
        raise UsageError(
            f"{path} is a {model_type}, which is not a matcher: name a CLIP, a SigLIP, a BLIP with a matching head, a "
            "late-interaction listener, or an instruct vision-language model."
        )
    return _OF_TYPE.get(model_type, "yes_no")
