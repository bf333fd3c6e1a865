"""The study of NLVR: captioners of real sentences, judged by the images that people set against each other.

``python studies/nlvr.py --data FOLDER`` trains all models and captioners from the folder of the data, measures val, and writes
``docs/results/nlvr.md``. Whatever is finished is kept in ``--output_dir``. ``--models`` trains the models only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nlvr_models import MAX_NEW_TOKENS, SEEDS, Models, Told
from nlvr_pictures import HELD_OUT, Corpus
from nlvr_sentences import NUMBERS, read, statements
from nlvr_towers import ACCURACY
from tellapart.captioning.apart import Apart
from tellapart.errors import UsageError
from tellapart.files import write_json, write_text
from tellapart.listeners.clip import ClipListener
from tellapart.listeners.late import LateListener
from tellapart.listeners.matcher import ItmMatcher
from tellapart.listeners.pairs import PairMatcher
from tellapart.metrics.coco import coco_metrics
from tellapart.metrics.groups import group_accuracy
from tellapart.recipe.models import load_captioner
from tellapart.sweep.claims import Claim, Seeds, markdown_table, over_seeds
from tellapart.sweep.page_parts import folded, reading
from tellapart.sweep.run_study import run
from tellapart.sweep.study import CAPTIONER, Study, points_text
from tellapart.sweep.study_file import StudyFile
from tellapart.sweep.tasks import Setting, Task

STEPS, IMAGES = 80, 32
"""Of every training, unless ``--steps`` says otherwise."""

FLUENT = 2.0
"""A point of a grid counts as fluent whose perplexity on the held-out groups is at most this many times the start captioner's."""

Score = Callable[[Sequence[str], Sequence[Sequence[str]]], list[list[float]]]
"""File names, and texts for each of them -> a score of each text with its image."""


def by_matcher(matcher: PairMatcher) -> Score:
    """The log-odds of a match."""

    def score(names: Sequence[str], texts: Sequence[Sequence[str]]) -> list[list[float]]:
        return [(logits[:, 1] - logits[:, 0]).tolist() for logits in matcher.match_ids(names, texts)]

    return score


def by_listener(listener: ClipListener) -> Score:
    """The cosine."""

    def score(names: Sequence[str], texts: Sequence[Sequence[str]]) -> list[list[float]]:
        images = listener.encode_ids(list(names))
        embedded = listener.encode_texts([text for own in texts for text in own])
        rows = torch.tensor([i for i, own in enumerate(texts) for _ in own])
        return [part.tolist() for part in (embedded * images[rows]).sum(dim=1).split([len(own) for own in texts])]

    return score


