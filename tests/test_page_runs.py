"""Every command of every page that needs no download runs, page by page in the order of the page.

Each page has a folder of its own. Files that a reader has at hand (``PLACES``) are put there when a command names them and no
earlier command of the page has written them. The built-in world is the small one: the cache's full world links to it. What
takes long is shortened by words put behind the command (``SHORTER``), of which the last counts. Models of the hub are replaced
by those of the world where it has one of their kind (``STAND_INS``), so that commands with a mark run too; what then still
needs a download is only read, by ``test_page_commands.py``, as are programs of other projects and make's targets.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml

from captioning.chat_server import Chat, serving
from clip_files import grey_frames, write_clip
from page_commands import COMMANDS, OTHERS, ROOT, Command, files_of, needed, write_own_recipes
from small_meteor import write_data
from tellapart.cli.main import main
from tellapart.data.dataset import CaptionDataset
from tellapart.evaluation.judge.answers import Answers
from tellapart.evaluation.judge.serve import listen
from tellapart.evaluation.judge.study import ANSWERS_FILE, READS_BETTER, Study
from tellapart.files import cache_dir
from tellapart.recipe.shipped import find_recipe
from tellapart.sweep.run_study import run as run_study
from tellapart.world import load_world
from tellapart.world import spec as still
from tellapart.world.build import world_folder as still_folder
from tellapart.world.schedules import SEEDED, STAGES
from tellapart.world.stages import resolve, stage_folder
from tellapart.world.video import spec as moving
from tellapart.world.video.build import world_folder as moving_folder

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

IMAGES = 24
"""Images of each kind of data."""

STAND_INS = {
    "Salesforce/blip-image-captioning-base": "world/xe",
    "microsoft/git-base-coco": "world/xe",
    "Salesforce/blip-itm-base-coco": "world/itm",
    "openai/clip-vit-base-patch32": "world/listener",
    "laion/CLIP-ViT-g-14-laion2B-s12B-b42K": "world/judge",
    "clip_ViT-B-32.pth": "world/pac",
    "gpt2": "world/language_model",
    "facebook/dinov2-base": "world/backbone",
    "microsoft/resnet-152": "world/backbone",
    "/shared/x": "shared/x",
}
"""Models of the hub -> those of the world of their kind, and a folder that readers' machines share."""
BUCKET = "s3://"
"""Addresses in a store are folders here."""
SERVER = "http://localhost:8000/v1"

LAUNCH = {"--nproc_per_node": "2", "--nnodes": "1", "--rdzv_endpoint": "localhost:0"}
"""Option of torchrun -> its value for two processes on this machine."""

TRAINING = {
    "max_steps": 2,
    "eval_steps": 1,
    "per_device_train_batch_size": 8,
    "data.limit": IMAGES,
    "evaluation.limit": IMAGES,
}
SHORTER = {
    "train": TRAINING,
    "train-listener": TRAINING,
    "frontier": TRAINING | {"seeds": 1, "workers": 1, "images": 2},
    "tellapart.sweep.run_study": {"steps": 2, "seeds": 0, "workers": 1},
    "coco-karpathy-test": {"on_mismatch": "skip"},
    "tests.campaign": {"minutes": 0.2},
    "benchmarks/engine.py": {"setting": "world-like", "repeats": 1},
}
"""Word of a command -> options put behind its words."""
OF_SECTIONS = {
    "discriminator": {"discriminator.pretraining_steps": 4},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
}
"""Words in a recipe -> further options of trainings with it."""

LONG = {
    ("docs/how-to/frontier.md", "WTF-RL"): "eleven trainings in the code of the command above it",
}
"""Page and a word of a command that lists its trainings (``--dry_run``) instead of running them, and why."""

ONLY_READ = ("make", "pip", *OTHERS)
ELSEWHERE = ("python app.py",)
"""Commands that other tests run: ``test_space.py``."""
PACKAGES = {"ray": "--engine ray"}
"""Package -> the words of commands that need it, which are left out where it is not installed."""

