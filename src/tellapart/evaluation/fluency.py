"""How likely captions are as text under a language model."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tellapart.errors import UsageError
from tellapart.evaluation.aggregate import PERPLEXITY, SURPRISE, perplexity_of
from tellapart.evaluation.measures import Measured
from tellapart.rewards.language_model import LanguageModel

logger = logging.getLogger(__name__)


class PerplexityMeasure:
    """The perplexity of a set of captions, ``exp(-sum log p / sum of tokens)``, and ``caption_nll``, each caption's mean
    negative log-probability a token in nats.

    Captions are read as they were written, from the start of a text on; see ``LanguageModel``. A caption of no tokens
    (an empty one, where ends do not count) adds nothing and has no ``caption_nll``; a warning says how many there are. The
    perplexity of captions without any tokens is left out.

    Args:
        language_model: reads the captions.
        end: whether the end of a caption is a token of it.
    """

    def __init__(self, language_model: LanguageModel, *, end: bool = False) -> None:
        self.language_model, self.end = language_model, end
        counted = "with" if end else "without"
        self.measured_by = {PERPLEXITY: f"{language_model.identity()} {counted} the captions' ends"}

    def __call__(self, captions: Mapping[str, str]) -> Measured:
        """The metric, and a row per image.

        Raises:
            UsageError: ends count, and the tokenizer has none; or probabilities are not numbers.
        """
        scores = self.language_model.score(list(captions.values()), end=self.end)
        nll, tokens = -scores.logprobs, scores.tokens
        if bool(nll.isnan().any()):
            raise UsageError(
                f"the language model {self.language_model.identity()} gives probabilities that are not numbers: its weights "
                "are damaged or its precision too low; fetch it again, or load it in float32."
            )
        silent = int((tokens == 0).sum())
        if silent:
            logger.warning(
                "%d of %d captions are empty and count for nothing in the perplexity.", silent, len(captions)
            )
        means = [
            mean if count else None for mean, count in zip((-scores.mean()).tolist(), tokens.tolist(), strict=True)
        ]
        columns = {"caption_nll": means} | dict(zip(SURPRISE, (nll.tolist(), tokens.tolist()), strict=True))
        if silent == len(captions):
            return {}, columns
        return {PERPLEXITY: float(perplexity_of(nll.sum().numpy(), tokens.sum().numpy()))}, columns
