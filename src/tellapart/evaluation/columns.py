"""Name of each metric in tables, its format, and which direction is better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tellapart.names import require_known
from tellapart.verdicts.rules import EVAL_PREFIX, NON_FINITE


@dataclass(frozen=True)
class Column:
    """A metric as a table shows it.

    Args:
        key: its name in ``metrics.json``.
        label: its heading.
        scale: what the stored number is multiplied by (BLEU and CIDEr are printed times 100, as papers do).
        digits: decimals printed.
        better: 1 if higher is better, -1 if lower is, 0 if neither is better on its own.
        about: one sentence for readers who do not know it.
    """

    key: str
    label: str
    scale: float = 1.0
    digits: int = 1
    better: int = 0
    about: str = ""

    @property
    def heading(self) -> str:
        """The label with an arrow towards better values."""
        return self.label + {1: " ↑", -1: " ↓", 0: ""}[self.better]

    def text(self, value: float | None) -> str:
        """The value as printed, a dash where there is none."""
        return "-" if value is None or value != value else f"{value * self.scale:.{self.digits}f}"

    def signed(self, value: float) -> str:
        """A difference as printed, always with its sign."""
        return f"{value * self.scale:+.{self.digits}f}"


CAPTION_METRICS = {
    column.key: column
    for column in (
        Column("CIDEr", "CIDEr", 100, 1, 1, "Consensus with the reference captions, tf-idf weighted n-grams."),
        Column("Bleu_4", "BLEU-4", 100, 1, 1, "N-gram precision up to 4 against the references."),
        Column("Bleu_1", "BLEU-1", 100, 1, 1, "Word precision against the references."),
        Column("Bleu_2", "BLEU-2", 100, 1, 1, "N-gram precision up to 2 against the references."),
        Column("Bleu_3", "BLEU-3", 100, 1, 1, "N-gram precision up to 3 against the references."),
        Column("ROUGE_L", "ROUGE-L", 100, 1, 1, "Longest common subsequence with the references."),
        Column("METEOR", "METEOR", 100, 1, 1, "Words aligned with references, also by stem, synonym or paraphrase."),
        Column("SPICE", "SPICE", 100, 1, 1, "Objects, attributes and relations shared with the references, F-score."),
        *(
            Column(f"SPICE_{kind}", f"SPICE {kind.lower()}", 100, 1, 1, "SPICE of one kind of facts alone.")
            for kind in ("Object", "Attribute", "Relation", "Color", "Cardinality", "Size")
        ),
        Column(
            "exact_recall@1", "exact R@1", 1, 1, 1, "Chance that what the caption says, read exactly, finds its image."
        ),
        Column("exact_recall@5", "exact R@5", 1, 1, 1, "The same within 5."),
        Column("exact_recall@10", "exact R@10", 1, 1, 1, "The same within 10."),
        Column("grammatical", "grammatical %", 1, 1, 1, "Captions that the world's grammar can read."),
        Column("truthful", "truthful %", 1, 1, 1, "Captions that can be read and are true of their image."),
        Column("motion", "motion %", 1, 1, 1, "Captions whose movements are true of their clip, whatever moves."),
        Column("order", "order %", 1, 1, 1, "Captions whose movements and their order are true of their clip."),
        Column("hallucinated", "hallucinated %", 1, 1, -1, "Attributes named that the image does not show."),
        Column("detail", "detail %", 1, 1, 0, "Attributes of the image that the caption names."),
        Column("Self-BLEU", "Self-BLEU", 1, 1, -1, "How alike the captions of different images are, 0 to 100."),
        Column(
            "distinct_captions", "distinct %", 1, 1, 1, "Share of captions that are not repeats of another image's."
        ),
        Column("most_common_caption", "top caption %", 1, 1, -1, "Share of images given the most frequent caption."),
        Column("repetition", "repetition %", 1, 1, -1, "Share of a caption's bigrams that it has said before."),
        Column("bad_endings", "bad endings %", 1, 1, -1, "Captions that stop on a word like 'a' or 'of'."),
        Column("unfinished", "unfinished %", 1, 1, -1, "Captions cut at the longest length."),
        Column("openers", "openers %", 1, 1, -1, "Captions that begin with 'a picture of' or a similar phrase."),
        Column("colored", "with colour %", 1, 1, 0, "Captions that name a colour."),
        Column("vocabulary", "vocabulary", 1, 0, 1, "Different words that the captions use together."),
        Column("TTR1", "TTR1", 1, 3, 1, "Different words over words, per 1,000 words of running text."),
        Column("TTR2", "TTR2", 1, 3, 1, "Different bigrams over bigrams, per 1,000 words of running text."),
        Column(
            "word_coverage",
            "word coverage %",
            1,
            1,
            1,
            "Words of training captions and references that the captions use.",
        ),
        Column("perplexity", "perplexity", 1, 1, -1, "How unexpected the captions are to a language model, a token."),
        Column(
            "grammatical_head", "grammar head %", 1, 1, 1, "Probability that a trained head gives of being grammatical."
        ),
        Column("novel_captions", "novel %", 1, 1, 0, "Captions that equal no training caption word for word."),
        Column("CHAIRi", "CHAIR-i %", 1, 1, -1, "Mentions of objects that the image lacks, of all mentions."),
        Column("CHAIRs", "CHAIR-s %", 1, 1, -1, "Captions that mention an object which the image lacks."),
        Column("object_recall", "object recall %", 1, 1, 1, "Annotated objects that the caption names."),
        Column("PAC-S", "PAC-S", 100, 1, 1, "Twice the cosine of caption and image under PAC-S's encoder, at least 0."),
        Column("RefPAC-S", "RefPAC-S", 100, 1, 1, "Harmonic mean of PAC-S and the best cosine with a reference."),
        Column("PAC-S_sentences", "PAC-S by sentence", 100, 1, 1, "PAC-S of each sentence, averaged over a caption's."),
        Column("ITM", "ITM %", 1, 1, 1, "How sure a matcher is that captions are of their images."),
        Column("ITM_logit", "ITM logit", 1, 2, 1, "The same before the softmax, unbounded."),
        Column("ITM_rejected_objects", "ITM rejects %", 1, 1, -1, "Named objects that a matcher does not see."),
        Column("VQAScore", "VQAScore", 100, 1, 1, "How sure a model that sees the image is of Yes when asked for it."),
        Column("QA", "QA %", 1, 1, 1, "Questions about the image that a reader answers right from the caption alone."),
        Column("QA_floor", "QA without caption %", 1, 1, 0, "The same questions answered without a caption."),
        Column("QA_chance", "QA by chance %", 1, 1, 0, "The same questions answered by guessing."),
        Column("QA_truncated", "QA cut captions %", 1, 1, -1, "Captions that the reader could not read in full."),
        Column("claim_precision", "claim precision %", 1, 1, 1, "Claims of a caption that a verifier finds true."),
        Column("claim_recall", "claim recall %", 1, 1, 1, "Claims of the references that a caption makes too."),
        Column("claim_F1", "claim F1 %", 1, 1, 1, "Harmonic mean of claim precision and recall."),
        Column("claims", "claims", 1, 1, 0, "Claims per caption."),
        Column("asked_length_kept", "asked length %", 1, 1, 1, "Captions of the length that they were asked for."),
        Column("asked_length_distance", "words off", 1, 2, -1, "Words too few or too many for the asked length."),
        Column("mean_length", "words", 1, 1, 0, "Mean number of words of a caption."),
    )
}

LISTENER_METRICS = {
    "R@1": Column("R@1", "R@1", 1, 1, 1, "Captions whose own image the retriever finds first, in percent."),
    "R@5": Column("R@5", "R@5", 1, 1, 1, "Captions whose own image is among the first 5, in percent."),
    "R@10": Column("R@10", "R@10", 1, 1, 1, "Captions whose own image is among the first 10, in percent."),
    "MRR": Column("MRR", "MRR", 100, 1, 1, "Mean of 1/rank of the caption's own image."),
    "MedR": Column("MedR", "median rank", 1, 1, -1, "Median rank of the caption's own image."),
    "i2t_R@1": Column("i2t_R@1", "i2t R@1", 1, 1, 1, "Images that find their own caption first, in percent."),
    "i2t_R@5": Column("i2t_R@5", "i2t R@5", 1, 1, 1, "Images that find their own caption among the first 5."),
    "i2t_R@10": Column("i2t_R@10", "i2t R@10", 1, 1, 1, "Images that find their own caption among the first 10."),
    "CLIPScore": Column("CLIPScore", "CLIP-S", 100, 1, 1, "2.5 times the cosine of caption and image, at least 0."),
    "RefCLIPScore": Column(
        "RefCLIPScore", "RefCLIP-S", 100, 1, 1, "Harmonic mean of CLIP-S and the best cosine with a reference."
    ),
    "CLIPScore_sentences": Column(
        "CLIPScore_sentences", "CLIP-S by sentence", 100, 1, 1, "CLIP-S of each sentence, averaged over a caption's."
    ),
}

LATE_SUFFIX = "_true"
"""Of a retriever that checks every word: the percentage of captions that it holds true, printed as it is named."""

SET_METRICS = {
    "CIDEr": Column("CIDEr", "CIDEr", 100, 1, 1, "Mean CIDEr of several captions per image."),
    "Div-1": Column("Div-1", "Div-1", 1, 3, 1, "Distinct words of an image's captions, of all their words."),
    "Div-2": Column("Div-2", "Div-2", 1, 3, 1, "Distinct pairs of words of an image's captions, of all their words."),
    "mBLEU-4": Column("mBLEU-4", "mBLEU-4", 1, 3, -1, "BLEU-4 of each caption of an image against its siblings."),
}
"""Of several captions per image; the prefix says how they were drawn and how many: ``rs5``, ``bs5``."""

MAIN = (
    "CIDEr",
    "Bleu_4",
    "METEOR",
    "SPICE",
    "R@1",
    "exact_recall@1",
    "grammatical",
    "perplexity",
    "truthful",
    "PAC-S",
    "ITM",
    "VQAScore",
    "QA",
    "claim_precision",
    "CHAIRi",
    "grammatical_head",
    "novel_captions",
    "Self-BLEU",
    "distinct_captions",
    "mean_length",
)
"""Columns of a first table, if measured; a listener's metric also names that of every other listener."""