OTHER_CODES = {"--strict true": {0, 1}}
"""Words of a command -> its exit codes; of others it is 0."""


@pytest.fixture(scope="module", autouse=True)
def small_world(tmp_path_factory, private_cache) -> Iterator[None]:
    """A cache whose full world is the small one, also for the processes that commands start."""
    built = {name: resolve(name, size="small") for name in STAGES}
    seeded = {f"{name}-seed1": resolve(name, size="small", seed=1) for name in SEEDED[:1]}
    folders = [(still_folder("small"), f"{still.version()}"), (moving_folder("small"), f"video-{moving.version()}")]
    stages = next(iter(built.values())).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELLAPART_CACHE", str(tmp_path_factory.mktemp("pages") / "cache"))
        world = cache_dir() / "world"
        world.mkdir()
        (world / stages.name).symlink_to(stages)
        for folder, name in folders:
            for size in ("full", "small"):
                (world / f"{name}-{size}").symlink_to(folder)
        for name, folder in {**built, **seeded}.items():
            stage, _, seed = name.partition("-seed")
            link = stage_folder(stage, "full", int(seed or 0))
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(folder)
        yield


@dataclass
class Given:
    """What readers have, made once and copied to the folders of pages.

    Args:
        folder: where it is made.
        chat: a served model.
    """

    folder: Path
    chat: Chat

    def run(self, name: str, *, tested: bool) -> Path:
        """A finished run; with ``tested`` also measured on the test split."""
        recipe, seed = RUNS[name]
        place = self.folder / f"{recipe}-{seed}"
        if not place.is_dir():
            tell(["train", recipe, "--seed", str(seed), *shorter(["train", recipe]), "--output_dir", str(place)])
        measured = place.with_name(f"{place.name}-tested")
        if tested and not measured.is_dir():
            shutil.copytree(place, measured)
            tell(["score", str(measured), "--split", "test", "--start"])
        return measured if tested else place

    def data(self) -> Path:
        """Captions in Karpathy's layout, some with objects of COCO; images next to the file, and again in ``images``."""
        place = self.folder / "karpathy"
        if not place.is_dir():
            tell(["data", "convert", "world", str(place), "--to", "karpathy", "--limit", str(IMAGES)])
            found = json.loads((place / "dataset.json").read_text())
            found["images"] = [image for image in found["images"] if image["split"] != "web"]  # which COCO lacks
            for number, image in enumerate(found["images"]):
                image["filepath"] = image["filepath"].removeprefix("images/")
                thing = ("dog", "car", "pizza", "umbrella")[number % 4]
                image["sentences"] += [{"raw": f"a {thing} by a {image['filename']}"}, {"raw": f"we see a {thing}"}]
            (place / "dataset_coco.json").write_text(json.dumps(found))
            shutil.copytree(place / "images", place, dirs_exist_ok=True)
        return place


def tell(words: list[str]) -> None:
    assert main(words) == 0, words


RUNS = {
    "runs/x": ("world_ved_dico", 0),
    "runs/y": ("world_ved_xe_lengths", 0),  # the captions of other recipes are those of their start after two steps
    "runs/world_ved_dico": ("world_ved_dico", 0),
    "runs/world_ved_scst_clip": ("world_ved_scst_clip", 0),
    "runs/coco_blip_dico": ("world_ved_dico", 0),
    "runs/coco_blip2_dico_lora": ("world_ved_dico", 0),
    "runs/scst": ("world_ved_scst_clip", 0),
    "runs/lengths": ("world_ved_xe_lengths", 0),
    **{f"runs/dico-{seed}": ("world_ved_dico", seed) for seed in range(3)},
    **{f"runs/scst-{seed}": ("world_ved_scst_clip", seed) for seed in range(2)},
}
"""Runs that readers have trained: recipe and seed."""


def split_of(command: Command) -> str:
    return "test" if "test" in command.text else "val"


def examples(command: Command) -> CaptionDataset:
    return load_world(split_of(command), size="small")[:IMAGES]


def put_run(given: Given, place: Path, command: Command) -> None:
    if not place.exists():
        shutil.copytree(given.run(place.as_posix(), tested=split_of(command) == "test"), place)


