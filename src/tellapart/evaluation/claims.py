"""Claim-level precision and recall of captions, and claims that a language model writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from tellapart.data.formats.rows import json_rows
from tellapart.errors import UsageError
from tellapart.evaluation.measures import Measured
from tellapart.evaluation.scorers import References, in_words
from tellapart.listeners.pairs import PairMatcher
from tellapart.metrics.claims import RULES, Claim, Parser, claim_scores, claims_by_rule
from tellapart.progress import track
from tellapart.rewards.claims import TRUE_FROM, probability_of_match
from tellapart.rewards.language_model import LanguageModel

PRECISION, RECALL, F1, COUNT = "claim_precision", "claim_recall", "claim_F1", "claims"


class Verifier(Protocol):
    """Says which claims are true of images that it knows."""

    def verify(self, ids: Sequence[str], claims: Sequence[Sequence[Claim]]) -> list[list[bool]]:
        """Of each image's claims whether they are true."""
        ...

    def describe(self) -> dict[str, Any]:
        """Its description: at least ``weights``."""
        ...


class MatcherVerifier:
    """A matcher that knows the images; a claim is true from a probability of one half on.

    Args:
        matcher: a matching head, a late-interaction listener, or a model that is asked a question.
        true_from: that probability.
    """

    def __init__(self, matcher: PairMatcher, *, true_from: float = TRUE_FROM) -> None:
        self.matcher, self.true_from = matcher, true_from

    def verify(self, ids: Sequence[str], claims: Sequence[Sequence[Claim]]) -> list[list[bool]]:
        """As the protocol says.

        Raises:
            UsageError: the matcher gives something that is not a number.
        """
        found = [
            probability_of_match(logits)
            for logits in self.matcher.match_ids(ids, [[claim.text for claim in own] for own in claims])
        ]
        if not all(bool(own.isfinite().all()) for own in found):
            raise UsageError(
                f"the matcher {self.matcher.source} gives logits that are not numbers: its weights are damaged or its precision "
                "too low; fetch it again, or load it in float32."
            )
        return [(own >= self.true_from).tolist() for own in found]

    def describe(self) -> dict[str, Any]:
        """The matcher's description, and the threshold."""
        return self.matcher.describe() | {"true_from": self.true_from}


class ClaimScorer:
    """``claim_precision``, ``claim_recall`` and ``claim_F1`` in percent, and ``claims``: claims per caption.

    Precision is the mean over captions of the share of their claims that the verifier finds true; a caption without claims counts
    as 0. Recall is the mean over images whose references claim anything; F1 the mean of each caption's harmonic mean. Column
    ``claims_rejected`` lists the claims that were not verified. Definitions, sources and pitfalls:
    ``claim_scores``, ``ClaimPrecision``.

    Args:
        verifier: knows the images.
        parse: cuts captions into claims.
        parser: what the line "how measured" calls the parser.

    Example:
        >>> ClaimScorer(MatcherVerifier(matcher))({"42": "a red car"}, {"42": ["a car on a street"]})[0]
        {'claim_precision': 50.0, 'claims': 2.0, 'claim_recall': 33.3, 'claim_F1': 40.0}
    """

    name = PRECISION

    def __init__(self, verifier: Verifier, *, parse: Parser = claims_by_rule, parser: str = RULES) -> None:
        self.verifier, self._parse = verifier, parse
        self._described = verifier.describe() | {"claims by": parser}
        self.measured_by = {self.name: in_words(self._described)}

    def __call__(self, captions: Mapping[str, str], references: References) -> Measured:
        """Recall and F1 are left out where no reference claims anything."""
        claims = [self._parse(text) for text in captions.values()]
        verified = self.verifier.verify(list(captions), claims)
        scores = [
            claim_scores(own, true, [self._parse(text) for text in references.get(image, ())])
            for image, own, true in zip(captions, claims, verified, strict=True)
        ]
        columns: dict[str, list[Any]] = {PRECISION: [100.0 * one.precision for one in scores]}
        columns[COUNT] = [float(len(own)) for own in claims]
        metrics = {key: sum(rows) / len(rows) for key, rows in columns.items()}
        for key, rows in ((RECALL, [one.recall for one in scores]), (F1, [one.f1 for one in scores])):
            known = [100.0 * value for value in rows if value is not None]
            if known:
                metrics[key] = sum(known) / len(known)
                columns[key] = [None if value is None else 100.0 * value for value in rows]
        columns["claims_rejected"] = [
            [claim.text for claim, right in zip(own, true, strict=True) if not right]
            for own, true in zip(claims, verified, strict=True)
        ]
        return metrics, columns

    def describe(self, captions: Sequence[str]) -> dict[str, Any]:
        """The verifier and the parser."""
        return self._described


