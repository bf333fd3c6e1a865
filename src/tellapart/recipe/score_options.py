"""The options of ``tellapart score``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tellapart.data.formats.names import Format
from tellapart.errors import UsageError
from tellapart.lengths import WordRange
from tellapart.listeners.kinds import is_checkpoint
from tellapart.recipe.measured import DataOptions

if TYPE_CHECKING:
    from tellapart.evaluation.measures import Measure

DRAWING = (
    "samples",
    "apart",
    "rerank",
    "summarize",
    "n",
    "words",
    "num_beams",
    "max_new_tokens",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "batch_size",
)
"""Options that say how a captioner draws captions."""
OF_CAPTIONERS = (
    *DRAWING,
    "data",
    "images",
    "features",
    "size",
    "image_column",
    "id_column",
    "allow_private",
    "limit",
    "center_crop",
    "on_error",
    "strict",
    "listener",
    "prefix",
    "text_pooling",
    "judge",
    "pac",
    "pac_base",
    "itm",
    "vqa_score",
    "claims",
    "claim_file",
    "verifier",
)
OF_SPICE = ("spice_heap", "spice_timeout")
OF_FILES = ("cider_df_images", "caption_column", "format")
LEAST = {
    "bootstrap": (0, "a number of draws, 0 for none"),
    "seed": (0, "0 or more"),
    **dict.fromkeys(("num_beams", "max_new_tokens", "batch_size", "cider_df_images"), (1, "1 or more")),
    "n": (2, "2 or more captions to make one of"),
    **dict.fromkeys(("no_repeat_ngram_size", "min_new_tokens"), (0, "a number of tokens, 0 for none")),
}
"""Option -> its least value, and what to say of a lower one."""


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(DataOptions):
    """Options of ``tellapart score``; what is null comes from the run's own recipe.

    Args:
        on_error: an image that cannot be read is left out and listed (skip), for which all images are read once beforehand, or
            is an error (fail).
        strict: exit with code 2 if an image could not be read; otherwise only if none could.
        references: reference captions for a file of captions, in any layout; the images are not needed.
        start: also measure the model that the run began from, in the same way; compare and report then show it first.
        output_dir: folder for the result; null writes into a run's own folder, and keeps nothing of other captioners and files.
        protocol: a named evaluation protocol (see --protocols): split, number of images, decoding.
        protocols: list the named protocols.
        name: name in tables; null takes the folder's or file's name.
        all_metrics: print every metric instead of the main ones.
        json: print everything as JSON instead of a table.
        on_mismatch: whether images without a caption or references are an error, or are left out and named.
        cider_df: document frequencies of CIDEr: those of the references (corpus), or a file.
        cider_df_images: number of images behind that file, where the file does not say.
        bootstrap: bootstrap draws for the 95 % intervals; 0 computes none.
        seed: seed of these draws.
        format: layout of the references; null detects it.
        caption_column: column or field of the captions to measure, when its name is not a usual one.
        instances: COCO instance file of the images, for CHAIR (objects that a caption names and the image lacks).
        training_references: training captions in any layout, for the share of captions that do not occur among them.
        listener: a retriever to rank the images by each caption: a model folder, a Hugging Face id, or world/listener.
        prefix: words put before each caption for that retriever; null takes the model's own prefix.
        text_pooling: how that retriever reads captions that are too long for it: whole cuts them; sentence_mean and sentence_max
            pool the embeddings of their sentences; null takes the run's own.
        judge: a second retriever that no reward ever saw, such as world/judge.
        pac: encoder of PAC-S: the authors' .pth file, a folder or a Hugging Face id.
        pac_base: for .pth files, the model that they were trained from (tokenizer, image processor); null takes
            openai/clip-vit-base-patch32.
        itm: BLIP or BLIP-2 with an image-text matching head: a folder or a Hugging Face id.
        vqa_score: instruct vision-language model for VQAScore, the probability of Yes to "Does this figure show ...?": a folder
            or a Hugging Face id.
        claims: verify each claim of the captions by this matcher or instruct vision-language model (precision), and compare with
            the claims of the references (recall): a folder, a Hugging Face id, world/itm, or exact (the truth about the
            built-in world).
        claim_file: claims that a language model has written, as JSON lines of caption and claims; null finds them by rules.
        hard_gallery: also rank each image among its N nearest ones, and list the images that fit a caption as well as its own.
        samples: also draw N captions per image at random and N by beam search, and measure the quality and diversity of each
            set; 0 draws none; null takes what the run's recipe says.
        num_beams: beams of the search; 1 is greedy.
        words: length in words to ask for, such as 8-15, of a captioner with length buckets; captions of any captioner are
            compared with it. null draws one of the buckets for each image.
        rerank: keep, of the num_beams beams, the caption with the highest reward of this recipe: a file or a shipped name.
        apart: tell each image from the images of the data that look most like it, as tellapart caption --apart does: candidates
            are the num_beams beams (null: 20), compared by --listener and, if given, --verifier.
        summarize: let this language model write one caption of --n sampled ones, as tellapart caption --summarize does (IC3): a
            folder, a Hugging Face id, or exact (the built-in world's grammar).
        n: captions sampled per image for --summarize.
        verifier: a matcher that tells true captions from false ones, for --apart: a BLIP or BLIP-2 with a matching head, an
            instruct vision-language model, or world/verifier.
        no_repeat_ngram_size: no sequence of N tokens may occur twice in a caption; 0 allows repetition.
        min_new_tokens: shortest caption in tokens.
        max_new_tokens: longest caption in tokens.
        batch_size: images captioned at once; captions do not depend on it.
        grammar: mean probability of the captions under a grammar head: a folder of train-listener --grammar, or world/grammar.
        language_model: perplexity of the captions under this causal language model: a model folder or a Hugging Face id.
        reader: text-only language model that answers questions about the images from the captions alone: a folder, a Hugging Face
            id, or exact (the built-in world's grammar).
        questions: what the reader is asked: a file of questions (JSON lines of id, question, options, answer), references
            (by template from human captions), or world.
        meteor: also measure METEOR, without Java; its data come with pycocoevalcap and are compiled once.
        spice: also measure SPICE by its authors' program, which needs Java 8 and Stanford CoreNLP; a message names what is
            missing.
        spice_jar: that program, or its folder; null takes pycocoevalcap's. Implies --spice.
        spice_heap: maximum heap size of its Java, such as 4G.
        spice_timeout: time limit in seconds per 500 captions.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "tellapart score captions.json --references captions_val2017.json",
        "tellapart score runs/x --split test --start",
        "tellapart score captions.json --data photos.json --listener openai/clip-vit-base-patch32 --meteor",
    )
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "images and references": (
            "references",
            "data",
            "split",
            "images",
            "features",
            "format",
            "size",
            "limit",
            "center_crop",
            "on_error",
            "strict",
            "on_mismatch",
            "caption_column",
            "protocol",
            "protocols",
        ),
        "output": ("start", "output_dir", "name", "all_metrics", "json"),
        "decoding, for runs and models": (
            "num_beams",
            "max_new_tokens",
            "min_new_tokens",
            "no_repeat_ngram_size",
            "words",
            "rerank",
            "apart",
            "verifier",
            "summarize",
            "n",
            "samples",
            "batch_size",
        ),
        "retrieval and other models": (
            "listener",
            "prefix",
            "text_pooling",
            "judge",
            "hard_gallery",
            "pac",
            "pac_base",
            "itm",
            "vqa_score",
            "claims",
            "claim_file",
            "grammar",
            "language_model",
            "reader",
            "questions",
        ),
        "further text metrics": (
            "meteor",
            "spice",
            "spice_jar",
            "spice_heap",
            "spice_timeout",
            "instances",
            "training_references",
            "cider_df",
            "cider_df_images",
        ),
        "intervals": ("bootstrap", "seed"),
    }
    on_error: Literal["fail", "skip"] = "skip"
    strict: bool = False
    references: str | None = None
    start: bool = False
    output_dir: Path | None = None
    protocol: str | None = None
    protocols: bool = False
    name: str | None = None
    all_metrics: bool = False
    json: bool = False
    on_mismatch: Literal["fail", "skip"] = "fail"
    cider_df: str = "corpus"
    cider_df_images: int | None = None
    bootstrap: int = 1000
    seed: int = 0
    format: Format | None = None
    caption_column: str | None = None
    instances: Path | None = None
    training_references: str | None = None
    listener: str | None = None
    prefix: str | None = None
    text_pooling: Literal["whole", "sentence_mean", "sentence_max"] | None = None
    judge: str | None = None
    pac: str | None = None
    pac_base: str | None = None
    itm: str | None = None
    vqa_score: str | None = None
    claims: str | None = None
    claim_file: Path | None = None
    hard_gallery: int = 0
    samples: int | None = None
    num_beams: int | None = None
    words: str | None = None
    rerank: str | None = None
    apart: bool = False
    verifier: str | None = None
    summarize: str | None = None
    n: int = 10
    no_repeat_ngram_size: int | None = None
    min_new_tokens: int | None = None
    max_new_tokens: int | None = None
    batch_size: int = 64
    grammar: str | None = None
    language_model: str | None = None
    reader: str | None = None
    questions: str | None = None
    meteor: bool = False
    spice: bool = False
    spice_jar: Path | None = None
    spice_heap: str = "8G"
    spice_timeout: float = 3600.0

    def check(self) -> None:
        """Raise if options contradict each other.

        Raises:
            UsageError: naming the one that does not belong.
        """
        unfit = OF_CAPTIONERS if self.references is not None else OF_FILES
        given = next((name for name in unfit if getattr(self, name) != getattr(ScoreOptions, name)), None)
        if given is not None and self.references is not None:
            raise UsageError(
                f"--{given} does not go with --references, which compares text only: leave it out, or give --data in place "
                "of --references."
            )
        if given is not None or (self.cider_df != "corpus" and self.references is None):
            raise UsageError(f"--{given or 'cider_df'} needs --references: give them, or leave it out.")
        if self.verifier is not None and not self.apart:
            raise UsageError("--verifier is for telling look-alikes apart: add --apart, or leave it out.")
        if self.pac_base is not None and not any(map(is_checkpoint, filter(None, (self.pac, self.listener)))):
            raise UsageError("--pac_base is for .pth files: give one as --pac or --listener, or leave it out.")
        if self.apart and self.rerank is not None:
            raise UsageError(
                "--apart chooses by look-alikes, so it does not go with --rerank: leave one of the two out."
            )
        if self.cider_df_images is not None and self.cider_df == ScoreOptions.cider_df:
            raise UsageError(
                "--cider_df_images is for a file of document frequencies: give --cider_df, or leave it out."
            )
        self._check_summary()
        if self.start and self.references is not None:
            raise UsageError(
                "--start measures what a run began from, and --references compares text only: leave one out."
            )
        self._check_numbers()
        self._check_spice()

    @property
    def asked_words(self) -> WordRange | None:
        """The lengths that ``words`` asks for."""
        return None if self.words is None else WordRange.parse(self.words)

    def _check_summary(self) -> None:
        if self.summarize is None:
            if self.n != ScoreOptions.n:
                raise UsageError("--n is for --summarize, which is not given: give it, or leave both out.")
            return
        given = {"apart": self.apart, "rerank": self.rerank, "num_beams": (self.num_beams or 1) > 1}
        other = next((name for name, value in given.items() if value), None)
        if other is not None:
            raise UsageError(
                f"--{other} chooses among captions, and --summarize writes a new one of sampled ones: leave one of the two out."
            )

    def _check_numbers(self) -> None:
        if self.words is not None:
            WordRange.parse(self.words)
        if self.samples and self.samples < 2:
            raise UsageError(f"--samples is {self.samples}: give 2 or more, or 0 for none.")
        if self.hard_gallery < 0 or (self.hard_gallery and self.references is not None):
            raise UsageError(
                f"--hard_gallery is {self.hard_gallery}: give a number of images, with --data and a --listener that sees them."
            )
        for name, (least, remedy) in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name} is {value}: give {remedy}.")

    def _check_spice(self) -> None:
        if re.fullmatch(r"[1-9]\d*[kKmMgGtT]?", self.spice_heap) is None:
            raise UsageError(f"--spice_heap is {self.spice_heap!r}: give Java's memory as in 4G or 500M.")
        if not self.spice_timeout > 0:
            raise UsageError(f"--spice_timeout is {self.spice_timeout:g}: give a number of seconds above 0.")
        unused = next((name for name in OF_SPICE if getattr(self, name) != getattr(ScoreOptions, name)), None)
        if unused is not None and not self.spice and self.spice_jar is None:
            raise UsageError(f"--{unused} is for SPICE, which is not asked for: add --spice, or leave it out.")