def put_photos(given: Given, place: Path, command: Command) -> None:
    place.mkdir()
    for example in examples(command):
        example.image.open().save(place / f"{example.id}.png")


def put_captioned_photos(given: Given, place: Path, command: Command) -> None:
    put_photos(given, place, command)
    for example in examples(command):
        (place / f"{example.id}.txt").write_text(example.references[0])


def put_clips(given: Given, place: Path, command: Command) -> None:
    place.mkdir()
    for number in range(3):
        write_clip(place / f"{number}.mp4", grey_frames(10 + number))


def put_film(given: Given, place: Path, command: Command) -> None:
    write_clip(place, grey_frames(30), rate=1)


def put_data(given: Given, place: Path, command: Command) -> None:
    shutil.copytree(given.data(), place.parent, dirs_exist_ok=True)


def put_captions(given: Given, place: Path, command: Command) -> None:
    """As COCO results, by another caption of each image."""
    rows = [{"image_id": one.id, "caption": f"we see {one.references[0]}"} for one in examples(command)]
    place.write_text(json.dumps(rows))


def put_references(given: Given, place: Path, command: Command) -> None:
    """As COCO annotations."""
    found = examples(command)
    captions = [text for one in found for text in one.references]
    ids = [one.id for one in found for _ in one.references]
    place.write_text(
        json.dumps(
            {
                "images": [{"id": one.id, "file_name": f"{one.id}.png"} for one in found],
                "annotations": [
                    {"id": number, "image_id": image, "caption": text}
                    for number, (image, text) in enumerate(zip(ids, captions, strict=True))
                ],
            }
        )
    )


def put_generated(given: Given, place: Path, command: Command) -> None:
    if not Path("photos").exists():
        put_photos(given, Path("photos"), command)
    tell(["caption", "photos/", "--captioner", "world/xe", "--output", str(place)])


def put_photo_captions(given: Given, place: Path, command: Command) -> None:
    if not place.parent.exists():
        put_photos(given, place.parent, command)
    put_references(given, place, command)


def put_neighbours(given: Given, place: Path, command: Command) -> None:
    data = str(given.data() / "dataset_coco.json")
    tell(["mine", data, "--split", split_of(command), "--listener", "world/listener", "--output", str(place)])


def table(given: Given, place: Path, command: Command) -> list[dict[str, str]]:
    """Rows of a table about photos."""
    if not Path("photos").exists():
        put_photos(given, Path("photos"), command)
    return [
        {"sku": f"s{number}", "url": str(path), "title": f"shape {number}"}
        for number, path in enumerate(sorted(Path("photos").glob("*.png")))
    ]


def put_csv(given: Given, place: Path, command: Command) -> None:
    rows = table(given, place, command)
    place.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")


def put_parquet(given: Given, place: Path, command: Command) -> None:
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist(table(given, place, command)), place)


def put_shards(given: Given, place: Path, command: Command) -> None:
    tell(["data", "convert", "world", str(place), "--to", "webdataset", "--split", "val", "--limit", str(IMAGES)])


def put_judgements(given: Given, place: Path, command: Command) -> None:
    place.mkdir()
    rows = ["imgid,mt,refs,score"]
    for number, one in enumerate(examples(command)):
        refs = str(list(one.references[1:])).replace('"', "'")
        rows += [f'{one.id},{one.references[0]},"{refs}",{number / IMAGES}', f'{one.id},a shape,"{refs}",0.1']
    (place / "polaris.csv").write_text("\n".join(rows) + "\n")


def put_study(given: Given, place: Path, command: Command) -> None:
    for name in ("runs/x", "runs/y"):
        put_run(given, Path(name), command)
    tell(["judge", "runs/x", "runs/y"])


def put_scores(given: Given, place: Path, command: Command) -> None:
    shutil.copytree(place.with_name("mine"), place)


def log_line(step: int) -> dict[str, float]:
    return {"step": step, "reward": 0.5, "loss": 0.1, "completions/mean_length": 20.0}