def describe(key: str) -> Column:
    """How to print the metric ``key``; a key without a description is printed as it is."""
    return _described(key) or Column(key, key.replace("_", " "), digits=2)


def require_metric(key: str) -> None:
    """Raise if ``key`` is a metric that nothing here measures.

    Raises:
        UsageError: with the closest name, or all of them.
    """
    if _described(key) is None and not key.endswith(LATE_SUFFIX):
        listened = (f"{listener}_{name}" for listener in ("listener", "judge") for name in LISTENER_METRICS)
        require_known(key, (*CAPTION_METRICS, *listened), "a metric")


def _described(key: str) -> Column | None:
    if key in CAPTION_METRICS:
        return CAPTION_METRICS[key]
    drawn, _, name = key.partition("_")
    if name in SET_METRICS and drawn[:2] in ("rs", "bs") and drawn[2:].isdigit():
        column = SET_METRICS[name]
        return replace(column, key=key, label=f"{drawn} {column.label}")
    measured = listener_metric(key)
    if measured is None:
        return None
    listener, column = measured
    return replace(column, key=key, label=f"{listener} {column.label}")


def listener_metric(key: str) -> tuple[str, Column] | None:
    """``(listener, metric)`` of a key such as ``judge_i2t_R@1``, or None."""
    for suffix in sorted(LISTENER_METRICS, key=len, reverse=True):
        if key.endswith(f"_{suffix}"):
            return key[: -len(suffix) - 1], LISTENER_METRICS[suffix]
    return None


