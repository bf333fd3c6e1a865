"""The sections of a recipe of ``tellapart train-listener``. Importing this module must stay cheap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tellapart.listeners.kinds import is_vse
from tellapart.recipe.sections import LoraSection

NEW_VSE = "new/vse"


@dataclass(frozen=True, kw_only=True)
class NewVseSection:
    """A recurrent listener that begins with random weights (VSE++: Faghri et al., 2018).

    Args:
        word_size: width of the word embeddings.
        hidden_size: width of the GRU, and of the space that images and captions share.
    """

    word_size: int = 512
    hidden_size: int = 1024


@dataclass(frozen=True, kw_only=True)
class TrainedListenerSection:
    """The dual encoder to be trained.

    Args:
        path: a CLIP or SigLIP model: a folder, a Hugging Face id, or world/listener; new/vse, a recurrent listener over
            image features; or a run that trained one.
        prefix: words put before each text; null takes what belongs to the model. They are saved with it.
        train: which weights train: the text side and the temperature (text), everything (all), or with loss pac the two
            projections alone (projections); null takes all of a recurrent listener, the projections with loss pac, else
            the text side.
        lora: with loss pac, train adapters of this kind in both towers instead of weights; null trains the weights.
        vocabulary: of new/vse, the captioner whose words it is to know: a run, a folder, a Hugging Face id, or world/xe.
        image_encoder: of new/vse without data.features, a CLIP whose image embeddings it reads, such as world/listener.
        new: what new/vse is like; null takes the defaults.
    """

    path: str
    prefix: str | None = None
    train: Literal["text", "all", "projections"] | None = None
    lora: LoraSection | None = None
    vocabulary: str | None = None
    image_encoder: str | None = None
    new: NewVseSection | None = None

    @property
    def is_new(self) -> bool:
        """Whether it begins with random weights."""
        return self.path == NEW_VSE

    @property
    def is_recurrent(self) -> bool:
        """Whether it is a VSE, new or trained."""
        return self.is_new or is_vse(self.path)

    @property
    def trains(self) -> str:
        """``text`` or ``all``."""
        return self.train or ("all" if self.is_recurrent else "text")


@dataclass(frozen=True, kw_only=True)
class ListenerEvaluationSection:
    """What the training is watched by.

    Args:
        split: the part of the data to retrieve in; null never evaluates.
        path: data to evaluate on when it is not the training data's path.
        images: folder of that path's images; null takes the training data's.
        limit: use only the first so many images; null uses all.
    """

    split: str | None = "val"
    path: str | None = None
    images: Path | None = None
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class HeadSection:
    """The grammar head, trained with --grammar only.

    Args:
        weight: of the head's cross-entropy beside the contrastive loss.
        min_count: words that occur less often in the training captions are never put into a corrupted one.
    """

    weight: float = 1.0
    min_count: int = 1


@dataclass(frozen=True, kw_only=True)
class HingeSection:
    """The hinge loss of the hardest negatives, with --loss hinge only.

    Args:
        margin: by how much an image and its caption should be nearer than others, on the scale of cosines.
        reduction: sum over the images of a batch (as PSST's code), or their mean.
        warmup_steps: begin with so many steps against all others of the batch, where the hardest would be too hard.
    """

    margin: float = 0.2
    reduction: Literal["sum", "mean"] = "sum"
    warmup_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class PacSection:
    """Positive-augmented contrastive training (Sarto et al., CVPR 2023), with --loss pac only.

    Args:
        captions: a file of generated captions of the training images (as tellapart caption writes, or any other that score
            reads), by image id or file name; of several captions of an image one is drawn each time.
        captioner: in place of captions, what writes one for each image, greedily, before the training: a run, a model
            folder, a Hugging Face id, or world/xe.
        images: a folder of generated images, one for each training image and named by its id; null trains without.
        caption_weight: of the term with generated captions (lambda_t); 0 leaves it out.
        image_weight: of the term with generated images (lambda_v).
    """

    captions: Path | None = None
    captioner: str | None = None
    images: Path | None = None
    caption_weight: float = 0.1
    image_weight: float = 0.05