def put_trl(given: Given, place: Path, command: Command) -> None:
    (place / "checkpoint-20").mkdir(parents=True)
    state = {"log_history": [log_line(step) for step in (10, 20)]}
    (place / "checkpoint-20" / "trainer_state.json").write_text(json.dumps(state))


def put_verl(given: Given, place: Path, command: Command) -> None:
    place.parent.mkdir(parents=True)
    rows = [{"step": step, "data": {"critic/rewards/mean": 0.5}} for step in (1, 2)]
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))


def put_tensorboard(given: Given, place: Path, command: Command) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("board") as writer:
        writer.add_scalar("train/reward", 0.5, 1)
    next(Path("board").iterdir()).rename(place)


Put = Callable[[Given, Path, Command], None]

PLACES: dict[str, Put] = {
    **dict.fromkeys(RUNS, put_run),
    "runs/judge": put_study,
    "runs/trl": put_trl,
    "runs/trl_clip_s": put_trl,
    "logs/verl/metrics.jsonl": put_verl,
    "events.out.tfevents.123": put_tensorboard,
    "photos/": put_photos,
    "clips/": put_clips,
    "film.mp4": put_film,
    "dataset_coco.json": put_data,
    "data/coco/dataset_coco.json": put_data,
    **dict.fromkeys(
        (
            "captions.json",
            "captions_results.json",
            "captions_test_mine_results.json",
            "results.json",
        ),
        put_captions,
    ),
    **dict.fromkeys(("captions_val2014.json", "captions_val2014_test.json"), put_references),
    **dict.fromkeys(("generated.jsonl", "ic3.jsonl"), put_generated),
    "photos/captions.json": put_photo_captions,
    "near.parquet": put_neighbours,
    "products.csv": put_csv,
    "urls.csv": put_csv,
    "urls.parquet": put_parquet,
    "bucket/shards": put_shards,
    "judgements/": put_judgements,
    "scored/theirs": put_scores,
}
"""What a reader has -> what puts it there."""
OF_PAGES: dict[tuple[str, str], Put] = {("docs/reference/data.md", "photos/"): put_captioned_photos}
"""The same for single pages."""
WRITTEN = ("--output", "--output_dir", "--docs", "--copy", "--page", "--keep")
"""Options whose value a command writes."""


def prepare(given: Given, command: Command, words: list[str]) -> None:
    """Put what the command reads where it looks for it."""
    for before, word in zip(["", *words], words, strict=False):
        put = OF_PAGES.get((command.page, word)) or PLACES.get(word)
        if put is not None and before not in WRITTEN and not Path(word).exists():
            put(given, Path(word), command)


def shorter(words: list[str]) -> list[str]:
    """The words that shorten a command."""
    options = dict(next((SHORTER[word] for word in words if word in SHORTER), {}))
    if words[0] in ("train", "frontier"):
        text = find_recipe(words[1]).read_text()
        options |= {
            key: value for word, more in OF_SECTIONS.items() if f"{word}:" in text for key, value in more.items()
        }
        if not yaml.safe_load(text).get("evaluation", {}).get("split"):
            options = {key: value for key, value in options.items() if not key.startswith("eval")}
    return [part for key, value in options.items() for part in (f"--{key}", str(value))]


def here(given: Given, word: str) -> str:
    """A word of a command, with what stands in for what is not here."""
    word = given.chat.url if word == SERVER else word
    return STAND_INS.get(word, word.removeprefix(BUCKET))


def run(given: Given, command: Command) -> int:
    """Run a command in the current folder; its exit code."""
    program, *words = [here(given, word) for word in command.words]
    if program == "torchrun":
        at = words.index("tellapart") + 1
        launch, words = [LAUNCH.get(before, word) for before, word in pairwise(["", *words[:at]])], words[at:]
        prepare(given, command, words)
        launch = [sys.executable, "-m", "torch.distributed.run", *launch]
        return subprocess.run([*launch, *words, *shorter(words), *over(words)]).returncode
    if program == "python":
        return run_python(words)
    prepare(given, command, words)
    if "pyproject.toml" in files_of(ROOT / command.page):  # a package that this process has not seen installed
        return subprocess.run([sys.executable, "-m", "tellapart", *words, *shorter(words)]).returncode
    more = ["--dry_run"] if any((command.page, word) in LONG for word in command.words) else []
    return main([*words, *shorter(words), *more, *over(words)])


