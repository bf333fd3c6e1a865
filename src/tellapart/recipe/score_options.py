"""The options of ``tellapart score``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tellapart.data.formats.names import Format
from tellapart.errors import UsageError
from tellapart.recipe.measured import DataOptions

if TYPE_CHECKING:
    from tellapart.evaluation.measures import Measure

OF_CAPTIONERS = (
    "data",
    "images",
    "size",
    "limit",
    "on_error",
    "listener",
    "prefix",
    "judge",
    "pac",
    "pac_base",
    "itm",
    "num_beams",
    "rerank",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "max_new_tokens",
)
OF_FILES = ("cider_df_images", "caption_column", "format")
LEAST = {
    "bootstrap": (0, "a number of draws, 0 for none"),
    "seed": (0, "0 or more"),
    **dict.fromkeys(("num_beams", "max_new_tokens", "batch_size", "cider_df_images"), (1, "1 or more")),
    **dict.fromkeys(("no_repeat_ngram_size", "min_new_tokens"), (0, "a number of tokens, 0 for none")),
}
"""Option -> its least value, and what to say of a lower one."""


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(DataOptions):
    """Options of ``tellapart score``; what is null comes from the run's own recipe.

    Args:
        references: captions to compare a file of captions with, in any layout; the images need not be there.
        output_dir: folder to keep the result in; null takes the run itself, and keeps nothing of others.
        protocol: a named way of measuring (see --protocols): split, number of images, decoding.
        protocols: list them.
        name: what tables call it; null takes the folder's or file's name.
        all_metrics: print every metric instead of the main ones.
        json: print everything as JSON instead of a table.
        on_mismatch: whether images without a caption or references are an error, or are left out and named.
        cider_df: document frequencies of CIDEr, those of the references (corpus) or a file of them.
        cider_df_images: number of images that file counted, where it does not tell.
        bootstrap: draws for the 95 % intervals, 0 for none.
        seed: of these draws.
        format: how to read the references, instead of telling by their look.
        caption_column: column or field of the captions to measure, when its name is not a usual one.
        instances: COCO instance file of the images, for CHAIR (objects that a caption names and the image lacks).
        training_references: training captions in any layout, for the share of captions that are none of them.
        listener: a retriever to rank the images by each caption: a model folder, a Hugging Face id, or world/listener.
        prefix: words put before each caption for that retriever; null takes what belongs to the model.
        judge: a second retriever that no reward ever saw, such as world/judge.
        pac: encoder of PAC-S: the authors' .pth file, a folder or a Hugging Face id.
        pac_base: for .pth files, the model that they were trained from (tokenizer, image processor); null takes
            openai/clip-vit-base-patch32.
        itm: BLIP or BLIP-2 with an image-text matching head: a folder or a Hugging Face id.
        hard_gallery: also rank each image among its so many nearest ones, and list those a caption does not tell apart.
        samples: also draw so many captions of each image at random, and so many by beam search, and measure how good they
            are together and how different from one another; 0 does not.
        num_beams: beams of the search; 1 is greedy.
        rerank: keep, of the num_beams beams, the caption with the highest reward of this recipe: a file or a shipped name.
        no_repeat_ngram_size: no run of so many tokens may occur twice in a caption; 0 allows all.
        min_new_tokens: a caption cannot end before so many tokens.
        max_new_tokens: longest caption in tokens.
        batch_size: images captioned at once; it changes no caption.
        grammar: a grammar head's mean probability for the captions: a folder of train-listener --grammar, or world/grammar.
        language_model: perplexity of the captions under this causal language model: a model folder or a Hugging Face id.
        meteor: also METEOR, in process; its data come with pycocoevalcap and are compiled once.
        spice: SPICE by its authors' program, which needs Java 8 and Stanford CoreNLP; where they are missing, a sentence
            says what to put where.
        spice_jar: that program, or its folder; null takes pycocoevalcap's. Giving it asks for SPICE.
        spice_heap: most memory its Java may take, such as 4G.
        spice_timeout: seconds that one run of it, 500 captions, may take.
    """

    references: str | None = None
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
    judge: str | None = None
    pac: str | None = None
    pac_base: str | None = None
    itm: str | None = None
    hard_gallery: int = 0
    samples: int = 0
    num_beams: int | None = None
    rerank: str | None = None
    no_repeat_ngram_size: int | None = None
    min_new_tokens: int | None = None
    max_new_tokens: int | None = None
    batch_size: int = 64
    grammar: str | None = None
    language_model: str | None = None
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
        given = next((name for name in unfit if getattr(self, name) is not None), None)
        if given is not None and self.references is not None:
            raise UsageError(
                f"--{given} does not go with --references, which compares text only: leave it out, or give --data in place "
                "of --references."
            )
        if given is not None or (self.cider_df != "corpus" and self.references is None):
            raise UsageError(f"--{given or 'cider_df'} needs --references: give them, or leave it out.")
        if re.fullmatch(r"[1-9]\d*[kKmMgGtT]?", self.spice_heap) is None:
            raise UsageError(f"--spice_heap is {self.spice_heap!r}: give Java's memory as in 4G or 500M.")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.samples and (self.samples < 2 or self.references is not None):
            raise UsageError(f"--samples is {self.samples}: give 2 or more, with --data and a model that draws them.")
        if self.hard_gallery < 0 or (self.hard_gallery and self.references is not None):
            raise UsageError(
                f"--hard_gallery is {self.hard_gallery}: give a number of images, with --data and a --listener that sees them."
            )
        for name, (least, remedy) in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name} is {value}: give {remedy}.")
        if not self.spice_timeout > 0:
            raise UsageError(f"--spice_timeout is {self.spice_timeout:g}: give a number of seconds above 0.")


def further_measures(options: ScoreOptions, references: Mapping[str, Sequence[str]]) -> tuple[Measure, ...]:
    """What --instances, --training_references, --grammar, --language_model, --meteor and --spice ask for.

    Raises:
        UsageError: a file cannot be read.
    """
    from tellapart.evaluation.further import chair_measure, novelty_measure

    found = [] if options.instances is None else [chair_measure([options.instances], references)]
    if options.training_references is not None:
        from tellapart.data.load import load_references

        found.append(novelty_measure(load_references(options.training_references, prefer="train").references))
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