# Claims that a language model writes, once and offline.

INSTRUCTION = (
    "List what this image caption claims, as short statements that can be checked one by one. One statement per line, each "
    'beginning with "- ". Add nothing that the caption does not say.\nCaption: {caption}\nStatements:'
)
"""Our own words."""

FORM = 'lines such as {"caption": "a red car", "claims": ["a car", "the car is red"]}'


def read_claims(path: Path) -> dict[str, list[str]]:
    """Caption -> its claims, of a file of JSON lines.

    Raises:
        UsageError: the file cannot be read, or a line is of another form.
    """
    found: dict[str, list[str]] = {}
    for number, row in json_rows(path):
        try:
            if not isinstance(row["claims"], list):  # the letters of a text would be claims
                raise TypeError("claims is not a list")
            found[str(row["caption"])] = [str(claim).strip() for claim in row["claims"] if str(claim).strip()]
        except (KeyError, TypeError) as error:
            raise UsageError(f"line {number} of {path} holds no claims ({error!r}): give {FORM}.") from error
    return found


def write_claims(
    language_model: LanguageModel, captions: Iterable[str], path: Path, *, max_new_tokens: int = 200
) -> dict[str, list[str]]:
    """Have a language model list the claims of each distinct caption, greedily, and write what ``read_claims`` reads.

    Each caption is written when its claims are known. Captions that the file already has are not asked about again, so that an
    interrupted call resumes; give another model another file.

    Args:
        language_model: an instruct model.
        captions: captions and references; empty ones are left out.
        path: file to write, or to complete.
        max_new_tokens: tokens per caption at most.

    Example:
        >>> write_claims(LanguageModel.from_pretrained("Qwen/Qwen2.5-3B-Instruct"), ["a red car"], Path("claims.jsonl"))
        {'a red car': ['a car', 'the car is red']}
    """
    asked = dict.fromkeys(text for text in captions if text.strip())
    found = _begun(path)
    with path.open("a", encoding="utf-8", newline="\n") as lines:
        for caption in track([text for text in asked if text not in found], "writing claims"):
            ids = language_model.prompt_ids(INSTRUCTION.format(caption=caption))
            tokens = torch.tensor([ids], device=language_model.device)
            with torch.no_grad():
                drawn = language_model.model.generate(
                    tokens,
                    attention_mask=torch.ones_like(tokens),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    pad_token_id=language_model.tokenizer.eos_token_id,
                )
            answer = language_model.tokenizer.decode(drawn[0, len(ids) :], skip_special_tokens=True)
            found[caption] = re.findall(r"^\s*[-*•]\s*(\S.*?)\s*$", answer, re.MULTILINE)
            lines.write(json.dumps({"caption": caption, "claims": found[caption]}, ensure_ascii=False) + "\n")
            lines.flush()
    return {caption: found[caption] for caption in asked}


def _begun(path: Path) -> dict[str, list[str]]:
    """What an earlier call wrote; the line that a kill tore is cut off."""
    if not path.is_file():
        return {}
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    return read_claims(path)