def further_measures(options: ScoreOptions, references: Mapping[str, Sequence[str]]) -> tuple[Measure, ...]:
    """What --instances, --training_references, --grammar, --language_model, --meteor and --spice select.

    Raises:
        UsageError: a file cannot be read.
    """
    from tellapart.evaluation.further import chair_measure, novelty_measure

    found = [] if options.instances is None else [chair_measure([options.instances], references)]
    if options.training_references is not None:
        from tellapart.data.load import load_references

        found.append(
            novelty_measure(load_references(options.training_references, prefer="train").references, references)
        )
    if options.grammar is not None:
        from tellapart.evaluation.grammar import GrammarMeasure
        from tellapart.recipe.models import load_grammar

        found.append(GrammarMeasure(load_grammar(options.grammar, size=options.size or "full")))
    if options.language_model is not None:
        from tellapart.evaluation.fluency import PerplexityMeasure
        from tellapart.recipe.models import load_language_model

        found.append(PerplexityMeasure(load_language_model(options.language_model, size=options.size or "full")))
    if options.meteor:
        from tellapart.evaluation.meteor import MeteorMeasure

        found.append(MeteorMeasure(references))
    if options.spice or options.spice_jar is not None:
        from tellapart.evaluation.spice import SpiceMeasure

        jar, heap, timeout = options.spice_jar, options.spice_heap, options.spice_timeout
        found.append(SpiceMeasure(references, jar=jar, heap=heap, timeout=timeout))
    return tuple(found)