@dataclass
class Judging:
    """Measures of captions against the groups of a split.

    Args:
        models: of the study.
        split: whose images were captioned.
        kept: folder of what was measured.
    """

    models: Models
    split: str
    kept: Path

    @cached_property
    def told(self) -> Told:
        """The images of the groups."""
        return self.models.told(self.split)

    @cached_property
    def file_of(self) -> dict[str, str]:
        """Id of a captioned image -> its file name."""
        images = json.loads(self.models.data.read_text(encoding="utf-8"))["images"]
        return {str(image["cocoid"]): image["filename"] for image in images if image["split"] == self.split}

    @cached_property
    def human(self) -> dict[str, str]:
        """Id of a captioned image -> its human sentence."""
        return {name: self.told.group[file].sentence for name, file in self.file_of.items()}

    @cached_property
    def judge(self) -> Score:
        """The judge's score."""
        matcher = ItmMatcher.from_pretrained(self.models.stage("judge"), name="judge", batch_size=256)
        matcher.know_images(self.told.dataset())
        return by_matcher(matcher)

    def __call__(self, captions: Mapping[str, str]) -> dict[str, float]:
        """Group accuracy by the judge, and what the scenes decide exactly; in percent. Kept on disk."""
        said = json.dumps([sorted(captions.items()), self.models.folder("judge").name, self.split])
        path = self.kept / f"{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"
        if not path.is_file():
            write_json(path, {**self.by(self.judge, captions, "judge"), **self.exactly(captions)})
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def by(self, score: Score, captions: Mapping[str, str], name: str) -> dict[str, float]:
        """Group accuracy by some model; ``..._true`` is the share of captions with log-odds above 0."""
        pairs = [(file, text) for image, text in captions.items() for file in self._against(image)]
        found = iter(score([file for file, _ in pairs], [[text] for _, text in pairs]))
        scores = [[next(found)[0] for _ in self._against(image)] for image in captions]
        accuracy = group_accuracy([one[0] for one in scores], [one[1:] for one in scores])
        true = 100.0 * sum(one[0] > 0 for one in scores) / len(scores)
        return {f"{name}_groups": accuracy.groups, f"{name}_pairs": accuracy.pairs, f"{name}_true": true}

    def _against(self, image: str) -> list[str]:
        """File of an image, and those of the images of its group that its human sentence is false of."""
        file = self.file_of[image]
        return [file, *self.told.group[file].false]

    def exactly(self, captions: Mapping[str, str]) -> dict[str, float]:
        """``exact_read``: captions that the scene decides; ``exact_true``: those of them that are true; ``exact_groups``: of
        those that are decided for the whole group, true of their own image and false of all look-alikes."""
        own: list[bool] = []
        groups: list[bool] = []
        for image, text in captions.items():
            reading = read(text)
            answers = [None if reading is None else reading(self.told.scene(file)) for file in self._against(image)]
            if answers[0] is not None:
                own.append(answers[0])
            if len(answers) > 1 and None not in answers:
                groups.append(bool(answers[0]) and not any(answers[1:]))
        share = {"exact_true": own, "exact_groups": groups}
        return {"exact_read": 100.0 * len(own) / len(captions)} | {
            name: 100.0 * sum(found) / len(found) for name, found in share.items() if found
        }


class NlvrStudy(Study):
    """A study whose start captioner each seed redraws, and whose points are chosen by group accuracy on held-out groups.

    Among points that stay fluent (:data:`FLUENT`), the one with the highest group accuracy by the judge is chosen.
    """

    models: Models
    judged: dict[str, Judging]

    def task(self, name: str, setting: Setting, seed: int, measures: Sequence[Mapping[str, Any]] = ()) -> Task:
        """A training from the start captioner of its seed."""
        start = {CAPTIONER: str(self.models.stage("xe", seed))}
        return super().task(name, setting.having(start), seed, measures)

    def tried(self, name: str, setting: Setting) -> list[Task]:
        """The trainings of a grid's point, measured on the held-out groups."""
        how = [{**self.file.measures[0], "split": HELD_OUT}]
        return [self.task(name, setting, seed, how) for seed in self.search_seeds]

    def merit(self, name: str, setting: Setting) -> tuple[float, ...]:
        """Whether a point is fluent, and its group accuracy on held-out groups."""
        found = self.held_out(name, setting)
        start = next(row for row, each in self.file.rows.items() if each.start_of)
        least = self.held_out(start, self.file.rows[start].setting)["perplexity"]
        return found["perplexity"] <= FLUENT * least, found["judge_groups"]

    def held_out(self, name: str, setting: Setting) -> dict[str, float]:
        """What a point scores on the held-out groups."""
        (task,) = self.tried(name, setting)
        measured = list(task.measured().values())[-1]
        return {**measured.metrics, **self.judged[HELD_OUT](measured.result().captions)}

    def searching(self) -> list[Task]:
        """The points of the grids, and the start captioner that they are compared with."""
        starts = (self.tried(name, row.setting) for name, row in self.file.rows.items() if row.start_of)
        return [*(task for tasks in starts for task in tasks), *super().searching()]


