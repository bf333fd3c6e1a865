"""VQAScore: the probability with which a model that sees the image answers Yes (Lin et al. 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from tellapart.errors import UsageError
from tellapart.rewards.yes_no import PLACE, YesNoMatcher
from tellapart.types import Rollout

if TYPE_CHECKING:
    from tellapart.rewards.matchers import AnyMatcher

VQA_QUESTION = f'Does this figure show "{PLACE}"? Please answer yes or no.'
"""The question of the paper, section 3; early releases of its code ask "Is the image showing '...'?"."""


class VqaScoreMatcher(YesNoMatcher):
    """A model that is asked as VQAScore asks; the score is P(Yes), from 0 to 1.

    P is the probability, over the whole vocabulary, that the answer begins with the word *Yes*: one spelling, with the token
    that the tokenizer begins it with. ``YesNoMatcher`` differs in three things: its question is
    our own, it sums over spellings (yes, Yes, YES, with and without a space), and its score is the log-odds against *no*, which
    does not change where a model prefers some third answer.

    Source: Lin, Pathak, Li, Li, Xia, Neubig, Zhang and Ramanan, "Evaluating Text-to-Visual Generation with Image-to-Text
    Generation", ECCV 2024, section 3, equation 1.

    Departs from the released code (linzhiqiu/t2v_metrics), which raises e to the mean log-probability of *Yes* and the end of
    the answer: a geometric mean of two probabilities. Here it is the paper's P("Yes") alone. The image is not padded to a
    square: each family's own processor prepares it.

    Pitfalls: the value belongs to the model, and the published ones (CLIP-FlanT5) do not load in plain transformers. P(Yes) is
    near 0 or 1 for most pairs, so averages hide order. Models say yes more readily to long captions.

    Example:
        >>> matcher = VqaScoreMatcher.from_pretrained("llava-hf/llava-1.5-7b-hf")
        >>> matcher.know_images(dataset)
        >>> matcher.score(matcher.match_ids(["42"], [["a red car"]])[0])
        tensor([0.93])
    """

    usual_question: ClassVar[str] = VQA_QUESTION
    scale: ClassVar[str] = "probability of Yes"

    @staticmethod
    def answers(tokenizer: Any) -> tuple[list[int], list[int]]:
        """The token that begins *Yes*, and the one that begins *No*.

        Raises:
            UsageError: both begin with the same token.
        """
        yes, no = (tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("Yes", "No"))
        if yes == no:
            raise UsageError("the matcher's tokenizer begins Yes and No with the same token: choose another model.")
        return [yes], [no]

    def score(self, logits: Tensor) -> Tensor:
        """P(Yes) of log-probabilities ``[N, 2]`` of No and Yes."""
        return logits[:, 1].exp()


class VqaScore:
    """P(Yes) of each caption, 0 to 1: see ``VqaScoreMatcher`` for source, scale and departures.

    Args:
        matcher: one of kind ``vqa_score``.

    Raises:
        UsageError: it is of another kind.

    Example:
        >>> reward = VqaScore(open_matcher("llava-hf/llava-1.5-7b-hf", kind="vqa_score"))
        >>> reward(rollout)
        tensor([0.93, 0.12])
    """

    def __init__(self, matcher: AnyMatcher) -> None:
        if not isinstance(matcher, VqaScoreMatcher):
            raise UsageError(
                "reward vqa_score asks its own question: set matcher.kind to vqa_score, and name a model that answers questions."
            )
        self.matcher = matcher

    def __call__(self, rollout: Rollout) -> Tensor:
        """``[N]`` float32, without gradient."""
        return self.matcher.match(rollout).to(rollout.image.device)