def over(words: list[str]) -> list[str]:
    """Commands of a page that write to one place are alternatives, unless they resume."""
    written = {before: word for before, word in pairwise(words) if before in WRITTEN}
    if words[0] == "train" and "--resume_from_checkpoint" not in words:
        shutil.rmtree(written.get("--output_dir", "none"), ignore_errors=True)
    place = words[3] if words[:2] == ["data", "convert"] else written.get("--output", "none")
    resumes = words[0] not in ("caption", "data") or "--by_shard" in words
    return ["--overwrite"] if not resumes and Path(place).exists() else []


def run_python(words: list[str]) -> int:
    if words[0] == "-c":
        exec(words[1], {})
        return 0
    if words[:2] == ["-m", "tellapart.sweep.run_study"]:
        run_study(words[2], argv=[*words[3:], *shorter(words[1:])])
        return 0
    script = [str(ROOT / word) if word.endswith(".py") else word for word in words]
    return subprocess.run([sys.executable, *script, *shorter(words)]).returncode


def is_run(given: Given, command: Command, folder: Path) -> bool:
    """Whether a command can run here."""
    if command.synopsis or command.program in ONLY_READ or command.text in ELSEWHERE:
        return False
    if any(find_spec(package) is None and words in command.text for package, words in PACKAGES.items()):
        return False
    words = " ".join(f"'{here(given, word)}'" for word in command.words)
    return not (command.mark and needed(Command(command.page, command.line, words), folder))


@pytest.fixture(scope="module")
def given(tmp_path_factory, small_world) -> Iterator[Given]:
    with serving(Chat()) as chat:
        yield Given(tmp_path_factory.mktemp("given"), chat)


@pytest.fixture
def answered(monkeypatch) -> None:
    """The page of a study, at any free port, is answered by one person, who then presses Ctrl-C."""
    monkeypatch.setattr("tellapart.evaluation.judge.serve.listen", lambda port: listen(0))

    def serve(study: Study, listening: object) -> None:
        answers = Answers(study.folder / ANSWERS_FILE)
        rater = answers.enter("ann")
        for item in study.items:
            choice = "a" if item.question == READS_BETTER else "target"
            answers.record(rater, item.id, choice, first=choice, seconds=1.0)
        answers.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("tellapart.evaluation.judge.serve.serve", serve)


@pytest.fixture
def meteor(monkeypatch, tmp_path_factory) -> None:
    place = write_data(tmp_path_factory.mktemp("meteor"))
    monkeypatch.setattr("tellapart.metrics.meteor_data.source", lambda: place)


def last_words(said: str) -> str:
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    return "\n".join(errors or said.splitlines()[-12:])


@pytest.mark.parametrize("page", COMMANDS)
def test_the_commands_of_a_page_run_in_their_order(page, given, answered, meteor, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT / "src", ROOT, tmp_path / "site"))))
    write_own_recipes(tmp_path)
    for name, text in files_of(ROOT / page).items():
        (tmp_path / name).write_text(text)
    if (tmp_path / "pyproject.toml").exists():
        pip = ("pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", "site", ".")
        subprocess.run([sys.executable, "-m", *pip], check=True)
    failed = {}
    for block in COMMANDS[page]:
        for command in block:
            if not is_run(given, command, tmp_path):
                continue
            capfd.readouterr()
            torch.manual_seed(0)
            try:
                code = run(given, command)
            except SystemExit as ended:
                code = ended.code
            codes = next((codes for words, codes in OTHER_CODES.items() if words in command.text), {0})
            if code not in codes:
                failed[str(command)] = f"{command.text}: {code}: {last_words(capfd.readouterr().err)}"
    assert not failed, "\n".join(f"{where}: {what}" for where, what in failed.items())