def prepare(models: Models, split: str, steps: int) -> Callable[[StudyFile, str, bool], StudyFile]:
    """What gives every row its data and models."""

    def with_models(file: StudyFile, size: str, build: bool) -> StudyFile:
        for name in SEEDS:
            if not build and not models.folder(name).is_dir():
                raise UsageError(f"the model {name} is not trained yet: run this with --models first.")
            models.stage(name)
        for name, row in file.rows.items():
            file = file.having({name}, {**_overrides(models, row.recipe or row.start_of, steps), **row.overrides})
        measure = {
            "split": split,
            "language_model": str(models.folder("language_model")),
            "max_new_tokens": MAX_NEW_TOKENS,
        }
        return replace(file, measure=measure)

    return with_models


def _overrides(models: Models, recipe: str, steps: int) -> dict[str, Any]:
    """Options that all trainings share."""
    verifier = str(models.folder("verifier"))
    common: dict[str, Any] = {
        "data.path": str(models.root / "data" / "dataset_nlvr.json"),
        "data.images": str(models.root / "data" / "images"),
        "data.split": "train",
        "listener.path": str(models.folder("listener")),
        "objective.max_new_tokens": MAX_NEW_TOKENS,
        "evaluation.split": HELD_OUT,
        "evaluation.judge": None,
        "evaluation.max_new_tokens": MAX_NEW_TOKENS,
        "training.max_steps": steps,
        "training.per_device_train_batch_size": IMAGES,
        "training.eval_steps": steps,
        "training.metric_for_best_model": None,
        "training.best_floor": {},
    }
    if recipe.endswith("truth"):
        truth = {"name": "truth", "weight": 0.3, "floor": -40.0}
        likelihood = {"name": "likelihood", "weight": 0.06, "listener": {"path": verifier}}
        common |= {"matcher.model": verifier, "reward": [truth, likelihood]}
    return common


# The page.

KNOWN = ("colour", "shape", "number")
WORDS = {
    "colour": ("yellow", "black", "blue"),
    "shape": ("circle", "square", "triangle", "circles", "squares", "triangles"),
    "number": tuple(word for word in NUMBERS if word not in ("no", "one", "1")),
}


def questions(told: Told, kind: str) -> Iterator[tuple[str, str, str]]:
    """File name, a sentence that is true of the image, and the same with one word replaced so that it is false."""
    for name in told.names:
        rng = random.Random(f"{kind}-{name}")
        for text, true in islice(statements(told.scene(name), rng), 40):
            words = text.split()
            places = [i for i, word in enumerate(words) if word in WORDS[kind]]
            if not true or not places:
                continue
            place = rng.choice(places)
            others = [word for word in WORDS[kind] if word.endswith("s") == words[place].endswith("s")]
            false = " ".join([*words[:place], rng.choice(others), *words[place + 1 :]])
            reading = read(false)
            if reading is not None and reading(told.scene(name)) is False:
                yield name, text, false
                break


def probe(score: Score, judging: Judging) -> dict[str, float]:
    """What a model knows: people's sentences among their groups, and sentences with one word replaced; in percent."""
    found = judging.by(score, judging.human, "human")
    known = {"people, groups": found["human_groups"], "people, pairs": found["human_pairs"]}
    for kind in KNOWN:
        asked = list(questions(judging.told, kind))
        scores = score([name for name, _, _ in asked], [[true, false] for _, true, false in asked])
        known[kind] = 100.0 * sum(true > false for true, false in scores) / len(scores)
    return known


def probes(judging: Judging) -> dict[str, dict[str, float]]:
    """Model -> what it knows of the images of a split."""
    path = (
        judging.kept
        / f"probes-{judging.split}-{judging.models.folder('judge').name}-{judging.models.folder('verifier').name}.json"
    )
    if not path.is_file():
        dataset = judging.told.dataset()
        listener = ClipListener.from_pretrained(judging.models.stage("listener"), name="listener")
        listener.cache_images(dataset)
        verifier = LateListener.from_pretrained(judging.models.stage("verifier"))
        verifier.know_images(dataset)
        scores = {"listener": by_listener(listener), "verifier": by_matcher(verifier), "judge": judging.judge}
        write_json(path, {name: probe(score, judging) for name, score in scores.items()})
    return dict(json.loads(path.read_text(encoding="utf-8")))