def markdown_cell(text: str) -> str:
    """Text that cannot end a cell of a Markdown table, nor be read as HTML; white space of any kind is one space."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())


WORDS = {
    "listener": "a retriever, the reward's if it has one",
    "judge": "a second retriever, which should not be the reward's",
    "exact": "recall by what the caption says, read exactly by the world's grammar",
}
"""Words of headings -> what they mean."""


def explain_words(columns: Iterable[Column]) -> str:
    """The words of the headings that are ours, in a line; empty where none is."""
    labels = {column.label.split()[0] for column in columns}
    return "; ".join(f"{word}: {meaning}" for word, meaning in WORDS.items() if word in labels)


def main_columns(keys: Iterable[str]) -> list[Column]:
    """The metrics of ``MAIN`` that are among ``keys``, in that order."""
    known = list(keys)
    chosen = []
    for name in MAIN:
        chosen += [key for key in known if key == name or (name in LISTENER_METRICS and _is_of(key, name))]
    chosen += [key for key in known if key.partition("_")[2] in SET_METRICS]
    return [describe(key) for key in chosen]


def all_columns(keys: Iterable[str]) -> list[Column]:
    """Every metric: the main ones first, then the others as they come."""
    known = list(keys)
    main = main_columns(known)
    shown = {column.key for column in main}
    return main + [describe(key) for key in known if key not in shown]


def _is_of(key: str, suffix: str) -> bool:
    measured = listener_metric(key)
    return measured is not None and measured[1].key == suffix


# What each key of ``metrics.jsonl`` is called and how it is printed.

PART_PREFIXES = ("rewards/", "reference/rewards/")
"""Parts of a mixed reward as applied: weighted, so that they sum to the reward; of drawn captions and of human ones."""

TRAINING_COLUMNS = {
    column.key: column
    for column in (
        Column(
            "loss", "loss", 1, 4, 0, "What is minimised; of sequence-level methods its size says little on its own."
        ),
        Column("reward", "reward", 1, 4, 1, "Mean reward of the captions drawn for training."),
        Column("reward_std", "reward, spread", 1, 4, 0, "Deviation among the captions of one image."),
        Column(
            "frac_reward_zero_std",
            "no spread %",
            100,
            1,
            -1,
            "Captions in groups of equal rewards, which teach nothing.",
        ),
        Column("kl", "log-ratio to the start", 1, 4, 0, "Log-probability of the captions, less the start model's."),
        Column("entropy", "entropy", 1, 4, 0, "Of the next word, along the captions."),
        Column("margin", "margin", 1, 4, 0, "How far the winner is ahead of the others, relative to the start model."),
        Column("completions/mean_length", "drawn length", 1, 1, 0, "Tokens of the captions drawn for training."),
        Column(
            "rollout_dtype_difference",
            "dtype difference",
            1,
            4,
            0,
            "Nats per token between log-probabilities in the dtype of drawing and in float32, mean of absolute values.",
        ),
        Column("completions/clipped_ratio", "drawn, cut %", 100, 1, -1, "Drawn captions cut at the longest length."),
        Column("reference/reward", "reward of human captions", 1, 4, 0, "Mean reward of the captions people wrote."),
        Column(
            "discriminator/accuracy",
            "discriminator right %",
            100,
            1,
            0,
            "Human and drawn captions that it classifies correctly.",
        ),
        Column(NON_FINITE, "not finite", 1, 0, -1, "1 where training stopped at a number that was not finite."),
    )
}

FIRST = ("loss", "reward", "kl", "completions/mean_length", "completions/clipped_ratio", "reward_std")
"""The first columns of a training's log."""


def describe_log(key: str) -> Column:
    """How to print a key of the log; a key without a description is printed as it is, with four digits."""
    if key.startswith(EVAL_PREFIX):
        return describe(key.removeprefix(EVAL_PREFIX))
    return TRAINING_COLUMNS.get(key) or Column(key, key, digits=4)
