"""A study: what people are asked about two runs' captions, as a folder that needs nothing else."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.data.dataset import CaptionDataset
from tellapart.data.images import ImageSource
from tellapart.errors import UsageError
from tellapart.evaluation.moving import is_animation, moves, playing
from tellapart.files import fresh_folder, read_json, write_bytes, write_json
from tellapart.frames import Clip, is_clip
from tellapart.listeners.neighbours import Neighbours
from tellapart.progress import track

if TYPE_CHECKING:
    from PIL import Image


# Pictures as the page shows them: encoded again, so that a browser never receives a file of the collection.

LONGEST_SIDE = 1024
"""Pixels that a picture is shrunk to at most."""

LONGEST_CLIP_SIDE = 512
"""The same of a clip, of which eight frames are sent."""

SMALL_SIDE = 128
"""Up to this size a picture is kept pixel by pixel, as PNG."""

CLIP_ENDING = ".webp"
"""Of the files of clips, and of no still image."""

MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg", CLIP_ENDING: "image/webp"}


def write_picture(folder: Path, image: Image.Image) -> str:
    """Write an RGB image, without what its file said besides the pixels; returns the file's name.

    The name is a hash of the content, so it reveals nothing about where the image comes from or what is asked about it.
    """
    picture = image.convert("RGB")
    small = max(picture.size) <= SMALL_SIDE
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    picture.info.clear()
    buffer = io.BytesIO()
    if small:
        picture.save(buffer, "PNG", optimize=True)
    else:
        picture.save(buffer, "JPEG", quality=88, optimize=True)
    return _write(folder, buffer.getvalue(), ".png" if small else ".jpg")


def write_moving(folder: Path, clip: Clip) -> str:
    """The same of a clip, which plays."""
    return _write(folder, playing(clip, LONGEST_CLIP_SIDE, small=SMALL_SIDE)[0], CLIP_ENDING)


def _shown(folder: Path, image: ImageSource) -> str:
    return write_moving(folder, image) if moves(image) else write_picture(folder, image.open())


def _write(folder: Path, data: bytes, ending: str) -> str:
    name = hashlib.sha256(data).hexdigest()[:20] + ending
    if not (folder / name).is_file():
        write_bytes(folder / name, data)
    return name


# Draws that depend on names alone, and are the same on every machine and in every version of Python.


def drawn_number(seed: int, *names: str) -> int:
    """A number of 64 bits that a seed and names decide."""
    text = "\x1f".join([str(seed), *names])
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def shuffled(names: Iterable[str], seed: int, *of: str) -> list[str]:
    """Names in an order that the seed and ``of`` decide; the other names do not change whether one comes first."""
    return sorted(names, key=lambda name: (drawn_number(seed, *of, name), name))


STUDY_FILE, ANSWERS_FILE, PICTURES = "study.json", "answers.sqlite", "pictures"
WHICH_IMAGE, READS_BETTER = "which_image", "reads_better"
UNSURE = "unsure"
CHOICES = {WHICH_IMAGE: ("target", "distractor"), READS_BETTER: ("a", "b")}
"""Question -> what may be chosen, in the order in which an item holds it; ``UNSURE`` is always allowed."""

_VERSION = 1


@dataclass(frozen=True)
class Item:
    """One thing that a rater is asked.

    Args:
        id: hexadecimal; reveals nothing about runs.
        question: ``WHICH_IMAGE`` or ``READS_BETTER``.
        images: ids of the target and the distractor, or of the one image.
        captions: the one caption, or run A's and run B's.
        runs: positions of the runs that a right answer counts for: of both where they wrote the same caption.
    """

    id: str
    question: str
    images: tuple[str, ...]
    captions: tuple[str, ...]
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """All items, and where their pictures are.

    Args:
        folder: where the study lives.
        runs: what tables call run A and run B.
        seed: of orders and sides.
        items: in an order that reveals nothing.
        pictures: image id -> file in the folder's ``pictures``.
        stills: of the GIF and WebP files among images that move, image id -> file there of the first frame.
        asked: the words and options it was made from.
        about: where distractors come from, how many captions agree, in words and counts.
    """

    folder: Path
    runs: tuple[str, str]
    seed: int
    items: tuple[Item, ...]
    pictures: dict[str, str]
    stills: dict[str, str] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def items_of(self, question: str) -> list[Item]:
        """The items of one question."""
        return [item for item in self.items if item.question == question]

    def require_pictures(self) -> None:
        """Raise where a picture is gone, since a missing picture cannot be judged.

        Raises:
            UsageError: the folder lacks some.
        """
        folder = self.folder / PICTURES
        files = dict.fromkeys([*self.pictures.values(), *self.stills.values()])
        gone = [name for name in files if not (folder / name).is_file()]
        if gone:
            raise UsageError(
                f"{folder} lacks {len(gone)} of the study's pictures, first {gone[0]}: put them back, or copy the study's "
                "whole folder again."
            )

    @staticmethod
    def load(folder: Path) -> Study:
        """Read what ``write_study`` wrote.

        Raises:
            UsageError: it is not there, or damaged.
        """
        path = folder / STUDY_FILE
        if not path.is_file():
            raise UsageError(f"{folder} holds no study: make one with tellapart judge RUN_A RUN_B --images DATA.")
        try:
            value = read_json(path)
            items = [
                Item(row["id"], row["question"], tuple(row["images"]), tuple(row["captions"]), tuple(row["runs"]))
                for row in value["items"]
            ]
            first, second = value["runs"]
            pictures, stills, seed = dict(value["pictures"]), dict(value.get("stills", {})), int(value["seed"])
            return Study(folder, (first, second), seed, tuple(items), pictures, stills, value["asked"], value["about"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is damaged ({error}): make the study again in another folder.") from error


def plain(caption: str) -> str:
    """A caption as it is shown and compared: white space of any kind is one space."""
    return " ".join(caption.split())


def choose_images(
    first: Mapping[str, str], second: Mapping[str, str], *, count: int, seed: int
) -> dict[str, list[str]]:
    """Question -> up to ``count`` images to ask about.

    Only images whose two captions differ can be asked about which reads better. Images of the one question are not asked
    about in the other as long as there are enough.

    Args:
        first: image id -> run A's caption.
        second: image id -> run B's.
        count: images of each question.
        seed: of the draw; images that only one run captions change nothing.

    Raises:
        UsageError: no image is captioned by both.
    """
    both = shuffled([image_id for image_id in first if image_id in second], seed, "images")
    if not both:
        raise UsageError("the two runs caption no image in common: name runs that were measured on the same data.")
    which, fresh_first = both[:count], [*both[count:], *both[:count]]
    differ = [image_id for image_id in fresh_first if plain(first[image_id]) != plain(second[image_id])]
    return {WHICH_IMAGE: which, READS_BETTER: differ[:count]}


def make_items(
    chosen: Mapping[str, Sequence[str]],
    first: Mapping[str, str],
    second: Mapping[str, str],
    distractors: Mapping[str, str],
    *,
    seed: int,
) -> list[Item]:
    """The items: of each image of *which image* one per caption (one in all if both are alike), of the others one each.

    Args:
        chosen: question -> images, as ``choose_images`` gives them.
        first: image id -> run A's caption.
        second: image id -> run B's.
        distractors: image id -> the other image, of every image of *which image*.
        seed: of ids and order.
    """
    drafts: list[Item] = []
    for image_id in chosen.get(WHICH_IMAGE, ()):
        pair = (image_id, distractors[image_id])
        captions = plain(first[image_id]), plain(second[image_id])
        if captions[0] == captions[1]:
            drafts.append(Item("", WHICH_IMAGE, pair, captions[:1], (0, 1)))
        else:
            drafts += [Item("", WHICH_IMAGE, pair, (captions[run],), (run,)) for run in (0, 1)]
    for image_id in chosen.get(READS_BETTER, ()):
        captions = plain(first[image_id]), plain(second[image_id])
        drafts.append(Item("", READS_BETTER, (image_id,), captions, (0, 1)))
    named = []
    for draft in drafts:
        parts = (draft.question, *draft.images, *draft.captions)
        named.append(Item(f"{drawn_number(seed, *parts):016x}", *parts_of(draft)))
    return sorted(named, key=lambda item: item.id)


def parts_of(item: Item) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[int, ...]]:
    """What an item is, without its id."""
    return item.question, item.images, item.captions, item.runs


def require_stills(dataset: CaptionDataset, items: Sequence[Item]) -> None:
    """Raise if items show clips, of which a model would see one frame only.

    Raises:
        UsageError: naming the first.
    """
    for image_id in sorted({image_id for item in items for image_id in item.images}):
        image = dataset[dataset.position[image_id]].image
        if not is_animation(image) and is_clip(image):
            raise UsageError(
                f"image {image_id!r} is a clip, but a model judges still images only: have people answer, without --vlm."
            )


def write_study(
    folder: Path,
    dataset: CaptionDataset,
    items: Sequence[Item],
    *,
    runs: tuple[str, str],
    seed: int,
    asked: Mapping[str, Any],
    about: Mapping[str, Any],
) -> Study:
    """Write a study in one rename, with every picture it shows.

    Args:
        folder: new, or empty.
        dataset: the images.
        items: what is asked.
        runs: names of run A and run B.
        seed: of orders and sides.
        asked: what the user asked for.
        about: what a reader must know.

    Raises:
        UsageError: the folder holds something, a picture cannot be read, or there is nothing to ask.
    """
    if not items:
        raise UsageError("both runs wrote the same captions: there is nothing to ask which of two reads better.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} holds other files: choose another --output_dir for the study.")
    shown = sorted({image_id for item in items for image_id in item.images})
    with fresh_folder(folder) as temporary:
        pictures, stills = {}, {}
        for image_id in track(shown, "pictures"):
            image = dataset[dataset.position[image_id]].image
            pictures[image_id] = _shown(temporary / PICTURES, image)
            if pictures[image_id].endswith(CLIP_ENDING) and is_animation(image):
                stills[image_id] = write_picture(temporary / PICTURES, image.open())
        value = {"version": _VERSION, "runs": runs, "seed": seed, "asked": asked, "about": about}
        value |= {"pictures": pictures, "stills": stills, "items": [asdict(item) for item in items]}
        write_json(temporary / STUDY_FILE, value)
    return Study.load(folder)


# The other image of *which image*: a mined neighbour, or any other picture.


def nearest_others(neighbours: Neighbours, dataset: CaptionDataset, ids: Sequence[str]) -> dict[str, str]:
    """The nearest neighbour of each image that the data hold.

    Raises:
        UsageError: an image has none.
    """
    found = {}
    for image_id, near in zip(ids, neighbours.of(ids), strict=True):
        held = [other for other in near if other in dataset.position and other != image_id]
        if not held:
            raise UsageError(
                f"none of the {len(near)} neighbours of image {image_id!r} is in {dataset.name}: mine its own images."
            )
        found[image_id] = held[0]
    return found


def random_others(dataset: CaptionDataset, ids: Sequence[str], *, seed: int) -> dict[str, str]:
    """Any other image with other content for each image.

    Raises:
        UsageError: there is none, or an image cannot be read.
    """
    found = {}
    for image_id in ids:
        own = dataset[dataset.position[image_id]].image.fingerprint()
        start = drawn_number(seed, "distractor", image_id) % len(dataset)
        turned = (dataset[(start + step) % len(dataset)] for step in range(len(dataset)))
        other = next((e.id for e in turned if e.id != image_id and e.image.fingerprint() != own), None)
        if other is None:
            raise UsageError(f"{dataset.name} has no other picture than that of image {image_id!r}: give more images.")
        found[image_id] = other
    return found


# In which order and on which side a rater meets things: random, and the same again for the same name.


def order(study: Study, rater: str) -> list[Item]:
    """The items as a rater meets them.

    *Which image* comes first: captions shown next to one picture would tell what it is about. Each pair of pictures comes
    once in a first round and, with the other run's caption, again at the same place of a second. Which run comes first is
    drawn for each pair, so that what is remembered favours neither.
    """
    pairs: dict[tuple[str, ...], list[Item]] = {}
    for item in study.items_of(WHICH_IMAGE):
        pairs.setdefault(item.images, []).append(item)
    names = {"\x1e".join(images): items for images, items in pairs.items()}
    turns = [
        sorted(names[name], key=lambda item: drawn_number(study.seed, rater, "first", item.id))
        for name in shuffled(names, study.seed, rater)
    ]
    rounds = max(map(len, turns), default=0)
    which = [items[number] for number in range(rounds) for items in turns if number < len(items)]
    rest = {item.id: item for item in study.items_of(READS_BETTER)}
    return which + [rest[name] for name in shuffled(rest, study.seed, rater)]


def swapped(study: Study, rater: str, item: Item) -> bool:
    """Whether the second of an item's two choices is shown first to a rater."""
    return drawn_number(study.seed, rater, "side", item.id) % 2 == 1
