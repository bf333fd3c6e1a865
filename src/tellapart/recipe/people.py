"""The metrics that ``tellapart bench people`` holds against people: models by name, images by file name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tellapart.errors import UsageError

if TYPE_CHECKING:
    from tellapart.data.dataset import CaptionDataset
    from tellapart.data.judgements.layouts import References
    from tellapart.data.judgements.records import Judgements
    from tellapart.evaluation.people.scorers import Scorer


def references_from(path: str) -> References:
    """Human captions by file name and by id, of data in any layout.

    Raises:
        UsageError: they cannot be read.
    """
    from tellapart.data.load import load_references

    found: dict[str, tuple[str, ...]] = {}
    several = set()
    for example in load_references(path):
        name = Path(example.image.name).name
        if found.get(name, example.references) != example.references:
            several.add(name)  # of different images: none can be meant
        found[name] = example.references
        found[example.id] = example.references
    return {name: texts for name, texts in found.items() if name not in several}


@dataclass(frozen=True, kw_only=True)
class Judges:
    """The scorer of captions.

    Args:
        images: folder with the images (below it, by file name), for metrics that see them.
        listener: CLIP or SigLIP model for CLIPScore and RefCLIPScore; needs --images.
        pac: encoder of PAC-S: the authors' .pth file, a folder or a Hugging Face id; needs --images.
        pac_base: for .pth files, the model that they were trained from.
        itm: BLIP, BLIP-2 or an instruct model that matches images and texts; needs --images.
        meteor: also METEOR, whose data come with pycocoevalcap.
    """

    images: Path | None = None
    listener: str | None = None
    pac: str | None = None
    pac_base: str | None = None
    itm: str | None = None
    meteor: bool = False

    def scorers(self, judgements: Judgements) -> list[Scorer]:
        """Scorers that know the images of a set.

        Raises:
            UsageError: a model is missing or of another kind, or images are missing.
        """
        from tellapart.evaluation.people.scorers import TextScorer

        found: list[Scorer] = [TextScorer(meteor=self.meteor)]
        if self.models:
            found += self._seeing(self._dataset(judgements))
        return found

    @property
    def models(self) -> list[str]:
        """The models that see images."""
        return [name for name in (self.listener, self.pac, self.itm) if name is not None]

    def as_published(self, *, clip: str, pac: str) -> list[str]:
        """The metrics whose model is the one of the published values.

        Args:
            clip: name of the listener, without its owner or folder.
            pac: name of the PAC-S file.
        """
        found = ["CLIPScore", "RefCLIPScore"] if Path(str(self.listener)).name == clip else []
        return found + (["PAC-S", "RefPAC-S"] if Path(str(self.pac)).name == pac else [])

    def described(self) -> str:
        """The models by name, as one sentence; nothing where there are none."""
        return f"Models: {', '.join(self.models)}." if self.models else ""

    def _seeing(self, dataset: CaptionDataset) -> Iterator[Scorer]:
        from tellapart.evaluation.listening import PAC_NAMES
        from tellapart.evaluation.people.scorers import MatcherScorer, SimilarityScorer
        from tellapart.evaluation.scorers import MatchScorer, PacScorer
        from tellapart.metrics.scores import PAC_WEIGHT
        from tellapart.recipe.models import load_listener, load_scorers

        if self.listener is not None:
            listener = load_listener(self.listener)
            listener.cache_images(dataset)
            yield SimilarityScorer(listener)
        for scorer in load_scorers(dataset, pac=self.pac, pac_base=self.pac_base, itm=self.itm):
            if isinstance(scorer, PacScorer):
                yield SimilarityScorer(scorer.listener, names=PAC_NAMES, weight=PAC_WEIGHT)
            if isinstance(scorer, MatchScorer):
                yield MatcherScorer(scorer.matcher)

    def _dataset(self, judgements: Judgements) -> CaptionDataset:
        """The images of a set, found by path, file name, or the number at its end (COCO names them in two ways)."""
        from tellapart.data.dataset import CaptionDataset, Example
        from tellapart.data.folder import is_image
        from tellapart.data.images import ImageFile

        if self.images is None:
            raise UsageError(f"{self.models[0]} sees images: give their folder as --images.")
        files: dict[str, list[Path]] = {}
        for path in sorted(self.images.rglob("*")):
            if is_image(path.name):
                files.setdefault(path.name, []).append(path)
        for own in [own for name, own in files.items() if name.startswith("COCO_")]:
            files.setdefault(own[0].name.rpartition("_")[2], []).extend(own)
        names = judgements.images
        paths = {name: self._one_of(name, files) for name in names}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            raise UsageError(
                f"{self.images} lacks {len(missing)} of the {len(names)} images of {judgements.name}, such as {missing[0]}: "
                "give their folder as --images, or leave the set out with --only."
            )
        examples = [Example(name, ImageFile(path)) for name, path in paths.items() if path is not None]
        return CaptionDataset(examples, name=judgements.name)

    def _one_of(self, name: str, files: Mapping[str, Sequence[Path]]) -> Path | None:
        """The file of an image, if there is one.

        Raises:
            UsageError: different files have its name.
        """
        assert self.images is not None
        if (exact := self.images / name).is_file():
            return exact
        found = files.get(Path(name).name) or files.get(name.rpartition("_")[2]) or ()
        if len(found) > 1 and len({path.read_bytes() for path in found}) > 1:
            raise UsageError(
                f"{found[0]} and {found[1]} are different images of one name, and either may be {name}: leave one out."
            )
        return found[0] if found else None