APART = {
    "apart, no verifier": {},
    "apart": {"verified": True},
}
"""Row without training -> whether the verifier helps to compare candidates."""
BEAMS = 10


def apart_rows(judging: Judging, seeds: Sequence[int]) -> dict[str, list[dict[str, float]]]:
    """Captions chosen among look-alikes, without training, from the start captioner of each seed. Kept on disk."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in APART}
    for seed in seeds:
        for name, how in APART.items():
            label = f"apart-{judging.split}-{judging.models.folder('xe', seed).name}-{len(how)}"
            path = judging.kept / f"{label}-{judging.models.folder('verifier').name}.json"
            if not path.is_file():
                write_json(path, _apart(judging, seed, verified="verified" in how))
            captions = json.loads(path.read_text(encoding="utf-8"))
            references = {image: [text] for image, text in judging.human.items()}
            coco, _ = coco_metrics(captions, references)
            distinct = 100.0 * len(set(captions.values())) / len(captions)
            words = sum(len(text.split()) for text in captions.values()) / len(captions)
            own = {"distinct_captions": distinct, "mean_length": words, **judging(captions)}
            found[name].append({**coco, **own})
    return found


def _apart(judging: Judging, seed: int, *, verified: bool) -> dict[str, str]:
    models, dataset = judging.models, judging.told.dataset()
    listener = ClipListener.from_pretrained(models.stage("listener"), name="listener")
    verifier = LateListener.from_pretrained(models.stage("verifier")) if verified else None
    captioner = load_captioner(str(models.stage("xe", seed))).eval()
    options: dict[str, Any] = {"num_beams": BEAMS, "redraw": 0, "max_new_tokens": MAX_NEW_TOKENS}
    written = Apart(captioner, listener, verifier=verifier, **options)(list(dataset))
    text = {caption.id: caption.caption for caption in written}
    return {image: text[file] for image, file in judging.file_of.items()}


def page(study: NlvrStudy, docs: Path, split: str) -> Path:
    """Write the page of a finished study."""
    judging, path = study.judged[split], docs / study.file.page
    columns = study.file.tables[""]
    human = judging(judging.human)
    rows = [["*human*", "-", *_cells([human], columns)]]
    for name, tasks in study.shown().items():
        point = "last" if tasks[0].trains else "selected"
        rows.append([name, point if tasks[0].trains else "-", *_cells(study.metrics(name, point), columns)])
    searched = apart_rows(judging, study.seeds)
    rows += [[name, "search", *_cells(found, columns)] for name, found in searched.items()]
    known = probes(judging)
    parts = [
        f"# {study.file.title}\n\n{study.file.introduction}",
        folded("## What the models see\n\n" + _seen(study.models, known)),
        reading(path),
        "## What was expected\n\n" + "\n".join(claim.to_markdown() for claim in claims(study)),
        f"## Captions of {split}, greedy\n\n"
        + markdown_table(["row", "point", *(heading for heading, _ in columns.values())], rows),
        folded(f"## The grid on the held-out groups (seed {study.seeds[0]})\n\n" + _grid(study)),
        folded("## Seconds\n\n" + _seconds(study)),
    ]
    write_text(path, "\n\n".join(parts) + "\n")
    return path


def _cells(metrics: Sequence[Mapping[str, float]], columns: Mapping[str, tuple[str, float | None]]) -> list[str]:
    return [str(over_seeds(metrics, key, factor) or "-") for key, (_, factor) in columns.items()]


def _seen(models: Models, known: Mapping[str, Mapping[str, float]]) -> str:
    towers = {
        name: json.loads((models.stage(name) / ACCURACY).read_text(encoding="utf-8"))
        for name in ("tower", "judge-tower")
    }
    one = [[asked, *(f"{tower[asked]:.1f}" for tower in towers.values())] for asked in towers["tower"]]
    two = [[asked, *(f"{found[asked]:.1f}" for found in known.values())] for asked in known["judge"]]
    return f"""Linear heads on the towers, images of held-out groups, percent right:

