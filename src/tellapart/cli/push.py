"""``tellapart push``: a run's captioner and its model card on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tellapart.cli.command import options_of
from tellapart.cli.console import note, say
from tellapart.errors import UsageError
from tellapart.recipe.words import TrainFlags

if TYPE_CHECKING:
    from tellapart.recipe.measured import DataOptions


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Options of ``tellapart push``.

    Args:
        hub_model_id: name of the repository, owner/name; it is created if it does not exist.
        hub_private_repo: create a new repository as private.
        dry_run: list what would be uploaded, and only write the model card.
    """

    examples: ClassVar[tuple[str, ...]] = ("tellapart push runs/x --hub_model_id me/my-captioner --dry_run",)
    hub_model_id: str | None = None
    hub_private_repo: bool = False
    dry_run: bool = False


def run(argv: Sequence[str]) -> int:
    """Upload the selected captioner of a run."""
    chosen = options_of(
        argv,
        PushOptions,
        usage="push RUN --hub_model_id OWNER/NAME",
        description="Upload the selected captioner of a run, with its model card, to the Hugging Face hub.",
    )
    if chosen is None:
        return 0
    words, options = chosen
    if len(words) != 1:
        raise UsageError(f"{len(words)} runs were named: give the folder of one.")
    from tellapart.training.hub import check_name, require_login

    name = check_name(options.hub_model_id, "--hub_model_id")
    if not options.dry_run:
        require_login()
    push_run(Path(words[0]), name, private=options.hub_private_repo, dry_run=options.dry_run)
    return 0


def check_push(flags: TrainFlags) -> None:
    """Raise before a training whose captioner could not be pushed at its end.

    Raises:
        UsageError: there is no name to push to, or no one is logged in.
    """
    if flags.hub_model_id is not None and not flags.push_to_hub:
        raise UsageError(f"--hub_model_id {flags.hub_model_id} pushes nothing on its own: add --push_to_hub.")
    if flags.hub_private_repo and not flags.push_to_hub:
        raise UsageError("--hub_private_repo pushes nothing on its own: add --push_to_hub.")
    if flags.push_to_hub:
        from tellapart.training.hub import check_name, require_login

        check_name(flags.hub_model_id, "--hub_model_id")
        require_login()


def push_trained(run: Path, flags: TrainFlags) -> None:
    """Push what was trained.

    Raises:
        UsageError: it cannot be pushed; the run itself is whole, and the sentence says how to try again.
    """
    try:
        push_run(run, str(flags.hub_model_id), private=flags.hub_private_repo)
    except UsageError as error:
        again = f"tellapart push {run} --hub_model_id {flags.hub_model_id}"
        reason = str(error).rstrip(".")
        raise UsageError(f"the run in {run} is complete, but was not pushed: {reason}; then run {again}") from error


def push_run(run: Path, name: str, *, private: bool = False, dry_run: bool = False) -> None:
    """Rewrite the card, for the name it will be found under, and upload it with the selected captioner.

    A card that somebody else wrote is uploaded as it is.

    Raises:
        UsageError: the run does not exist or has no captioner, or it cannot be uploaded.
    """
    from tellapart.evaluation.card import CARD_FILE
    from tellapart.files import trained_part
    from tellapart.training.hub import push

    if not run.exists():
        raise UsageError(f"{run} does not exist: name the folder of a run of tellapart train.")
    captioner = trained_part(run, "captioner")
    if captioner is None:
        raise UsageError(f"{run} holds no trained captioner: name the folder of a run of tellapart train.")
    write_or_keep_card(run, name=name, references=references_of(run))
    files = sorted(path.name for path in captioner.iterdir() if path.is_file() and path.name[0] != ".")
    if dry_run:
        say(f"{name} would get {CARD_FILE} and, from {captioner}: {', '.join(f for f in files if f != CARD_FILE)}")
        return
    say(push(captioner, name, card=(run / CARD_FILE).read_text(encoding="utf-8"), private=private))


def write_or_keep_card(
    run: Path,
    *,
    protocol: str | None = None,
    references: Mapping[str, Sequence[str]] | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Path:
    """The run's card, rewritten unless someone else wrote it, which is printed; arguments are those of ``write_card``."""
    from tellapart.evaluation.card import CARD_FILE, write_card

    written = write_card(run, protocol=protocol, references=references, name=name, seed=seed)
    if written is None:
        note(f"note: {run / CARD_FILE} was not written by tellapart and stays as it is.")
    return run / CARD_FILE


def references_of(run: Path, options: DataOptions | None = None, *, required: bool = False) -> Mapping[str, list[str]]:
    """Human captions of the images that a run was measured on; empty where these can no longer be read.

    Raises:
        UsageError: they cannot be read and are required, as where ``options`` were given by hand.
    """
    from tellapart.recipe.measured import DataOptions, load
    from tellapart.recipe.runs import made

    try:
        return load(options or DataOptions(), made(run)).dataset.references
    except (UsageError, OSError):
        if required:
            raise
        return {}