{markdown_table(["asked", *towers], one)}

Texts: *people* is the human sentence among the images of its group; the others are sentences with one word replaced, of which
the true one should score higher (chance 50). Percent right:

{markdown_table(["asked", *known], two)}"""


def claims(study: NlvrStudy) -> Iterator[Claim]:
    """What was expected before val was read."""

    def groups(name: str) -> Seeds:
        return study.read(name, "judge_groups", point="selected", factor=1)

    start = groups("xe")
    for name in ("scst-CLIP+KL", "dico", "wtf_rl", "wtf_rl, clamped and centred", "dico-truth"):
        ours = groups(name)
        yield Claim(
            f"{name} has a higher group accuracy than xe in every seed.", ours.above(start), f"{ours} against {start}."
        )
    true = {name: study.read(name, "exact_true", factor=1) for name in ("dico", "dico-truth")}
    yield Claim(
        "dico-truth's captions are true more often than dico's, where the scenes decide.",
        true["dico-truth"].above(true["dico"]),
        f"{true['dico-truth']} against {true['dico']}.",
    )


def _grid(study: NlvrStudy) -> str:
    rows = []
    for name, row in study.file.rows.items():
        if row.start_of:
            continue
        chosen = study.chosen(name)
        for setting in study.grid(name):
            found = study.held_out(name, setting)
            cells = [name, points_text(row, setting).removesuffix(", ")]
            keys = ("judge_groups", "perplexity", "exact_true")  # the last only where the scenes decide some captions
            cells += [f"{found[key]:.1f}" if key in found else "-" for key in keys]
            rows.append([f"**{cell}**" for cell in cells] if setting == chosen else cells)
    table = markdown_table(["row", "point", "group accuracy", "perplexity", "true where decided"], rows)
    return f"{table}\n\nIn bold the chosen point of each row."


def _seconds(study: NlvrStudy) -> str:
    stages = [(name, 0) for name in SEEDS] + [("xe", seed) for seed in study.seeds]
    rows = []
    for name, seed in stages:
        told = json.loads((study.models.stage(name, seed) / "stage.json").read_text(encoding="utf-8"))
        rows.append([name if name in SEEDS else f"{name}, seed {seed}", f"{told['cpu_seconds'] / 60:.1f}"])
    return markdown_table(["model", "CPU minutes, one thread"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, measure it, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of NLVR's captions")
    parser.add_argument("--split", default="val", help="split that is measured; test, once, where the folder has it")
    parser.add_argument("--steps", type=int, default=STEPS, help="of every training")
    parser.add_argument("--models", action="store_true", help="train the models only")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/study/nlvr"))
    options, rest = parser.parse_known_args(argv)
    torch.set_num_threads(1)
    models = Models(Corpus(options.data), options.output_dir.resolve())
    judged = {split: Judging(models, split, options.output_dir / "judged") for split in (options.split, HELD_OUT)}
    if options.models:
        try:
            for name in SEEDS:
                models.stage(name)
            models.stage("xe", 0)
        except UsageError as error:
            sys.exit(f"error: {error}")
        return
    kind = type("Nlvr", (NlvrStudy,), {"models": models, "judged": judged})

    def write(study: Study, docs: Path) -> Path:
        assert isinstance(study, NlvrStudy)
        return page(study, docs, options.split)

    how: dict[str, Any] = {
        "prepare": prepare(models, options.split, options.steps),
        "derive": judged[options.split],
        "kind": kind,
    }
    run(__file__, argv=["--output_dir", str(options.output_dir), *rest], write=write, **how)


if __name__ == "__main__":
    main()
